"""The lengths of a data set, for a terminal and as JSON (schema 1: ``rules/schema/output/lengths.json``)."""

from collections.abc import Mapping, Sequence
from typing import Any

from kb.advice.data_lengths import Cut, LengthSpread
from kb.core.record import NamedTuple
from kb.core.setup import LENGTH_SHARES
from kb.report.terminal import INDENT, Style, table, wrap
from kb.report.values import printable
from kb.report.words import Words

SHOWN = ("median", "p90", "p95", "p99", "longest")
WORTH_GROUPING = 0.1  # of a batch: less padding than this is left alone


class Part(NamedTuple):
    """One sequence: ``input``, or the ``target`` of an encoder-decoder model, and the columns that make it."""

    name: str
    columns: tuple[str, ...]
    spread: LengthSpread


class Report(NamedTuple):
    """``counted`` says how: ``tokens`` (the data holds them), ``tokenizer`` (at ``tokenizer``) or ``words``, with
    ``factor``; ``assumed``: nobody gave the factor; ``other_script``: the text is not of the factor's script."""

    path: str
    rows: int
    parts: tuple[Part, ...]
    guessed: bool
    batch: int
    counted: str
    tokenizer: str | None
    factor: float | None
    assumed: bool
    other_script: bool

    @property
    def read(self) -> int:
        return self.parts[0].spread.samples


def lengths_text(report: Report, words: Words, style: Style) -> str:
    """Samples, quantiles, what each max_length would cut, and what follows from them."""
    lines = [style.paint(printable(report.path), "heading"), ""]
    part_read = "lengths.part_read" if report.read < report.rows else "lengths.all_read"
    lines += _said(words, style, part_read, read=f"{report.read:,}", rows=f"{report.rows:,}")
    way = f"lengths.counted_by_{report.counted}"
    factor = "" if report.factor is None else f"{report.factor:.2f}"
    lines += _said(words, style, way, path=report.tokenizer or "", factor=factor)
    if report.assumed:
        lines += _said(words, style, "lengths.factor_assumed")
        lines += _said(words, style, "lengths.other_script") if report.other_script else []
    if report.counted != "tokens":
        lines += _said(words, style, "lengths.template")
    for part in report.parts:
        lines += ["", *_part(part, report, words, style)]
    lines += ["", *_said(words, style, "lengths.for_project"), *(INDENT * 2 + line for line in _table(report.parts))]
    return "\n".join(lines) + "\n"


def _said(words: Words, style: Style, key: str, **values: Any) -> list[str]:
    return wrap(words(key, **values), style.width, INDENT, INDENT * 2)


def _part(part: Part, report: Report, words: Words, style: Style) -> list[str]:
    spread, said = part.spread, words("lengths.guessed" if report.guessed else "lengths.given")
    title = words(f"lengths.{part.name}", columns=" + ".join(map(printable, part.columns)), said=said)
    figures = {name: value for name, value in _figures(spread).items() if name in SHOWN}
    lines = [style.paint(title, "heading")]
    lines += table(
        [
            [words("lengths.mean"), *(words(f"lengths.{name}") for name in figures)],
            [f"{spread.mean:,.1f}", *(f"{value:,}" for value in figures.values())],
        ],
        left=(),
    )
    head = [words("lengths.max_length"), words("lengths.samples_cut"), words("lengths.tokens_cut")]
    cuts = [[f"{cut.max_length:,}", _share(cut.samples), _share(cut.tokens)] for cut in spread.cuts]
    lines += ["", *table([head, *cuts], left=()), ""]
    setting = "max_source_length" if len(report.parts) > 1 and part.name == "input" else "max_length"
    setting = "max_target_length" if part.name == "target" else setting
    enough = spread.enough
    values = {"setting": setting, "length": str(enough.max_length), "whole": _share(1 - enough.samples)}
    lines += _said(words, style, "lengths.enough", **values, tokens=_share(enough.tokens))
    if part.name == "input" and report.batch > 1:
        key = "lengths.group" if spread.padding >= WORTH_GROUPING else "lengths.alike"
        lines += _said(words, style, key, batch=report.batch, padding=_share(spread.padding))
        lines += _said(words, style, "lengths.varied") if spread.padding >= WORTH_GROUPING else []
    return lines


def _figures(spread: LengthSpread) -> dict[str, int]:
    return dict(zip(LENGTH_SHARES, spread.lengths, strict=True))


def _table(parts: Sequence[Part]) -> list[str]:
    """The lengths as ``[lengths]`` of ``kb.toml``."""
    rows = [
        (part.name, ", ".join(f"{name} = {value}" for name, value in _figures(part.spread).items())) for part in parts
    ]
    return ["[lengths]", *(f"{name} = {{{said}}}" for name, said in rows)]


def _share(share: float) -> str:
    """A percentage; what is more than nothing and less than all does not look like either."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share * 100:.1f}%"


def lengths_object(report: Report) -> Mapping[str, Any]:
    """Lengths in tokens; shares are of 1."""
    return {
        "path": report.path,
        "rows": report.rows,
        "rows_read": report.read,
        "columns_guessed": report.guessed,
        "counted": {
            "by": report.counted,
            "tokenizer": report.tokenizer,
            "tokens_per_word": report.factor,
            "assumed": report.assumed,
            "other_script": report.other_script,
        },
        "batch": report.batch,
        "parts": [_part_object(part) for part in report.parts],
    }


def _part_object(part: Part) -> Mapping[str, Any]:
    spread = part.spread
    return {
        "part": part.name,
        "columns": list(part.columns),
        "samples": spread.samples,
        "mean": round(spread.mean, 3),
        **_figures(spread),
        "cuts": [_cut_object(cut) for cut in spread.cuts],
        "padding_of_random_batch": round(spread.padding, 6),
        "advised": _cut_object(spread.enough),
    }


def _cut_object(cut: Cut) -> Mapping[str, Any]:
    return {
        "max_length": cut.max_length,
        "samples_cut": round(cut.samples, 6),
        "tokens_cut": round(cut.tokens, 6),
    }
