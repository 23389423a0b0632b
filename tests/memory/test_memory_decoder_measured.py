"""Decoder-only models against measured runs."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.core.units import MIB
from kb.memory import architecture_from_config, predict

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
    [(PYTHIA_410M, 1, 2048, 12859), (PYTHIA_410M, 2, 1024, 8304), (PYTHIA_410M, 4, 512, 5999)],
)  # fmt: skip
def test_half_weights_with_written_out_attention_as_measured(
    config: dict[str, Any], batch: int, length: int, measured_mib: int
) -> None:
    setup = TrainingSetup(
        weights="fp16", attn_implementation="eager", optim="none", padded=False,
        per_device_train_batch_size=batch, max_source_length=length,
    )  # fmt: skip
    report = predict(setup, architecture_from_config(config), constants=sample.CONSTANTS, compute_capability=(8, 6))
    train = report.phase("train")
    assert train is not None
    assert train.peak_allocated_bytes / MIB == pytest.approx(measured_mib, rel=0.05)


@pytest.mark.parametrize(
    ("attention", "batch", "length", "measured_mib"),
    # model_doc/gpt2.md of transformers (pull request 31172): gpt2-large, torch.cuda.max_memory_allocated
    [("eager", 1, 512, 4034), ("eager", 1, 1024, 8280), ("eager", 2, 512, 6735), ("eager", 4, 256, 5846),
     ("eager", 4, 512, 11889), ("sdpa", 1, 1024, 4655), ("sdpa", 4, 512, 7727), ("sdpa", 4, 1024, 13893)],
)  # fmt: skip
def test_a_loop_that_keeps_what_the_step_before_gave_as_measured(
    attention: str, batch: int, length: int, measured_mib: int
) -> None:
    """That loop is not the Trainer's: its loss is the sum of the logits, and ``outputs`` of the step before live
    until the next forward is over. Transformers 4.42 gave logits there and, with ``use_cache``, each layer's keys and
    values: parts of one projection (``c_attn``), all of which they hold. Its real code, run on fake tensors, comes
    to 11,838 MiB of 4 x 512; so does this sum.
    """
    setup = TrainingSetup(
        weights="fp16", attn_implementation=attention, optim="none", padded=False,
        per_device_train_batch_size=batch, max_source_length=length,
    )  # fmt: skip
    architecture = architecture_from_config(GPT2_LARGE)
    report = predict(setup, architecture, constants=sample.CONSTANTS, compute_capability=(8, 6))
    train = report.phase("train")
    assert train is not None
    forward = sum(term.bytes for term in train.terms if term.name not in ("temporaries", "activations_head"))
    tokens, layers, width = batch * length, architecture.decoder_layers, architecture.d_model
    logits = 2 * tokens * architecture.vocab_size
    projected = 2 * tokens * layers * 3 * width
    # eager attention of several samples multiplies copies, so that what they were copied from is held beside them
    held = 1 if attention == "eager" and batch > 1 else 0
    masks = layers * 1024**2  # `bias`: a triangle of bool in every layer, of all positions
    loop = forward + 2 * logits + (1 + held) * projected + masks
    assert loop / MIB == pytest.approx(measured_mib, rel=0.015)


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
    report = predict(setup, architecture, constants=sample.CONSTANTS, compute_capability=(7, 5))
    train = report.phase("train")
    assert train is not None
    # that loop keeps the model's output, and with it the logits, until the step is over; the Trainer does not
    logits = (4 if quantized else 2) * batch * length * architecture.vocab_size
    assert (train.peak_allocated_bytes + logits) / MIB == pytest.approx(measured_mib, rel=0.03)
