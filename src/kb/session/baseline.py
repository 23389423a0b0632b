"""``--baseline``: yesterday's findings set aside, so that only new ones count.

A finding is known by its content and not by its line number: it is the same while its rule, its file, its setting and
the text of its line are the same, wherever the line has moved to. Two that are the same in all four are counted.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kb.config.files import ConfigError, NotAFileError, read_at_most
from kb.config.notebook.cells import CellPlaces
from kb.core.document import Unit
from kb.core.finding import Finding, Suppression
from kb.core.record import NamedTuple
from kb.core.result import CheckResult
from kb.session.fixing import COMMAND, write_file
from kb.session.run import STDIN, findings_of, with_findings

VERSION = 1
MAX_BYTES = 64 << 20  # of a baseline: some 300,000 findings


class Fingerprint(NamedTuple):
    """What makes a finding the same. ``path`` is relative to the project, with ``/``; ``setting`` a dotted path."""

    path: str
    rule: str
    setting: str
    hash: str


Known = Mapping[Fingerprint, int]


class Compared(NamedTuple):
    """The findings in their order, known ones now suppressed, and the fingerprints that the baseline has in excess."""

    findings: tuple[Finding, ...]
    gone: Known


def with_baseline(
    result: CheckResult, path: str | None, known: Known | None, *, write: str | None, prune_gone: bool
) -> CheckResult:
    """The result with the findings that the baseline knows suppressed. A baseline knows its files by their way from
    its own folder, so that it holds on every machine and from every working folder.

    Args:
        path: the baseline to compare with; None for none.
        known: what :func:`read` gave of it; None where it was not read before.
        write: where to write a new baseline of every finding that counts now; None for nowhere.
        prune_gone: take out of ``path`` what is no longer found.

    Raises:
        ConfigError: the baseline cannot be read.
    """
    if write:
        counted = [mark for mark, finding in _marked(result, write) if finding.suppressed is None]
        write_file(write, write_baseline(count(counted)).encode())
    if path is None:
        return result
    baseline = read(path) if known is None else known
    compared = compare(_marked(result, path), baseline, {_relative(unit.unit.path, path) for unit in result.units})
    if prune_gone and compared.gone:
        write_file(path, write_baseline(prune(baseline, compared.gone)).encode())
    return with_findings(result, compared.findings)


def _marked(result: CheckResult, baseline: str) -> list[tuple[Fingerprint, Finding]]:
    return [(_fingerprint(unit.unit, finding, result, baseline), finding) for unit, finding in findings_of(result)]


def read(path: str) -> Known:
    """What a baseline knows, and how often. Raises: ConfigError: it cannot be read."""
    try:
        raw = read_at_most(path, MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError("config.too-large", size=os.path.getsize(path), limit=MAX_BYTES)
        return read_baseline(raw.decode("utf-8"))
    except NotAFileError:
        raise ConfigError("config.not-a-file", path=path) from None
    except OSError as error:
        raise ConfigError("config.unreadable", path=path, reason=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ConfigError("config.baseline.shape") from None
    except ConfigError as error:
        error.values["path"] = path
        raise


def _fingerprint(unit: Unit, finding: Finding, result: CheckResult, baseline: str) -> Fingerprint:
    line = _line_of(result.sources_text.get(unit.path, ""), unit.path, finding)
    setting = next((name for name, other in unit.settings.items() if other.span == finding.span), "")
    name = f"{unit.section}.{setting}" if unit.section else setting
    return fingerprint(finding, path=_relative(unit.path, baseline), setting=name, line=line)


def _line_of(text: str, path: str, finding: Finding) -> str:
    """The line that a finding begins on; of a notebook the line of the cell, whatever outputs stand around it."""
    if path.endswith(".ipynb"):
        place = CellPlaces(text).place(finding.span)
        return place.line if place is not None else ""
    lines: Sequence[str] = text.split("\n")
    return lines[finding.span.line - 1] if finding.span.line <= len(lines) else ""


def _relative(path: str, baseline: str) -> str:
    if path in (STDIN, COMMAND):
        return path
    return os.path.relpath(path, os.path.dirname(os.path.abspath(baseline))).replace(os.sep, "/")


def fingerprint(finding: Finding, *, path: str, setting: str, line: str) -> Fingerprint:
    """The fingerprint of a finding of the file ``path`` about ``setting``, where ``line`` is its source line's text.

    Blanks in the line do not count. ``setting`` is empty for a finding about no setting.
    """
    import hashlib

    path = path.replace("\\", "/").removeprefix("./")
    content = "\0".join((finding.rule, path, setting, " ".join(line.split())))
    return Fingerprint(
        path, finding.rule, setting, hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    )


def compare(
    findings: Sequence[tuple[Fingerprint, Finding]],
    baseline: Mapping[Fingerprint, int],
    checked: Collection[str],
) -> Compared:
    """Suppress the findings that the baseline knows; a finding that is suppressed already uses up nothing.

    ``checked`` are the paths that were looked at: only their entries can be gone.
    """
    left = Counter(baseline)
    result = []
    for known_by, finding in findings:
        if finding.suppressed is None and left[known_by] > 0:
            left[known_by] -= 1
            finding = finding._replace(suppressed=Suppression(kind="baseline", reason=""))
        result.append(finding)
    gone = {entry: count for entry, count in left.items() if count > 0 and entry.path in checked}
    return Compared(tuple(result), gone)


def count(fingerprints: Sequence[Fingerprint]) -> dict[Fingerprint, int]:
    """A baseline of these findings."""
    return dict(Counter(fingerprints))


def prune(baseline: Mapping[Fingerprint, int], gone: Mapping[Fingerprint, int]) -> dict[Fingerprint, int]:
    """The baseline without what is gone."""
    return {entry: left for entry, number in baseline.items() if (left := number - gone.get(entry, 0)) > 0}


def write_baseline(baseline: Mapping[Fingerprint, int]) -> str:
    """The baseline as JSON, the same text for the same findings, one entry a line so that a diff shows what changed."""
    rows = [
        json.dumps({**entry._asdict(), "count": number}, ensure_ascii=False)
        for entry, number in sorted(baseline.items())
    ]
    body = ",\n    ".join(rows)
    listed = f"[\n    {body}\n  ]" if rows else "[]"
    return f'{{\n  "version": {VERSION},\n  "findings": {listed}\n}}\n'


def read_baseline(text: str) -> dict[Fingerprint, int]:
    """The baseline that :func:`write_baseline` wrote.

    Raises:
        ConfigError: it is no JSON (at line and column), of another version, or an entry lacks something.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError("config.baseline.json", error.lineno, error.colno, reason=error.msg) from None
    except RecursionError:
        raise ConfigError("config.baseline.shape") from None
    if not isinstance(data, dict) or not isinstance(data.get("findings"), list):
        raise ConfigError("config.baseline.shape")
    if data.get("version") != VERSION:
        raise ConfigError("config.baseline.version", found=str(data.get("version"))[:20], known=VERSION)
    entries: Counter[Fingerprint] = Counter()
    for number, row in enumerate(data["findings"], 1):
        entry, times = _entry(row, number)
        entries[entry] += times
    return dict(entries)


def _entry(row: Any, number: int) -> tuple[Fingerprint, int]:
    row = row if isinstance(row, dict) else {}
    for name in Fingerprint._fields:
        if not isinstance(row.get(name), str):
            raise ConfigError("config.baseline.entry", number=number, field=name)
    times = row.get("count", 1)
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        raise ConfigError("config.baseline.entry", number=number, field="count")
    return Fingerprint(*(row[name] for name in Fingerprint._fields)), times
