"""Detection through the real nvidia-ml-py, with a library in the driver's place that plays each machine."""

from pathlib import Path

import pytest

from kb.core.units import GIB, MIB
from native.probe import compiled, detected, script

RTX_3090 = "name=NVIDIA GeForce RTX 3090,total=24576,reserved=309,used=512,major=8,minor=6,uuid=GPU-aaaa-1"
RTX_4090 = "name=NVIDIA GeForce RTX 4090,total=24564,reserved=500,used=0,major=8,minor=9,uuid=GPU-bbbb-2"
A100_MIG = "name=NVIDIA A100-SXM4-40GB,total=40960,reserved=600,mig=1,major=8,minor=0,uuid=GPU-cccc-3"
SLICES = (
    "gpu=0,instance=1,name=NVIDIA A100-SXM4-40GB MIG 3g.20gb,total=19968,used=100,uuid=MIG-dddd-4;"
    "gpu=0,instance=5,name=NVIDIA A100-SXM4-40GB MIG 1g.5gb,total=4864,used=0,uuid=MIG-eeee-5"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture(scope="module")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("old-driver"), "-DOLD_DRIVER").parent


def played(folder: Path, library: Path, arguments: dict | None = None, **environment: str) -> dict:
    scenario = {"LD_LIBRARY_PATH": str(library), "NVML_DRIVER": "550.54.14", **environment}
    return detected(folder, scenario, **(arguments or {}))


def test_one_gpu_is_described_and_matched(tmp_path: Path, library: Path) -> None:
    machine = played(tmp_path, library, NVML_GPUS=RTX_3090)
    (gpu,) = machine["gpus"]
    assert machine["gpu_source"] == "nvml"
    assert (machine["gpu_note"], machine["notes"]) == (None, [])
    assert gpu["gpu"]["id"] == "rtx-3090"
    assert (gpu["memory_total"], gpu["memory_reserved"]) == (24 * GIB, 309 * MIB)
    assert gpu["memory_free"] == (24576 - 309 - 512) * MIB
    assert gpu["compute_capability"] == [8, 6]
    assert (gpu["driver"], gpu["uuid"], gpu["processes"]) == ("550.54.14", "GPU-aaaa-1", [])


def test_driver_without_the_newer_calls_is_understood(tmp_path: Path, old_library: Path) -> None:
    machine = played(tmp_path, old_library, NVML_GPUS=RTX_3090, NVML_PROCESSES="gpu=0,pid=77,used=10")
    (gpu,) = machine["gpus"]
    assert gpu["gpu"]["id"] == "rtx-3090"
    assert gpu["memory_total"] == (24576 - 309) * MIB  # R510 and before hid what they reserved
    assert gpu["memory_free"] == (24576 - 309 - 512) * MIB
    assert gpu["memory_reserved"] is None
    assert gpu["processes"] == [[77, 10 * MIB]]


def test_processes_on_the_gpu_are_listed_with_their_memory(tmp_path: Path, library: Path) -> None:
    processes = "gpu=0,pid=4242,used=8192;gpu=0,pid=4300;gpu=1,pid=9,used=1"
    machine = played(tmp_path, library, NVML_GPUS=RTX_3090, NVML_PROCESSES=processes)
    assert machine["gpus"][0]["processes"] == [[4242, 8 * GIB], [4300, None]]


def test_different_gpus_keep_the_driver_order_and_say_that_cuda_may_differ(tmp_path: Path, library: Path) -> None:
    machine = played(tmp_path, library, NVML_GPUS=f"{RTX_3090};{RTX_4090}")
    assert [gpu["gpu"]["id"] for gpu in machine["gpus"]] == ["rtx-3090", "rtx-4090"]
    assert machine["notes"] == ["device_order_uncertain"]


