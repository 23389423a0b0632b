"""Servers in docker-compose files, Kubernetes manifests and Helm values: a unit for each container that starts one, and
for each that a chart or an operator starts from values of its own: vLLM's production-stack and KubeAI.

Sources of the latter: ``helm/templates/deployment-vllm-multi.yaml`` of vllm-project/production-stack,
``internal/modelcontroller/engine_vllm.go`` and ``charts/kubeai/values.yaml`` of substratusai/kubeai.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.config.container_variables import (
    ENV_FILE,
    LLAMA_VARIABLES,
    Variables,
    filled,
    inner,
    is_compose,
    left_to_defaults,
    plain_variables,
    variables_in,
    with_environment,
)
from kb.config.dockerfile import commands_at
from kb.config.dockerfile import server_in_image as server_in_image
from kb.config.files import ConfigError
from kb.config.reader import ReadNamed
from kb.config.shell.arguments import Argument
from kb.config.shell.command import CommandReader, unit_of
from kb.config.shell.flags import Flag, last_flags, setting_at, setting_by
from kb.config.shell.launch import Launch, server_launch
from kb.config.shell.nested import text_of_shell
from kb.config.shell.processes import CHOSEN, gpus_named
from kb.config.shell.serving import (
    LLAMA,
    SPREAD,
    TGI,
    VLLM,
    VLLM_VARIABLES,
    Started,
    is_of_other_device,
    names_model,
    names_other_device,
    own_image_of,
    read_server,
    server_of_image,
)
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.parsing import Parsed, parse
from kb.config.text.source import Places
from kb.core.document import Setting, Unit
from kb.core.expression import Unknown
from kb.core.record import NamedTuple

KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml")
_HEAD = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\n]*)?")
_SEVERAL = re.compile(r"[$,]")  # an id that may stand for several
# Devices that a container asks for, and images, of which kb has no memory model: all but NVIDIA's GPUs.
_OTHER_DEVICES = re.compile(
    r"google\.com/tpu|aws\.amazon\.com/neuron|huawei\.com/|habana\.ai/|amd\.com/gpu|gpu\.intel\.com/"
)
_MACRO, _NO_WORD = re.compile(r"\$\{([\w.-]+)\}"), re.compile(r"\W")  # of llama-swap: `${vllm-run}`, `${env.HF_TOKEN}`
_FIRST_PORT, _NESTED = "5800", 4  # llama-swap's own start; macros in macros
MAX_DEPTH = 20
_NONE = Variables(of_pod=True)

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


def servers_in(
    parsed: Parsed, path: str, reader: CommandReader, read: ReadNamed = lambda path, named: None
) -> list[Unit]:
    """A unit for each container that starts a server; empty where the file has none.

    Settings stand where the manifest has them; what only the container's surroundings say (GPUs, shared memory) too.

    Args:
        read: looks up the ``.env`` beside a Compose file.
    """
    text = parsed.source.text
    places = parsed.source.places()
    found = []
    for document in parsed.documents:
        if document is None or document.kind != MAPPING:
            continue
        own = [_unit_served(served, text, path, reader, parsed) for served in served_in(document)]
        found += own
        found += _swapped_in(document, text, path, reader, parsed)
        if own:
            continue
        variables = _variables(path, read) if is_compose(document) else None
        put = None if variables else _images_put(path, read)
        for name, container in _containers(document, "", 0):
            own_variables = variables or Variables(plain_variables(container), of_pod=True)
            started = _started(container, text, own_variables, put)
            if started is None or _on_other_devices(container, started, text):
                continue
            launch = server_launch(started, text)
            launch = launch._replace(flags=with_environment(container, _variables_of(launch, reader), launch.flags))
            if started.server in (TGI, LLAMA) and not any(flag.name != "image_release" for flag in launch.flags):
                continue
            span = parsed.source.span(container)
            unit = unit_of(launch, reader.speller(launch), path, name or None, places, span)
            settings = {**unit.settings, **_surroundings(container, started, places, text)}
            found.append(unit._replace(settings=settings))
    return found


def _variables_of(launch: Launch, reader: CommandReader) -> dict[str, str]:
    """The flags that are variables too, by the variable's name."""
    named = {
        "tgi": lambda: {each.upper(): each for each in reader.speller(launch).targets},
        "llama-server": lambda: LLAMA_VARIABLES,
        "vllm": lambda: {each: each for each in VLLM_VARIABLES},
    }
    return named.get(launch.script, dict)()


