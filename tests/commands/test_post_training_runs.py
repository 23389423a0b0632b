"""Preference and reinforcement runs from the command line, each in a process of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_runs import run_kb
from output_schemas import answers_to

GRPO = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dataset_name: AI-MO/NuminaMath-TIR
bf16: true
per_device_train_batch_size: 8
num_generations: 8
max_completion_length: 384
gradient_checkpointing: true
output_dir: out
"""


def checked(file: Path, gpu: str) -> dict[str, Any]:
    run = run_kb(file, "--gpu", gpu, "--format", "json", module="kb.check")
    assert run.returncode in (0, 1), run.stderr
    assert not run.stderr
    report = json.loads(run.stdout)
    answers_to("check", report)
    (unit,) = report["files"]
    return dict(unit)


@pytest.mark.parametrize(("gpu", "fits"), [("a100-80gb", True), ("rtx-4060", False)])
def test_a_grpo_run_that_generates_by_itself_is_predicted_with_its_answers(
    tmp_path: Path, gpu: str, fits: bool
) -> None:
    """On a card that is too small the run is predicted with shorter inputs too, shorter than the answers."""
    file = tmp_path / "grpo.yaml"
    file.write_text(GRPO, encoding="utf-8")
    report = checked(file, gpu)["prediction"]
    assert list(report["phases"]) == ["load", "train", "generate", "save"]
    terms = {term["name"] for term in report["phases"]["generate"]["terms"]}
    assert {"kv_cache_self", "optimizer", "autocast_copies"} <= terms
    assert (report["verdict"]["status"] == "fits") is fits


SFT = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/Capybara
bf16: true
per_device_train_batch_size: 4
max_length: 1024
assistant_only_loss: true
output_dir: out
"""


@pytest.mark.parametrize(("release", "level", "logits"), [("1.16.0", "engine", False), ("1.6.0", "engine", True)])
def test_fine_tuning_with_a_fused_head_is_predicted_without_whole_logits(
    tmp_path: Path, release: str, level: str, logits: bool
) -> None:
    (tmp_path / "sft.yaml").write_text(SFT, encoding="utf-8")
    (tmp_path / "requirements.txt").write_text(f"trl=={release}\ntransformers==5.0.0\n", encoding="utf-8")
    report = checked(tmp_path / "sft.yaml", "a100-80gb")["prediction"]
    assert report["level"] == level
    whole = 4 * 1024 * 151936 * 4  # bytes of the logits in fp32
    loss = sum(
        term["bytes"]
        for term in report["phases"]["train"]["terms"]
        if term["name"] in ("activations_head", "loss", "logits")
    )
    assert (loss >= whole) is logits
