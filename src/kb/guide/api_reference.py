"""What Python programs call, from the code itself: signatures and docstrings, without importing what they need."""

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterator

from kb.guide.library import Library, UnknownIdError
from kb.guide.markup import fenced
from kb.guide.site_words import say

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
    module = "kb." + path.removesuffix(".py").replace("/", ".")
    return "\n\n".join(_shown(library, module, found[name]) for name in names)


def _definitions(path: str) -> dict[str, Definition]:
    place = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *path.split("/"))
    try:
        with open(place, encoding="utf-8") as stream:
            tree = ast.parse(stream.read())
    except OSError:
        raise UnknownIdError(f"there is no src/kb/{path}") from None
    return {node.name: node for node in tree.body if isinstance(node, Definition) and not node.name.startswith("_")}


def _shown(library: Library, module: str, node: Definition) -> str:
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
        entries = list(_entries(body))
        yield "\n".join(f"- {entry}" for entry in entries)


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