def _unit_served(served: Served, text: str, path: str, reader: CommandReader, parsed: Parsed) -> Unit:
    """The unit of a server that a chart or an operator starts."""
    variables = Variables(plain_variables(served.node), of_pod=True)
    handed_on = () if served.arguments is None or served.arguments.alias else (served.arguments,)
    started = Started(VLLM, _arguments(handed_on, text, variables), served.word, served.image)
    launch = server_launch(started, text)
    launch = launch._replace(flags=(*served.flags, *launch.flags))
    places = parsed.source.places()
    unit = unit_of(launch, reader.speller(launch), path, served.name or None, places, parsed.source.span(served.node))
    around = _surroundings(served.node, started, places, text)
    if served.gpus is not None:
        around["serving.gpus_given"] = _beside("count", *served.gpus, places)
    if served.shared is not None:
        around["serving.shared_memory"] = _beside("shm_size", "/dev/shm", served.shared, places)
    return unit._replace(settings={**unit.settings, **around})


def _swapped_in(document: Node, text: str, path: str, reader: CommandReader, parsed: Parsed) -> Iterator[Unit]:
    """The servers that llama-swap starts: ``cmd`` of each of its models, with the macros that it may name."""
    for name, (_, model) in _entries(_below(document, "models")).items():
        command = _scalar(model, "cmd")
        if command is None:
            continue
        known = {"MODEL_ID": name, "PORT": _FIRST_PORT, **_macros(document), **_macros(model)}
        started = read_server(_words(command, text, Variables(_put_in(known)), swapped=True))
        if started is not None:
            launch = server_launch(started, text)
            last = last_flags(launch.flags)  # a macro's is set otherwise on purpose
            launch = launch._replace(flags=tuple(
                flag for flag in launch.flags if flag is last[flag.name] or flag.key.start > command.start.index
            ))  # fmt: skip
            places = parsed.source.places()
            unit = unit_of(launch, reader.speller(launch), path, name, places, parsed.source.span(model))
            inside = setting_by(True, "cmd", started.word, places)  # as a container's
            yield unit._replace(settings={**unit.settings, "serving.contained": inside})


def _macros(holder: Node) -> dict[str, str]:
    """Macros of llama-swap, under names that a shell takes."""
    written = _entries(_below(holder, "macros")).items()
    return {_NO_WORD.sub("_", name): " ".join(_text(value).split()) for name, (_, value) in written if _scalar(value)}


def _put_in(macros: Mapping[str, str]) -> dict[str, str]:
    """Macros with those that they name; one of what nobody here says is left out."""

    def opened(text: str, depth: int = 0) -> str:
        if depth > _NESTED:
            return "$"
        return _MACRO.sub(lambda found: opened(macros.get(_NO_WORD.sub("_", found[1]), "$"), depth + 1), text)

    found = {name: opened(text) for name, text in macros.items()}
    return {name: text for name, text in found.items() if "$" not in text}


def _raw(container: Node, text: str) -> str:
    assert container.end is not None
    return text[container.start.index : container.end.index]


def _beside(name: str, value: Any, node: Node, places: Places) -> Setting:
    """What stands beside the command, at its place."""
    argument = _argument(node)
    return setting_at(value, Flag(name, argument, (argument,), dashes=""), places)


def _variables(path: str, read: ReadNamed) -> Variables:
    """Those of the ``.env`` in the file's own folder: one further up is another project's."""
    return Variables(variables_in(read(path, os.path.join(os.path.dirname(os.path.abspath(path)), ENV_FILE))))


def _containers(node: Node, name: str, depth: int) -> Iterator[tuple[str, Node]]:
    """Mappings with an image or a command, each with the name of its service or container."""
    if depth > MAX_DEPTH:
        return
    if node.kind == SEQUENCE:
        for item in node.value:
            yield from _containers(item, name, depth + 1)
    elif node.kind == MAPPING:
        entries = node.entries()
        own = _text(node, "name") or name
        if any(key in entries for key in ("image", "command", "args", "entrypoint")):
            yield own, node
        for key, (_, value) in entries.items():
            yield from _containers(value, key if name == "services" or depth == 0 else name or key, depth + 1)


