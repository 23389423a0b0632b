"""What the source of a Python run says beside its calls: adapters and losses of its own, positions, kept logits."""

import re
from collections.abc import Mapping

from kb.config.python.placing import LOSS_ONLY, POSITIONS, asks_for_metrics, keeps_no_logits, resizes_positions
from kb.core.document import NO_SUCH_RUN, Setting
from kb.core.expression import Unknown
from kb.core.finding import Span
from kb.core.program import freezes, has_own_loss

ADAPTER, LORA, FUSED = "run.adapter", "lora.enabled", "model.fused_loss"
OWN_LAYER = re.compile(r"^class (\w*(?:lora|adapter)\w*)\((?:\w+\.)*(?:Module|Linear\w*)\b", re.I | re.M)
LOSS, COLUMNS = "embedding.loss", "embedding.columns"
# The columns of a data set of triplets by the names that Sentence Transformers' own have, or a sample of three texts.
TRIPLETS = re.compile(
    r"""["']anchor["'].{0,300}?["']positive["'].{0,300}?["'](negative)(?:_1)?["']"""
    r"""|\b(InputExample)\(\s*texts\s*=\s*\[[^\[\],]+,[^\[\],]+,[^\[\],]+\]|["'](triplet)["']\s*[,)]""",
    re.S,
)
MORE_NEGATIVES = re.compile(r"""["'](?:negative_[2-9]|hard_negatives?)\b""")
# Beside functions a list of rewards may name a model, which is loaded beside the one that is trained.
REWARD_MODEL = re.compile(r"""\breward_funcs\s*=\s*\[[^\]\n]*["']([\w.-]+/[\w./-]+)["']""")
NOT_MODELLED = "run.not_modelled"
OWN_TRAINER = "def compute_loss("  # of a trainer that takes the loss from the logits by itself


def said_by_source(text: str, settings: Mapping[str, Setting], span: Span) -> dict[str, Setting]:
    """The settings that the text of a run says, at the place of its own call.

    Args:
        settings: what its calls say.
    """
    found = {} if any(name.startswith("lora.") for name in settings) else _own_adapter(text, span)
    fused = settings.get(FUSED)
    if has_own_loss(text) if fused is None else OWN_TRAINER in text:
        found[FUSED] = _unknown(FUSED, span, "forward" if fused is None else "compute_loss")
    if resizes_positions(text):
        found[POSITIONS] = _unknown(POSITIONS, span, "max_position_embeddings")
    rewards = REWARD_MODEL.search(text) if NOT_MODELLED not in settings else None
    if rewards is not None:
        found[NOT_MODELLED] = Setting(f"a reward model ({rewards[1]})", span, span, ("reward_funcs",), alias=True)
    triplets = TRIPLETS.search(text) if LOSS in settings and COLUMNS not in settings else None
    if triplets is not None and MORE_NEGATIVES.search(text) is None:
        found[COLUMNS] = Setting(3, span, span, (triplets[triplets.lastindex or 0],), alias=True)
    asked = {name: each.value for name, each in (*settings.items(), *found.items())}
    if LOSS_ONLY not in settings and not asks_for_metrics(asked) and keeps_no_logits(text):
        # transformers, trainer.py, ``evaluate``: ``prediction_loss_only`` where ``compute_metrics`` is None
        found[LOSS_ONLY] = Setting(True, span, span, ("compute_metrics",), alias=True)
    return found


def _own_adapter(text: str, span: Span) -> dict[str, Setting]:
    """The adapters that a program makes by a layer of its own, ``class LoRALinear(nn.Module)``; and that it lets a part
    of the weights not train, ``parameter.requires_grad = False``: then the run is no full fine-tuning.
    """
    named = OWN_LAYER.search(text)
    if named is not None:
        return {ADAPTER: Setting(named[1], span, span, (named[1],), alias=True)}
    if not freezes(text):
        return {}
    unknown = Unknown(frozenset((LORA,)), NO_SUCH_RUN)
    return {LORA: Setting(unknown, span, span, ("requires_grad",), alias=True)}


def _unknown(name: str, span: Span, key: str) -> Setting:
    value = Unknown(frozenset((name,)), "known only when the program runs")
    return Setting(value, span, span, (key,), alias=True)
