"""Why there is no GPU, and what is special about one: the same sentences in every command and in both languages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkout_kept import KEPT
from effort import few
from kb.core.text import LANGUAGES
from kb.knowledge import load_words
from kb.machine import host
from kb.report.values import here
from native.probe import SOURCES, compiled, detected, script

RTX_3090 = "name=NVIDIA GeForce RTX 3090,total=24576,reserved=309,used=18739,major=8,minor=6,uuid=GPU-a"
RTX_4090 = "name=NVIDIA GeForce RTX 4090,total=24564,used=0,major=8,minor=9,uuid=GPU-b"
A100_MIG = "name=NVIDIA A100-SXM4-40GB,total=40960,reserved=600,mig=1,major=8,minor=0,uuid=GPU-c"
SLICES = "gpu=0,instance=1,name=NVIDIA A100-SXM4-40GB MIG 3g.20gb,total=19968,used=100,uuid=MIG-d"
CONFIG = "model_name_or_path: t5-small\nper_device_train_batch_size: 4\noutput_dir: out\nnum_train_epochs: 1\n"
WSL = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@host) (gcc 11.2.0) #1 SMP\n"
POD = "601 600 8:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
HOST = "25 1 8:2 / / rw - ext4 /dev/sda2 rw\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("driver")).parent


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "container", "wsl"),
    [
        ({}, False, False),
        ({".dockerenv": ""}, True, False),
        ({"run/.containerenv": ""}, True, False),
        ({"proc/self/cgroup": "12:memory:/kubepods/burstable/pod1/abc\n"}, True, False),
        ({"proc/self/mountinfo": POD, "proc/self/cgroup": "0::/\n"}, True, False),
        ({"proc/self/mountinfo": HOST, "proc/self/cgroup": "0::/user.slice\n"}, False, False),
        ({"proc/version": WSL}, False, True),
    ],
)  # fmt: skip
def test_containers_and_wsl_are_known_by_their_marks(
    tmp_path: Path, files: dict[str, str], container: bool, wsl: bool
) -> None:
    root = str(tree(tmp_path, files))
    assert (host.in_container(root), host.in_wsl(root)) == (container, wsl)


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({}, "no_driver"),
        ({".dockerenv": ""}, "no_driver_in_container"),
        ({"proc/version": WSL}, "no_driver_in_wsl"),
        ({"proc/version": WSL, ".dockerenv": ""}, "no_driver_in_wsl"),
        ({".dockerenv": "", "dev/nvidiactl": ""}, "library_not_found"),
    ],
)
def test_a_missing_driver_is_named_by_where_it_is_missing(tmp_path: Path, files: dict[str, str], note: str) -> None:
    machine = detected(tmp_path, {}, root=str(tree(tmp_path, files)))
    assert (machine["gpus"], machine["gpu_note"]) == ([], note)


def test_wsl_says_what_its_figures_leave_out(tmp_path: Path) -> None:
    folder = tree(tmp_path, {"proc/version": WSL}) / "usr/lib/wsl/lib"
    folder.mkdir(parents=True)
    script(folder, "echo '0, GPU-1234, 24576, 24000, 550.54.14, 8.6, [N/A], NVIDIA GeForce RTX 3090'\n")
    machine = detected(tmp_path, {}, root=str(tmp_path))
    assert machine["gpus"][0]["gpu"]["id"] == "rtx-3090"
    assert machine["notes"] == ["wsl"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_note_has_its_sentence(language: str) -> None:
    from typing import get_args

    from kb.machine.reading import Note

    words = load_words(language)
    missing = [note for note in get_args(Note) if f"machine.{note}" not in words]
    assert missing == []


CASES = [
    (0, {"NVML_INIT": "18"}, "driver_mismatch"),
    (1, {"NVML_INIT": "9"}, "driver_not_loaded"),
    (0, {"NVML_INIT": "4"}, "no_permission"),
    (1, {"NVML_GPUS": A100_MIG}, "mig_without_slices"),
    (0, {"NVML_GPUS": A100_MIG, "NVML_SLICES": SLICES, "NVML_DRIVER": "575.57.08"}, "mig_slices"),
    (1, {"NVML_GPUS": f"{RTX_3090};{RTX_4090}"}, "device_order_uncertain"),
    (0, {"NVML_GPUS": RTX_3090, "CUDA_VISIBLE_DEVICES": ""}, "gpus_hidden"),
]


def said_by(command: str, arguments: list[str], library: Path, language: str, scenario: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"kb.{command}", *arguments, "--lang", language],
        env={
            "PATH": "",
            "PYTHONPATH": str(SOURCES),
            "LC_ALL": "C.UTF-8",
            "LD_LIBRARY_PATH": str(library),
            "XDG_CACHE_HOME": str(KEPT),
            **scenario,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return squeezed(done.stdout + done.stderr)


def squeezed(text: str) -> str:
    """Without what wrapping put in: Korean is broken inside words too."""
    return "".join(text.split())


@pytest.mark.parametrize(("number", "scenario", "note"), few(CASES, 3), ids=[note for *_, note in CASES])
def test_check_estimate_and_monitor_say_the_same(
    tmp_path: Path, library: Path, number: int, scenario: dict[str, str], note: str
) -> None:
    """Each in the language that its neighbour does not take, and the other way round in the next case."""
    config = tmp_path / "train.yaml"
    config.write_text(CONFIG)
    environment = {"NVML_DRIVER": "550.54.14", **scenario}
    commands = (("check", [str(config)]), ("estimate", [str(config)]), ("monitor", ["--once"]))
    for turn, (command, arguments) in enumerate(commands, number):
        language = LANGUAGES[turn % len(LANGUAGES)]
        words = load_words(language)
        # a watch needs the GPU itself: that --gpu names another is no advice there
        key = here(note) if command == "monitor" else note
        sentence = squeezed(words[f"machine.{key}"])
        assert sentence in said_by(command, arguments, library, language, environment), command


def test_a_hanging_nvidia_smi_is_said_by_check_and_monitor(tmp_path: Path) -> None:
    script(tmp_path, "exec /bin/sleep 50\n")
    tree(tmp_path, {"libnvidia-ml.so.1": "not a library", "train.yaml": CONFIG})
    scenario = {"PATH": f"{tmp_path}{os.pathsep}/bin"}
    for language, command, arguments in (
        ("ko", "check", [str(tmp_path / "train.yaml")]),
        ("en", "monitor", ["--once"]),
    ):
        sentence = squeezed(load_words(language)["machine.nvidia_smi_hangs"])
        assert sentence in said_by(command, arguments, tmp_path, language, scenario), command