def _images_put(path: str, read: ReadNamed) -> dict[str, tuple[str, str]] | None:
    """What the kustomization beside a manifest that it lists puts in place of images, by their names without a tag: the
    name, and the tag with its sign, empty where the manifest's own stays. None where there is no such kustomization.
    """
    folder, name = os.path.split(os.path.abspath(path))
    texts = (read(path, os.path.join(folder, each)) for each in KUSTOMIZATIONS)
    text = next((each for each in texts if each and name in each), None)
    if text is None or "images:" not in text:
        return None if text is None else {}
    try:
        rows = [row for each in parse(text, KUSTOMIZATIONS[0]).documents for row in _items(each, "images")]
    except ConfigError:
        return {}
    found = {}
    for row in rows:
        if image := _text(row, "name"):
            other, tag, digest = (_text(row, key) for key in ("newName", "newTag", "digest"))
            found[image] = (other or image, f":{tag}" if tag else f"@{digest}" if digest else "")
    return found


def _started(
    container: Node, text: str, variables: Variables, put: Mapping[str, tuple[str, str]] | None = None
) -> Started | None:
    entries = container.entries()
    given = [entries[key][1] for key in ("entrypoint", "command", "args", "extraArgs") if key in entries]
    words = _arguments([node for node in given if not node.alias], text, variables)
    started = read_server(words)
    image = _below(container, "image")
    named = _image(image, variables) if image is not None else None
    if named is not None and put is not None:
        name = re.sub(r"[:@][^/]*\Z", "", named.text or "")
        other, own = put.get(name, (name, ":"))  # an overlay elsewhere may put another tag
        named = named._replace(text=other + (own or (named.text or "")[len(name) :]))
    if started is not None:
        return started._replace(image=named)
    server = server_of_image(named.text or "") or own_image_of(named.text or "", words) if named is not None else None
    # a flag whose value is not known counts too: `--quantize=$(QUANTIZE)`
    flagged = bool(words) and text[words[0].start : words[0].end].lstrip("'\"").startswith("-")
    if named is None or server is None or (words and not flagged and not names_model(server, words)):
        return None
    if not words and server not in (TGI, LLAMA):
        return None
    return Started(server, words, named, named)


def _image(node: Node, variables: Variables) -> Argument | None:
    """The image's name; of a chart's ``{repository, tag}`` both, at the place of the tag."""
    if node.kind == SCALAR:
        return _argument(node, variables)
    parts = _scalars(node, "repository", "tag")
    return _joined(parts) if parts and _below(node, "repository") is not None else None


def _joined(parts: Sequence[Node]) -> Argument:
    """The parts of an image's name as one, at the place of the last."""
    return inner(parts[-1])._replace(text=":".join(str(part.value) for part in parts))


def _arguments(nodes: Sequence[Node], text: str, variables: Variables) -> list[Argument]:
    """The words of a command in its parts: of a list each item, of a shell's script or a text its words."""
    items = [item for node in nodes for item in (node.value if node.kind == SEQUENCE else (node,))]
    items = [item for item in items if item.kind == SCALAR]
    place = text_of_shell([str(item.value) for item in items])
    if place is not None:
        return _words(items[place], text, variables)
    listed = {id(item) for node in nodes if node.kind == SEQUENCE for item in node.value}
    return [
        word
        for item in items
        for word in ([_argument(item, variables)] if id(item) in listed else _words(item, text, variables))
    ]


def _argument(node: Node, variables: Variables = _NONE) -> Argument:
    assert node.end is not None
    value = str(node.value)
    from_variable = node.alias or "$" in value
    text = filled(value, variables)
    name, equals, _ = value.partition("=")
    begins = name + equals if text is None and equals and "$" not in name else ""
    by_default = left_to_defaults(value, variables)
    return Argument(text, node.start.index, node.end.index, False, from_variable, begins=begins, by_default=by_default)