def test_visible_devices_choose_and_order(tmp_path: Path, library: Path) -> None:
    both = {"NVML_GPUS": f"{RTX_3090};{RTX_4090}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    machine = played(tmp_path, library, **both, CUDA_VISIBLE_DEVICES="1,0")
    assert [gpu["number"] for gpu in machine["gpus"]] == [1, 0]
    machine = played(tmp_path, library, **both, CUDA_VISIBLE_DEVICES="GPU-bbbb")
    assert [gpu["number"] for gpu in machine["gpus"]] == [1]


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_not_even_asked_for(tmp_path: Path, library: Path, value: str) -> None:
    machine = played(tmp_path, library, NVML_GPUS=RTX_3090, CUDA_VISIBLE_DEVICES=value)
    assert (machine["gpus"], machine["gpu_note"]) == ([], "gpus_hidden")
    assert "pynvml" not in machine["imported"]


def test_visible_devices_that_name_no_gpu_are_said_to(tmp_path: Path, library: Path) -> None:
    machine = played(tmp_path, library, NVML_GPUS=RTX_3090, CUDA_VISIBLE_DEVICES="5")
    assert (machine["gpus"], machine["gpu_note"]) == ([], "visible_devices_invalid")


def test_slices_have_their_own_memory_and_the_whole_gpu_row(tmp_path: Path, library: Path) -> None:
    scenario = {"NVML_GPUS": A100_MIG, "NVML_SLICES": SLICES, "NVML_DRIVER": "575.57.08"}
    machine = played(tmp_path, library, **scenario)
    assert [gpu["memory_total"] for gpu in machine["gpus"]] == [19968 * MIB, 4864 * MIB]
    assert all(gpu["mig"] and gpu["gpu"]["id"] == "a100-40gb" for gpu in machine["gpus"])
    assert all(gpu["compute_capability"] == [8, 0] for gpu in machine["gpus"])
    assert machine["notes"] == ["mig_slices"]


def test_older_driver_gives_a_process_one_slice(tmp_path: Path, library: Path) -> None:
    machine = played(tmp_path, library, NVML_GPUS=A100_MIG, NVML_SLICES=SLICES)
    assert [gpu["uuid"] for gpu in machine["gpus"]] == ["MIG-dddd-4"]
    assert machine["notes"] == ["mig_not_all_visible", "mig_slices"]
    machine = played(tmp_path, library, NVML_GPUS=A100_MIG, NVML_SLICES=SLICES, CUDA_VISIBLE_DEVICES="MIG-eeee-5")
    assert [gpu["memory_total"] for gpu in machine["gpus"]] == [4864 * MIB]
    assert machine["notes"] == ["mig_slices"]


def test_mig_without_slices_leaves_no_gpu(tmp_path: Path, library: Path) -> None:
    assert played(tmp_path, library, NVML_GPUS=A100_MIG)["gpu_note"] == "mig_without_slices"


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("9", "driver_not_loaded"),
        ("18", "driver_mismatch"),
        ("4", "no_permission"),
        ("15", "gpu_lost"),
        ("999", "nvml_failed"),
    ],
)
def test_failures_of_the_driver_are_told_apart(tmp_path: Path, library: Path, code: str, note: str) -> None:
    machine = played(tmp_path, library, NVML_INIT=code)
    assert (machine["gpus"], machine["gpu_source"], machine["gpu_note"]) == ([], "none", note)


def test_driver_without_a_gpu_is_not_a_missing_driver(tmp_path: Path, library: Path) -> None:
    assert played(tmp_path, library)["gpu_note"] == "no_device"


def test_gpu_that_may_not_be_used_does_not_hide_the_others(tmp_path: Path, library: Path) -> None:
    machine = played(tmp_path, library, NVML_GPUS=f"error=4;{RTX_3090};error=15")
    assert [gpu["number"] for gpu in machine["gpus"]] == [1]
    assert machine["notes"] == ["no_permission", "gpu_lost"]
    assert played(tmp_path, library, NVML_GPUS="error=4")["gpu_note"] == "no_permission"


def test_gpu_without_memory_of_its_own_is_not_given_any(tmp_path: Path, library: Path) -> None:
    machine = played(tmp_path, library, NVML_GPUS="name=NVIDIA GB10,major=12,minor=1,uuid=GPU-f")
    assert (machine["gpus"], machine["gpu_note"]) == ([], "memory_not_reported")


def test_unknown_gpu_is_reported_not_assumed(tmp_path: Path, library: Path) -> None:
    prototype = "name=NVIDIA Engineering Sample,total=16376,major=8,minor=9,uuid=GPU-g"
    (gpu,) = played(tmp_path, library, NVML_GPUS=prototype)["gpus"]
    assert (gpu["gpu"], gpu["memory_total"], gpu["compute_capability"]) == (None, 16376 * MIB, [8, 9])


