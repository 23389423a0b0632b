"""Hydra's defaults lists, and objects that are built by `_target_`."""

import re

from kb.config.dialect.dialects import Entry
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
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


# The class that `_target_` ends with → the group of settings that its arguments are.
CLASSES = {
    "TrainingArguments": "training",
    "Seq2SeqTrainingArguments": "training",
    "SFTConfig": "training",
    "DPOConfig": "training",
    "GRPOConfig": "training",
    "KTOConfig": "training",
    "RewardConfig": "training",
    "LoraConfig": "lora",
    "BitsAndBytesConfig": "quantization",
}


def arranged(entries: dict[str, Entry]) -> dict[str, Entry]:
    """The entries with those of known objects moved to the top, wherever they stand: ``trainer.args`` → ``training``.

    Each keeps its place in the file. Where two objects are of one class neither is moved: they are two runs.
    """
    found: dict[str, list[str]] = {}
    for path, (_, key, value) in entries.items():
        if key.value != "_target_" or value.kind != SCALAR or "." not in path:
            continue
        holder = path.removesuffix("._target_")
        group = CLASSES.get(value.value.rpartition(".")[2])
        if ".from_pretrained" in value.value and "AutoModel" in value.value:
            group = "model"
        if group is not None:
            found.setdefault(group, []).append(holder)
    moves = {paths[0]: group for group, paths in found.items() if len(paths) == 1 and paths[0] != group}
    if not moves:
        return entries
    made = dict(entries)
    for holder, group in moves.items():
        for path, entry in entries.items():
            if path.startswith(holder + "."):
                del made[path]
                made[f"{group}.{path[len(holder) + 1 :]}"] = entry
        if entries[holder][2].kind == MAPPING:
            made.setdefault(group, entries[holder])
    return made
