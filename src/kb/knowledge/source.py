"""A YAML file of rules/ or i18n/, read into plain data that remembers where each value stands."""

from collections.abc import Mapping
from typing import Any

import yaml

from kb.core.record import NamedTuple
from kb.core.text import placeholders_in
from kb.knowledge.problems import KnowledgeError, Problem

Path = tuple[str | int, ...]

# rules/ is ours, but --rules DIR may not be: the same order of size that config reading allows.
MAX_CHARACTERS, MAX_DEPTH = 1 << 20, 40


class Located(NamedTuple):
    """Data with the place (line, column, from 1) of every value and, under ``(*path, KEY)``, of every key."""

    path: str
    data: Any
    places: Mapping[Path, tuple[int, int]]

    def place(self, path: Path) -> tuple[int, int]:
        """The place of ``path``, or of its nearest ancestor that the file holds."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, (1, 1))

    def problem(self, path: Path, message: str, korean: str = "") -> Problem:
        line, column = self.place(path)
        return Problem(self.path, line, column, message, korean)


def placeholders_apart(korean: str, english: str) -> tuple[str, str] | None:
    """Which placeholders one of two texts has alone, said in English and in Korean; None where both have the same."""
    ko, en = ({whole for _, _, whole in placeholders_in(text)} for text in (korean, english))
    if ko == en:
        return None
    alone = [("ko", sorted(ko - en)), ("en", sorted(en - ko))]
    said = [(name, ", ".join(each)) for name, each in alone if each]
    return (
        "the placeholders differ: " + "; ".join(f"only {name} has {each}" for name, each in said),
        "자리 표시가 서로 다릅니다. " + ", ".join(f"{name}에만 있는 것: {each}" for name, each in said),
    )


KEY = "\0key"
CORE_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null"))


# What to do where YAML's own words do not say it, in English and in Korean.
_HINTS = {
    "cannot start any token": (
        "; indent with spaces, not with a tab, and put a text in quotes that begins with a sign",
        " 탭이 아니라 공백으로 들여쓰고, 기호로 시작하는 글은 따옴표로 묶습니다.",
    ),
    "found a tab character": ("; indent with spaces, not with a tab", " 탭이 아니라 공백으로 들여씁니다."),
    "mapping values are not allowed": ("; put a text in quotes that holds ': '", " ': '가 든 글은 따옴표로 묶습니다."),
}


def _not_yaml(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    english, korean = next((said for known, said in _HINTS.items() if known in (error.problem or "")), ("", ""))
    return f"not YAML: {error.problem}{english}", f"YAML이 아닙니다({error.problem}).{korean}"


def read_source(path: str, text: str) -> Located:
    """The one document of ``text``.

    Raises:
        KnowledgeError: it is not YAML, is too large or deep, or holds a key twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise KnowledgeError([Problem.of_file(path, f"longer than {MAX_CHARACTERS} characters")])
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_depth(path, text, loader)
        node = yaml.compose(text, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise KnowledgeError([Problem(path, line, column, *_not_yaml(error))]) from None
    except yaml.YAMLError as error:
        raise KnowledgeError([Problem.of_file(path, f"not YAML: {error}")]) from None
    places: dict[Path, tuple[int, int]] = {}
    problems: list[Problem] = []
    constructor = yaml.SafeLoader("")
    data = None if node is None else _walk(node, (), places, problems, path, constructor)
    if problems:
        raise KnowledgeError(problems)
    return Located(path, data, places)


def _refuse_depth(path: str, text: str, loader: Any) -> None:
    depth = 0
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise KnowledgeError([Problem(path, *_place(event), "too deeply nested")])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            message = "aliases (*name) are not used in rules: say it out"
            raise KnowledgeError([Problem(path, *_place(event), message)])


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _walk(
    node: Any, path: Path, places: dict[Path, tuple[int, int]], problems: list[Problem], file: str, constructor: Any
) -> Any:
    places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if not node.tag.startswith(CORE_TAGS):
        problems.append(Problem(file, *places[path], f"the tag {node.tag[:60]} is not used in rules"))
        return None
    if isinstance(node, yaml.SequenceNode):
        return [
            _walk(item, (*path, index), places, problems, file, constructor) for index, item in enumerate(node.value)
        ]
    if isinstance(node, yaml.MappingNode):
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
            if key in result:
                problems.append(Problem(file, line, column, f"{key!r} is written twice"))
            if key_node.tag != "tag:yaml.org,2002:str":
                problems.append(Problem(file, line, column, f"the key {key} is not text: put it in quotes"))
            places[*path, key, KEY] = (line, column)
            result[key] = _walk(value_node, (*path, key), places, problems, file, constructor)
        return result
    try:
        return constructor.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        line, column = places[path]
        problems.append(Problem(file, line, column, f"cannot be read: {error}"))
        return None
