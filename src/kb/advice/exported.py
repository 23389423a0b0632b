"""In which releases of a library a name that a log's line lacks can be had, by the tables of names. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from kb.core.record import NamedTuple

_LIBRARY = r"(?P<library>transformers|trl|peft|huggingface_hub|accelerate|datasets|vllm)"
_LINES = (  # a name of a module; a module of a library; a class that a model names; a type of model
    re.compile(rf"cannot import name '(?P<name>\w{{1,80}})' from '{_LIBRARY}(?P<module>(?:\.\w{{1,60}}){{0,6}})'"),
    re.compile(rf"module '{_LIBRARY}(?P<module>(?:\.\w{{1,60}}){{0,6}})' has no attribute '(?P<name>\w{{1,80}})'"),
    re.compile(rf"No module named '{_LIBRARY}(?P<module>(?:\.\w{{1,60}}){{1,6}})'(?P<name>)"),
    re.compile(r"Could not find module (?P<name>\w{1,80}) in `(?P<library>transformers)`(?P<module>)"),
    re.compile(r"has model type `(?P<type>[\w.-]{1,60})` but Transformers does not recognize"),
)
# an argument of a class, or an attribute of its object
_ARGUMENT = re.compile(
    r"\b(?P<owner>[A-Z]\w{1,60})\.__init__\(\) got an unexpected keyword argument '(?P<name>\w{1,80})'|"
    r"'(?P<object>\w{1,40}(?:Config|Arguments))' object has no attribute '(?P<attribute>\w{1,80})'"
)


class NameRelease(NamedTuple):
    """A name, and the releases of its library that have it: from ``since`` on, None where the first looked at has it;
    to before ``before``, None where the newest has it.

    ``owner``: the class whose argument it is; ``module``: whose name it is, empty for the library's top; ``now``: the
    name that has its meaning after, or the module that has the name. ``kind``: what the name is of.
    """

    kind: str
    library: str
    name: str
    since: str | None = None
    before: str | None = None
    owner: str = ""
    module: str = ""
    now: str = ""
    was: str = ""


def releases_of(text: str, guide: Mapping[str, Any]) -> NameRelease | None:
    """What is known of the name that a line says is not there.

    Args:
        text: the line, or more of them.
        guide: the guide's ``exports``, names by library, and ``arguments``, by class.
    """
    for match in (expression.search(text) for expression in _LINES):
        if match is not None:
            return _exported(match.groupdict(), guide.get("exports", {}))
    match = _ARGUMENT.search(text)
    if match is None:
        return None
    owner, name = match["owner"] or match["object"], match["name"] or match["attribute"]
    arguments = guide.get("arguments", {})
    library, names = arguments.get(owner, ("", {}))
    if name not in names and (library == "trl" or owner == "Seq2SeqTrainingArguments"):
        library, names = arguments.get("TrainingArguments", ("", {}))  # which these take after
    span = names.get(name)
    if span is None or "to" in span or (match["object"] and "before" not in span):
        return None  # an object that an older release made has not what came after, whichever is installed
    now, was = span.get("now", ""), span.get("was", "")
    return NameRelease("argument", library, name, span.get("since"), span.get("before"), owner, "", now, was)


def _exported(said: Mapping[str, str], exports: Mapping[str, Mapping[str, Any]]) -> NameRelease | None:
    """Of a name at a library's top, a name of one of its modules, a module, or a type of model."""
    library = said.get("library", "transformers")
    module, name = said.get("module", "").removeprefix("."), said.get("type") or said["name"]
    data = exports.get(library, {})
    if "type" not in said and module and name:
        kind, group = "member", data.get("members", {}).get(module, {})
        moved = group.get("moved", {})
    else:
        kind = "type" if "type" in said else "name" if name else "module"
        group, moved = data.get(f"{kind}s", {}), data.get("now", {})
        module, name = "", name or module
    since, before = (  # the first release with the name, and the first without it again
        next((release for release, names in group.get(key, {}).items() if name in names.split()), None)
        for key in ("came", "gone")
    )
    if since is None and before is None:
        return None
    return NameRelease(kind, library, name, since, before, module=module, now=moved.get(name, ""))
