"""GPUs read again and again through nvidia-smi, where NVML cannot be had: a process for each reading."""

from collections.abc import Mapping

from kb.core.snapshot import GpuState
from kb.machine import nvidia_smi, surroundings, visible
from kb.machine.gpu_csv import read_gpu_csv
from kb.machine.nvml import NOTES
from kb.machine.reading import Note, Reported, Unanswered

# The name comes last: it may hold a comma.
_FIELDS = (
    "index",
    "uuid",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "power.draw",
    "enforced.power.limit",
    "temperature.gpu",
    "clocks_throttle_reasons.active",
)


class Session:
    """nvidia-smi's file, and which of its GPUs are watched."""

    def __init__(self, program: str, devices: tuple[Reported, ...], notes: tuple[Note, ...]) -> None:
        self._program, self.notes = program, notes
        self._names = {str(device.gpu.number): device.gpu.name for device in devices}
        self._order = list(self._names)

    def read(self) -> tuple[GpuState, ...]:
        """Every GPU now; the memory of single processes is not asked.

        Raises:
            Unanswered: it failed or hung.
        """
        code, output = nvidia_smi.query(self._program, _FIELDS)
        if code != 0:
            raise Unanswered(NOTES.get(code, "nvidia_smi_failed"))
        found = {row.state.key: row.state for row in read_gpu_csv(output, _FIELDS)}
        if not found:
            raise Unanswered("nvidia_smi_failed")
        return tuple(found[key]._replace(name=self._names[key]) for key in self._order if key in found)

    def close(self) -> None:
        """Nothing is held."""


def opened(root: str, environ: Mapping[str, str]) -> Session | None:
    """A session where nvidia-smi is found; None where it is not.

    Raises:
        Unanswered: it failed, hung, or shows no GPU.
    """
    program = nvidia_smi.find(root, environ.get("PATH", ""))
    if program is None:
        return None
    reading = nvidia_smi.read(program)
    seen, notes = visible.visible(reading.devices, environ)
    if not seen:
        raise Unanswered("visible_devices_invalid" if "visible_devices_invalid" in notes else "gpus_hidden")
    more: tuple[Note, ...] = ("several_gpus",) if len(seen) > 1 else ()
    more += ("wsl",) if surroundings.in_wsl(root) else ()
    return Session(program, seen, (*reading.notes, *notes, *more))
