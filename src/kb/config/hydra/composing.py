"""A Hydra tree as one document: its files' contents merged in order, each value with the file and line it came from.

What OmegaConf's ``${a.b}`` names in the config itself is filled in; what only a run can answer stays as written.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

from kb.config.dialect.dialects import Entry
from kb.config.hydra.tree import File, Placed, Problem, ReadGroup, Tree, defaults_of, read_file
from kb.config.text.interpolation import resolve
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Mark, Node, Place, number_of_omegaconf
from kb.config.text.parsing import Parsed, duplicate_events
from kb.config.text.source import Source, moved_event
from kb.core.document import Event
from kb.core.finding import Span
from kb.core.record import NamedTuple
from kb.core.text import nearest

Names = Callable[[str], Sequence[str]]
Listed = Callable[[str, str], Sequence[str]]
"""The primary config's path, a folder below its own → the names of the files there."""


class VirtualText:
    """Texts one after the other, and the way back from a place in the whole to the text it is in."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._lines: list[int] = []
        self._length = self._line_count = 0

    def add(self, text: str) -> int:
        """Append a text; its number."""
        self._starts.append(self._length)
        self._lines.append(self._line_count)
        whole = text if text.endswith("\n") else text + "\n"
        self._texts.append(whole)
        self._length += len(whole)
        self._line_count += whole.count("\n")
        return len(self._texts) - 1

    def whole(self) -> str:
        return "".join(self._texts)

    def number_of(self, span: Span) -> int:
        """Which text a place is in."""
        return max(bisect_right(self._starts, span.start) - 1, 0)

    def span(self, span: Span, number: int) -> Span:
        """A place of one text as a place of the whole."""
        return _shifted(span, self._lines[number], self._starts[number])

    def local(self, span: Span, number: int) -> Span:
        """A place of the whole as a place of one text."""
        return _shifted(span, -self._lines[number], -self._starts[number])

    def event(self, event: Event, number: int) -> Event:
        """An event in one text as one in the whole."""
        return moved_event(event, lambda span: self.span(span, number))

    def node(self, node: Node, source: Source, number: int) -> Node:
        """A copy of a value, merge keys followed, whose marks are places of the whole."""

        def moved(mark: Mark) -> Mark:
            # what stands between two marks is of no matter here, only where they are in the file as it is on disk
            span = self.span(source.between(mark, mark), number)
            return Place(span.start, span.line - 1, span.column - 1)

        def copy(node: Node) -> Node:
            value = node.value
            if node.kind == MAPPING:
                value = [(copy(key), copy(inner)) for key, inner in node.pairs()]
            elif node.kind == SEQUENCE:
                value = [copy(item) for item in node.value]
            end = None if node.end is None else moved(node.end)
            made = Node(node.kind, value, node.tag, node.style, moved(node.start), end)
            made.flow, made.size, made.alias = node.flow, node.size, node.alias
            if node.kind == SCALAR:
                made.data = node.data if (number := number_of_omegaconf(node)) is None else number
            return made

        return copy(node)


def _shifted(span: Span, lines: int, offset: int) -> Span:
    start, end = span.start + offset, span.end + offset
    return Span(span.line + lines, span.column, span.end_line + lines, span.end_column, start, end)


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
