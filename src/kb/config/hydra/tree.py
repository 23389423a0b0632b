"""Hydra's defaults lists, and the files that they lead to, in the order in which each overrides the ones before."""

import re
from collections.abc import Callable
from typing import Any

from kb.config.files import ConfigError
from kb.config.text.encoding import decode
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, START, Node
from kb.config.text.parsing import Parsed, parse
from kb.core.document import Event
from kb.core.record import NamedTuple

SELF = "_self_"
MISSING = "???"
_HEADER = re.compile(r"\A(?:\ufeff)?(?:[ \t]*(?:#[^\n]*)?\r?\n)*?[ \t]*#[ \t]*@package[ \t]+(\S+)")
_PREFIXED = re.compile(r"(?:(optional|override)\s+)?(\S+)\Z")


class Default(NamedTuple):
    """One item of a defaults list.

    ``group`` is None for a config named as such (``- base``), whose path is then its only option. ``options`` is empty
    for a group that is switched off (``null``). ``package`` is what stands behind ``@``.
    """

    node: Node  # where it is written
    group: str | None
    options: tuple[str, ...]
    package: str | None = None
    optional: bool = False
    override: bool = False

    @property
    def is_self(self) -> bool:
        return self.group is None and self.options == (SELF,)

    @property
    def shown(self) -> str:
        """As the list has it: ``model: t5``."""
        options = ", ".join(self.options) or "null"
        return options if self.group is None else f"{self.group}: {options}"


def defaults_of(document: Node) -> list[Default] | None:
    """The items of a config's defaults list; None where it has none, or one that is not Hydra's."""
    entry = document.entries().get("defaults") if document.kind == MAPPING else None
    if entry is None or entry[1].kind != SEQUENCE:
        return None
    items = [_item(node) for node in entry[1].value]
    return None if any(item is None for item in items) else [item for item in items if item is not None]


def package_header(text: str) -> str | None:
    """What a file says of its own package, in a comment before its first line: ``# @package _global_``."""
    found = _HEADER.match(text[:4096])
    return found[1] if found else None


def _item(node: Node) -> Default | None:
    if node.kind == SCALAR:
        found = _PREFIXED.match(node.value)
        if found is None or found[1] == "override":
            return None
        path, _, package = found[2].partition("@")
        return Default(node, None, (path,), package or None, optional=found[1] == "optional")
    if node.kind != MAPPING or len(node.value) != 1:
        return None
    ((key, value),) = node.value
    found = _PREFIXED.match(key.value) if key.kind == SCALAR else None
    options = _options(value)
    if found is None or options is None:
        return None
    group, _, package = found[2].partition("@")
    # `group@from:to` is Hydra 1.0's way to rename a package
    package = package.rpartition(":")[2] or None
    return Default(key, group, options, package, found[1] == "optional", found[1] == "override")


def _options(node: Node) -> tuple[str, ...] | None:
    if node.kind == SEQUENCE:
        return tuple(item.value for item in node.value) if all(item.kind == SCALAR for item in node.value) else None
    if node.kind != SCALAR:
        return None
    return () if node.scalar() is None else (node.value,)


MAX_FILES = 100
MAX_DEPTH = 20
ReadGroup = Callable[[str, str], bytes | None]
"""The primary config's path, a file's path below its folder → the file's bytes; None where there is no such file."""

_CHOICE = re.compile(r"\$\{([\w/]+)\}")


class HydraError(ConfigError):
    """A fault in one of a tree's files. ``path``: that file."""

    def __init__(self, path: str, fault: ConfigError) -> None:
        super().__init__(fault.key, fault.line, fault.column, **fault.values)
        self.path = path


class File(NamedTuple):
    """One file as read. ``name``: its path below the primary config's folder, ``model/t5.yaml``."""

    name: str
    text: str
    encoding: str
    parsed: Parsed
    document: Node | None
    events: tuple[Event, ...] = ()


class Placed(NamedTuple):
    """A file's content at its package in the composed config; the top is the empty package."""

    file: File
    package: tuple[str, ...]


class Problem(NamedTuple):
    """An item of a defaults list that leads to nothing: ``missing`` or left ``open``. ``file``: whose list it is in."""

    kind: str
    item: Default
    file: File
    wanted: str


