"""What there is to call and to write, from the code itself: names of the Python API, every command with its options,
and the grammar of a rule's expressions, whose examples are computed as they are shown.
"""

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kb.commands import COMMANDS, command
from kb.core.expression import FUNCTIONS, Unknown, compile_tree, is_unknown
from kb.core.grammar import EXPONENTS, EXPRESSION_TYPES, MAX_LITERAL, MAX_NODES, SIGNS, parse
from kb.core.surface import MAX_CHARACTERS, MAX_DEPTH, UNITS
from kb.core.units import BYTES_PER_UNIT
from kb.guide.library import Library, UnknownIdError, say
from kb.guide.markup import code, fenced, filter_box, table, text
from kb.session import cli

_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_CODE = re.compile(r"``([^`]+)``")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (\*{0,2}[\w.]+): ?(.*)$")
LONGEST = 80  # characters of a signature on one line
Definition = ast.FunctionDef | ast.ClassDef


def api_reference(library: Library, path: str, *names: str) -> str:
    """A heading, the signature and the docstring of each name that ``path`` (below ``src/kb``) defines.

    Raises:
        UnknownIdError: there is no such file, or it defines no such name.
    """
    found = _definitions(path)
    missing = [name for name in names if name not in found]
    if missing:
        raise UnknownIdError(f"src/kb/{path} defines no {missing[0]!r}; there are: {', '.join(sorted(found))}")
    return "\n\n".join(_defined(library, found[name]) for name in names)


