"""Servers in docker-compose files, Kubernetes manifests and Helm values: a unit for each container that starts one, and
for each that a chart or an operator starts from values of its own.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.config.compose import ENV_FILE, Variables, filled, is_compose, left_to_defaults, variables_in
from kb.config.dockerfile import server_in_image as server_in_image
from kb.config.joining import ReadNamed
from kb.config.manifest_charts import Served, arguments_of, served_in
from kb.config.manifest_env import LLAMA_VARIABLES, inner, plain_variables, with_environment
from kb.config.shell.command import CommandReader, unit_of
from kb.config.shell.expand import Argument, Environment
from kb.config.shell.flag_values import setting_at
from kb.config.shell.flags import Flag
from kb.config.shell.launch import server_launch
from kb.config.shell.lexer import split_commands
from kb.config.shell.nested import runs_in
from kb.config.shell.serving import (
    LLAMA,
    TGI,
    VLLM,
    Started,
    names_other_device,
    own_image_of,
    read_server,
    server_of_image,
)
from kb.config.text.nodes import MAPPING, SCALAR, SEQUENCE, Node
from kb.config.text.parsing import Parsed
from kb.config.text.source import Places
from kb.core.document import Setting, Unit
from kb.core.expression import Unknown

_SHELLS = re.compile(r"(?:.*/)?(?:ba|da|z)?sh\Z")
_HEAD = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\n]*)?")
_SEVERAL = re.compile(r"[$,]")  # an id that may stand for several
# Ray starts the ranks, in other containers too.
_SPREAD = re.compile(r"\bray[ \t]+start\b|ray_cluster|multi-node-serving|executor[-_]backend[\"', =]+ray\b")
# Devices that a container asks for, and images, of which kb has no memory model: all but NVIDIA's GPUs.
_OTHER_DEVICES = re.compile(
    r"google\.com/tpu|aws\.amazon\.com/neuron|huawei\.com/|habana\.ai/|amd\.com/gpu|gpu\.intel\.com/"
)
_OTHER_IMAGES = re.compile(r"ascend|neuron|gaudi|(?:^|[-_/:.])(?:tpu|rocm|hpu|xpu|npu|cpu)(?:$|[-_/:.])")
MAX_DEPTH = 20
_NONE = Variables(of_pod=True)


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
        if own:
            continue
        variables = _variables(path, read) if is_compose(document) else None
        for name, container in _containers(document, "", 0):
            own_variables = variables or Variables(plain_variables(container), of_pod=True)
            started = _started(container, text, own_variables)
            if started is None or _on_other_devices(container, started, text):
                continue
            launch = server_launch(started, text)
            if started.server in (TGI, LLAMA):
                of_tgi = {each.upper(): each for each in reader.speller(launch).targets}
                named = LLAMA_VARIABLES if started.server is LLAMA else of_tgi
                launch = launch._replace(flags=with_environment(container, named, launch.flags))
                if not any(flag.name != "image_release" for flag in launch.flags):
                    continue
            span = parsed.source.span(container)
            unit = unit_of(launch, reader.speller(launch), path, name or None, places, span)
            settings = {**unit.settings, **_surroundings(container, started, places, text)}
            found.append(unit._replace(settings=settings))
    return found


def _unit_served(served: Served, text: str, path: str, reader: CommandReader, parsed: Parsed) -> Unit:
    """The unit of a server that a chart or an operator starts."""
    variables = Variables(plain_variables(served.node), of_pod=True)
    started = Started(VLLM, _arguments(arguments_of(served), text, variables), served.word, served.image)
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
        own = _text(entries, "name") or name
        if any(key in entries for key in ("image", "command", "args", "entrypoint")):
            yield own, node
        for key, (_, value) in entries.items():
            yield from _containers(value, key if name == "services" or depth == 0 else name or key, depth + 1)


def _text(entries: Mapping[str, tuple[Node, Node]], key: str) -> str | None:
    value = entries[key][1] if key in entries else None
    return str(value.value) if value is not None and value.kind == SCALAR else None


def _started(container: Node, text: str, variables: Variables) -> Started | None:
    entries = container.entries()
    given = [entries[key][1] for key in ("entrypoint", "command", "args", "extraArgs") if key in entries]
    words = _arguments([node for node in given if not node.alias], text, variables)
    started = read_server(words)
    image = entries["image"][1] if "image" in entries else None
    named = _image(image, variables) if image is not None else None
    if started is not None:
        return started._replace(image=named)
    server = server_of_image(named.text or "") or own_image_of(named.text or "", words) if named is not None else None
    if named is None or server is None or (words and not _is_flag(words[0], text)):
        return None
    if not words and server not in (TGI, LLAMA):
        return None
    return Started(server, words, named, named)


def _is_flag(word: Argument, text: str) -> bool:
    """Whether a word is a flag, its value known or not: ``--quantize=$(QUANTIZE)``."""
    return text[word.start : word.end].lstrip("'\"").startswith("-")


def _image(node: Node, variables: Variables) -> Argument | None:
    """The image's name; of a chart's ``{repository, tag}`` both, at the place of the tag."""
    if node.kind == SCALAR:
        return _argument(node, variables)
    parts = [part for name in ("repository", "tag") if (part := _below(node, name)) is not None and part.kind == SCALAR]
    if not parts or _below(node, "repository") is None:
        return None
    return inner(parts[-1])._replace(text=":".join(str(part.value) for part in parts))


def _arguments(nodes: Sequence[Node], text: str, variables: Variables) -> list[Argument]:
    """The words of a command in its parts: of a list each item, of a shell's script or a text its words."""
    items = [item for node in nodes for item in (node.value if node.kind == SEQUENCE else (node,))]
    items = [item for item in items if item.kind == SCALAR]
    script = next((items[at + 1] for at, item in enumerate(items[:-1]) if item.value in ("-c", "-lc", "-ec")), None)
    if script is not None and _SHELLS.match(str(items[0].value)):
        return _words(script, text, variables)
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


