"""Servers that an operator or a chart starts from values of its own: vLLM's production-stack and KubeAI.

Sources: ``helm/templates/deployment-vllm-multi.yaml`` of vllm-project/production-stack,
``internal/modelcontroller/engine_vllm.go`` and ``charts/kubeai/values.yaml`` of substratusai/kubeai.
"""

from collections.abc import Iterator, Mapping, Sequence

from kb.config.manifest_env import inner
from kb.config.shell.expand import Argument
from kb.config.shell.flags import Flag
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.core.record import NamedTuple

# Names of the chart, and the flags that its template makes of them; of a switch that is off the negated one.
_VLLM_CONFIG = {
    "maxModelLen": "max_model_len", "dtype": "dtype", "tensorParallelSize": "tensor_parallel_size",
    "maxNumSeqs": "max_num_seqs", "gpuMemoryUtilization": "gpu_memory_utilization", "maxLoras": "max_loras",
    "enablePrefixCaching": "enable_prefix_caching", "enableChunkedPrefill": "enable_chunked_prefill",
}  # fmt: skip
# With one of these a server has a share of a GPU, or its ranks lie in other pods.
_OF_A_SHARE = ("requestGPUMem", "requestGPUMemPercentage", "requestGPUCores", "limitGPUMem", "limitGPUMemPercentage")
_WHOLE_GPU = "nvidia.com/gpu"
_OF_NVIDIA = "nvidia-gpu-"  # how KubeAI's own profiles of NVIDIA's GPUs begin


class Served(NamedTuple):
    """A vLLM server: ``flags`` that the values say, ``arguments`` that they hand on, and what lies around it.

    ``gpus`` is how many it is given, None where that is not said; ``shared`` what mounts shared memory for it.
    """

    name: str
    node: Node
    word: Argument
    flags: tuple[Flag, ...]
    arguments: Node | None
    image: Argument | None = None
    gpus: tuple[int, Node] | None = None
    shared: Node | None = None


def served_in(document: Node) -> Iterator[Served]:
    """The servers of one document; none where it is neither a production-stack's values nor a model of KubeAI."""
    entries = document.entries()
    models = _at(document, "servingEngineSpec", "modelSpec")
    if models is not None and models.kind == SEQUENCE:
        for entry in models.value:
            served = _of_stack(entry) if entry.kind == MAPPING and not entry.alias else None
            if served is not None:
                yield served
    elif _text(entries, "kind") == "Model" and (_text(entries, "apiVersion") or "").startswith("kubeai.org/"):
        served = _of_kubeai(document)
        if served is not None:
            yield served


def _of_stack(entry: Node) -> Served | None:
    """An entry of ``modelSpec``; None where Ray starts it, or it has a part of a GPU."""
    entries = entry.entries()
    model, config = _at(entry, "modelURL"), _at(entry, "vllmConfig")
    apart = _said(_at(entry, "raySpec", "enabled")) == "true" or _said(_at(entry, "enabled")) == "false"
    if model is None or model.kind != SCALAR or apart or any(key in entries for key in _OF_A_SHARE):
        return None
    named = config.entries() if config is not None and config.kind == MAPPING else {}
    flags = [_flag("model", entries["modelURL"][0], model)]
    flags += [
        _flag(flag, *named[key]) for key, flag in _VLLM_CONFIG.items() if key in named and named[key][1].kind == SCALAR
    ]
    parts = [_at(entry, "repository"), _at(entry, "tag")]
    image = None
    if all(part is not None and part.kind == SCALAR for part in parts) and parts[1] is not None:
        image = inner(parts[1])._replace(text=":".join(str(part.value) for part in parts if part is not None))
    gpus, kind = _at(entry, "requestGPU"), _said(_at(entry, "requestGPUType")) or _WHOLE_GPU
    counted = gpus is not None and _said(gpus).isdigit() and kind == _WHOLE_GPU and "resources" not in entries
    return Served(
        name=_text(entries, "name") or "",
        node=entry,
        word=inner(model),
        flags=tuple(flags),
        arguments=named["extraArgs"][1] if "extraArgs" in named else None,
        image=image,
        gpus=(int(_said(gpus)), gpus) if counted and gpus is not None else None,
        shared=named["tensorParallelSize"][1] if "tensorParallelSize" in named else None,  # the chart mounts it then
    )


def _of_kubeai(document: Node) -> Served | None:
    """A ``Model`` that vLLM serves on NVIDIA's GPUs: of another engine, or on a CPU or a TPU, none."""
    spec = _at(document, "spec")
    entries = spec.entries() if spec is not None and spec.kind == MAPPING else {}
    url, engine, profile = (entries[key][1] if key in entries else None for key in ("url", "engine", "resourceProfile"))
    if spec is None or url is None or engine is None or _said(engine) != "vllm" or url.kind != SCALAR:
        return None
    kind, _, count = _said(profile).rpartition(":")
    if not kind.startswith(_OF_NVIDIA):
        return None
    scheme, _, model = str(url.value).partition("://")
    flags: tuple[Flag, ...] = ()
    if scheme == "hf" and "$" not in model:
        key, place = inner(entries["url"][0]), inner(url)
        flags = (Flag("model", key, (place._replace(text=model.partition("?")[0], from_variable=True),), dashes=""),)
    return Served(
        name=_said(_at(document, "metadata", "name")),
        node=spec,
        word=inner(engine),
        flags=flags,
        arguments=entries["args"][1] if "args" in entries else None,
        gpus=(int(count), profile) if count.isdigit() and profile is not None else None,
        shared=engine,  # it mounts shared memory for each server
    )


def _flag(name: str, key: Node, value: Node) -> Flag:
    """A flag as the values say it; a switch by its name alone."""
    if value.value is True or value.value is False:
        return Flag(name if value.value else f"no_{name}", inner(key), (), dashes="")
    return Flag(name, inner(key), (inner(value),), dashes="")


def _at(node: Node, *steps: str) -> Node | None:
    for step in steps:
        if node.kind != MAPPING or step not in node.entries():
            return None
        node = node.entries()[step][1]
    return node


def _said(node: Node | None) -> str:
    """A scalar in small letters; an empty text where there is none."""
    return str(node.value).lower() if node is not None and node.kind == SCALAR else ""


def _text(entries: Mapping[str, tuple[Node, Node]], key: str) -> str | None:
    value = entries[key][1] if key in entries else None
    return str(value.value) if value is not None and value.kind == SCALAR else None


def arguments_of(served: Served) -> Sequence[Node]:
    """The nodes of what is handed on as it is."""
    return () if served.arguments is None or served.arguments.alias else (served.arguments,)