@pytest.mark.parametrize("scenario", [{"NVML_GPUS": RTX_3090}, {"NVML_GPUS": ""}, {"NVML_GPUS": "error=15"}])
def test_driver_is_always_let_go(tmp_path: Path, library: Path, scenario: dict[str, str]) -> None:
    log = tmp_path / "calls"
    played(tmp_path, library, **scenario, NVML_LOG=str(log))
    assert log.read_text().split() == ["init", "shutdown"]


def test_driver_that_hangs_is_left_behind(tmp_path: Path, library: Path) -> None:
    import subprocess
    import sys

    from native.probe import SOURCES

    program = (
        "from kb.machine import nvml\nfrom kb.machine.reading import Unanswered\n"
        "try: nvml.read(timeout_seconds=0.5)\nexcept Unanswered as unanswered: print(unanswered.note)"
    )
    environment = {"PYTHONPATH": str(SOURCES), "LD_LIBRARY_PATH": str(library), "NVML_HANG": "50"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "nvml_hangs"


def test_number_of_gpus_asked_for_wins(tmp_path: Path, library: Path) -> None:
    both = f"{RTX_3090};{RTX_3090.replace('GPU-aaaa-1', 'GPU-aaaa-9')}"
    machine = played(tmp_path, library, {"gpu_count": 1}, NVML_GPUS=both)
    assert len(machine["gpus"]) == 1
    machine = played(tmp_path, library, {"gpu_count": 4}, NVML_GPUS=both)
    assert [gpu["number"] for gpu in machine["gpus"]] == [0, 1, 2, 3]
    assert [gpu["memory_free"] is None for gpu in machine["gpus"]] == [False, False, True, True]
    assert machine["notes"] == ["more_gpus_than_found"]


def test_library_where_wsl_keeps_it_is_found(tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "usr/lib/wsl/lib"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library / "libnvidia-ml.so.1")
    machine = detected(tmp_path, {"NVML_GPUS": RTX_3090}, root=str(tmp_path))
    assert machine["gpus"][0]["gpu"]["id"] == "rtx-3090"


def test_file_that_is_no_library_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("INPUT(nothing)")
    machine = detected(tmp_path, {"LD_LIBRARY_PATH": str(tmp_path)}, root=str(tmp_path))
    assert machine["gpu_note"] == "no_driver"


def test_missing_python_package_is_said_and_nvidia_smi_asked(tmp_path: Path, library: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/pynvml.py").write_text("raise ImportError")
    environment = {"LD_LIBRARY_PATH": str(library), "NVML_GPUS": RTX_3090}
    assert detected(tmp_path, environment)["gpu_note"] == "pynvml_missing"
    script(tmp_path, "echo '0, GPU-1, 24576, 24000, 550.54.14, 8.6, [N/A], NVIDIA GeForce RTX 3090'\n")
    machine = detected(tmp_path, {**environment, "PATH": str(tmp_path)})
    assert (machine["gpu_source"], machine["notes"]) == ("nvidia-smi", ["pynvml_missing"])


def test_names_in_bytes_are_read(tmp_path: Path, library: Path) -> None:
    """Wrappers before 11.5 answer in bytes; this one turns today's answers back into them."""
    (tmp_path / "modules").mkdir()
    text = (
        "import importlib.util, sys, os\n"
        "files = [os.path.join(p, 'pynvml.py') for p in sys.path if p != os.path.dirname(__file__)]\n"
        "spec = importlib.util.spec_from_file_location('pynvml', next(f for f in files if os.path.exists(f)))\n"
        "real = importlib.util.module_from_spec(spec); spec.loader.exec_module(real)\n"
        "globals().update({n: getattr(real, n) for n in dir(real) if not n.startswith('__')})\n"
        "def _bytes(call): return lambda *a: call(*a).encode()\n"
        "for n in ('nvmlDeviceGetName', 'nvmlDeviceGetUUID', 'nvmlSystemGetDriverVersion'):\n"
        "    globals()[n] = _bytes(globals()[n])\n"
    )
    (tmp_path / "modules/pynvml.py").write_text(text)
    (gpu,) = played(tmp_path, library, NVML_GPUS=RTX_3090)["gpus"]
    assert (gpu["name"], gpu["uuid"], gpu["driver"]) == ("NVIDIA GeForce RTX 3090", "GPU-aaaa-1", "550.54.14")
