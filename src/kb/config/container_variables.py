"""Variables of containers: what fills them in, and what they tell a server: TGI and llama.cpp take flags as variables.

In a docker-compose file ``${MODEL:-name}`` is what ``.env`` beside it says, else the default in place; ``$(MODEL)`` in
the arguments of a container of Kubernetes is what its own ``env`` says. What the shell, a secret or a config map has
set is not known. Sources: Docker's documentation of interpolation and of ``.env``; Kubernetes' of dependent environment
variables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from kb.config.shell.arguments import Argument
from kb.config.shell.flags import Flag
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.core.record import NamedTuple

ENV_FILE = ".env"
_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)(?:(:?[-+?])([^{}$]*))?\})")
_IN_POD = re.compile(r"\$\((\w+)\)")
_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)[ \t]*")
_COMMENT = re.compile(r"[ \t]+#.*")

# docker-compose, Kubernetes, and what Helm charts call it in their values
BLOCKS = ("environment", "env", "extraEnv", "extraEnvVars", "envVars")

LLAMA_VARIABLES = {
    "LLAMA_ARG_MODEL": "model",
    "LLAMA_ARG_HF_REPO": "hf_repo",
    "LLAMA_ARG_CTX_SIZE": "ctx_size",
    "LLAMA_ARG_N_PARALLEL": "parallel",
    "LLAMA_ARG_KV_UNIFIED": "kv_unified",
    "LLAMA_ARG_BATCH": "batch_size",
    "LLAMA_ARG_UBATCH": "ubatch_size",
    "LLAMA_ARG_N_GPU_LAYERS": "n_gpu_layers",
    "LLAMA_ARG_CACHE_TYPE_K": "cache_type_k",
    "LLAMA_ARG_CACHE_TYPE_V": "cache_type_v",
    "LLAMA_ARG_FLASH_ATTN": "flash_attn",
}
"""The flags of llama.cpp's server by their variables. Source: llama.cpp, tools/server/README.md."""


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
    if not variables.of_pod:
        return _filled_by_compose(text, variables.known)
    whole = _IN_POD.sub(lambda found: variables.known.get(found[1], "$"), text)
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


def with_environment(container: Node, names: Mapping[str, str], given: Sequence[Flag]) -> tuple[Flag, ...]:
    """The server's flags, with those that the environment sets.

    Of one that both set the command's counts, unless it takes its value from a variable: ``--quantize=$(QUANTIZE)``.

    Args:
        container: a service, a container, or a chart's values.
        names: the flags that are variables too by the variable's name, without dashes, with _ for -.
        given: the command's own flags.
    """
    said = {flag.name for flag in given if not flag.values or flag.values[0].text is not None}
    found = {}
    for name, key, value in _variables(container):
        flag = names.get(name, "")
        if flag and flag not in said and value.text != "":
            found[flag] = Flag(flag, key, (value,), dashes="")
    return (*found.values(), *(flag for flag in given if flag.name not in found))


def plain_variables(container: Node) -> dict[str, str]:
    """The container's variables whose text stands in the manifest."""
    return {name: value.text for name, _, value in _variables(container) if value.text is not None}


def _variables(container: Node) -> Iterator[tuple[str, Argument, Argument]]:
    """Each variable's name, and the places of name and value."""
    entries = container.entries()
    for block in (entries[name][1] for name in BLOCKS if name in entries):
        if block.kind == MAPPING:
            for name, (key, value) in block.entries().items():
                if value.kind == SCALAR:
                    yield name, inner(key), inner(value)
        for item in block.value if block.kind == SEQUENCE else ():
            if item.kind == SCALAR:
                name, equals, _ = str(item.value).partition("=")
                if equals:
                    yield name, *_parted(item, name)
            elif item.kind == MAPPING and {"name", "value"} <= item.entries().keys():
                key, value = (item.entries()[part][1] for part in ("name", "value"))
                if key.kind == value.kind == SCALAR:
                    yield str(key.value), inner(key), inner(value)


def inner(node: Node) -> Argument:
    """A scalar within its quotes, so that a fix leaves them: Kubernetes takes variables as texts alone."""
    assert node.end is not None
    quotes = 1 if node.style in ("'", '"') else 0
    text = str(node.value)
    return Argument(None if "$" in text else text, node.start.index + quotes, node.end.index - quotes)


def _parted(item: Node, name: str) -> tuple[Argument, Argument]:
    """``NAME=value`` as two."""
    whole = inner(item)
    cut = whole.start + len(name)
    value = None if whole.text is None else whole.text.partition("=")[2]
    return Argument(name, whole.start, cut), Argument(value, cut + 1, whole.end)
