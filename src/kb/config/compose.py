"""Variables of a docker-compose file: ``${MODEL:-name}`` is what ``.env`` beside it says, else the default in place.

Source: Docker's documentation of interpolation and of ``.env``. What the shell has set would win, and is not known.
"""

import re
from collections.abc import Mapping

from kb.config.text.nodes import MAPPING, Node

ENV_FILE = ".env"
_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)(?:(:?[-+?])([^{}$]*))?\})")
_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)[ \t]*")
_COMMENT = re.compile(r"[ \t]+#.*")


def is_compose(document: Node) -> bool:
    """Whether a document is one of Compose: a mapping of services. Kubernetes has ``$(NAME)``."""
    entries = document.entries() if document.kind == MAPPING else {}
    return "services" in entries and entries["services"][1].kind == MAPPING


def variables_in(text: str | None) -> dict[str, str]:
    """The variables of a ``.env`` file that have a plain value; an empty one leaves the default as it is."""
    found = {}
    for line in (text or "").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        value = match[2]
        quoted = value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1
        value = value[1:-1] if quoted else _COMMENT.sub("", value)
        if value and "$" not in value:
            found[match[1]] = value
    return found


def filled(text: str, variables: Mapping[str, str] | None) -> str | None:
    """The text with its variables filled in; None where one has no value and no default, and outside of Compose."""
    if "$" not in text:
        return text
    if variables is None:
        return None
    parts, at = [], 0
    for match in _VARIABLE.finditer(text):
        plain, name, sign, default = match.groups()
        value = variables.get(plain or name or "") if match[0] != "$$" else "$"
        if value is None and sign in ("-", ":-"):
            value = default
        if value is None or sign in ("+", ":+"):
            return None
        parts += [text[at : match.start()], value]
        at = match.end()
    parts.append(text[at:])
    return None if "$" in text[at:] or any("$" in each for each in parts[::2]) else "".join(parts)
