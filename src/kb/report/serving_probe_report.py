"""What ``kb probe serve`` found: each predicted figure beside what the server printed."""

from collections.abc import Mapping
from typing import Any

from kb.advice.diagnosis import ExitCause
from kb.core.record import NamedTuple
from kb.core.units import GIB
from kb.memory.serving.answer import Served
from kb.report.json_parts import head, to_json
from kb.report.monitor.text import exit_text
from kb.report.serving_report import Answer
from kb.report.terminal import Style, table, wrap
from kb.report.values import printable
from kb.report.words import Words

_BYTES = ("weights", "cuda_graphs", "activations", "kv_cache")
FIGURES = (*_BYTES, "kv_tokens", "concurrency")


class ServeProbe(NamedTuple):
    """A server's start. ``unpredicted`` says why there is no prediction; ``cause`` why it did not come up."""

    engine: Mapping[str, Any]
    answer: Answer | None
    unpredicted: str | None
    ready: bool
    seconds: float
    measured: Mapping[str, float]
    cause: ExitCause | None


def predicted(served: Served) -> dict[str, float]:
    """The figures of an estimate under the names of what engines print: bytes of one rank, tokens, requests."""
    found: dict[str, float] = {}
    if served.budget is not None:
        found = {term.name: term.bytes for term in served.budget.terms if term.name in _BYTES}
        found["kv_cache"] = served.budget.kv
    if served.kv_tokens is not None and served.concurrency is not None:
        found |= {"kv_tokens": served.kv_tokens, "concurrency": served.concurrency}
    return found


def serve_text(probed: ServeProbe, words: Words, style: Style) -> str:
    """The report, with a line break at its end."""
    title = probed.engine["title"][words.language]
    key = "probe.serve_up" if probed.ready else "probe.serve_not_up"
    seconds = f"{probed.seconds:.0f}"
    lines = style.lines(words(key, engine=title, seconds=seconds), "heading")
    blocks = [lines, _figures(probed, words, style)]
    if probed.unpredicted is not None:
        blocks.append(wrap(words("probe.serve_unpredicted", reason=probed.unpredicted), style.width))
    if not probed.measured:
        blocks.append(wrap(words("probe.serve_silent"), style.width))
    text = "\n\n".join("\n".join(printable(line) for line in block) for block in blocks if block) + "\n"
    return text + ("\n" + exit_text(probed.cause, words, style) if probed.cause is not None else "")


def _figures(probed: ServeProbe, words: Words, style: Style) -> list[str]:
    """A row for each figure that either side has."""
    said = predicted(probed.answer.served) if probed.answer is not None else {}
    rows = [[words(f"probe.serve.{name}") for name in ("figure", "predicted", "printed", "difference")]]
    for name in FIGURES:
        if name not in probed.measured and not (said.get(name)):
            continue
        one, other = said.get(name), probed.measured.get(name)
        apart = f"{(one / other - 1) * 100:+.1f}%" if one is not None and other else ""
        rows.append([words(f"probe.serve.{name}"), _shown(name, one), _shown(name, other), apart])
    return table(rows, left=(0,)) if len(rows) > 1 else []


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name in _BYTES:
        return f"{value / GIB:.2f} GiB"
    return f"{value:,.0f}" if name == "kv_tokens" else f"{value:.2f}"


def serve_json(probed: ServeProbe, version: str, rules_version: str) -> str:
    """The same as JSON; ``rules/schema/output/probe-serve.json`` says it in full."""
    whole = head(version, rules_version)
    said = predicted(probed.answer.served) if probed.answer is not None else {}
    cause = probed.cause
    return to_json(
        whole
        | {
            "kind": "serve",
            "engine": probed.engine["id"],
            "ready": probed.ready,
            "seconds": round(probed.seconds, 1),
            "figures": {
                name: {"predicted": said.get(name), "printed": probed.measured.get(name)}
                for name in FIGURES
                if name in said or name in probed.measured
            },
            "not_predicted": probed.unpredicted,
            "exit_code": cause.code if cause is not None else None,
            "cause": cause.cause.id if cause is not None and cause.cause is not None else None,
        }
    )
