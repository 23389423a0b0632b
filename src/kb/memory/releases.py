"""What a run needs otherwise under earlier releases of transformers than the newest, which the engine follows.

``bench/releases.py`` compares the engine with the simulation under five releases.
"""

from collections.abc import Mapping

from kb.core.setup import CausalLoss

Release = tuple[int, ...]

# From which release on a type has PyTorch's scaled_dot_product_attention; before, attention is computed eagerly unless
# another is named. Source: `_supports_sdpa` of models/*/modeling_*.py in each minor release from 4.36 to 5.23.
SDPA_SINCE: Mapping[str, Release] = {
    **dict.fromkeys(("mistral", "mixtral"), (4, 37)),
    **dict.fromkeys(("phi", "stablelm"), (4, 39)),
    "bert": (4, 41),
    **dict.fromkeys(("gpt2", "gpt_neox"), (4, 42)),
    **dict.fromkeys(("albert", "camembert", "roberta", "xlm-roberta"), (4, 45)),
    **dict.fromkeys(("m2m_100", "mbart", "phi3"), (4, 45)),
    **dict.fromkeys(("distilbert", "opt"), (4, 46)),
    **dict.fromkeys(("blenderbot", "marian", "pegasus", "plbart"), (4, 53)),
    "electra": (5, 0),
    **dict.fromkeys(("t5", "mt5", "umt5"), (5, 15)),
}
# From which release on generation makes logits of the last token alone; before, of the whole prompt, for each beam.
# Source: `logits_to_keep` (`num_logits_to_keep` before 4.50) in models/*/modeling_*.py; 4.45 for what is not named.
LAST_LOGITS: Mapping[str, Release] = {
    "falcon": (4, 47),
    "granite": (4, 48),
    "gpt_neox": (4, 49),
    "gpt2": (4, 53),
    **dict.fromkeys(("bloom", "codegen", "gpt_bigcode", "gpt_neo", "gptj", "opt"), (5, 0)),
}
# Causal models that had a loss of their own, on logits in the type in which they were made (models/*/modeling_*.py).
OWN_LOSS = ("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt")
SHARED_LOSS = (4, 48)  # since then these too have ForCausalLMLoss; GPT-NeoX from 4.49, as its logits are copied no more
LABELS_SHIFTED = (4, 49)  # since then the labels are shifted, and the logits not copied (loss/loss_utils.py)
LOGITS_AS_MADE = (4, 46)  # since then a model returns its logits as they were made; before, in fp32 (`logits.float()`)
WIDE_UNTIL = {
    "granite": (4, 48),
    "mistral": (4, 48),
    "starcoder2": (4, 47),
}  # these did so for longer, where they train


def has_sdpa(model_type: str, release: Release) -> bool:
    """Whether the type can use ``scaled_dot_product_attention`` under a release of transformers."""
    return release >= SDPA_SINCE.get(model_type, ())


def causal_loss_of(model_type: str, release: Release) -> CausalLoss:
    """How a causal model of the type computes its loss under a release of transformers."""
    if release >= LABELS_SHIFTED:
        return "labels"
    if model_type in OWN_LOSS and (release < SHARED_LOSS or model_type == "gpt_neox"):
        return "narrow"
    return "copied" if release >= WIDE_UNTIL.get(model_type, LOGITS_AS_MADE) else "wide"


def last_logits_since(model_type: str) -> Release:
    """From which release on generation makes logits of the last token alone."""
    return LAST_LOGITS.get(model_type, (4, 45))


def boundaries_of(model_type: str) -> tuple[Release, ...]:
    """The releases with which anything here changes for a causal model of the type."""
    own = {WIDE_UNTIL.get(model_type, LOGITS_AS_MADE), last_logits_since(model_type), SHARED_LOSS, LABELS_SHIFTED}
    return tuple(sorted(own))
