"""``--gpu``, ``--gpus``, ``--host-memory``, ``--cpus``: what they mean and what they refuse."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from every_row import for_every
from kb.core.hardware import Gpu
from kb.core.text import UserError, placeholders_in
from kb.machine.detect import UnknownGpu, detect, find_gpu
from kb.machine.reading import Note
from native.hardware import gpus
from yaml_file import read_yaml

CATALOGUE = gpus()
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("rtx-3090", "rtx-3090"),
        ("RTX 3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("rtx_4090", "rtx-4090"),
        ("A100-80GB", "a100-80gb"),
        ("a100 40gb", "a100-40gb"),
        ("h100-pcie", "h100-pcie"),
        ("H100 NVL", "h100-nvl"),
        ("Tesla T4", "t4"),
        ("rtx 3080 12gb", "rtx-3080-12gb"),
        ("quadro rtx a6000", "rtx-a6000"),
    ],
)
def test_gpu_is_found_by_id_alias_or_name_in_any_spelling(name: str, gpu_id: str) -> None:
    assert find_gpu(name, CATALOGUE).id == gpu_id


@for_every(CATALOGUE)
def test_every_id_name_and_alias_means_its_own_gpu(gpu: Gpu) -> None:
    for name in (gpu.id, gpu.name, *gpu.aliases):
        assert find_gpu(name, CATALOGUE) is gpu
        assert find_gpu(name.upper(), CATALOGUE) is gpu


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("rtx4909", "rtx-4090"), ("rtx3009", "rtx-3090"), ("a100", "a100-80gb"), ("v100", "v100-32gb"), ("h1000", "h100")],
)
def test_unknown_gpu_is_reported_with_the_nearest_ids(name: str, suggested: str) -> None:
    with pytest.raises(UnknownGpu) as caught:
        detect(CATALOGUE, gpu=name, host_memory="none", cpus="none")
    assert any(gpu_id.startswith(suggested) for gpu_id in caught.value.suggestions)
    assert caught.value.key == "machine.unknown_gpu"
    assert caught.value.values["suggestions"] == ", ".join(caught.value.suggestions)


def test_name_that_leaves_the_memory_open_is_not_guessed() -> None:
    with pytest.raises(UnknownGpu) as caught:
        find_gpu("rtx 3080", CATALOGUE)
    assert set(caught.value.suggestions) == {"rtx-3080-10gb", "rtx-3080-12gb"}


@pytest.mark.parametrize("name", ["", "   ", "banana", "지피유", "x" * 5000, "-"])
def test_name_like_no_other_is_reported_without_suggestions(name: str) -> None:
    with pytest.raises(UnknownGpu) as caught:
        detect(CATALOGUE, gpu=name, host_memory="none", cpus="none")
    assert caught.value.key == "machine.unknown_gpu_no_suggestion"
    assert len(str(caught.value)) < 300


def test_another_series_is_no_suggestion() -> None:
    for name in ("MI300X", "Gaudi2", "M2 Max"):
        with pytest.raises(UnknownGpu) as caught:
            find_gpu(name, CATALOGUE)
        assert caught.value.suggestions == ()


@pytest.mark.parametrize(
    ("name", "gib", "capability"), [("16GB:8.9", 16, (8, 9)), ("24 GiB, 8.6", 24, (8, 6)), ("192gb", 192, None)]
)
def test_a_card_without_a_row_is_named_by_what_it_has(name: str, gib: int, capability: tuple[int, int] | None) -> None:
    machine = detect(CATALOGUE, gpu=name, gpu_count=2, host_memory="none", cpus="none")
    assert [gpu.memory_total for gpu in machine.gpus] == [gib * 2**30] * 2
    assert machine.gpus[0].compute_capability == capability and machine.gpus[0].gpu is None


def test_named_machine_is_described_by_the_catalogue() -> None:
    machine = detect(CATALOGUE, gpu="rtx-3090", gpu_count=2, host_memory="60GB", cpus="48")
    assert [gpu.number for gpu in machine.gpus] == [0, 1]
    assert all(gpu.gpu is CATALOGUE["rtx-3090"] and gpu.memory_free is None for gpu in machine.gpus)
    assert (machine.gpu_source, machine.host_memory_source, machine.cpu_source) == ("named", "named", "named")
    assert (machine.host_memory_bytes, machine.cpus) == (60 * 10**9, 48)
    assert machine.shm_bytes is None  # another machine's /dev/shm is not this one's


def test_no_gpu_by_request_is_said_so() -> None:
    machine = detect(CATALOGUE, gpu="none", host_memory="none", cpus="none")
    assert (machine.gpus, machine.gpu_source, machine.gpu_note) == ((), "named", "named_none")
    assert (machine.host_memory_bytes, machine.cpus, machine.shm_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"host_memory": "lots"}, "size.not_a_size"),
        ({"host_memory": ""}, "size.not_a_size"),
        ({"host_memory": "-4GB"}, "size.not_a_size"),
        ({"host_memory": "60"}, "size.no_unit"),
        ({"host_memory": "0GB"}, "size.out_of_range"),
        ({"host_memory": "5000TB"}, "size.out_of_range"),
        ({"cpus": "many"}, "machine.bad_cpus"),
        ({"cpus": "0"}, "machine.bad_cpus"),
        ({"cpus": "-2"}, "machine.bad_cpus"),
        ({"cpus": "1.5"}, "machine.bad_cpus"),
        ({"cpus": "４"}, "machine.bad_cpus"),
        ({"cpus": "9" * 5000}, "machine.bad_cpus"),
        ({"gpu_count": 0}, "machine.bad_gpu_count"),
        ({"gpu_count": 10**9}, "machine.bad_gpu_count"),
    ],
)
def test_argument_that_cannot_be_used_is_a_user_error(arguments: dict, key: str) -> None:
    with pytest.raises(UserError) as caught:
        detect(CATALOGUE, **{"gpu": "none", "host_memory": "none", "cpus": "none", **arguments})
    assert caught.value.key == key


def test_auto_is_the_same_as_nothing_named() -> None:
    here = detect(CATALOGUE, gpu="none")
    auto = detect(CATALOGUE, gpu="none", host_memory="AUTO", cpus=" auto ")
    assert (auto.host_memory_bytes, auto.cpus) == (here.host_memory_bytes, here.cpus)


def test_nothing_is_asked_of_this_machine_where_everything_is_named() -> None:
    program = (
        "import sys, json; before = set(sys.modules)\n"  # some set-ups import half the library at start
        "from kb.core.hardware import Gpu; from kb.machine.detect import detect\n"
        "gpu = Gpu(id='g', name='G', memory_total=1, compute_capability=(8, 6), native_bf16=True)\n"
        "detect({'g': gpu}, gpu='g', host_memory='60GB', cpus='48')\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    output = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    loaded = set(json.loads(output))
    heavy = {"pynvml", "ctypes", "subprocess", "threading", "difflib", "torch", "kb.machine.nvml", "kb.machine.host"}
    assert not loaded & heavy


def test_every_note_and_error_has_its_sentence_in_both_languages() -> None:
    parts = ROOT / "i18n" / "parts"
    texts = []
    for language in ("ko", "en"):
        folder = parts if (parts / f"machine.{language}.yaml").exists() else ROOT / "i18n"
        name = f"machine.{language}.yaml" if folder == parts else f"{language}.yaml"
        texts.append(read_yaml(folder / name))
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/kb/machine").glob("*.py"))
    keys = {f"machine.{note}" for note in get_args(Note)} | set(re.findall(r'"(machine\.[a-z_]+)"', source))
    for key in sorted(keys):
        korean, english = (text[key] for text in texts)
        assert {each[0] for each in placeholders_in(korean)} == {each[0] for each in placeholders_in(english)}, key
