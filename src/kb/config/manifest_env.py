"""What a container's environment tells its server: TGI and llama.cpp take flags as variables, too."""

from collections.abc import Iterator, Mapping, Sequence

from kb.config.shell.expand import Argument
from kb.config.shell.flags import Flag
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node

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
