"""Variables of a docker-compose file: ``${MODEL:-name}`` is what ``.env`` beside it says, else the default in place.
Those of a container of Kubernetes: ``$(MODEL)`` in its arguments is what its own ``env`` says.

Sources: Docker's documentation of interpolation and of ``.env``; Kubernetes' of dependent environment variables. What
the shell, a secret or a config map has set is not known.
"""

import re
from collections.abc import Mapping

from kb.config.text.nodes import MAPPING, Node
from kb.core.record import NamedTuple

ENV_FILE = ".env"
_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)(?:(:?[-+?])([^{}$]*))?\})")
_IN_POD = re.compile(r"\$\((\w+)\)")
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


class Variables(NamedTuple):
    """``known``: names and their texts; ``of_pod``: written as Kubernetes has them."""

    known: Mapping[str, str] = {}
    of_pod: bool = False

    def in_script(self, text: str) -> str:
        """A shell's text as the container gets it, each character at its place: ``$(NAME)`` is a variable there too."""
        if not self.of_pod:
            return text
        return _IN_POD.sub(lambda found: f"${{{found[1]}}}" if found[1] in self.known else found[0], text)


def left_to_defaults(text: str, variables: Variables) -> bool:
    """Whether the text has a default in the place of a variable, which the environment may have set."""
    names = () if variables.of_pod else [found[2] for found in _VARIABLE.finditer(text) if found[3] in ("-", ":-")]
    return any(name not in variables.known for name in names)


def filled(text: str, variables: Variables) -> str | None:
    """The text with its variables filled in; None where one has no value and no default."""
    if "$" not in text:
        return text
    return _filled_in_pod(text, variables.known) if variables.of_pod else _filled_by_compose(text, variables.known)


def _filled_in_pod(text: str, known: Mapping[str, str]) -> str | None:
    whole = _IN_POD.sub(lambda found: known.get(found[1], "$"), text)
    return None if "$" in whole else whole


def _filled_by_compose(text: str, variables: Mapping[str, str]) -> str | None:
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
