"""What a program picks its best checkpoint by, where its trainer computes no such metric."""

import re
from collections.abc import Mapping, Sequence

from kb.config.python.calls import TRAINER, Call
from kb.config.python.names import Names
from kb.config.python.syntax import dotted_name
from kb.core.document import Event, Setting

OF_LIBRARIES = ("Trainer", "Seq2SeqTrainer", "SFTTrainer")
PACKAGES = ("transformers", "trl")
METRIC, BEST, STRATEGY = (
    "training.metric_for_best_model", "training.load_best_model_at_end", "training.eval_strategy"
)  # fmt: skip
# What an evaluation says of itself (``speed_metrics``, ``TrainerMemoryTracker``), and what TRL logs beside it.
_ALWAYS = r"(?:\w+_)?(?:loss|runtime|samples_per_second|steps_per_second|model_preparation_time)\Z|mem_|token|entropy"
# Where else a source may bring metrics: a function that is set later, an evaluation or a callback of its own.
_ELSEWHERE = r"\bcompute_metrics\s*=|\bdef (?:evaluate|evaluation_loop|on_evaluate|_maybe_log_save_evaluate)\("
METRICS_AT = 7  # the place of ``compute_metrics`` among what a trainer is given


def metric_of_nobody(settings: Mapping[str, Setting], calls: Sequence[Call], names: Names, text: str) -> list[Event]:
    """The event of a run that takes its best checkpoint by a metric which nothing computes: the first evaluation ends
    in a KeyError (``_determine_best_metric`` of transformers/trainer.py).

    Args:
        settings: of the run.
        calls: of the module, which sets up no other run.
        text: the source, which may give the trainer a metric function.
    """
    metric, best, strategy = (settings.get(name) for name in (METRIC, BEST, STRATEGY))
    evaluates = (best is not None and best.value is True) or (
        strategy is not None and strategy.value in ("steps", "epoch")
    )
    if metric is None or not isinstance(metric.value, str) or not evaluates:
        return []
    if re.match(_ALWAYS, metric.value.removeprefix("eval_")) is not None:
        return []
    trainers = [call for call in calls if call.kind.group == TRAINER]
    if (
        len(trainers) != 1
        or sum(call.kind.dialect is not None for call in calls) != 1
        or not _is_librarys(trainers[0], names)
    ):
        return []
    node = trainers[0].node
    given = {keyword.arg for keyword in node.keywords}
    open_ = None in given or len(node.args) > METRICS_AT or "compute_metrics" in given
    shown = metric.span.end > metric.span.start  # what a program says is no place of the config that it is given
    if open_ or not shown or re.search(_ELSEWHERE, re.sub(r"(?m)^[ \t]*#.*$", "", text)) is not None:
        return []
    return [Event("metric-of-nobody", metric.span, {"metric": metric.value, "trainer": trainers[0].name})]


def _is_librarys(call: Call, names: Names) -> bool:
    """Whether a call makes a trainer of the library itself: not of a class that is built on it, whose evaluation may be
    its own."""
    written = dotted_name(call.node.func) or ""
    if call.home is not None or call.name not in OF_LIBRARIES or names.is_class(written):
        return False
    imports = [found for _, found in names.imports_of(written.partition(".")[0])]
    return bool(imports) and all(not found.level and found.module.partition(".")[0] in PACKAGES for found in imports)
