"""`kb.predict_many` of a grid says of each config what it says of that config alone."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

import kb
from effort import EXHAUSTIVE, few
from kb.integrations import many

BOX = {"gpu": "rtx-3090", "host_memory": "60GB", "cpus": 16}
HF = {"model_name_or_path": "google/mt5-base", "bf16": True}
# A format, what every config has, and the values of each key that differs between them.
GRIDS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "hf": (
        HF,
        {
            "per_device_train_batch_size": [1, 2, 24, 8.0, "4", -1],
            "max_source_length": [128, 1024, 0],
            "gradient_accumulation_steps": [1, 4],
            "learning_rate": [1e-5, 3e-4],
            "optim": ["adamw_torch", "adafactor"],
            "dataloader_num_workers": [0, 4],
        },
    ),
    "evaluation": (
        {**HF, "do_eval": True, "eval_strategy": "steps", "predict_with_generate": True},
        {
            "per_device_eval_batch_size": [1, 32, 500],
            "generation_max_length": [64, 256],
            "max_target_length": [64, 512],
            "generation_num_beams": [1, 4],
            "eval_steps": [100, 500],
            "eval_accumulation_steps": [None, 1, 8],
        },
    ),
    "decoder": (
        {"model_name_or_path": "meta-llama/Llama-3.2-1B", "bf16": True, "packing": False, "dataset_text_field": "text"},
        {
            "max_seq_length": [256, 2048],
            "max_length": [None, 512],
            "max_source_length": [None, 128],
            "lora_r": [None, 8, 64],
            "per_device_train_batch_size": [1, 16],
            "use_peft": [True, False],
            "num_train_epochs": [0, 1, 0.5, 3],
            "max_steps": [None, -1, 100],
        },
    ),
    "llama-factory": (
        {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "stage": "sft", "do_train": True, "template": "qwen", "bf16": True},
        {
            "finetuning_type": ["full", "lora"],
            "quantization_bit": [None, 4, 8, 16],
            "cutoff_len": [512, 4096],
            "per_device_train_batch_size": [1, 8],
            "lora_rank": [8, 32],
            "seed": [1, 2],
        },
    ),
    "axolotl": (
        {"base_model": "Qwen/Qwen2.5-0.5B", "datasets": [{"path": "d", "type": "alpaca"}], "bf16": True},
        {
            "micro_batch_size": [1, 16],
            "sequence_len": [512, 4096],
            "gradient_accumulation_steps": [1, 8],
            "output_dir": [None, "a", "b/1", "${HOME}", "none", "auto", "-1", ""],
            "tensor_parallel_size": [None, 1, 2],
            "context_parallel_size": [None, 1, 2],
            "num_epochs": [1, 3],
        },
    ),
    "post-training": (
        {"base_model": "Qwen/Qwen2.5-0.5B", "rl": "dpo", "datasets": [{"path": "d"}], "bf16": True},
        {"sequence_len": [256, 1024], "micro_batch_size": [1, 4], "gradient_accumulation_steps": [1, 2]},
    ),
}


def configs_of(common: Mapping[str, Any], values: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Some of the grid, in no order; a key that is None is left out."""
    whole = list(itertools.product(*values.values()))
    chosen = random.Random(7).sample(whole, min(30 if EXHAUSTIVE else 5, len(whole)))
    own = ({name: value for name, value in zip(values, row, strict=True) if value is not None} for row in chosen)
    return [{**common, **each} for each in own]


@pytest.mark.parametrize("name", few(GRIDS, 2))
@pytest.mark.long
def test_a_config_of_a_grid_is_told_as_it_is_alone(name: str) -> None:
    configs = configs_of(*GRIDS[name])
    for config, row in zip(configs, kb.predict_many(configs, BOX), strict=True):
        assert row == kb.predict_many([config], BOX)[0], config


@pytest.mark.long
def test_configs_that_differ_in_numbers_alone_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[dict[str, Any]] = []
    row = many._row

    def heard(settings: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
        read.append(dict(settings))
        return row(settings, *rest)

    monkeypatch.setattr(many, "_row", heard)
    grid = [
        {
            **HF,
            "per_device_train_batch_size": batch,
            "max_source_length": length,
            "learning_rate": rate,
            "output_dir": f"out/{batch}-{length}-{rate}",
        }
        for batch in (1, 2, 4, 8)
        for length in (128, 512)
        for rate in (1e-5, 2e-5, 3e-5)
    ]
    rows = kb.predict_many(grid, BOX)
    assert read == grid[:1]
    assert len({(each["process_used_bytes"], each["train_batch"]) for each in rows}) == 8


@pytest.mark.long
def test_of_trl_neither_rank_nor_epochs_nor_names_keep_configs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Mapping[str, Any]] = []
    row = many._row
    monkeypatch.setattr(many, "_row", lambda settings, *rest: read.append(settings) or row(settings, *rest))
    common = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "dataset_text_field": "text", "use_peft": True, "bf16": True}
    grid = [
        {
            **common,
            "max_seq_length": 256 * n,
            "lora_r": 4 * n,
            "num_train_epochs": n,
            "warmup_steps": n,
            "run_name": f"r{n}",
        }
        for n in range(1, 9)
    ]
    rows = kb.predict_many(grid, BOX)
    assert len(read) == 1 and len({each["process_used_bytes"] for each in rows}) == 8


def test_a_number_that_a_format_takes_for_something_else_is_never_shared() -> None:
    """In one shape, but for ``tensor_parallel_size``: with 2 the run is another, with 1 it is not."""
    one = {**HF, "per_device_train_batch_size": 4}
    apart = many.cut({**one, "tensor_parallel_size": 1}), many.cut({**one, "tensor_parallel_size": 2})
    assert apart[0] is not None and apart[1] is not None and apart[0].shape == apart[1].shape
    rows = kb.predict_many([{**one, "tensor_parallel_size": size} for size in (1, 2, 1, 2)], BOX)
    alone = [kb.predict_many([{**one, "tensor_parallel_size": size}], BOX)[0] for size in (1, 2)]
    assert rows == alone * 2
