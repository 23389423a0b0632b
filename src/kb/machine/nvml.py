"""GPUs through NVML (the package nvidia-ml-py), imported only once the driver's library has been seen to load."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kb.core.hardware import DetectedGpu
from kb.core.record import NamedTuple
from kb.machine import host
from kb.machine.reading import Note, Reading, Reported, Unanswered

LIBRARY = "libnvidia-ml.so.1"
# Where the loader's own search does not look on every system: WSL, Kubernetes device plugins, NixOS.
_FURTHER_FOLDERS = ("usr/lib/wsl/lib", "usr/local/nvidia/lib64", "run/opengl-driver/lib")
_INSTALLED = "/etc/ld.so.cache"  # of this system, whatever the root: that is where the loader looks
# Signs of a driver or of a GPU handed into a container; /dev/dxg is WSL's.
_DRIVER_SIGNS = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")

# Starting eight GPUs without persistence mode takes several seconds; a hung driver never answers.
TIMEOUT_SECONDS = 15.0

# nvmlReturn_t. nvidia-smi exits with the same numbers.
NOTES: dict[int, Note] = {
    4: "no_permission",
    6: "no_device",
    9: "driver_not_loaded",
    12: "library_not_found",
    15: "gpu_lost",
    18: "driver_mismatch",
}

_Answer = TypeVar("_Answer")


class Handle(NamedTuple):
    """A GPU or slice that NVML gave out; ``gpu`` is the whole GPU's handle, which is its own where MIG is off."""

    reported: Reported
    device: Any
    gpu: Any


def read(*, root: str = "/", timeout_seconds: float = TIMEOUT_SECONDS) -> Reading:
    """Every GPU and MIG slice that NVML reports, in its order.

    Raises:
        Unanswered: no library, no driver, versions that differ, no permission, no device, no answer in time.
    """
    pynvml = wrapper(root)
    return within(timeout_seconds, lambda: _read(pynvml))


def wrapper(root: str = "/") -> Any:
    """The module pynvml, where the driver's library loads.

    Raises:
        Unanswered: there is no library, no driver, or no such module.
    """
    if not _library_loads(root):
        raise Unanswered(_no_library(root))
    import importlib

    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise Unanswered("pynvml_missing") from None


def _no_library(root: str) -> Note:
    if _signs_of_driver(root):
        return "library_not_found"
    if host.in_wsl(root):
        return "no_driver_in_wsl"
    return "no_driver_in_container" if host.in_container(root) else "no_driver"


def _signs_of_driver(root: str) -> bool:
    return any(os.path.exists(os.path.join(root, sign)) for sign in _DRIVER_SIGNS)


def _may_be_found() -> bool:
    """Whether the loader may find the library by its name: unless no folder is named to it, and what is installed, as
    ``ldconfig`` has listed it, has no such name.
    """
    if os.environ.get("LD_LIBRARY_PATH") or os.environ.get("LD_PRELOAD"):
        return True
    try:
        with open(_INSTALLED, "rb") as listed:
            return LIBRARY.encode() in listed.read()
    except OSError:
        return True  # a loader without such a list: musl's


def _library_loads(root: str) -> bool:
    """Whether the dynamic loader finds the library: 2 ms where there is none, against 15 ms to import pynvml and ask.

    A library loaded by its path answers to its name afterwards, so pynvml finds it too.
    """
    if sys.platform == "win32":
        return True  # pynvml knows where Windows keeps nvml.dll
    if sys.platform != "linux":
        return False
    further = [os.path.join(root, folder, LIBRARY) for folder in _FURTHER_FOLDERS]
    if not (_signs_of_driver(root) or any(map(os.path.exists, further)) or _may_be_found()):
        return False  # as on most machines without a GPU: to ask the loader takes longer than all else of this room
    import ctypes

    for candidate in (LIBRARY, *further):
        try:
            ctypes.CDLL(candidate)
            return True
        except OSError:
            continue
    return False


