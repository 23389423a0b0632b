"""nvidia-smi and torch, asked where NVML cannot be; and machines without any of them."""

import os
import time
from pathlib import Path

import pytest

from kb.core.units import MIB
from kb.machine import nvidia_smi
from kb.machine.reading import Unanswered
from native.probe import compiled, detected, script

ROW = "0, GPU-1234, 24576, 24000, 550.54.14, 8.6, [N/A], NVIDIA GeForce RTX 3090"
TORCH = """
class _Properties: name, total_memory, major, minor, uuid = "NVIDIA GeForce RTX 3090", 25438126080, 8, 6, "1234"
class cuda:
    is_available = staticmethod(lambda: {count} > 0)
    device_count = staticmethod(lambda: {count})
    get_device_properties = staticmethod(lambda index: _Properties)
"""


def test_machine_without_a_driver_says_so_and_imports_little(tmp_path: Path) -> None:
    machine = detected(tmp_path, {}, root=str(tmp_path))
    assert (machine["gpus"], machine["gpu_source"], machine["gpu_note"]) == ([], "none", "no_driver")
    assert not {"pynvml", "subprocess", "torch"} & set(machine["imported"])


@pytest.mark.parametrize("sign", ["dev/nvidiactl", "dev/dxg", "proc/driver/nvidia/version"])
def test_driver_without_its_library_is_not_a_missing_driver(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / sign).touch()
    machine = detected(tmp_path, {}, root=str(tmp_path))
    assert machine["gpu_note"] == "library_not_found"
    assert machine["notes"] == ["torch_failed"]


def test_nvidia_smi_is_asked_where_there_is_no_library(tmp_path: Path) -> None:
    script(
        tmp_path, f"echo '{ROW}'; echo '1, GPU-5678, 24564, [N/A], 550.54.14, 8.9, [N/A], NVIDIA GeForce RTX 4090'\n"
    )
    machine = detected(tmp_path, {"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1,0"}, root=str(tmp_path))
    assert machine["gpu_source"] == "nvidia-smi"
    first, second = machine["gpus"]
    assert (first["gpu"]["id"], first["memory_free"], first["compute_capability"]) == ("rtx-4090", None, [8, 9])
    assert (second["gpu"]["id"], second["memory_free"], second["uuid"]) == ("rtx-3090", 24000 * MIB, "GPU-1234")


def test_nvidia_smi_where_wsl_keeps_it_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/wsl/lib"
    folder.mkdir(parents=True)
    script(folder, f"echo '{ROW}'\n")
    assert detected(tmp_path, {}, root=str(tmp_path))["gpu_source"] == "nvidia-smi"


def test_older_nvidia_smi_is_asked_for_less(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;; esac\n'
        "echo '0, GPU-1, 24268, 24000, 470.57, GeForce RTX 3090'\n",
    )
    (reported,) = nvidia_smi.read(str(program)).devices
    assert (reported.gpu.name, reported.gpu.compute_capability) == ("GeForce RTX 3090", None)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver'; exit 9",
            "driver_not_loaded",
        ),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "driver_mismatch"),
        ("echo 'Failed to initialize NVML: Insufficient Permissions'; exit 4", "no_permission"),
        ("echo 'No devices were found'; exit 6", "no_device"),
        ("exit 255", "nvidia_smi_failed"),
        ("true", "no_device"),
        ("echo '0, GPU-1, [N/A], [N/A], 575.1, 12.1, [N/A], NVIDIA GB10'", "memory_not_reported"),
        ("echo 'nonsense, here'", "nvidia_smi_failed"),
        ("printf '\\377\\376\\000'", "nvidia_smi_failed"),
        ("echo '0, GPU-1, 40960, 40000, 550.54, 8.0, Enabled, NVIDIA A100-SXM4-40GB'", "mig_needs_nvml"),
    ],
)
def test_failures_of_nvidia_smi_are_told_apart(tmp_path: Path, text: str, note: str) -> None:
    with pytest.raises(Unanswered) as caught:
        nvidia_smi.read(str(script(tmp_path, text + "\n")))
    assert caught.value.note == note


def test_gpu_in_mig_mode_is_left_out_beside_others(tmp_path: Path) -> None:
    text = f"echo '{ROW}'; echo '1, GPU-1, 40960, 40000, 550.54, 8.0, Enabled, NVIDIA A100-SXM4-40GB'\n"
    reading = nvidia_smi.read(str(script(tmp_path, text)))
    assert [reported.gpu.number for reported in reading.devices] == [0]
    assert reading.notes == ("mig_needs_nvml",)


def test_file_that_cannot_be_run_is_no_answer(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_bytes(b"\x7fELF no program")
    program.chmod(0o755)
    with pytest.raises(Unanswered) as caught:
        nvidia_smi.read(str(program))
    assert caught.value.note == "nvidia_smi_failed"


def test_nvidia_smi_that_hangs_is_said_and_nothing_is_left_running(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    program = script(tmp_path, f"sleep 50 & echo $! > {pid_file}; wait\n")
    with pytest.raises(Unanswered) as caught:
        nvidia_smi.read(str(program), timeout_seconds=1.0)
    assert caught.value.note == "nvidia_smi_hangs"
    assert _ended(int(pid_file.read_text()))


def _ended(pid: int) -> bool:
    """Whether the process is gone, or dead and only waiting to be collected, within ten seconds."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (OSError, IndexError):
            return True
        time.sleep(0.05)
    return False


def test_hang_is_the_machine_note(tmp_path: Path) -> None:
    script(tmp_path, "sleep 50\n")
    machine = detected(tmp_path, {"PATH": f"{tmp_path}:/bin:/usr/bin"}, root=str(tmp_path))
    assert (machine["gpus"], machine["gpu_note"]) == ([], "nvidia_smi_hangs")
    assert "torch" not in machine["imported"]


def test_mismatch_is_final_where_nvidia_smi_says_so_too(tmp_path: Path) -> None:
    library = compiled(tmp_path).parent
    script(tmp_path, "exit 18\n")
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_INIT": "18", "PATH": str(tmp_path)}
    machine = detected(tmp_path, environment, torch=TORCH.format(count=1))
    assert (machine["gpus"], machine["gpu_note"], machine["notes"]) == ([], "driver_mismatch", [])
    assert "torch" not in machine["imported"]


def test_nvidia_smi_answers_for_a_library_that_does_not_fit(tmp_path: Path) -> None:
    library = compiled(tmp_path).parent
    script(tmp_path, f"echo '{ROW}'\n")
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_INIT": "18", "PATH": str(tmp_path)}
    machine = detected(tmp_path, environment)
    assert (machine["gpu_source"], machine["notes"]) == ("nvidia-smi", ["driver_mismatch"])


def test_torch_answers_last(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    machine = detected(tmp_path, {}, torch=TORCH.format(count=2), root=str(tmp_path))
    assert machine["gpu_source"] == "torch"
    assert [gpu["gpu"]["id"] for gpu in machine["gpus"]] == ["rtx-3090", "rtx-3090"]
    assert machine["gpus"][0]["memory_free"] is None


def test_torch_without_a_gpu_leaves_the_first_reason(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    machine = detected(tmp_path, {}, torch=TORCH.format(count=0), root=str(tmp_path))
    assert (machine["gpu_note"], machine["notes"]) == ("library_not_found", ["torch_sees_none"])


def test_torch_is_not_imported_where_there_is_no_driver(tmp_path: Path) -> None:
    machine = detected(tmp_path, {}, torch=TORCH.format(count=1), root=str(tmp_path))
    assert machine["gpu_note"] == "no_driver"
    assert "torch" not in machine["imported"]
