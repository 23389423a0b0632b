"""A Hydra tree as one document: its files' contents merged in order, each value with the file and line it came from.

What OmegaConf's ``${a.b}`` names in the config itself is filled in; what only a run can answer stays as written.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

from kb.config.dialect.dialects import Entry
from kb.config.hydra.tree import File, Placed, Problem, ReadGroup, Tree, defaults_of, read_file
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Mark, Node, Place
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
                made.data = float(node.value) if is_omegaconf_float(node) else node.data
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


_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+\Z")


def is_omegaconf_float(node: Node) -> bool:
    """Whether this is ``5e-5``: text to YAML 1.1, a number to OmegaConf, whose loader has a pattern of its own."""
    return not node.style and node.tag is None and _EXPONENT.match(node.value) is not None


MAX_TEXT = 10_000
MAX_NODES = 20_000
_RESOLVER = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:(.*)\Z", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+")

Path = tuple[str, ...]


def resolve(root: Node) -> None:
    """Fill in what the mapping ``root`` says elsewhere, in place.

    ``${a.b}``, ``${.b}``, ``${a[0]}`` and ``${oc.select:a,1}`` take another entry's value; ``${oc.env:NAME,8}`` its
    default, as where the variable is not set. What leads nowhere, round in a circle, or to a resolver of the program's
    own is left alone: it is unknown. A value that was filled in is an alias: what it says is written elsewhere.
    """
    _Resolution(root).inside(root, ())


class _Resolution:
    def __init__(self, root: Node) -> None:
        self._root = root
        self._busy: set[int] = set()
        self._done: set[int] = set()
        self._left = MAX_NODES

    def inside(self, node: Node, path: Path) -> None:
        """Resolve what stands below a value."""
        if node.kind == SCALAR or id(node.value) in self._done:
            return
        self._done.add(id(node.value))
        for at, name in enumerate(_names(node)):
            self._child(node, at, (*path, name))

    def _child(self, node: Node, at: int, path: Path) -> Node:
        """The value of one entry, resolved."""
        child = _child(node, at)
        if child.kind == SCALAR and "${" in child.value and not child.alias:
            if id(child) in self._busy:
                return child  # a circle
            self._busy.add(id(child))
            child = self._value(child, path)
            self._busy.discard(id(child))
            _put(node, at, child)
        self.inside(child, path)
        return child

    def _value(self, node: Node, path: Path) -> Node:
        text = node.value
        parts = _parts(text)
        if parts is None or node.end is None:
            return node
        if len(parts) == 1 and parts[0][0]:
            found = self._answer(parts[0][1], path)
            if found is None or (found.kind == SCALAR and "${" in found.value):
                return node
            self._left -= _count(found, self._left)
            return found.aliased(node.start, node.end) if self._left > 0 else node
        filled = ""
        for is_interpolation, part in parts:
            found = self._answer(part, path) if is_interpolation else None
            if is_interpolation and (found is None or found.kind != SCALAR or "${" in found.value):
                return node
            filled += part if found is None else found.value
            if len(filled) > MAX_TEXT:
                return node
        made = Node(SCALAR, filled, None, '"', node.start, node.end)
        made.alias = True
        return made

    def _answer(self, content: str, path: Path) -> Node | None:
        if "${" in content:  # an interpolation that names another one
            inner = self._value(Node(SCALAR, content, None, '"', self._root.start, self._root.start), path)
            if "${" in inner.value:
                return None
            content = inner.value
        resolver = _RESOLVER.match(content)
        if resolver is None:
            return self._at(content.strip(), path)
        key, comma, default = resolver[2].partition(",")
        if resolver[1] == "oc.select":
            found = self._at(key.strip(), path)
            return found if found is not None or not comma else _plain(default, self._root)
        return _plain(default, self._root) if resolver[1] == "oc.env" and comma else None

    def _at(self, key: str, path: Path) -> Node | None:
        """The value that a key path leads to: from the top, or with dots before it from here."""
        dots = len(key) - len(key.lstrip("."))
        steps = [*(path[: len(path) - dots] if dots else ()), *_STEP.findall(key)]
        node = self._root
        here: Path = ()
        for step in steps:
            at = _position(node, step)
            if at is None:
                return None
            here = (*here, step)
            node = self._child(node, at, here)
        return node if steps else None


def _parts(text: str) -> list[tuple[bool, str]] | None:
    """A text as plain parts and the contents of its interpolations; None where a brace is not closed or escaped."""
    parts: list[tuple[bool, str]] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        if start and text[start - 1] == "\\":
            return None
        depth, end = 0, start
        while end < len(text):
            depth += text.startswith("${", end)
            depth -= text[end] == "}"
            end += 1
            if depth == 0 and end > start + 2:
                break
        if depth:
            return None
        parts += [(False, text[at:start])] if start > at else []
        parts.append((True, text[start + 2 : end - 1]))
        at = end
    return [*parts, (False, text[at:])] if at < len(text) else parts


def _names(node: Node) -> Sequence[str]:
    return [key.value for key, _ in node.value] if node.kind == MAPPING else [str(at) for at in range(len(node.value))]


def _child(node: Node, at: int) -> Node:
    child: Node = node.value[at][1] if node.kind == MAPPING else node.value[at]
    return child


def _put(node: Node, at: int, child: Node) -> None:
    node.value[at] = (node.value[at][0], child) if node.kind == MAPPING else child


def _position(node: Node, step: str) -> int | None:
    if node.kind == SEQUENCE:
        return int(step) if step.isdigit() and int(step) < len(node.value) else None
    found = [at for at, (key, _) in enumerate(node.value) if key.value == step] if node.kind == MAPPING else []
    return found[-1] if found else None


def _count(node: Node, limit: int) -> int:
    """How many values a value holds, itself among them; counting ends beyond ``limit``."""
    count, pending = 0, [node]
    while pending and count <= limit:
        count += 1
        one = pending.pop()
        if one.kind != SCALAR:
            pending += [_child(one, at) for at in range(len(one.value))]
    return count


def _plain(text: str, like: Node) -> Node:
    """What a resolver's default says: ``8``, ``null`` or ``'8'``."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    node = Node(SCALAR, text[1:-1] if quoted else text, None, '"' if quoted else "", like.start, like.start)
    if is_omegaconf_float(node):
        node.data = float(text)
    return node


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
