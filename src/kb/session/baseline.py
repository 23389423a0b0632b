"""``--baseline``: yesterday's findings set aside, so that only new ones count."""

import os
from collections.abc import Sequence

from kb.config.baseline import Fingerprint, compare, count, fingerprint, prune, read_baseline, write_baseline
from kb.config.files import ConfigError, NotAFileError, read_at_most
from kb.config.notebook.cells import CellPlaces
from kb.core.document import Unit
from kb.core.finding import Finding
from kb.core.result import CheckResult
from kb.session.fixing import COMMAND, write_file
from kb.session.run import STDIN, findings_of, with_findings

MAX_BYTES = 64 << 20  # of a baseline: some 300,000 findings


def with_baseline(result: CheckResult, path: str | None, *, write: str | None, prune_gone: bool) -> CheckResult:
    """The result with the findings that the baseline knows suppressed. A baseline knows its files by their way from
    its own folder, so that it holds on every machine and from every working folder.

    Args:
        path: the baseline to compare with; None for none.
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
    baseline = _read(path)
    compared = compare(_marked(result, path), baseline, {_relative(unit.unit.path, path) for unit in result.units})
    if prune_gone and compared.gone:
        write_file(path, write_baseline(prune(baseline, compared.gone)).encode())
    return with_findings(result, compared.findings)


def _marked(result: CheckResult, baseline: str) -> list[tuple[Fingerprint, Finding]]:
    return [(_fingerprint(unit.unit, finding, result, baseline), finding) for unit, finding in findings_of(result)]


def _read(path: str) -> dict[Fingerprint, int]:
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