class Tree:
    """Follows defaults lists as Hydra 1.3 does: overrides of an outer list win over those of an inner one."""

    def __init__(self, primary: File, read: Callable[[str], bytes | None]) -> None:
        self._primary, self._read = primary, read
        self._overrides: dict[str, tuple[str, ...]] = {}
        self._files: dict[str, File | None] = {primary.name: primary}
        self._choices: dict[str, str] = {}
        self._placed = 0
        self.problems: list[Problem] = []

    def placed(self) -> list[Placed]:
        """Every file's content and its place, the one that counts most last.

        Raises:
            HydraError: a file names itself over others, is no YAML, or the tree is over a bound.
        """
        for item in defaults_of(self._primary.document) or () if self._primary.document else ():
            if item.group is not None and len(item.options) == 1:
                self._choices[item.group.strip("/")] = item.options[0]
        return self._expand(self._primary, "", (), (self._primary.name,))

    def _expand(self, file: File, group: str, package: tuple[str, ...], chain: tuple[str, ...]) -> list[Placed]:
        items = (defaults_of(file.document) if file.document is not None else None) or []
        for item in items:
            if item.override and item.group is not None:
                self._overrides.setdefault(self._key(item, group, package), item.options)
        plain = [item for item in items if not item.override]
        if not any(item.is_self for item in plain):
            plain.append(Default(file.document or Node(MAPPING, [], None, "", START, START), None, (SELF,)))
        found: list[list[Placed]] = []
        # from the last to the first: what a later file overrides is known when an earlier item is followed
        for item in reversed(plain):
            if item.is_self:
                found.append([Placed(file, package)])
            else:
                found.append(self._follow(item, file, group, package, chain))
        return [placed for part in reversed(found) for placed in part]

    def _follow(
        self, item: Default, file: File, group: str, package: tuple[str, ...], chain: tuple[str, ...]
    ) -> list[Placed]:
        options = item.options
        if item.group is not None:
            options = self._overrides.get(self._key(item, group, package), options)
        found: list[Placed] = []
        for option in options:
            named = _CHOICE.sub(lambda match: self._choices.get(match[1], match[0]), option)
            if named in (MISSING, "null") or "${" in named:
                if named != "null":
                    self.problems.append(Problem("open", item, file, named))
                continue
            whole = named if item.group is None else f"{item.group}/{named}"
            absolute = _upwards(whole.lstrip("/") if whole.startswith("/") or not group else f"{group}/{whole}")
            relative = whole.lstrip("/").removeprefix("../").rpartition("/")[0]
            found += self._load(item, file, absolute, relative, package, chain)
        return found

    def _load(
        self, item: Default, by: File, wanted: str, relative: str, package: tuple[str, ...], chain: tuple[str, ...]
    ) -> list[Placed]:
        name = wanted.removesuffix(".yaml") + ".yaml"
        if wanted.startswith("hydra/"):
            return []  # Hydra's own groups: launchers, logging
        if name in chain or len(chain) > MAX_DEPTH:
            raise HydraError(by.name, _at(by, item, "config.hydra_cycle", name=name))
        file = self._file(name)
        if file is None:
            # What lies above the tree is not looked at: of a file with a header, one of a group itself, all of it may.
            if not item.optional and not wanted.startswith("../") and package_header(self._primary.text) is None:
                self.problems.append(Problem("missing", item, by, name))
            return []
        self._placed += 1
        if self._placed > MAX_FILES:
            raise HydraError(by.name, _at(by, item, "config.hydra_too_many", limit=MAX_FILES))
        own = _package(item.package, file, relative, wanted.rpartition("/")[0], package)
        return self._expand(file, wanted.rpartition("/")[0], own, (*chain, name))

    def _file(self, name: str) -> File | None:
        if name not in self._files:
            raw = None if ".." in name.split("/") else self._read(name)
            self._files[name] = None if raw is None else read_file(name, raw)
        return self._files[name]

    def _key(self, item: Default, group: str, package: tuple[str, ...]) -> str:
        named = item.group or ""
        whole = _upwards(named.lstrip("/") if named.startswith("/") or not group else f"{group}/{named}")
        return whole if item.package is None else f"{whole}@{'.'.join((*package, item.package))}"


def _upwards(path: str) -> str:
    """``actor/../optim`` is ``optim``: a list may name a group beside its own. Above the tree it stays as written."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == ".." and steps and steps[-1] != "..":
            steps.pop()
        else:
            steps.append(step)
    return "/".join(steps)


def read_file(name: str, raw: bytes) -> File:
    """A file of a tree from its bytes.

    Raises:
        HydraError: they are no text, or the text no YAML with a mapping at its top.
    """
    try:
        decoded = decode(raw)
        if decoded.text is None:
            raise ConfigError("config.hydra_not_text", 1, 1, name=name)
        try:
            parsed = parse(decoded.text, name)
        except ConfigError as fault:
            if fault.key not in ("config.empty", "config.only-comments", "config.no-settings"):
                raise
            return File(name, decoded.text, decoded.encoding, parse("{a: 1}", name), None, decoded.events)
        document = parsed.documents[0]
        if document is not None and document.kind != MAPPING:
            raise ConfigError("config.list-at-top", *parsed.source.place(document.start))
    except ConfigError as fault:
        raise HydraError(name, fault) from None
    return File(name, decoded.text, decoded.encoding, parsed, document, decoded.events)


def _at(file: File, item: Default, key: str, **values: Any) -> ConfigError:
    return ConfigError(key, *file.parsed.source.place(item.node.start), **values)


def _package(named: str | None, file: File, relative: str, group: str, parent: tuple[str, ...]) -> tuple[str, ...]:
    """Where a file's content goes: as its item says, as its own header says, else where its group says.

    A header is absolute; an item's package and a group are relative to the package of the list they stand in.
    """
    if named is None:
        header = package_header(file.text)
        if header is not None:
            header = header.replace("_group_", group.replace("/", "."))
            return _steps(header.removeprefix("_global_"))
        named = relative.replace("/", ".")
    if named.startswith("_global_"):
        return _steps(named.removeprefix("_global_"))
    if named.startswith("_here_"):
        return (*parent, *_steps(named.removeprefix("_here_")))
    return (*parent, *_steps(named.replace("_group_", group.replace("/", "."))))


def _steps(package: str) -> tuple[str, ...]:
    return tuple(step for step in package.split(".") if step)
