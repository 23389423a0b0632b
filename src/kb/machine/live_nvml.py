"""One open session with NVML, read again and again."""

from collections.abc import Mapping
from typing import Any

from kb.core.snapshot import GpuProcess, GpuState
from kb.machine import nvml, surroundings, visible
from kb.machine.gpu_csv import throttle_reasons
from kb.machine.reading import Note, Unanswered

# What an error of a call says of the driver as a whole; any other only says that this GPU has no such reading.
_GONE = (1, 4, 6, 9, 15, 18, 999)  # uninitialized, no permission, not found, not loaded, lost, mismatch, unknown
_SLOWDOWN = 1  # nvmlTemperatureThresholds_t
_CORE = 0  # nvmlTemperatureSensors_t


class Session:
    """NVML, started, with a handle of each visible GPU and slice.

    Raises:
        Unanswered: there is no driver, no library, no GPU, or ``CUDA_VISIBLE_DEVICES`` leaves none.
    """

    def __init__(self, root: str, environ: Mapping[str, str]) -> None:
        self._pynvml = nvml.wrapper(root)
        try:
            handles, notes = nvml.opened(self._pynvml)
            by_reported = {id(handle.reported): handle for handle in handles}
            seen, more = visible.visible([handle.reported for handle in handles], environ)
            if not seen:
                raise Unanswered("visible_devices_invalid" if "visible_devices_invalid" in more else "gpus_hidden")
        except Unanswered:
            self.close()
            raise
        self._handles = [by_reported[id(reported)] for reported in seen]
        self._limits = [self._fixed(handle) for handle in self._handles]
        self.notes: tuple[Note, ...] = (*notes, *more, *self._about(root))

    def _about(self, root: str) -> tuple[Note, ...]:
        sliced = any(handle.reported.gpu.mig for handle in self._handles)
        several = len({handle.reported.gpu.number for handle in self._handles}) > 1
        found: list[Note] = ["mig_slices"] if sliced else []
        found += ["several_gpus"] if several else []
        return (*found, "wsl") if surroundings.in_wsl(root) else tuple(found)

    def _fixed(self, handle: nvml.Handle) -> tuple[float | None, float | None]:
        """Power limit (W) and the temperature (°C) at which the driver slows down; they do not change as it runs."""
        ask, pynvml = nvml.ask, self._pynvml
        limit = ask(pynvml, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle.gpu)
        slowdown = ask(pynvml, pynvml.nvmlDeviceGetTemperatureThreshold, handle.gpu, _SLOWDOWN)
        return None if limit is None else limit / 1000, slowdown

    def read(self) -> tuple[GpuState, ...]:
        """Every GPU now.

        Raises:
            Unanswered: the driver went away, or every GPU did.
        """
        states: list[GpuState] = []
        reason: Note | None = None
        for at in range(len(self._handles)):
            try:
                states.append(self._state(at))
            except self._pynvml.NVMLError as error:
                reason = nvml.note_of(error)
        if reason is not None and not states:
            raise Unanswered(reason)
        return tuple(states)

    def close(self) -> None:
        nvml.ask(self._pynvml, self._pynvml.nvmlShutdown)

    def _state(self, at: int) -> GpuState:
        handle, (power_limit, slowdown) = self._handles[at], self._limits[at]
        gpu, pynvml, ask = handle.reported.gpu, self._pynvml, nvml.ask
        used, total = self._memory(handle.device)
        share = ask(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle.device)
        power = ask(pynvml, pynvml.nvmlDeviceGetPowerUsage, handle.gpu)
        instance = handle.reported.instance
        return GpuState(
            key=f"{gpu.number}.{instance if instance is not None else at}" if gpu.mig else str(gpu.number),
            name=gpu.name,
            uuid=gpu.uuid or "",
            used_bytes=used,
            total_bytes=total,
            utilisation=None if share is None else share.gpu / 100,
            power_watts=None if power is None else power / 1000,
            power_limit_watts=power_limit,
            temperature_celsius=ask(pynvml, pynvml.nvmlDeviceGetTemperature, handle.gpu, _CORE),
            slowdown_celsius=slowdown,
            throttle=throttle_reasons(self._reasons(handle.gpu) or 0),
            processes=tuple(GpuProcess(*found) for found in nvml.processes_on(pynvml, handle.device)),
        )

    def _memory(self, device: Any) -> tuple[int, int]:
        """Used and total bytes; what the driver keeps for itself is not in use, as nvidia-smi counts.

        Raises:
            NVMLError: the driver or the GPU went away.
        """
        pynvml = self._pynvml
        version = getattr(pynvml, "nvmlMemory_v2", None)
        mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        try:
            if version is not None:
                info = pynvml.nvmlDeviceGetMemoryInfo(device, version)
                return info.used, info.total
        except (pynvml.NVMLError, mismatch) as error:
            if getattr(error, "value", 0) in _GONE:
                raise
        info = pynvml.nvmlDeviceGetMemoryInfo(device)
        return info.used, info.total

    def _reasons(self, gpu: Any) -> int | None:
        """Named anew in R535; older wrappers and drivers know the first name only."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            call = getattr(self._pynvml, name, None)
            found: int | None = nvml.ask(self._pynvml, call, gpu) if call else None
            if found is not None:
                return found
        return None
