"""Files and findings as other programs name them: relative URIs, and fingerprints that survive a moved line."""

import os
from collections import Counter

from kb.core.finding import Finding
from kb.core.result import CheckResult, UnitResult
from kb.report.check.source_line import SourceLines

STDIN = "stdin"


def relative_path(path: str, base: str | None = None) -> str:
    """``path`` from ``base`` (the working folder by default), with ``/``; absolute where it lies outside."""
    if path == "-":
        return STDIN
    if os.path.isabs(path):
        base = os.path.abspath(base or os.curdir)
        if os.path.commonpath([base, os.path.abspath(path)]) == base:
            path = os.path.relpath(path, base)
    path = os.path.normpath(path)
    return path.replace(os.sep, "/")


def uri(path: str, base: str | None = None) -> str:
    """A URI reference, percent-encoded; relative where ``path`` is inside ``base``."""
    from urllib.parse import quote

    relative = relative_path(path, base)
    encoded = quote(relative.encode("utf-8", "surrogateescape"), safe="/")
    if relative.startswith("/"):
        return f"file://{encoded}"
    first = encoded.partition("/")[0]
    return f"./{encoded}" if ":" in first else encoded


class Fingerprints:
    """A hash for each finding: of its rule, file, section and line's text, and which of several alike it is.

    It does not hold the line's number, so that a finding keeps its fingerprint when lines above it come and go.
    """

    def __init__(self, result: CheckResult, base: str | None = None) -> None:
        self._sources = SourceLines(result.sources_text)
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._base = base

    def next(self, unit: UnitResult, finding: Finding) -> str:
        """The fingerprint of one finding; to be asked once for each, in the report's order."""
        import hashlib

        line = self._sources.quoted(unit.unit.path, finding.span)[0] or ""
        path = relative_path(unit.unit.path, self._base)
        content = (finding.rule, path, unit.unit.section or "", " ".join(line.split()))
        self._seen[content] += 1
        whole = "\0".join((*content, str(self._seen[content])))
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32]