def _definitions(path: str) -> dict[str, Definition]:
    place = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *path.split("/"))
    try:
        with open(place, encoding="utf-8") as stream:
            tree = ast.parse(stream.read())
    except OSError:
        raise UnknownIdError(f"there is no src/kb/{path}") from None
    return {node.name: node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")}


def _defined(library: Library, node: Definition) -> str:
    parts = [
        f"### `{node.name}` {{ #{node.name.lower()} }}",
        fenced(signature(node), "python"),
        *described(library.language, ast.get_docstring(node) or ""),
    ]
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            text = ast.get_docstring(method) if isinstance(method, ast.FunctionDef) else None
            if text and isinstance(method, ast.FunctionDef) and not method.name.startswith(("_", "on_")):
                parts += [fenced(signature(method), "python"), *described(library.language, text)]
    return "\n\n".join(parts)


def signature(node: Definition) -> str:
    """The definition as it is called: a class by its ``__init__``, nobody's ``self``, an argument a line where long."""
    function: ast.FunctionDef | None
    if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "property" for one in node.decorator_list):
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    if isinstance(node, ast.ClassDef):
        inits = (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
        function, head, returns = next(inits, None), f"class {node.name}", ""
    else:
        function, head = node, f"def {node.name}"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = _arguments(function) if function else []
    line = f"{head}({', '.join(arguments)}){returns}"
    if len(line) <= LONGEST:
        return line
    inner = "".join(f"    {argument},\n" for argument in arguments)
    return f"{head}(\n{inner}){returns}"


def _arguments(function: ast.FunctionDef) -> list[str]:
    """Each argument with its type and default, as written."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    shown = [_argument(one, default) for one, default in zip(plain, defaults, strict=True) if one.arg != "self"]
    if given.vararg:
        shown.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        shown.append("*")
    shown += [_argument(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        shown.append(f"**{_argument(given.kwarg, None)}")
    return shown


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    typed = f"{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else one.arg
    if default is None:
        return typed
    return f"{typed} = {ast.unparse(default)}" if one.annotation else f"{typed}={ast.unparse(default)}"


def described(language: str, docstring: str) -> Iterator[str]:
    """A docstring in Google's form as Markdown: paragraphs, code, and its sections as lists."""
    first, *rest = _SECTION.split(inspect.cleandoc(docstring))
    yield from _paragraphs(first)
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        yield f"**{say(language, f'api.{name.lower()}')}**"
        yield "\n".join(f"- {entry}" for entry in _entries(body))


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs; one that is set in after ``::`` is code."""
    code: list[str] = []
    for paragraph in re.split(r"\n{2,}", text.strip()):
        if paragraph.startswith("    "):
            code.append(textwrap.dedent(paragraph))
            continue
        if code:
            yield fenced("\n\n".join(code), "python")
            code = []
        said = _inline(paragraph).removesuffix("::").strip()
        if said:
            yield said
    if code:
        yield fenced("\n\n".join(code), "python")


def _entries(body: str) -> Iterator[str]:
    """``name: what it is``, each with its continued lines; a section without names is one entry."""
    held: list[str] = []
    for line in body.strip("\n").splitlines():
        named = _ENTRY.match(line)
        if named and held:
            yield _inline(" ".join(held))
            held = []
        held.append(f"`{named[1]}`: {named[2]}" if named else line.strip())
    if held:
        yield _inline(" ".join(held))


def _inline(text: str) -> str:
    return _CODE.sub(r"`\1`", _ROLE.sub(r"`\1`", " ".join(text.split()))).replace("{{", "{ {")


WIDTH = "92"  # columns of the page's code blocks


def command_reference(library: Library) -> str:
    """A heading, what it is for, and its ``--help`` for each command."""
    words = cli.load_words_or_none(library.language)
    parts = [filter_box(library)]
    with _columns(WIDTH):
        # by name, as kb itself finds them: the commands stand above this floor, and are asked for their help alone
        for name in COMMANDS:
            parser = command(name).build_parser(words)
            parts += [
                f"## kb {name} {{ #{name} }}",
                text(cli.said(words, f"cli.about.{name}")),
                fenced(parser.format_help(), "text"),
            ]
    return "\n\n".join(parts)


@contextmanager
def _columns(width: str) -> Iterator[None]:
    """argparse asks the environment how wide a help may be."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = width
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


# One of each sign and function of the grammar, which a test holds against it.
EXAMPLES = (
    *("2 + 3 * 4", "(10 - 4) / 4", "10 // 4", "10 % 4", "3 ** 2"),
    *("1 < 2 <= 2", "3 > 2 and 2 >= 3", "1 == 2 or 1 != 2", "not true"),
    *('"q" in ["q", "v"]', '"t5" in "mt5-base"', '"k" not in ["q", "v"]', "8 if 2 > 1 else 4"),
    *("min(3, 8)", "max(3, 8)", "abs(-2)", "ceil(2.1)", "floor(2.9)", "round(2.6)"),
    *("24 GiB - 24 GB", "48 GB > 40 GiB", "12 GiB / 2 GiB"),
)
TRUTHS = ("true", "false", "gpu.native_bf16")  # of the fact nothing is known
CLASHES = ("gpu.memory_total < 24", "gpu.memory_total < 24 gb", "model.family > 3", "training.fp61")


def evaluated(source: str) -> Any:
    """What an expression gives where no fact is known."""
    names = {"gpu.native_bf16": "bool", "true": "bool", "false": "bool"}
    known = {"true": True, "false": False}
    return compile_tree(parse(source, names))(lambda name: known.get(name, Unknown(frozenset((name,)))))


def grammar_tables(library: Library) -> str:
    """Signs and functions, sizes, types, what unknown makes of ``and`` and ``or``, refusals, limits."""

    def told(key: str) -> str:
        return say(library.language, f"grammar.{key}")

    def section(key: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
        return f"## {told(key)} {{ #{key} }}\n\n{table([told(each) for each in head], rows)}"

    types = library.catalog.fact_types()
    counts = {kind: sum(each == kind for each in types.values()) for kind in EXPRESSION_TYPES}
    junctions = [
        (code(f"{one} {word} {two}".replace(TRUTHS[2], "?")), _given(evaluated(f"{one} {word} {two}")))
        for word in ("and", "or")
        for one in TRUTHS
        for two in TRUTHS[2:]
    ]
    limits = {
        "characters": MAX_CHARACTERS,
        "parts": MAX_NODES,
        "depth": MAX_DEPTH,
        "literal": MAX_LITERAL,
        "exponents": ", ".join(map(str, EXPONENTS)),
    }
    every = ", ".join(code(each) for each in (*SIGNS, *(f"{name}()" for name in FUNCTIONS)))
    parts = [
        f"{told('every')} {every}",
        section("signs", ("expression", "gives"), [(code(each), _given(evaluated(each))) for each in EXAMPLES]),
        section(
            "sizes", ("unit", "bytes"), [(code(f"1 {each}"), f"{BYTES_PER_UNIT[each.upper()]:,}") for each in UNITS]
        ),
        section(
            "types",
            ("fact_type", "expression_type", "facts"),
            [(code(kind), code(seen), str(counts[kind])) for kind, seen in EXPRESSION_TYPES.items()],
        ),
        section("unknown", ("expression", "gives"), junctions),
        section("refused", ("expression", "reason"), [(code(each), code(_refusal(each, types))) for each in CLASHES]),
        section("limits", ("what", "most"), [(told(f"limit.{name}"), str(most)) for name, most in limits.items()]),
    ]
    return "\n\n".join(parts)


def _given(value: Any) -> str:
    if is_unknown(value):
        return code("?")
    return code(str(value).lower() if isinstance(value, bool) else f"{value:,}")


def _refusal(source: str, types: Any) -> str:
    try:
        parse(source, types)
    except ValueError as error:
        return str(error).splitlines()[0]
    raise AssertionError(f"{source} is no longer refused: choose another example")
