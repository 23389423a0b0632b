"""GPUs through ``nvidia-smi``, asked where NVML could not be. A hang is an outcome, not a wait."""

import os
import sys
from typing import Any

from kb.core.hardware import DetectedGpu
from kb.core.units import MIB
from kb.machine.nvml import NOTES
from kb.machine.reading import Note, Reading, Reported, Unanswered

TIMEOUT_SECONDS = 3.0

_FIELDS = ("index", "uuid", "memory.total", "memory.free", "driver_version")
# Asked first: nvidia-smi of older drivers knows neither, and refuses the whole query (exit code 2).
_NEWER_FIELDS = ("compute_cap", "mig.mode.current")
_INVALID_FIELD = 2
_WSL = "usr/lib/wsl/lib/nvidia-smi"


def find(root: str, path: str) -> str | None:
    """nvidia-smi's file on ``path`` (the variable PATH), or where WSL keeps it."""
    name = "nvidia-smi.exe" if sys.platform == "win32" else "nvidia-smi"
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if folder and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    wsl = os.path.join(root, _WSL)
    return wsl if os.access(wsl, os.X_OK) else None


def read(program: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Reading:
    """Every GPU that ``program`` lists.

    Raises:
        Unanswered: it failed, hung, listed nothing, or listed GPUs in MIG mode (their slices' memory is not asked).
    """
    fields: tuple[str, ...] = (*_FIELDS, *_NEWER_FIELDS, "name")
    code, output = query(program, fields, timeout_seconds)
    if code == _INVALID_FIELD:
        fields = (*_FIELDS, "name")
        code, output = query(program, fields, timeout_seconds)
    if code != 0:
        raise Unanswered(NOTES.get(code, "nvidia_smi_failed"))
    rows = [row for line in output.splitlines() if (row := _row(line, fields))]
    if output.strip() and not rows:
        raise Unanswered("nvidia_smi_failed")
    whole = [row for row in rows if row.get("mig.mode.current") != "Enabled"]
    gpus = [gpu for gpu in map(_gpu, whole) if gpu]
    if not gpus:
        raise Unanswered("mig_needs_nvml" if len(whole) < len(rows) else "memory_not_reported" if rows else "no_device")
    notes: tuple[Note, ...] = ("mig_needs_nvml",) if len(whole) < len(rows) else ()
    return Reading(devices=tuple(Reported(gpu=gpu) for gpu in gpus), notes=notes)


def query(program: str, fields: tuple[str, ...], timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[int, str]:
    """Exit code and output. The process group is killed on a timeout, and not waited for: it may hang in the kernel.

    Raises:
        Unanswered: it cannot be run, or does not end in time.
    """
    import subprocess

    command = [program, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError:
        raise Unanswered("nvidia_smi_failed") from None
    try:
        output, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise Unanswered("nvidia_smi_hangs") from None
    finally:
        if process.poll() is None:
            _end(process.pid)
            _leave(process)
    return process.returncode, output


def _end(pid: int) -> None:
    import signal

    try:
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, signal.SIGKILL)
    except OSError:
        return


def _leave(process: Any) -> None:
    """Lets go of a killed process, which the kernel may keep for as long as the driver hangs."""
    import subprocess

    process.stdout.close()
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        return


def _row(line: str, fields: tuple[str, ...]) -> dict[str, str]:
    values = [value.strip() for value in line.split(",", len(fields) - 1)]  # the name, last, may hold a comma
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {}


def _gpu(row: dict[str, str]) -> DetectedGpu | None:
    """None where index or memory is not a number: ``[N/A]``, ``[Unknown Error]``, ``[GPU is lost]``."""
    total, free = _mib(row["memory.total"]), _mib(row["memory.free"])
    if total is None or not row["index"].isdigit():
        return None
    major, _, minor = row.get("compute_cap", "").partition(".")
    capability = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
    return DetectedGpu(
        number=int(row["index"]),
        name=row["name"],
        memory_total=total,
        memory_free=free,
        compute_capability=capability,
        driver=row["driver_version"] or None,
        uuid=row["uuid"] or None,
    )


def _mib(value: str) -> int | None:
    return int(value) * MIB if value.isdigit() and len(value) <= 9 else None
