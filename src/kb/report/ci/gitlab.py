"""GitLab's Code Quality report: a JSON array, shown beside a merge request's lines."""

from kb.core.result import CheckResult, Unusable
from kb.report.check.faults import fault_text
from kb.report.check.json_report import to_json
from kb.report.check.places import Fingerprints, relative_path
from kb.report.words import Words

SEVERITY = {"error": "major", "warning": "minor", "info": "info"}


def gitlab_report(result: CheckResult, words: Words, *, base: str | None = None) -> str:
    """An entry for each finding that counts and each input that could not be checked.

    Fingerprints are unique in the report and survive moved lines.
    """
    fingerprints = Fingerprints(result, base)
    return to_json(
        [
            {
                "description": words.message(finding),
                "check_name": finding.rule,
                "fingerprint": fingerprints.next(unit, finding),
                "severity": SEVERITY[finding.severity],
                "location": {
                    "path": relative_path(unit.unit.path, base),
                    "lines": {"begin": finding.span.line, "end": finding.span.end_line},
                },
            }
            for unit in result.units
            for finding in unit.counted()
        ]
        + [_fault(fault, words, base) for fault in result.unusable]
    )


def _fault(fault: Unusable, words: Words, base: str | None) -> dict[str, object]:
    import hashlib

    path = relative_path(fault.path, base)
    return {
        "description": fault_text(fault, words),
        "check_name": "kb",
        "fingerprint": hashlib.sha256(f"{fault.key}\0{path}".encode("utf-8", "surrogatepass")).hexdigest()[:32],
        "severity": "critical",
        "location": {"path": path, "lines": {"begin": fault.line or 1}},
    }
