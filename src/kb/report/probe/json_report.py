"""``kb.probe --format json``, schema 1: ``rules/schema/output/probe.json`` says it in full."""

from typing import TYPE_CHECKING, Any

from kb.report.json_parts import head, to_json
from kb.report.recommend.config import settings_of, to_yaml
from kb.report.terminal import INDENT, Style, wrap
from kb.report.values import host_size, size
from kb.report.words import Words

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Pair, Probed

Object = dict[str, Any]


def probe_json(probed: "Probed", version: str, rules_version: str) -> str:
    return to_json(probe_object(probed, version, rules_version))


def probe_object(probed: "Probed", version: str, rules_version: str) -> Object:
    """Everything a probe found; ``measured`` is false of a scripted GPU."""
    sought, card = probed.sought, probed.card
    return {
        **head(version, rules_version),
        "kind": probed.kind,
        "backend": probed.backend,
        "measured": probed.backend != "fake",
        "name": probed.name,
        "command": list(probed.command) or None,
        "gpu": {"name": card.name, "memory_bytes": card.total_bytes, "usable_bytes": card.usable_bytes}
        if card.total_bytes
        else None,
        "host_limit_bytes": probed.host_limit_bytes,
        "notes": list(probed.notes),
        "trials": [trial_object(pair) for pair in probed.pairs],
        "largest": {"batch": sought.largest, "next_one": sought.next_one} if sought else None,
        "recommended": _recommended(probed),
        "auto_find_batch_size": {"batches": list(probed.auto_find), "trials": len(probed.auto_find)}
        if probed.auto_find
        else None,
    }


def trial_object(pair: "Pair") -> Object:
    """One trial, with what was predicted of it and what came of it."""
    trial, outcome = pair
    return {
        "batch": trial.batch if trial.kind != "host" else None,
        "workers": trial.workers,
        "steps": trial.steps,
        "command": list(trial.command) or None,
        "predicted": {phase: dict(sizes) for phase, sizes in trial.predicted.items()},
        "outcome": {
            **outcome._asdict(),
            "phases": {phase: dict(sizes) for phase, sizes in outcome.phases.items()},
            "peak_bytes": outcome.peak_bytes,
        },
    }


def _recommended(probed: "Probed") -> Object | None:
    found = probed.recommended
    if found is None:
        return None
    settings = None
    if probed.setup is not None:
        settings = settings_of(probed.setup, workers_known=False, one_sequence=probed.one_sequence)
    return {
        "batch": found.number if probed.kind != "host" else None,
        "workers": found.number if probed.kind == "host" else None,
        "reason": found.reason,
        "used_bytes": found.used_bytes,
        "share": found.share,
        "tried": found.tried,
        "config": settings,
        "yaml": config_yaml(probed),
    }


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
