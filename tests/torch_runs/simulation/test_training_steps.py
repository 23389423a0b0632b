"""Whole training steps on fake tensors: a run measured on a GPU, optimizers, precisions, methods, and running out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kb.core.setup import TrainingSetup
from kb.memory.engine.allocator import MIB, OutOfMemory
from kb.torch_runs.simulation.job import BadJobError, BadModelError, RemoteCodeError
from simulation_needs import require_simulator
from torch_later import imported_where_run

if TYPE_CHECKING:
    from kb.torch_runs.simulation.loading import build_model
    from kb.torch_runs.simulation.session import open_session
    from kb.torch_runs.simulation.torch_modules import torch
    from kb.torch_runs.simulation.tracer import Tracer
    from kb.torch_runs.simulation.training import as_accelerate, train
imported = imported_where_run(globals(), require_simulator)

AMPERE = (8, 6)
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
SMOL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
}
SHORT = TrainingSetup(per_device_train_batch_size=2, max_source_length=64, max_target_length=32)


def traced(setup: TrainingSetup, config: dict[str, Any] = LLAMA) -> Tracer:
    with open_session(AMPERE) as tracer:
        model = build_model(config, setup, tracer)
        if setup.autocast:
            as_accelerate(model, "float16" if setup.fp16 else "bfloat16")
        train(model, setup, tracer)
    return tracer


def bytes_of(tracer: Tracer, role: str) -> int:
    """Largest number of bytes of one role alive at once."""
    alive: dict[int, int] = {}
    most = 0
    for number, event in enumerate(tracer.events):
        if event.action == "alloc" and tracer.roles.get(number) == role:
            alive[event.address] = event.size
        elif event.action == "free":
            alive.pop(event.address, None)
        most = max(most, sum(alive.values()) if event.action == "alloc" else 0)
    return most


@pytest.mark.exhaustive
def test_a_lora_step_measured_on_a_t4_is_met_to_the_byte() -> None:
    # Measured by fitcheck-llm 0.3.1 (PyPI, MIT) on a Tesla T4: SmolLM2-135M, LoRA r=32 on q, k, v, o, fp16, 2 × 512.
    setup = TrainingSetup(
        method="lora",
        weights="fp16",
        attn_implementation="eager",
        padded=False,
        gradient_checkpointing=True,
        lora_r=32,
        lora_target_modules=("q_proj", "k_proj", "v_proj", "o_proj"),
    )
    with open_session((7, 5)) as tracer:
        model = build_model(SMOL, setup, tracer)
        model.train()
        tracer.padded = False
        assert tracer.allocator.allocated / MIB == 270.65283203125
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        tokens = torch.zeros(2, 512, dtype=torch.long, device="cuda")

        def step() -> None:  # a function of its own: the outputs live until it returns
            optimizer.zero_grad()
            tracer.phase = "forward"
            out = model(input_ids=tokens, labels=tokens)
            tracer.phase = "backward"
            out.loss.backward()
            tracer.phase = "optimizer"
            optimizer.step()

        step()
        step()
    forward, backward, update = tracer.spans[-3:]
    assert forward.peak_allocated / MIB == 836.435546875
    assert backward.peak_allocated / MIB == 1027.29443359375
    assert update.peak_allocated / MIB == 441.7236328125
    assert max(span.peak_reserved for span in (forward, backward, update)) / MIB == 1104


@pytest.mark.parametrize(
    ("optim", "states"),
    [
        ("adamw_torch_fused", 8),
        pytest.param("adamw_torch", 8, marks=pytest.mark.exhaustive),
        pytest.param("sgd", 0, marks=pytest.mark.exhaustive),
        ("adafactor", 0.1),
        ("adamw_bnb_8bit", 3.4),
        ("paged_adamw_32bit", 1.4),  # tensors of fewer than 100,000 elements are not paged
        pytest.param("lion_32bit", 4, marks=pytest.mark.exhaustive),
        ("none", 0),
    ],
)
def test_optimizers_keep_their_bytes_for_a_parameter(optim: str, states: float) -> None:
    tracer = traced(SHORT._replace(optim=optim))
    parameters = bytes_of(tracer, "weights") / 4
    assert bytes_of(tracer, "optimizer") / parameters == pytest.approx(states, abs=0.15)
    if optim != "none":
        assert bytes_of(tracer, "gradients") / parameters == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "bf16", "attn_implementation": "flash", "padded": False, "gradient_accumulation_steps": 3},
        {"method": "lora", "use_dora": True, "fp16": True, "attn_implementation": "eager"},
        {"method": "qlora", "bf16": True, "load_in_4bit": True, "gradient_checkpointing": True, "use_reentrant": True},
        *(
            pytest.param(change, marks=pytest.mark.exhaustive, id=str(change))
            for change in (
                {"fp16": True, "attn_implementation": "eager"},
                {"weights": "bf16", "attn_implementation": "flash", "padded": False},
                {"bf16": True, "gradient_checkpointing": True, "use_reentrant": True},
                {"gradient_accumulation_steps": 3},
                {"method": "lora", "use_dora": True},
                {"method": "lora", "load_in_8bit": True, "fp16": True},
                {"bf16": True},
                {"weights": "bf16", "attn_implementation": "flash"},
                {"bf16": True, "gradient_checkpointing": True},
                {"label_smoothing_factor": 0.1},
                {"method": "lora", "bf16": True, "lora_dropout": 0.1},
                {"method": "qlora", "bf16": True, "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            )
        ),
    ],
    ids=str,
)
def test_a_step_runs_and_frees_what_it_took(change: dict[str, Any]) -> None:
    tracer = traced(SHORT._replace(**change))
    kept = {tracer.roles.get(number, "") for number, _ in tracer.live_blocks()}
    assert kept <= {"weights", "adapters", "quantization", "optimizer"}
    backward = [span.peak_allocated for span in tracer.spans if span.phase == "train:backward"]
    assert backward[-1] > backward[0] > 0


def test_a_quantized_weight_takes_half_a_byte_for_an_element_and_its_scales() -> None:
    tracer = traced(SHORT._replace(method="qlora", load_in_4bit=True, bf16=True, prepare_for_kbit=False))
    elements = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512)
    assert bytes_of(tracer, "quantization") == pytest.approx(
        elements / 64 * 4, rel=0.15
    )  # each tensor is rounded up to 512
    outside = 2 * 2 * (2 * 2048 * 256)
    assert bytes_of(tracer, "weights") == pytest.approx(elements / 2 + outside / 2, rel=0.05)


def test_running_past_the_gpu_s_memory_is_told_with_the_amounts() -> None:
    with pytest.raises(OutOfMemory) as raised, open_session(AMPERE, limit_bytes=40 * MIB) as tracer:
        train(build_model(LLAMA, SHORT, tracer), SHORT, tracer)
    assert raised.value.reserved <= 40 * MIB


@pytest.mark.exhaustive
def test_expandable_segments_reserve_no_more() -> None:
    peaks = []
    for expandable in (False, True):
        with open_session(AMPERE, expandable_segments=expandable) as tracer:
            train(build_model(LLAMA, SHORT, tracer), SHORT, tracer)
        peaks.append(tracer.spans)
    usual, expanded = peaks
    assert [span.peak_allocated for span in expanded] == pytest.approx(
        [span.peak_allocated for span in usual], rel=0.05
    )
    assert max(span.peak_reserved for span in expanded) <= max(span.peak_reserved for span in usual)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, BadModelError),
        ({"model_type": "no-such-model"}, BadModelError),
        ({"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}, RemoteCodeError),
        ({**LLAMA, "num_attention_heads": 7}, BadModelError),
        ({**LLAMA, "hidden_size": "wide"}, BadModelError),
    ],
    ids=["empty", "unknown", "remote", "indivisible", "a word"],
)
def test_a_config_that_is_no_model_is_said_so(config: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error), open_session(AMPERE) as tracer:
        build_model(config, SHORT, tracer)


def test_an_optimizer_that_the_trainer_lacks_is_said_so() -> None:
    with pytest.raises(BadJobError, match="optim"):
        traced(SHORT._replace(optim="no_such_optimizer"))


def test_a_head_that_its_checkpoint_keeps_apart_is_untied() -> None:
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 100}
    with open_session(AMPERE) as tracer:
        tied: Any = build_model({"model_type": "t5", **shape}, SHORT, tracer)
        apart: Any = build_model({"model_type": "mt5", **shape, "tie_word_embeddings": False}, SHORT, tracer)
    assert tied.lm_head.weight is tied.shared.weight
    assert apart.lm_head.weight is not apart.shared.weight


def test_all_linear_is_handed_to_peft_as_the_word_that_it_knows() -> None:
    from kb.torch_runs.models import lora_config

    class Causal:
        def can_generate(self) -> bool:
            return True

    setup = TrainingSetup(method="lora", lora_target_modules=("all-linear",))
    assert lora_config(Causal(), setup).target_modules == "all-linear"
