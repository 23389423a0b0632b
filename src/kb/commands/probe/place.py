"""Where trials run: the GPU that is here, none, or one that a script plays; and whether it is free."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kb.commands.probe.request import ProbeRequest
from kb.config.files import read_at_most
from kb.core.catalog import Catalog
from kb.core.hardware import DetectedGpu, Machine
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.machine.arguments import named_gpus
from kb.machine.detect import detect
from kb.report.values import here
from kb.torch_runs.probe.campaign import Card

if TYPE_CHECKING:
    from kb.torch_runs.probe.campaign import Card

# What drivers, displays and an empty context hold; beyond it somebody is using the GPU.
IDLE_BYTES = 512 << 20
LISTS = ("hang_at", "crash_at", "kill_at", "host_oom_at", "oom_at")
NUMBERS = ("factor", "seconds")
MAPPINGS = ("phases", "utilisation")


class Place(NamedTuple):
    """``machine`` is what predictions are for. ``device`` is the value of CUDA_VISIBLE_DEVICES, ``fake`` the script of
    a GPU that is not there."""

    backend: str
    machine: Machine
    card: "Card"
    device: str | None = None
    fake: Mapping[str, Any] | None = None


def place_of(request: ProbeRequest, catalog: Catalog) -> Place:
    """Raises: UserError: no GPU is here, it is in use, or the script cannot be used."""
    if request.backend == "fake":
        return _scripted(request, catalog)
    for option, value in (("--fake-limit", request.fake_limit), ("--fake-script", request.fake_script)):
        if value is not None:
            raise UserError("probe.only_with_fake", option=option)
    host = request.kind == "host"
    backend = request.backend or ("cpu" if host else "cuda")
    machine = detect(catalog.gpus, gpu="none" if backend == "cpu" else None)

    if backend == "cpu":
        return Place("cpu", machine, Card())
    if not machine.gpus:
        raise UserError("probe.no_gpu", reason_key=f"machine.{here(machine.gpu_note or 'no_driver')}")
    gpu, named = _chosen(machine, request.device)
    _check_free(gpu, request.force)
    ratio = catalog.constants["usable_memory_ratio"]
    free = gpu.memory_total if gpu.memory_free is None else gpu.memory_free
    card = Card(gpu.name, gpu.memory_total, int(min(free, gpu.memory_total * ratio)))
    return Place("cuda", machine._replace(gpus=(gpu,)), card, named)


def _chosen(machine: Machine, device: str | None) -> tuple[DetectedGpu, str]:
    """The GPU, and how CUDA_VISIBLE_DEVICES names it: by its UUID, which no order of numbers can change."""
    found = machine.gpus[0] if device is None else next((gpu for gpu in machine.gpus if _is(gpu, device)), None)
    if found is None:
        known = ", ".join(f"{gpu.number} ({gpu.name})" for gpu in machine.gpus)
        raise UserError("probe.no_such_device", device=device, known=known)
    return found, found.uuid or str(found.number)


def _is(gpu: DetectedGpu, device: str) -> bool:
    return device == str(gpu.number) or (gpu.uuid is not None and gpu.uuid.casefold().startswith(device.casefold()))


def _check_free(gpu: DetectedGpu, force: bool) -> None:
    if force:
        return
    others = [(pid, used) for pid, used in gpu.processes if pid != os.getpid()]
    if others:
        pids = ", ".join(str(pid) for pid, _ in others)
        known = [used for _, used in others if used is not None]
        raise UserError("probe.gpu_busy", gpu=gpu.name, pids=pids, used=sum(known) if known else None)
    if gpu.memory_free is None:
        return
    used = gpu.memory_total - gpu.memory_free - (gpu.memory_reserved or 0)
    if used > IDLE_BYTES:
        raise UserError("probe.gpu_in_use", gpu=gpu.name, used=used)


def _scripted(request: ProbeRequest, catalog: Catalog) -> Place:
    if request.command or request.kind == "host":
        raise UserError("probe.fake_runs_models")
    if request.fake_limit is None:
        raise UserError("probe.fake_needs_limit")

    script = read_script(request.fake_script) if request.fake_script else {}
    named = request.question.machine.gpu
    like = named_gpus(named, None, catalog.gpus)[0] if named else DetectedGpu(0, "", 0)
    gpu = like._replace(memory_total=request.fake_limit)
    machine = Machine(gpus=(gpu,), gpu_source="named")
    fake = {**script, "limit_bytes": request.fake_limit}
    return Place("fake", machine, Card(None, request.fake_limit, request.fake_limit), None, fake)


def read_script(path: str) -> dict[str, Any]:
    """A scripted GPU's behaviour, from YAML or JSON.

    Raises:
        UserError: the file cannot be read, or says what no script can.
    """
    import yaml

    try:
        data = yaml.safe_load(read_at_most(path, 1 << 20).decode("utf-8"))
    except OSError as error:
        raise UserError("probe.script_unreadable", path=path, reason=error.strerror or str(error)) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError("probe.script_unreadable", path=path, reason=str(error).splitlines()[0]) from None
    known = (*NUMBERS, *LISTS, *MAPPINGS)
    if not isinstance(data, dict):
        raise UserError("probe.bad_script", path=path, name="{}", known=", ".join(known))
    for name, value in data.items():
        if not _usable(name, value):
            raise UserError("probe.bad_script", path=path, name=str(name)[:100], known=", ".join(known))
    if isinstance(data.get("utilisation"), dict):
        data["utilisation"] = {str(batch): share for batch, share in data["utilisation"].items()}
    return data


def _usable(name: Any, value: Any) -> bool:
    def number(each: Any) -> bool:
        return isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < 1e6

    if name in LISTS:
        return isinstance(value, list) and all(isinstance(each, int) for each in value)
    if name in MAPPINGS and isinstance(value, dict):
        return all(map(number, value.values()))
    return number(value) if name in NUMBERS or name == "utilisation" else False