def _words(node: Node, text: str, variables: Variables, *, swapped: bool = False) -> list[Argument]:
    """The words of the command in a text that starts a server, else of the first; each at its place in the file.

    Of llama-swap (``swapped``) all lines are one command, but those that begin with #.
    """
    assert node.end is not None
    start, end = node.start.index, node.end.index
    raw = text[start:end]
    if node.style in ("'", '"'):
        raw = f" {raw[1:-1]} "
    head = _HEAD.match(raw)
    if head is not None:
        raw = " " * head.end() + raw[head.end() :]
    raw = variables.in_script(raw)
    if swapped:
        raw = re.sub(r"(?m)^[ \t]*#.*", lambda found: " " * len(found[0]), raw)
        raw = _MACRO.sub(lambda found: f"${{{_NO_WORD.sub('_', found[1])}}}", raw)
    if node.style != "|" or swapped:
        raw = raw.replace("\\\n", "  ").replace("\n", " ")
    runs = commands_at(start, raw, variables.known)
    return next((words for words in runs if read_server(words) is not None), runs[0] if runs else [])


def _on_other_devices(container: Node, started: Started, text: str) -> bool:
    """Whether what the container computes on is no GPU of NVIDIA's."""
    image = started.image.text if started.image is not None else None
    resources = _below(container, "resources")
    asked = resources is not None and _OTHER_DEVICES.search(_raw(resources, text)) is not None
    told = plain_variables(container).get("VLLM_TARGET_DEVICE", "cuda") != "cuda"
    if told or names_other_device(started.rest):
        return True
    return asked or is_of_other_device(image)


_GIVEN = (("gpus",), ("devices",), ("privileged",), ("deploy", "resources", "reservations", "devices"))


def _surroundings(container: Node, started: Started, places: Places, text: str) -> dict[str, Setting]:
    """GPUs and shared memory of the container, and that it is one."""
    found = {"serving.contained": setting_by(True, "image", started.word, places)}
    raw = _raw(container, text)
    spread = SPREAD.search(raw) is not None
    gpus = None if spread else _gpus(container)
    if gpus is not None:
        found["serving.gpus_given"] = _beside("count", *gpus, places)
    again = raw.count(CHOSEN) > 1  # the shell text that it runs may say another
    of_runtime = _text(container, "runtime") == "nvidia" and not any(_below(container, *each) for each in _GIVEN)
    for name in () if spread or again else (CHOSEN, "NVIDIA_VISIBLE_DEVICES") if of_runtime else (CHOSEN,):
        chosen, known = gpus_named(plain_variables(container).get(name)), found.get("serving.gpus_given")
        if chosen is not None and (known is None or chosen < known.value):
            found["serving.gpus_given"] = setting_by(chosen, name, started.word, places)
    if spread:  # the ranks share no memory, nor can this container's be told from the others'
        unknown = Unknown(frozenset(("serving.shared_memory",)), "Ray starts the ranks in other containers too")
        found["serving.shared_memory"] = setting_by(unknown, "image", started.word, places)
    if started.image is None and _below(container, "build") is not None:  # its Dockerfile says what is in it
        unknown = Unknown(frozenset(("serving.image_release",)), "the image is built")
        found["serving.image_release"] = setting_by(unknown, "image", started.word, places)
    if (shared := _shared_memory(container)) is not None:
        found["serving.shared_memory"] = _beside("shm_size", str(shared.value), shared, places)
    return found


def _entries(node: Node | None) -> dict[str, tuple[Node, Node]]:
    return node.entries() if node is not None and node.kind == MAPPING else {}


def _below(node: Node | None, *steps: str) -> Node | None:
    for step in steps:
        node = _entries(node).get(step, (None, None))[1]
    return node


def _items(node: Node | None, *steps: str) -> list[Node]:
    found = _below(node, *steps)
    return found.value if found is not None and found.kind == SEQUENCE else []


def _scalar(node: Node | None, *steps: str) -> Node | None:
    found = _below(node, *steps)
    return found if found is not None and found.kind == SCALAR else None


def _text(node: Node | None, *steps: str) -> str:
    """What a scalar says; empty where there is none."""
    found = _scalar(node, *steps)
    return "" if found is None else str(found.value)


def _scalars(node: Node, *names: str) -> list[Node]:
    """Those of these entries that are there, as scalars."""
    return [found for name in names if (found := _scalar(node, name)) is not None]


