"""`[lengths]` of kb.toml: what `kb lengths` prints, and what predictions make of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from command_runs import run_kb as kb

CONFIG = """\
model_name_or_path: HuggingFaceTB/SmolLM2-135M
dataset_name: d
output_dir: out
max_length: 2048
per_device_train_batch_size: 4
bf16: true
learning_rate: 2.0e-5
"""
SHARES = ("shortest", "p10", "p25", "median", "p75", "p90", "p95", "p99", "longest")


def checked(folder: Path, *arguments: str, config: str = CONFIG, language: str = "en") -> Any:
    path = folder / "train.yaml"
    path.write_text(config, "utf-8")
    return kb(path, "--gpu", "rtx-4090", "--lang", language, *arguments, module="kb.check")


def predicted(folder: Path, config: str = CONFIG) -> dict[str, Any]:
    run = checked(folder, "--format", "json", config=config)
    assert run.returncode in (0, 1), run.stderr
    found: dict[str, Any] = json.loads(run.stdout)["files"][0]["prediction"]
    return found


def project(folder: Path, *lengths: int, name: str = "input") -> None:
    said = ", ".join(f"{share} = {length}" for share, length in zip(SHARES, lengths, strict=True))
    (folder / "kb.toml").write_text(f"[lengths]\n{name} = {{{said}}}\n", "utf-8")


def test_what_kb_lengths_prints_is_what_a_prediction_rests_on(tmp_path: Path) -> None:
    full = predicted(tmp_path)
    assert "lengths" not in full
    drawn = random.Random(3)
    words = [drawn.randint(10, 900) for _ in range(400)]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"text": "word " * count}) + "\n" for count in words), "utf-8")
    told = kb(data, "--tokens-per-word", "1", "--lang", "en", module="kb.lengths").stdout
    lines = told[told.index("[lengths]") :].splitlines()
    (tmp_path / "kb.toml").write_text("\n".join(line.strip() for line in lines) + "\n", "utf-8")
    found = predicted(tmp_path)
    assert found["assumed"][0] == {"name": "data.lengths", "value": max(words), "reason": "lengths_of_data"}
    assert found["phases"]["train"]["process_used_bytes"] < 0.6 * full["phases"]["train"]["process_used_bytes"]
    taken = found["lengths"]
    assert taken["needed_bytes"] <= taken["expandable_bytes"] <= taken["varied_bytes"]
    assert taken["needed_bytes"] <= taken["fixed_bytes"]
    low, high = (found["phases"]["train"][name] for name in ("low_bytes", "high_bytes"))
    assert low <= taken["needed_bytes"] + 2**30 <= high + 2**30


def test_a_maximum_below_the_longest_sample_stays_the_maximum(tmp_path: Path) -> None:
    full = predicted(tmp_path)
    project(tmp_path, 5, 20, 90, 300, 700, 1200, 1800, 3000, 1_000_000)
    found = predicted(tmp_path)
    assert found["phases"] == full["phases"]
    assert found["lengths"]["varied_bytes"] >= found["lengths"]["needed_bytes"]


@pytest.mark.parametrize("key", ["packing: true", "pad_to_max_length: true"])
def test_batches_that_are_always_full_are_predicted_full(tmp_path: Path, key: str) -> None:
    config = f"{CONFIG}{key}\n"
    full = predicted(tmp_path, config)
    project(tmp_path, *range(10, 19))
    found = predicted(tmp_path, config)
    assert (found["phases"], found["assumed"]) == (full["phases"], full["assumed"])
    assert "lengths" not in found


@pytest.mark.parametrize(("language", "said"), [("en", "needs"), ("ko", "데이터의 길이")])
def test_the_panel_says_what_is_needed_and_what_is_taken(tmp_path: Path, language: str, said: str) -> None:
    project(tmp_path, 5, 20, 90, 300, 700, 1200, 1500, 1800, 2000)
    text = " ".join(checked(tmp_path, language=language).stdout.split())
    assert said in text
    assert "expandable_segments:True" in text


def test_a_gpu_holds_no_more_than_it_has(tmp_path: Path) -> None:
    project(tmp_path, 5, 20, 90, 300, 700, 1200, 1500, 1800, 2000)
    config = CONFIG.replace("size: 4", "size: 12")
    taken = predicted(tmp_path, config)["lengths"]
    assert taken["varied_bytes"] <= max(24 * 2**30, taken["needed_bytes"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input = {shortest = 1, median = 2, longest = 3}", "lengths.input"),
        ("input = {shortest = 1, p10 = 2, p25 = 2, median = 2, p75 = 9, p90 = 9, p95 = 9, p99 = 9, longest = 8}",
         "lengths.input"),
        ("input = {shortest = 0, p10 = 0, p25 = 0, median = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0, longest = 0}",
         "lengths.input"),
        ("input = {shortest = -1, p10 = 0, p25 = 0, median = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0, longest = 9}",
         "lengths.input"),
        ("input = {shortest = 1.5, p10 = 2, p25 = 2, median = 2, p75 = 9, p90 = 9, p95 = 9, p99 = 9, longest = 9}",
         "lengths.input"),
        ("inputs = {}", "lengths"),
        ("target = {}", "lengths"),
        ("input = 3", "lengths.input"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("language", ["en", "ko"])
def test_lengths_that_are_none_are_refused(tmp_path: Path, text: str, said: str, language: str) -> None:
    (tmp_path / "kb.toml").write_text(f"[lengths]\n{text}\n", "utf-8")
    run = checked(tmp_path, language=language)
    assert (run.returncode, "Traceback" in run.stderr) == (2, False)
    assert said in run.stderr
    assert "kb lengths" in run.stderr
    assert any("가" <= letter <= "힣" for letter in run.stderr) == (language == "ko")
