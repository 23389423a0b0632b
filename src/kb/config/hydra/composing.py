"""A Hydra tree as one document: its files' contents merged in order, each value with the file and line it came from."""

import re
from collections.abc import Callable, Sequence

from kb.config.hydra.defaults import defaults_of
from kb.config.hydra.interpolation import resolve
from kb.config.hydra.tree import File, Placed, Problem, ReadGroup, Tree, read_file
from kb.config.hydra.virtual import VirtualText
from kb.config.text.nodes import MAPPING, SCALAR, Node
from kb.config.text.parsing import Parsed, duplicate_events
from kb.config.text.source import Source
from kb.core.document import Event
from kb.core.record import NamedTuple
from kb.core.text import nearest

Names = Callable[[str], Sequence[str]]
Listed = Callable[[str, str], Sequence[str]]
"""The primary config's path, a folder below its own → the names of the files there."""

_LOOKS = re.compile(r"^defaults[ \t]*:", re.MULTILINE)


class Composed(NamedTuple):
    """``parsed`` is the whole as one text; ``files`` are those it is made of, by the number they have in ``virtual``.

    ``packages``: where each file's content goes. The first file is the primary config.
    """

    parsed: Parsed
    virtual: VirtualText
    files: tuple[File, ...]
    packages: tuple[tuple[str, ...], ...]


def looks_composed(text: str) -> bool:
    """Whether a text may be a primary config, before anything is parsed."""
    return "defaults" in text and _LOOKS.search(text) is not None


def compose(primary: str, raw: bytes, read: ReadGroup, *, listed: Listed | None = None) -> Composed | None:
    """The config that ``primary`` and the group files below its folder make up; None where it is no Hydra config.

    Args:
        primary: its path, as the user gave it.
        raw: its bytes.
        read: reads a group file.
        listed: the names in a group's folder, to suggest the one that was meant.

    Raises:
        HydraError: a file of the tree cannot be read, or the lists lead round in a circle.
    """
    file = read_file(primary.replace("\\", "/").rpartition("/")[2], raw)
    items = None if file.document is None else defaults_of(file.document)
    if items is None or file.document is None:
        return None
    tree = Tree(file, lambda name: read(primary, name))
    placed = tree.placed()
    marked = any(item.is_self or item.override for item in items) or "hydra" in file.document.entries()
    if not marked and all(one.file is file for one in placed):
        return None
    return _merged(file, placed, tree.problems, lambda name: [] if listed is None else listed(primary, name))


def _merged(primary: File, placed: list[Placed], problems: list[Problem], listed: Names) -> Composed:
    virtual = VirtualText()
    order = [Placed(primary, ()), *(one for one in placed if one.file is not primary)]
    nodes: dict[int, Node] = {}
    events: list[Event] = []
    for one in order:
        number = virtual.add(one.file.text)
        parsed = one.file.parsed
        if one.file.document is None:
            continue
        nodes[number] = virtual.node(one.file.document, parsed.source, number)
        first = all(other.file is not one.file for other in order[:number])
        if first:  # a file that is used twice has its own faults once
            own = [*one.file.events, *parsed.events, *duplicate_events(parsed.duplicates, parsed.source)]
            own += [_problem(problem, parsed, listed) for problem in problems if problem.file is one.file]
            events += [virtual.event(event, number) for event in own]
    whole = nodes[0]
    root = Node(MAPPING, [], None, "", whole.start, whole.end)
    numbers = iter(range(1, len(order)))
    for one in placed:
        number = 0 if one.file is primary else next(numbers)
        if number in nodes:
            root = merge(root, _wrapped(_without_defaults(nodes[number]), one.package))
    root = _without(root, "hydra")
    resolve(root)
    parsed = Parsed(Source(virtual.whole()), [root], [])
    parsed.events = events
    return Composed(parsed, virtual, tuple(one.file for one in order), tuple(one.package for one in order))


def merge(base: Node, over: Node) -> Node:
    """Two mappings as OmegaConf merges them: key by key and all the way down; lists and other values are replaced."""
    pairs = dict(base.entries())
    for key, value in over.pairs():
        known = pairs.get(key.value)
        if known is not None and known[1].kind == MAPPING and value.kind == MAPPING:
            value = merge(known[1], value)
        pairs[key.value] = (key, value)
    made = Node(MAPPING, list(pairs.values()), None, "", over.start, over.end)
    made.flow = over.flow
    return made


def _without_defaults(document: Node) -> Node:
    return _without(document, "defaults") if defaults_of(document) is not None else document


def _without(node: Node, name: str) -> Node:
    pairs = [(key, value) for key, value in node.pairs() if key.value != name]
    return Node(MAPPING, pairs, None, "", node.start, node.end)


def _wrapped(document: Node, package: tuple[str, ...]) -> Node:
    for step in reversed(package):
        key = Node(SCALAR, step, None, "", document.start, document.start)
        document = Node(MAPPING, [(key, document)], None, "", document.start, document.end)
    return document


def _problem(problem: Problem, parsed: Parsed, listed: Names) -> Event:
    span = parsed.source.between(problem.item.node.start, problem.item.node.end or problem.item.node.start)
    if problem.kind == "open":
        return Event(kind="hydra-group-open", span=span, values={"entry": problem.item.shown})
    folder, _, name = problem.wanted.rpartition("/")
    meant = nearest(name.removesuffix(".yaml"), [each.removesuffix(".yaml") for each in listed(folder)])
    guess = f" ({folder}/{meant[0]}.yaml?)" if meant else ""
    values = {"entry": problem.item.shown, "file": problem.wanted + guess}
    return Event(kind="hydra-group-missing", span=span, values=values)