def _gpus(container: Node) -> tuple[int, Node] | None:
    """How many GPUs the container is given, where the manifest counts them."""
    limit = _scalar(container, "resources", "limits", "nvidia.com/gpu")
    if limit is not None and _text(limit).isdigit():
        return int(limit.value), limit
    for row in (*_items(container, "deploy", "resources", "reservations", "devices"), *_items(container, "gpus")):
        ids, count = _items(row, "device_ids"), _scalar(row, "count")
        if ids:
            plain = all(_scalar(each) and not _SEVERAL.search(_text(each)) for each in ids)
            return (len(ids), ids[0]) if plain else None
        if count is not None and _text(count).isdigit():
            return int(count.value), count
    return None


def _shared_memory(container: Node) -> Node | None:
    """What gives the container more shared memory than the 64 MiB of a plain one."""
    for key in ("shm_size", "ipc"):
        found = _scalar(container, key)
        if found is not None:
            return found
    mounts = _below(container, "volumeMounts") or _below(container, "volumes") or _below(container, "tmpfs")
    places = (_scalar(row, "mountPath") or _scalar(row) for row in _items(mounts))
    return next((place for place in places if "/dev/shm" in _text(place)), None)


def served_in(document: Node) -> list[Served]:
    """The servers of one document; none where it is neither a production-stack's values nor a model of KubeAI."""
    models = _items(document, "servingEngineSpec", "modelSpec")
    found = [_of_stack(entry) for entry in models if entry.kind == MAPPING and not entry.alias]
    if not models and _text(document, "kind") == "Model" and _text(document, "apiVersion").startswith("kubeai.org/"):
        found = [_of_kubeai(document)]
    return [served for served in found if served is not None]


def _of_stack(entry: Node) -> Served | None:
    """An entry of ``modelSpec``; None where Ray starts it, or it has a part of a GPU."""
    entries = entry.entries()
    model, config = _scalar(entry, "modelURL"), _below(entry, "vllmConfig")
    apart = _text(entry, "raySpec", "enabled").lower() == "true" or _text(entry, "enabled").lower() == "false"
    if model is None or apart or any(key in entries for key in _OF_A_SHARE):
        return None
    flags = [_flag("model", entries["modelURL"][0], model)]
    flags += [_flag(flag, *_entries(config)[key]) for key, flag in _VLLM_CONFIG.items() if _scalar(config, key)]
    parts = _scalars(entry, "repository", "tag")
    gpus, kind = _scalar(entry, "requestGPU"), _text(entry, "requestGPUType").lower() or _WHOLE_GPU
    counted = _text(gpus).isdigit() and kind == _WHOLE_GPU and "resources" not in entries
    return Served(
        name=_text(entry, "name"),
        node=entry,
        word=inner(model),
        flags=tuple(flags),
        arguments=_below(config, "extraArgs"),
        image=_joined(parts) if len(parts) == 2 else None,
        gpus=(int(gpus.value), gpus) if counted and gpus is not None else None,
        shared=_below(config, "tensorParallelSize"),  # the chart mounts it then
    )


def _of_kubeai(document: Node) -> Served | None:
    """A ``Model`` that vLLM serves on NVIDIA's GPUs: of another engine, or on a CPU or a TPU, none."""
    spec = _below(document, "spec")
    url, engine, profile = (_scalar(spec, key) for key in ("url", "engine", "resourceProfile"))
    if spec is None or url is None or engine is None or _text(engine).lower() != "vllm":
        return None
    kind, _, count = _text(profile).lower().rpartition(":")
    if not kind.startswith(_OF_NVIDIA):
        return None
    scheme, _, model = str(url.value).partition("://")
    flags: tuple[Flag, ...] = ()
    if scheme == "hf" and "$" not in model:
        key, place = inner(_entries(spec)["url"][0]), inner(url)
        flags = (Flag("model", key, (place._replace(text=model.partition("?")[0], from_variable=True),), dashes=""),)
    return Served(
        name=_text(document, "metadata", "name").lower(),
        node=spec,
        word=inner(engine),
        flags=flags,
        arguments=_below(spec, "args"),
        gpus=(int(count), profile) if count.isdigit() and profile is not None else None,
        shared=engine,  # it mounts shared memory for each server
    )


def _flag(name: str, key: Node, value: Node) -> Flag:
    """A flag as the values say it; a switch by its name alone."""
    if value.value is True or value.value is False:
        return Flag(name if value.value else f"no_{name}", inner(key), (), dashes="")
    return Flag(name, inner(key), (inner(value),), dashes="")
