"""``--baseline``: yesterday's findings set aside, so that only new ones count."""

from collections.abc import Sequence

from kb.config.baseline import Fingerprint, compare, count, fingerprint, prune, read_baseline, write_baseline
from kb.config.faults import ConfigError
from kb.core.document import Unit
from kb.core.finding import Finding
from kb.core.result import CheckResult
from kb.linting.fixing import write_file
from kb.linting.run import findings_of, with_findings


def with_baseline(result: CheckResult, path: str | None, *, write: str | None, prune_gone: bool) -> CheckResult:
    """The result with the findings that the baseline knows suppressed.

    Args:
        path: the baseline to compare with; None for none.
        write: where to write a new baseline of every finding that counts now; None for nowhere.
        prune_gone: take out of ``path`` what is no longer found.

    Raises:
        ConfigError: the baseline cannot be read.
    """
    pairs = [(_fingerprint(unit.unit, finding, result), finding) for unit, finding in findings_of(result)]
    if write:
        known = count([mark for mark, finding in pairs if finding.suppressed is None])
        write_file(write, write_baseline(known).encode())
    if path is None:
        return result
    baseline = _read(path)
    compared = compare(pairs, baseline, {_relative(unit.unit.path) for unit in result.units})
    if prune_gone and compared.gone:
        write_file(path, write_baseline(prune(baseline, compared.gone)).encode())
    return with_findings(result, compared.findings)


def _read(path: str) -> dict[Fingerprint, int]:
    try:
        with open(path, encoding="utf-8") as stream:
            return read_baseline(stream.read())
    except OSError as error:
        raise ConfigError("config.unreadable", path=path, reason=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ConfigError("config.baseline.shape") from None
    except ConfigError as error:
        error.values["path"] = path
        raise


def _fingerprint(unit: Unit, finding: Finding, result: CheckResult) -> Fingerprint:
    lines: Sequence[str] = result.sources_text.get(unit.path, "").split("\n")
    line = lines[finding.span.line - 1] if finding.span.line <= len(lines) else ""
    setting = next((name for name, other in unit.settings.items() if other.span == finding.span), "")
    name = f"{unit.section}.{setting}" if unit.section else setting
    return fingerprint(finding, path=_relative(unit.path), setting=name, line=line)


def _relative(path: str) -> str:
    """Relative to the working folder, so that a baseline holds on every machine."""
    import os

    return os.path.relpath(path).replace(os.sep, "/") if os.path.isabs(path) else path
