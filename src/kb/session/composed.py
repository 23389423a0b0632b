"""A Hydra tree on disk: composed, checked as the one run it is, and its findings told in the files they are about."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from kb.config.hydra.composing import Composed, VirtualText, arranged, compose, looks_composed
from kb.config.hydra.tree import HydraError, defaults_of, read_file
from kb.config.text.encoding import decode
from kb.config.text.source import moved_edit
from kb.core.document import Setting, Unit
from kb.core.finding import Finding, Span
from kb.core.lint import place_of
from kb.core.result import UnitResult
from kb.session.lookups import group_path, read_below
from kb.session.run import FileResult

if TYPE_CHECKING:
    from kb.session.file import FileChecker

_NOWHERE, _NO_KEY = Span(1, 1, 1, 1, 0, 0), Span(1, 1, 1, 1, -1, -1)
DIALECT = "hydra"


def listed_below(primary: str, folder: str) -> list[str]:
    """The YAML files in a group's folder."""
    try:
        return sorted(name for name in os.listdir(group_path(primary, folder)) if name.endswith(".yaml"))
    except (OSError, ValueError):
        return []


def composed_result(
    files: "FileChecker", raw: bytes, path: str, instead: Mapping[str, bytes] = {}
) -> FileResult | None:
    """The result of a primary config with its group files; None where this is none.

    The prediction is the primary's. There a setting of a group file counts as written elsewhere; in the group file it
    counts where it stands, and the findings about it are told there.

    Args:
        instead: the bytes to take for a file, by its path.

    Raises:
        HydraError: a file of the tree cannot be used; its ``path`` says which.
    """
    if not looks_composed(raw.decode("utf-8", "replace")):
        return None

    def read(primary: str, name: str) -> bytes | None:
        own = group_path(primary, name)
        return instead[own] if own in instead else files.beside(primary, name)

    try:
        composed = compose(path, raw, read, listed=listed_below)
    except HydraError as fault:
        fault.path = path if fault.path == os.path.basename(path) else group_path(path, fault.path)
        raise
    if composed is None:
        return None
    units = files.reader.read_parsed(composed.parsed, path, dialect=files.dialect, prefer=DIALECT, arrange=arranged)
    return _by_file(files, path, composed, [files.check_unit(unit) for unit in units])


def part_again(files: "FileChecker", part: FileResult, raw: bytes) -> FileResult:
    """The result of a group file with other bytes, as a part of its primary config."""
    primary = files.beside(part.part_of, os.path.basename(part.part_of))
    whole = None if primary is None else composed_result(files, primary, part.part_of, {part.path: raw})
    found = [other for other in whole.others if other.path == part.path] if whole is not None else []
    return found[0] if found else part._replace(text=decode(raw).text or "", results=())


def _by_file(files: "FileChecker", path: str, composed: Composed, results: Sequence[UnitResult]) -> FileResult:
    """The results by file, the primary config first; of the others those with findings of their own."""
    parts = []
    for number, file in enumerate(composed.files):
        own = path if number == 0 else group_path(path, file.name)
        units = [_of_file(result, composed, number, own, path) for result in results]
        kept = units if number == 0 else [unit for unit in units if unit.findings]
        if kept:
            settled = tuple(files.settle(kept, file.text, own))
            parts.append(FileResult(own, file.text, file.encoding, settled, part_of=path if number else ""))
    return parts[0]._replace(others=tuple(parts[1:]))


def _of_file(result: UnitResult, composed: Composed, number: int, path: str, primary: str) -> UnitResult:
    virtual, package = composed.virtual, composed.packages[number]
    settings = {
        name: _setting(setting, virtual, number, package, composed, path)
        for name, setting in result.unit.settings.items()
    }
    file_span = composed.files[number].parsed.source.places().span(0, 0)
    unit = result.unit._replace(
        path=path,
        settings=settings,
        span=virtual.local(result.unit.span, 0) if number == 0 else file_span,
        events=tuple(
            event._replace(span=virtual.local(event.span, number), edits=(), related=())
            for event in result.unit.events
            if virtual.number_of(event.span) == number
        ),
        nulls={
            name: virtual.local(span, number)
            for name, span in result.unit.nulls.items()
            if virtual.number_of(span) == number
        },
        package=package,
        part_of="" if number == 0 else primary,
        section=result.unit.section if number == 0 else os.path.basename(primary),
    )
    findings = [
        _finding(finding, virtual, number, unit)
        for finding in result.findings
        if virtual.number_of(finding.span) == number
    ]
    moved = tuple(sorted(findings, key=place_of))
    if number == 0:
        return result._replace(unit=unit, findings=moved)
    return UnitResult(unit=unit, findings=moved)


def _setting(
    setting: Setting, virtual: VirtualText, number: int, package: tuple[str, ...], composed: Composed, path: str
) -> Setting:
    home = virtual.number_of(setting.key_span)
    if home != number:
        return setting._replace(span=_NOWHERE, key_span=_NO_KEY, joined=composed.files[home].name, comment="")
    return setting._replace(
        span=virtual.local(setting.span, number),
        key_span=virtual.local(setting.key_span, number),
        path=setting.path[len(package) :],
    )


def _finding(finding: Finding, virtual: VirtualText, number: int, unit: Unit) -> Finding:
    def local(span: Span) -> Span:
        return virtual.local(span, number)

    fixes = []
    for fix in finding.fixes:
        foreign = any(edit.span is not None and virtual.number_of(edit.span) != number for edit in fix.edits)
        moved = fix._replace(edits=tuple(moved_edit(edit, local) for edit in fix.edits))
        fixes.append(moved._replace(barred=foreign or unit.bars(moved)))
    related = [(name, local(span)) for name, span in finding.related if virtual.number_of(span) == number]
    return finding._replace(span=local(finding.span), related=tuple(related), fixes=tuple(fixes))


class GroupFolders:
    """Which files are group files of a primary config above them, so that none is checked as a config of its own."""

    def __init__(self) -> None:
        self._groups_in = cache(_groups_in)

    def owner(self, path: str) -> str | None:
        """The primary config that a file belongs to: it lies in a folder that its defaults list names."""
        folder, below = os.path.dirname(path), os.path.basename(path)
        while below.count("/") < 6:
            parent, name = os.path.split(folder)
            if parent == folder or not name:
                return None
            below, folder = f"{name}/{below}", parent
            primary = self._groups_in(folder).get(name)
            if primary is not None:
                return primary
        return None


def _groups_in(folder: str) -> Mapping[str, str]:
    """The folders below this one that a primary config here takes groups from, each with that config."""
    groups: dict[str, str] = {}
    try:
        names = sorted(name for name in os.listdir(folder or os.curdir) if name.endswith((".yaml", ".yml")))
    except OSError:
        return groups
    for name in names:
        path = os.path.join(folder, name)
        raw = read_below(path, name)
        if raw is None or not looks_composed(raw.decode("utf-8", "replace")):
            continue
        try:
            file = read_file(name, raw)
        except Exception:  # said when the file itself is checked
            continue
        for item in (defaults_of(file.document) if file.document else None) or ():
            whole = item.group if item.group is not None else item.options[0] if "/" in item.options[0] else ""
            first = whole.strip("/").partition("/")[0]
            if first and first != "hydra":
                groups.setdefault(first, path)
    return groups
