"""The code blocks of Markdown that a shell may be given: how a project's README says that it is started."""

import re
from collections.abc import Iterator

DOCUMENTS = (".md", ".markdown")
_FENCE = "```"
_BLOCK = (  # in a list or a quotation as well
    r"(?ms)^(?P<in>[ \t>]*)(?P<fence>```+)[ \t]*(?P<language>[^`\n]*?)[ \t\r]*\n"
    r"(?P<code>.*?)^(?P=in)(?P=fence)[ \t]*\r?$"
)
_OF_A_SHELL = frozenset((
    "", "bash", "sh", "shell", "zsh", "console", "shell-session", "shellsession", "sh-session", "text",
))  # fmt: skip
_PROMPT = r"(?m)^[ \t>]*(?:[$%#][ \t]+(?=\S)|!(?=\w))?"  # of a terminal or a notebook, and what stands before it


def shell_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The blocks, each with where it starts; a prompt before a command is left blank, so that places stay the same."""
    for block in re.finditer(_BLOCK, text) if _FENCE in text else ():
        words = block["language"].lower().split()
        if (words[0] if words else "") in _OF_A_SHELL:
            yield block.start("code"), re.sub(_PROMPT, lambda found: " " * len(found[0]), block["code"])


def shell_alone(text: str) -> str:
    """The text as a script of the same length: with nothing but those blocks, all else left blank."""
    parts, at = list[str](), 0
    for start, code in shell_blocks(text):
        parts += (_blank(text[at:start]), code)
        at = start + len(code)
    return "".join((*parts, _blank(text[at:]))) if parts else ""


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