def _words(node: Node, text: str, variables: Variables) -> list[Argument]:
    """The words of the command in a text that starts a server, else of the first; each at its place in the file."""
    assert node.end is not None
    start, end = node.start.index, node.end.index
    raw = text[start:end]
    if node.style in ("'", '"'):
        raw = f" {raw[1:-1]} "
    head = _HEAD.match(raw)
    if head is not None:
        raw = " " * head.end() + raw[head.end() :]
    raw = variables.in_script(raw)
    if node.style != "|":
        raw = raw.replace("\\\n", "  ").replace("\n", " ")
    environment = Environment()
    environment.know(variables.known)
    runs = [
        [_placed(word, start) for word in run if word.text != "" or not word.from_variable]
        for command in split_commands(" " * start + raw)
        for run in runs_in(command, environment.take(command), environment)
    ]
    return next((words for words in runs if read_server(words) is not None), runs[0] if runs else [])


def _placed(word: Argument, start: int) -> Argument:
    """A word that a variable of ``.env`` holds, at the text that it goes into."""
    return word if word.start >= start else word._replace(start=start, end=start + 1)


def _on_other_devices(container: Node, started: Started, text: str) -> bool:
    """Whether what the container computes on is no GPU of NVIDIA's."""
    image = started.image.text if started.image is not None else None
    resources = _below(container, "resources")
    asked = resources is not None and _OTHER_DEVICES.search(_raw(resources, text)) is not None
    told = plain_variables(container).get("VLLM_TARGET_DEVICE", "cuda") != "cuda"
    if told or names_other_device(started.rest):
        return True
    return asked or _OTHER_IMAGES.search((image or "").casefold()) is not None


def _surroundings(container: Node, started: Started, places: Places, text: str) -> dict[str, Setting]:
    """GPUs and shared memory of the container, and that it is one."""
    found = {"serving.contained": setting_at(True, Flag("image", started.word, (), dashes=""), places, bare=True)}
    spread = _SPREAD.search(_raw(container, text)) is not None
    gpus = None if spread else _gpus(container)
    if gpus is not None:
        found["serving.gpus_given"] = _beside("count", *gpus, places)
    if spread:  # the ranks share no memory, nor can this container's be told from the others'
        unknown = Unknown(frozenset(("serving.shared_memory",)), "Ray starts the ranks in other containers too")
        found["serving.shared_memory"] = setting_at(
            unknown, Flag("image", started.word, (), dashes=""), places, bare=True
        )
    if (shared := _shared_memory(container)) is not None:
        found["serving.shared_memory"] = _beside("shm_size", str(shared.value), shared, places)
    return found


def _below(node: Node, *steps: str) -> Node | None:
    for step in steps:
        if node.kind != MAPPING or step not in node.entries():
            return None
        node = node.entries()[step][1]
    return node


def _gpus(container: Node) -> tuple[int, Node] | None:
    """How many GPUs the container is given, where the manifest counts them."""
    limit = _below(container, "resources", "limits", "nvidia.com/gpu")
    if limit is not None and limit.kind == SCALAR and str(limit.value).isdigit():
        return int(limit.value), limit
    devices = _below(container, "deploy", "resources", "reservations", "devices")
    rows: Sequence[Any] = devices.value if devices is not None and devices.kind == SEQUENCE else ()
    for row in rows:
        ids, count = _below(row, "device_ids"), _below(row, "count")
        if ids is not None and ids.kind == SEQUENCE and ids.value:
            plain = all(each.kind == SCALAR and not _SEVERAL.search(str(each.value)) for each in ids.value)
            return (len(ids.value), ids.value[0]) if plain else None
        if count is not None and count.kind == SCALAR and str(count.value).isdigit():
            return int(count.value), count
    return None


def _shared_memory(container: Node) -> Node | None:
    """What gives the container more shared memory than the 64 MiB of a plain one."""
    for key in ("shm_size", "ipc"):
        found = _below(container, key)
        if found is not None and found.kind == SCALAR:
            return found
    mounts = _below(container, "volumeMounts") or _below(container, "volumes") or _below(container, "tmpfs")
    if mounts is None or mounts.kind != SEQUENCE:
        return None
    for row in mounts.value:
        place = _below(row, "mountPath") if row.kind == MAPPING else row
        if place is not None and place.kind == SCALAR and "/dev/shm" in str(place.value):
            return place
    return None