def within(seconds: float, work: Callable[[], _Answer]) -> _Answer:
    """``work()``, given up after ``seconds``: a call into a hung driver cannot be interrupted, only left behind."""
    import threading

    outcome: list[_Answer | BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="nvml", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise Unanswered("nvml_hangs")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _read(pynvml: Any) -> Reading:
    try:
        handles, notes = opened(pynvml)
        return Reading(devices=tuple(handle.reported for handle in handles), notes=notes)
    finally:
        ask(pynvml, pynvml.nvmlShutdown)


def opened(pynvml: Any) -> tuple[tuple[Handle, ...], tuple[Note, ...]]:
    """Starts NVML; every GPU and slice, in its order, and what is to be said of them. The caller shuts NVML down.

    Raises:
        Unanswered: the driver refuses, or shows no device.
    """
    try:
        pynvml.nvmlInit()
        driver = _text(ask(pynvml, pynvml.nvmlSystemGetDriverVersion))
        found: list[Handle] = []
        notes: list[Note] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.extend(_devices(pynvml, handle, index, driver, notes))
            except pynvml.NVMLError as error:
                notes.append(note_of(error))
    except pynvml.NVMLError as error:
        raise Unanswered(note_of(error)) from None
    if not found:
        raise Unanswered(notes[0] if notes else "no_device")
    return tuple(found), tuple(dict.fromkeys(notes))


def _devices(pynvml: Any, handle: Any, index: int, driver: str | None, notes: list[Note]) -> Iterator[Handle]:
    """The GPU, or its slices where MIG is on."""
    capability = ask(pynvml, pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    known = {"number": index, "driver": driver, "compute_capability": tuple(capability) if capability else None}
    mode = ask(pynvml, pynvml.nvmlDeviceGetMigMode, handle)
    if not (mode and mode[0]):
        gpu = _gpu(pynvml, handle, known, notes)
        if gpu:
            yield Handle(Reported(gpu=gpu), handle, handle)
        return
    memory = memory_of(pynvml, handle)
    numbers = range(ask(pynvml, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
    asked = (ask(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) for number in numbers)
    slices = [piece for piece in asked if piece is not None]
    if not slices:
        notes.append("mig_without_slices")
    for piece in slices:
        gpu = _gpu(pynvml, piece, {**known, "mig": True}, notes)
        if gpu:
            reported = Reported(
                gpu=gpu,
                parent_uuid=_text(ask(pynvml, pynvml.nvmlDeviceGetUUID, handle)),
                parent_memory_total=memory["memory_total"] if memory else None,
                instance=ask(pynvml, pynvml.nvmlDeviceGetGpuInstanceId, piece),
            )
            yield Handle(reported, piece, handle)


def _gpu(pynvml: Any, handle: Any, known: dict[str, Any], notes: list[Note]) -> DetectedGpu | None:
    memory = memory_of(pynvml, handle)
    if memory is None:
        notes.append("memory_not_reported")
        return None
    name = _text(ask(pynvml, pynvml.nvmlDeviceGetName, handle)) or ""
    uuid = _text(ask(pynvml, pynvml.nvmlDeviceGetUUID, handle))
    return DetectedGpu(name=name, uuid=uuid, processes=processes_on(pynvml, handle), **memory, **known)


def memory_of(pynvml: Any, handle: Any) -> dict[str, Any] | None:
    """Total, free and reserved bytes. The second version of the call counts the driver's own share apart."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    info = ask(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle, version) if version else None
    if info is not None:
        return {"memory_total": info.total, "memory_free": info.free, "memory_reserved": info.reserved}
    info = ask(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
    return None if info is None else {"memory_total": info.total, "memory_free": info.free}


def processes_on(pynvml: Any, handle: Any) -> tuple[tuple[int, int | None], ...]:
    """(pid, bytes) of those that compute on it; bytes are unknown under Windows and in some containers."""
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"):
        call = getattr(pynvml, name, None)
        found = ask(pynvml, call, handle) if call else None
        if found is not None:
            return tuple((process.pid, process.usedGpuMemory) for process in found)
    return ()


def ask(pynvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this driver or GPU does not have it."""
    mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
    try:
        return call(*arguments)
    except (pynvml.NVMLError, mismatch):
        return None


def note_of(error: Any) -> Note:
    return NOTES.get(getattr(error, "value", 0), "nvml_failed")


def _text(value: str | bytes | None) -> str | None:
    """Older wrappers answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
