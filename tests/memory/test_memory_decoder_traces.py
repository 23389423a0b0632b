"""The closed forms of decoder-only models against recorded traces of the real code, and against measured runs."""

import json
from statistics import mean
from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.core.units import MIB
from kb.memory import architecture_from_config
from memory_sample import roughly

GPU_CAPABILITY = (8, 6)
PHASES = {"decoder_training": "train", "decoder_evaluation": "evaluate", "decoder_generation": "generate"}
# mean, worst
TARGETS = {
    "decoder_training": (0.003, 0.015),
    "decoder_evaluation": (0.001, 0.005),
    "decoder_generation": (0.003, 0.02),
}


def errors(kind: str, **where: Any) -> dict[str, float]:
    found = {}
    for architecture, setup, row in sample.traces(kind):
        if all(row.get(name, getattr(setup, name, None)) == value for name, value in where.items()):
            report = roughly(setup, architecture, constants=sample.CONSTANTS, compute_capability=GPU_CAPABILITY)
            phase = report.phase(PHASES[kind])
            assert phase is not None
            found[f"{row['model']} {json.dumps(row['setup'])}"] = phase.peak_allocated_bytes / row["allocated"] - 1
    return found


@pytest.mark.parametrize("kind", PHASES)
def test_peak_allocated_agrees_with_the_traces(kind: str) -> None:
    found = errors(kind)
    worst = max(found, key=lambda name: abs(found[name]))
    mean_target, worst_target = TARGETS[kind]
    assert abs(found[worst]) <= worst_target, f"{worst}: {found[worst]:+.2%}"
    assert mean(map(abs, found.values())) <= mean_target


def test_rows_that_the_forms_were_not_derived_from_agree_as_well() -> None:
    found = errors("decoder_training", part="held out")
    assert len(found) >= 25
    assert mean(map(abs, found.values())) <= 0.004
    assert max(map(abs, found.values())) <= 0.02


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_every_method_agrees_on_its_own(method: str, gradient_checkpointing: bool) -> None:
    found = errors("decoder_training", method=method, gradient_checkpointing=gradient_checkpointing)
    assert len(found) >= 10
    assert mean(map(abs, found.values())) <= 0.005


@pytest.mark.parametrize("kind", PHASES)
def test_the_stated_band_holds_every_trace(kind: str) -> None:
    band = sample.CONSTANTS[f"band_{PHASES[kind]}"]
    assert max(map(abs, errors(kind).values())) <= band


def test_weights_agree_with_the_traces() -> None:
    for architecture, setup, row in sample.traces("decoder_training"):
        report = roughly(setup, architecture, constants=sample.CONSTANTS)
        load = report.phase(
            "train" if setup.use_dora else "load"
        )  # loading, DoRA makes whole weights for their lengths
        assert load is not None
        known = ("parameters", "adapters", "quantization")
        there = sum(term.bytes for term in load.terms if term.name in known)
        assert there == pytest.approx(row["weights"], rel=sample.CONSTANTS["band_load"])


PYTHIA_410M = {
    "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "rotary_pct": 0.25,
}  # fmt: skip
GPT2_LARGE = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 1280, "n_layer": 36, "n_head": 20}
TINYLLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
}  # fmt: skip
SMOLLM2_1B = {
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": True,
}  # fmt: skip
QWEN25_1B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize(
    ("config", "batch", "length", "measured_mib"),
    # transformers' documentation: fp16 weights, eager, no optimizer, torch.cuda.max_memory_allocated
    [(PYTHIA_410M, 1, 2048, 12859), (PYTHIA_410M, 2, 1024, 8304), (PYTHIA_410M, 4, 512, 5999),
     (GPT2_LARGE, 4, 512, 11889)],
)  # fmt: skip
def test_half_weights_with_written_out_attention_as_measured(
    config: dict[str, Any], batch: int, length: int, measured_mib: int
) -> None:
    setup = TrainingSetup(
        weights="fp16", attn_implementation="eager", optim="none", padded=False,
        per_device_train_batch_size=batch, max_source_length=length,
    )  # fmt: skip
    report = roughly(setup, architecture_from_config(config), constants=sample.CONSTANTS, compute_capability=(8, 6))
    train = report.phase("train")
    assert train is not None
    assert train.peak_allocated_bytes / MIB == pytest.approx(measured_mib, rel=0.05)


@pytest.mark.parametrize(
    ("config", "quantized", "batch", "length", "measured_mib"),
    # fitcheck-llm's runs on a Tesla T4: eager, checkpointing, AdamW, r = 32 on attention
    [(QWEN25_1B, True, 1, 2048, 6850), (QWEN25_1B, False, 1, 2048, 7410), (TINYLLAMA, True, 4, 1024, 4590),
     (TINYLLAMA, False, 2, 512, 2757), (SMOLLM2_1B, True, 4, 1024, 5297), (SMOLLM2_1B, False, 4, 1024, 6537)],
)  # fmt: skip
def test_adapters_on_a_t4_as_measured(
    config: dict[str, Any], quantized: bool, batch: int, length: int, measured_mib: int
) -> None:
    setup = TrainingSetup(
        method="qlora" if quantized else "lora", load_in_4bit=quantized, weights="fp16", attn_implementation="eager",
        padded=False, gradient_checkpointing=True, optim="adamw_torch", lora_r=32, lora_target_modules=ATTENTION,
        per_device_train_batch_size=batch, max_source_length=length,
    )  # fmt: skip
    architecture = architecture_from_config(config)
    report = roughly(setup, architecture, constants=sample.CONSTANTS, compute_capability=(7, 5))
    train = report.phase("train")
    assert train is not None
    # that loop keeps the model's output, and with it the logits, until the step is over; the Trainer does not
    logits = (4 if quantized else 2) * batch * length * architecture.vocab_size
    assert (train.peak_allocated_bytes + logits) / MIB == pytest.approx(measured_mib, rel=0.03)
