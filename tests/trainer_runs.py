"""Real, tiny training runs on the CPU for the callback's tests."""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import simulation_needs

PACKAGES = ("torch", "transformers", "accelerate", "peft")
VOCABULARY = 120


def require_trainer() -> None:
    """Skip the calling module where no Trainer can run; fail it under CI."""
    absent = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if absent:
        reason = f"a training run needs {', '.join(absent)}"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)
    if not simulation_needs.missing():
        from kb.torch_runs.simulation import device

        device.install()  # before torch is imported: the simulator's tests may run in the same process


def t5_model() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes))


def gpt2_model(*, lora: bool = False) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config)
    if not lora:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], task_type="CAUSAL_LM"))


def rows(count: int = 16, *, source: int = 12, target: int | None = None) -> list[dict[str, list[int]]]:
    """Rows of rising length up to ``source``; of a decoder (no ``target``) the labels are the input."""
    found = []
    for number in range(count):
        ids = list(range(3, 3 + source - (count - 1 - number) % 4))
        found.append({"input_ids": ids, "labels": list(range(3, 3 + target)) if target else list(ids)})
    return found


def collate(batch: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
    import torch

    def padded(name: str, filler: int) -> Any:
        longest = max(len(row[name]) for row in batch)
        return torch.tensor([row[name] + [filler] * (longest - len(row[name])) for row in batch])

    return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100)}


def arguments(folder: Path, *, seq2seq: bool = False, **changes: Any) -> Any:
    from transformers import Seq2SeqTrainingArguments, TrainingArguments

    kind = Seq2SeqTrainingArguments if seq2seq else TrainingArguments
    settings = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return kind(output_dir=str(folder), **{**settings, **changes})
