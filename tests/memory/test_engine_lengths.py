"""Training with lengths as data has them: what the allocator then holds, and what the tensors need."""

import json
import subprocess
import sys

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.memory import UnsupportedArchitectureError, architecture_from_config
from kb.memory.engine.report import reserved_by_lengths, varied

SMALL_T5 = {**sample.T5_BASE, "num_layers": 3}


@pytest.mark.parametrize(("most", "rows"), [(1, 1), (512, 8), (4096, 2), (2048, 10**6)])
def test_lengths_lie_between_one_and_the_maximum_which_comes_last(most: int, rows: int) -> None:
    lengths = varied(most, rows)
    assert len(lengths) == 10
    assert all(1 <= length <= most for length in lengths)
    assert lengths[-1] == most


def test_more_samples_make_longer_batches() -> None:
    assert sum(varied(1024, 16)) > sum(varied(1024, 1))
    assert sorted(varied(900, 1))[4] == 300  # half of the samples are shorter than a third


def test_varied_lengths_need_as_much_and_hold_no_less() -> None:
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=4, max_source_length=700, max_target_length=100)
    found = reserved_by_lengths(setup, architecture_from_config(SMALL_T5), (8, 6))
    assert found.needed <= found.expandable <= found.varied
    assert found.needed <= found.fixed


def test_what_the_engine_does_not_follow_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="FSDP"):
        reserved_by_lengths(TrainingSetup(world_size=2, fsdp=True), architecture_from_config(SMALL_T5), None)


def test_more_layers_than_can_be_followed_are_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="2000000 layers"):
        reserved_by_lengths(TrainingSetup(), architecture_from_config({**SMALL_T5, "num_layers": 10**6}), None)


def test_a_type_that_the_engine_has_no_row_for_is_not_taken_for_a_llama() -> None:
    config = {"model_type": "exaone", "hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "vocab_size": 100,
              "num_attention_heads": 2}  # fmt: skip
    with pytest.raises(UnsupportedArchitectureError, match="exaone"):
        reserved_by_lengths(TrainingSetup(), architecture_from_config(config), None)


def test_the_command_says_what_lengths_change() -> None:
    command = [sys.executable, "-m", "kb.estimate", "--model", "t5-small", "--task", "train", "--seq-in", "128",
               "--varied-lengths", "--lang", "en", "--format", "json"]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    notes = answer.get("notes") or answer["runs"][0]["notes"]
    assert any("expandable_segments" in note for note in notes)
