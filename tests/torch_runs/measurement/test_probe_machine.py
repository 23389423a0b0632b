"""What detection says of the machine, in a report; what a probe says without a GPU, or where it is interrupted."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.core.hardware import Machine
from kb.core.setup import TrainingSetup
from kb.knowledge import load_words
from kb.report.json_parts import machine_object
from kb.report.probe_report import probe_object, probe_text
from kb.report.terminal import Style
from kb.report.values import here
from kb.report.words import Words
from kb.torch_runs.probe.campaign import Card, Probed
from kb.torch_runs.probe.trial import Outcome, Trial
from probe_sample import environment

NOTES = ("mig_slices", "wsl")


@pytest.fixture
def probed() -> Probed:
    pair = (Trial("smoke", "cuda", {"per_device_train_batch_size": 4}), Outcome("ok", 1.0))
    card = Card("NVIDIA L4", 24 << 30, 23 << 30)
    return Probed("smoke", "cuda", "tiny", (pair,), card, setup=TrainingSetup(), notes=NOTES)


@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_probe_says_what_detection_says(probed: Probed, language: str) -> None:
    words = Words(language, load_words(language), load_catalog().facts)
    text = " ".join(probe_text(probed, words, Style()).split())
    for note in NOTES:
        assert words(f"machine.{note}") in text
    assert probe_object(probed, "0", "0")["notes"] == list(NOTES)


def test_why_there_is_no_gpu_comes_first_and_each_note_once() -> None:
    machine = Machine(gpu_note="no_driver", notes=("pynvml_missing", "no_driver"))
    assert machine_object(machine)["notes"] == ["no_driver", "pynvml_missing"]


@pytest.mark.parametrize("language", ["ko", "en"])
def test_no_sentence_advises_an_option_that_changes_nothing(language: str) -> None:
    texts = load_words(language)
    for name in texts:
        if name.startswith("machine.") and name.split(".")[1] in ("no_driver", "gpus_hidden", "memory_not_reported"):
            assert "--gpu" in texts[name]
            assert "--gpu" not in texts[f"machine.{here(name.split('.')[1])}"]


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("seconds: 60\n")
    command = [sys.executable, "-m", "kb", "probe", "smoke", "--model", "kobart", "--backend", "fake", "--lang", "en",
               "--fake-limit", "8GiB", "--fake-script", "slow.yaml"]  # fmt: skip
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, encoding="utf-8") as run:
        journal = tmp_path / "kb-probe.jsonl"
        while run.poll() is None and not (journal.exists() and journal.stat().st_size):
            pass_on(run)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "kb-probe.jsonl" in said and "--resume" in said
    assert json.loads(journal.read_text("utf-8").splitlines()[0])["journal"] == 1


def pass_on(run: "subprocess.Popen[str]") -> None:
    """Leave the processor to it for a moment."""
    try:
        run.wait(0.05)
    except subprocess.TimeoutExpired:
        return
