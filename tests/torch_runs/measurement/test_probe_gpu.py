"""``kb probe`` before a GPU: the driver's library is a stand-in, the command and its processes are real."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from native.probe import compiled
from probe_sample import GIB, environment, probe

RTX_3090 = "name=NVIDIA GeForce RTX 3090,total=24576,reserved=309,used=0,major=8,minor=6,uuid=GPU-aaaa-1"
RTX_4090 = "name=NVIDIA GeForce RTX 4090,total=24564,reserved=500,used=0,major=8,minor=9,uuid=GPU-bbbb-2"
TRAIN = "import os, time; time.sleep(1.5); print(os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver")).parent


def smoke(folder: Path, library: Path, gpus: str, *arguments: str, code: str = TRAIN, **more: str) -> Any:
    environ = environment(LD_LIBRARY_PATH=str(library), NVML_DRIVER="570.86.10", NVML_GPUS=gpus, **more)
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return probe(folder, "smoke", *arguments, "--format", "json", "--", sys.executable, "-c", code, environ=environ)


def test_memory_and_utilisation_are_read_from_the_driver_while_a_command_runs(tmp_path: Path, library: Path) -> None:
    run = smoke(tmp_path, library, f"{RTX_3090},util=87,grow=64")
    found = json.loads(run.stdout)
    outcome = found["trials"][0]["outcome"]
    assert run.returncode == 0 and found["backend"] == "cuda" and found["measured"] is True
    assert found["gpu"]["name"] == "NVIDIA GeForce RTX 3090" and found["gpu"]["memory_bytes"] == 24 * GIB
    assert outcome["machine"]["driver"] == "570.86.10"
    assert outcome["utilisation"] == pytest.approx(0.87)
    assert outcome["peak_bytes"] >= 64 << 20  # what came to be in use beyond what was before: pids are hidden here
    assert outcome["host"]["peak_rss_bytes"] > 1_000_000


def test_a_gpu_in_use_is_refused_with_the_process_and_its_memory(tmp_path: Path, library: Path) -> None:
    run = smoke(tmp_path, library, RTX_3090, NVML_PROCESSES="gpu=0,pid=4242,used=8192")
    assert run.returncode == 2
    assert "4242" in run.stderr and "8.0 GiB" in run.stderr and "--force" in run.stderr
    assert not (tmp_path / "kb-probe.jsonl").exists()
    assert smoke(tmp_path, library, RTX_3090, "--force", NVML_PROCESSES="gpu=0,pid=4242,used=8192").returncode == 0


def test_memory_held_by_processes_that_cannot_be_seen_is_refused_too(tmp_path: Path, library: Path) -> None:
    run = smoke(tmp_path, library, RTX_3090.replace("used=0", "used=4096"))
    assert run.returncode == 2 and "4.0 GiB" in run.stderr


def test_a_named_device_is_the_one_that_the_run_sees(tmp_path: Path, library: Path) -> None:
    code = f"{TRAIN}; assert os.environ['CUDA_VISIBLE_DEVICES'] == 'GPU-bbbb-2'"
    for device in ("1", "GPU-bbbb"):
        run = smoke(tmp_path, library, f"{RTX_3090};{RTX_4090}", "--device", device, code=code)
        assert run.returncode == 0, run.stdout
        assert json.loads(run.stdout)["gpu"]["name"] == "NVIDIA GeForce RTX 4090"
    run = smoke(tmp_path, library, f"{RTX_3090};{RTX_4090}", "--device", "7")
    assert run.returncode == 2 and "0 (NVIDIA GeForce RTX 3090), 1 (NVIDIA GeForce RTX 4090)" in run.stderr


def test_a_driver_that_goes_away_ends_no_trial(tmp_path: Path, library: Path) -> None:
    run = smoke(tmp_path, library, f"{RTX_3090},util=50", NVML_GONE="after=3,for=1000")
    assert run.returncode == 0, run.stderr
