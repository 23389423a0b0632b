"""What a probe's trials show, and the setting to start from: sentences, and YAML to paste."""

from typing import TYPE_CHECKING

from kb.report.recommend.config import settings_of, to_yaml
from kb.report.terminal import Style, wrap
from kb.report.values import host_size, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Probed

INDENT = "  "
MOST_LISTED = 6
FAILED = ("oom", "hang")


def found_lines(probed: "Probed", words: Words, style: Style) -> list[str]:
    """The largest batch and what bounds it; the trials that the Trainer's own search would have needed."""
    sentences = []
    sought = probed.sought
    if sought is not None and sought.largest:
        trials = words.count("probe.trials", len(probed.pairs))
        sentences.append(words("probe.largest", batch=sought.largest, trials=trials))
        sentences.append(words(f"probe.next_one.{sought.next_one}", batch=sought.largest + 1))
    elif sought is not None:
        sentences.append(words("probe.no_batch_ran"))
    if probed.auto_find:
        sentences.append(_auto_find(probed, words, style))
    if probed.kind == "smoke":
        sentences += _smoke(probed, words)
    return [line for sentence in sentences for line in wrap(sentence, style.width)]


def _auto_find(probed: "Probed", words: Words, style: Style) -> str:
    tried = probed.auto_find
    shown = [str(batch) for batch in tried]
    if len(shown) > MOST_LISTED:
        shown = [*shown[: MOST_LISTED - 2], style.ellipsis, shown[-1]]
    key = "probe.auto_find_below" if probed.sought and tried[-1] < probed.sought.largest else "probe.auto_find"
    trials = words.count("probe.trials", len(tried))
    return words(key, start=tried[0], trials=trials, batches=", ".join(shown), last=tried[-1])


def _smoke(probed: "Probed", words: Words) -> list[str]:
    """The peak beside its prediction."""
    trial, outcome = probed.pairs[0]
    if not outcome.fits:
        return [words(f"probe.smoke_failed.{outcome.status if outcome.status in FAILED else 'crash'}")]
    peak = outcome.peak_bytes
    predicted = max((row.get("process_bytes", 0) for row in trial.predicted.values()), default=0)
    if peak and predicted:
        return [
            words("probe.smoke_beside", peak=size(peak), predicted=size(predicted), off=f"{peak / predicted - 1:+.1%}")
        ]
    return [words("probe.smoke_ran", steps=trial.steps)] if not trial.command else [words("probe.smoke_command")]


def recommended_lines(probed: "Probed", words: Words, style: Style) -> list[str]:
    """The setting to start from."""
    found = probed.recommended
    if found is None:
        return []
    low, high = probed.target or (0, 0)
    shown = host_size if probed.kind == "host" else size
    used = shown(found.used_bytes) if found.used_bytes else "?"
    what = ("workers" if probed.kind == "host" else "batch") + ("" if found.used_bytes and found.share else "_alone")
    text = words(f"probe.recommended.{what}", number=found.number, used=used, share=found.share)
    why = words(f"probe.reason.{found.reason}", low=low, high=high)
    how = [] if found.tried else [words("probe.computed_from_trials")]
    lines = [style.paint(line, "heading") for line in wrap(text, style.width)]
    lines += wrap(" ".join([why, *how]), style.width, INDENT)
    yaml = config_yaml(probed)
    return [*lines, "", *yaml.rstrip("\n").split("\n")] if yaml else lines


def config_yaml(probed: "Probed") -> str | None:
    """The recommended run as YAML to paste; of a command or a host probe the one setting alone."""
    found = probed.recommended
    if found is None:
        return None
    if probed.setup is None:
        name = "dataloader_num_workers" if probed.kind == "host" else "per_device_train_batch_size"
        return to_yaml({f"training.{name}": found.number}, {})
    if not (probed.setup.do_train or probed.setup.do_predict):
        return to_yaml({"training.per_device_eval_batch_size": probed.setup.per_device_eval_batch_size}, {})
    settings = settings_of(probed.setup, workers_known=False, one_sequence=probed.one_sequence)
    settings.pop("model.name", None)
    return to_yaml(settings, {}, one_sequence=probed.one_sequence)
