"""A sweep file → its parameters, the values at their corners, and the configs that combine them."""

import math
from collections.abc import Iterator, Sequence

from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node, number_meant
from kb.config.text.parsing import Parsed
from kb.core.record import NamedTuple

METHODS = ("grid", "random", "bayes")
_FORMS = ("value", "values", "min", "max", "distribution", "parameters", "mu")
# Of these min and max are exponents of e; of every other bounded distribution they are the values themselves.
_EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")


class Parameter(NamedTuple):
    """One hyperparameter. ``path``: its place in the run's config; ``choices``: its values, or the ends of its range.

    A parameter that no end is known of (``normal``) has no choices.
    """

    path: tuple[str, ...]
    key: Node
    choices: tuple[Node, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def numbers(self) -> list[float] | None:
        """The choices as numbers; None where one is not."""
        found = [_number(choice) for choice in self.choices]
        return None if any(each is None for each in found) else [each for each in found if each is not None]

    def ends(self) -> "Parameter":
        """The parameter with its largest and smallest value alone, where it has numbers."""
        numbers = self.numbers()
        if numbers is None or len(numbers) < 3:
            return self
        largest, smallest = numbers.index(max(numbers)), numbers.index(min(numbers))
        return self._replace(choices=(self.choices[largest], self.choices[smallest]))


class Sweep(NamedTuple):
    """``fixed``: what every run is given, from the flags of ``command``; ``program``: what the agent starts with every
    parameter as a flag, empty where the file names none.
    """

    parameters: tuple[Parameter, ...]
    fixed: tuple[tuple[Node, Node], ...]
    start: Node
    program: str = ""

    @property
    def corners(self) -> int:
        """How many combinations there are."""
        return math.prod(max(len(parameter.choices), 1) for parameter in self.parameters)

    def document(self, chosen: Sequence[int]) -> Node:
        """The config of one combination; every value keeps its place in the sweep file."""
        root = Node(MAPPING, list(self.fixed), None, "", self.start.start, self.start.end)
        for parameter, at in zip(self.parameters, chosen, strict=True):
            if parameter.choices:
                _put(root, parameter, parameter.choices[at])
        return root


def read_sweep(parsed: Parsed) -> Sweep | None:
    """The sweep that a text describes; None where it describes none."""
    documents = [document for document in parsed.documents if document is not None]
    if len(documents) != 1 or documents[0].kind != MAPPING:
        return None
    entries = documents[0].entries()
    method, parameters = entries.get("method"), entries.get("parameters")
    if method is None or parameters is None or parameters[1].kind != MAPPING or method[1].value not in METHODS:
        return None
    found = list(_parameters(parameters[1], ()))
    if not found or not any(_is_parameter(value) for _, value in parameters[1].pairs()):
        return None
    command = entries.get("command")
    program = entries["program"][1] if "program" in entries else None
    return Sweep(
        tuple(found),
        tuple(_flags(command[1])) if command else (),
        documents[0],
        program.value if program is not None and program.kind == SCALAR else "",
    )


def combinations(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, ...]]:
    """Combinations of that many choices each: all where they are no more than ``limit``, else a spread of them.

    The spread begins with every first choice, then each other choice once beside first choices, then goes through the
    whole in even steps.
    """
    total = math.prod(sizes)
    if total <= limit:
        for number in range(total):
            yield _digits(number, sizes)
        return
    told: set[tuple[int, ...]] = set()
    first = (0,) * len(sizes)
    alone = ((*first[:at], one, *first[at + 1 :]) for at, size in enumerate(sizes) for one in range(1, size))
    step = max(total // limit, 1) | 1  # odd, so that it meets both ends of pairs
    spread = (_digits(number * step % total, sizes) for number in range(limit))
    for each in (first, *alone, *spread):
        if len(told) == limit:
            return
        if each not in told:
            told.add(each)
            yield each


def _digits(number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    digits = []
    for size in sizes:
        number, digit = divmod(number, size)
        digits.append(digit)
    return tuple(digits)


def _is_parameter(node: Node) -> bool:
    return node.kind == MAPPING and any(name in _FORMS for name in node.entries())


def _parameters(node: Node, path: tuple[str, ...]) -> Iterator[Parameter]:
    for key, value in node.pairs():
        if value.kind != MAPPING:
            continue
        entries = value.entries()
        here = (*path, *key.value.split(".")) if not path else (*path, key.value)
        if "parameters" in entries and entries["parameters"][1].kind == MAPPING:
            yield from _parameters(entries["parameters"][1], here)
        elif _is_parameter(value):
            yield Parameter(here, key, tuple(_choices(entries)))


def _choices(entries: dict[str, tuple[Node, Node]]) -> list[Node]:
    if "values" in entries and entries["values"][1].kind == SEQUENCE:
        return list(entries["values"][1].value)
    if "value" in entries:
        return [entries["value"][1]]
    distribution = entries["distribution"][1].value if "distribution" in entries else ""
    ends = [entries[name][1] for name in ("max", "min") if name in entries]
    if distribution in _EXPONENTS:
        ends = [end for node in ends if (end := _raised(node, distribution == "inv_log_uniform")) is not None]
    return ends


def _raised(node: Node, inverse: bool) -> Node | None:
    exponent = _number(node)
    if exponent is None or not abs(exponent) < 300 or node.end is None:
        return None
    made = Node(SCALAR, f"{math.exp(-exponent if inverse else exponent):.6g}", None, "", node.start, node.end)
    made.data = float(made.value)
    made.alias = True  # no fix writes a value over an exponent
    return made


def _number(node: Node) -> float | None:
    value = node.scalar() if node.kind == SCALAR else None
    if isinstance(value, str):
        meant = number_meant(value)
        value = meant[0] if meant else None
    return None if value is None or isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def _flags(command: Node) -> Iterator[tuple[Node, Node]]:
    """The flags that a sweep's command gives every run: ``--fp16``, ``--optim=adafactor``, ``--optim, adafactor``."""
    tokens = [node for node in command.value if node.kind == SCALAR] if command.kind == SEQUENCE else []
    for token, after in zip(tokens, [*tokens[1:], None], strict=False):
        name, given, value = token.value.partition("=")
        if not name.startswith("--") or len(name) < 3 or token.end is None:
            continue
        key = Node(SCALAR, name[2:].replace("-", "_"), None, "", token.start, token.end)
        if given:
            yield key, Node(SCALAR, value, None, "", token.start, token.end)
        elif after is not None and not after.value.startswith(("--", "${")):
            yield key, after
        else:
            yield key, Node(SCALAR, "true", None, "", token.start, token.end)


def _put(root: Node, parameter: Parameter, value: Node) -> None:
    mapping = root
    for step in parameter.path[:-1]:
        below = next((node for key, node in mapping.value if key.value == step and node.kind == MAPPING), None)
        if below is None:
            key = Node(SCALAR, step, None, "", parameter.key.start, parameter.key.end)
            below = Node(MAPPING, [], None, "", parameter.key.start, parameter.key.end)
            mapping.value.append((key, below))
        mapping = below
    name = parameter.key
    if name.value != parameter.path[-1]:
        name = Node(SCALAR, parameter.path[-1], None, "", name.start, name.end)
    mapping.value[:] = [(key, node) for key, node in mapping.value if key.value != name.value]
    mapping.value.append((name, value))
