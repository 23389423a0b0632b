"""What a program's source says beside its flags: how it spreads its model over GPUs, if evaluation keeps logits."""

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kb.config.python.declared import called_name, nodes_of

_SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
_AFTERWARDS = re.compile(r"merge|generat|eval|infer|predict|test|export", re.I)


@lru_cache(64)
def device_map_of(text: str) -> str | None:
    """The way in which a program spreads its model over GPUs, where its source says so: ``device_map="auto"``.

    Of a model that is loaded once training is over, in a function of that name or as ``AutoPeftModel``, nothing.
    """
    if "device_map" not in text:
        return None
    nodes = nodes_of(text)
    afterwards = {
        id(inner) for node in nodes if isinstance(node, ast.FunctionDef) and _AFTERWARDS.search(node.name)
        for inner in ast.walk(node)
    }  # fmt: skip
    for node in nodes:
        if id(node) in afterwards:
            continue
        found: ast.expr | None = None
        if (
            isinstance(node, ast.Call)
            and called_name(node) == "from_pretrained"
            and "Peft" not in ast.unparse(node.func)
        ):
            found = next((each.value for each in node.keywords if each.arg == "device_map"), None)
        elif isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "device_map" for each in node.targets):
            found = node.value
        if isinstance(found, ast.Constant) and found.value in _SPREADS:
            return str(found.value)
    return None


LOSS_ONLY = "training.prediction_loss_only"
OF_METRICS = ("training.predict_with_generate", "training.metric_for_best_model")
_TRAINER = r"Trainer\s*[(\[)]|(?m:^[ \t]*(?:from|import)\b[^\n]*Trainer\b)|(?m:^[ \t]+\w*Trainer,?[ \t]*$)"
_BOUND_TRAINER = r"(?m)=[ \t]*(?:\w+\.)*\w*Trainer[ \t]*(?:if\b[^\n]*)?$"  # `trainer_cls = Trainer if … else …`
_NO_METRIC = ("eval_loss", "loss", False, None)


def asks_for_metrics(settings: Mapping[str, Any]) -> bool:
    """Whether settings, by name, ask for metrics of evaluation, whatever the source shows: the loss is none."""
    return any(settings.get(name) not in _NO_METRIC for name in OF_METRICS)


def keeps_no_logits(text: str) -> bool:
    """Whether evaluation keeps no logits: no metric function is given to the trainer (``Trainer.evaluate``), or one
    with a function that makes less of the logits of each step (``preprocess_logits_for_metrics``).
    """
    if "#" in text:  # a metric function in a comment is given to nobody
        text = re.sub(r"(?m)^[ \t]*#.*$", "", text)
    kept = "compute_metrics" in text and "preprocess_logits_for_metrics=" not in text
    trains = "Trainer(" in text or re.search(_BOUND_TRAINER, text) is not None
    return trains and not kept and ".predict(" not in text and "Trainer(**" not in text


POSITIONS = "model.max_positions"


def resizes_positions(text: str) -> bool:
    """Whether a source gives a model another number of positions than its checkpoint has."""
    return re.search(r"\bmax_position_embeddings[\"']?\]?\s*=(?!=)|\bresize_position_embeddings\(", text) is not None


def goes_its_own_way(text: str) -> bool:
    """Whether a source trains by a loop of its own, or sets the precision of what it computes by itself: of a Trainer's
    arguments it has none, and their defaults say nothing of it."""
    return any(sign in text for sign in (".backward(", "autocast(", "MixedPrecision("))


def has_own_loop(text: str) -> bool:
    """Whether a source trains by a loop of its own: what a Trainer does with a setting need not hold there. Prose may
    speak of a Trainer; what is one is called, built on or imported.
    """
    return ".backward(" in text and re.search(_TRAINER, text) is None
