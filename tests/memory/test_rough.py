"""Rough answers: a shallow model's moments carried to all layers, and lines by the batch, against the engine itself."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memory_sample as sample
from effort import few
from kb.core.setup import Spread, TrainingSetup
from kb.memory import architecture_from_config, predict
from kb.memory.engine.follow import Run, counted
from kb.memory.engine.placed import inserted
from kb.memory.engine.rough import phases_by_batch
from kb.memory.engine.shallow import Line, highest, kinds_of, lines, roughly, run_of
from kb.memory.process import Context

CAPABILITY = (8, 6)
TRACES = {
    "training": "train", "evaluation": "evaluate", "generation": "generate", "encoder_training": "train",
    "encoder_evaluation": "evaluate", "decoder_training": "train", "decoder_evaluation": "evaluate",
    "decoder_generation": "generate",
}  # fmt: skip
EACH = 5  # of so many stored traces one is looked at here; bench/accuracy.py looks at all
GEMMA3 = {
    "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "head_dim": 256,
    "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 512,
    "max_position_embeddings": 32768,
}  # fmt: skip
NO_CONTEXT = Context(0, 0, 0)


@pytest.mark.parametrize("kind", few(TRACES, 3))
@pytest.mark.long
def test_rough_answers_agree_with_traces_of_the_real_code(kind: str) -> None:
    errors = {}
    for architecture, setup, row in sample.traces(kind)[::EACH]:
        report = predict(setup, architecture, constants=sample.CONSTANTS, compute_capability=CAPABILITY, rough=True)
        phase = report.phase(TRACES[kind])  # type: ignore[arg-type]
        assert phase is not None
        errors[f"{row['model']} {row['setup']}"] = phase.peak_allocated_bytes / row["allocated"] - 1
    worst = max(errors, key=lambda name: abs(errors[name]))
    assert abs(errors[worst]) <= sample.CONSTANTS[f"band_{TRACES[kind]}"], f"{worst}: {errors[worst]:+.2%}"
    assert mean(map(abs, errors.values())) <= 0.015


@pytest.mark.parametrize(
    "config", few([sample.T5_BASE, sample.KOBART, GEMMA3]), ids=lambda config: config["model_type"]
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_checkpointing": True, "optim": "adamw_torch"},
        {"method": "lora", "do_eval": True},
        {"method": "qlora", "load_in_4bit": True, "gradient_accumulation_steps": 4},
    ],
)
def test_all_layers_follow_from_two_and_three(config: dict[str, Any], settings: Mapping[str, Any]) -> None:
    architecture = architecture_from_config(config)
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=2, max_source_length=256, **settings)
    rough, exact = (
        predict(setup, architecture, constants=sample.CONSTANTS, compute_capability=CAPABILITY, rough=quick)
        for quick in (True, False)
    )
    for one, other in zip(rough.phases, exact.phases, strict=True):
        assert one.name == other.name
        assert one.peak_allocated_bytes == pytest.approx(other.peak_allocated_bytes, rel=0.04), one.name
        assert sum(term.bytes for term in one.terms) == one.peak_allocated_bytes


def test_a_checkpointed_layer_that_runs_again_is_its_own_turn() -> None:
    """Reentrant checkpointing runs a backward inside backward: the turn is still that layer's, under FSDP1 too."""
    llama = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8,
             "num_key_value_heads": 4, "num_hidden_layers": 12, "vocab_size": 4000, "tie_word_embeddings": False,
             "max_position_embeddings": 4096}  # fmt: skip
    setup = TrainingSetup(
        weights="bf16", per_device_train_batch_size=4, max_source_length=2048, optim="adamw_torch",
        gradient_checkpointing=True, use_reentrant=True, world_size=2, fsdp=True, spread=Spread(fsdp_version=1),
    )  # fmt: skip
    rough, exact = (
        predict(setup, architecture_from_config(llama), constants=sample.CONSTANTS, rough=quick).phase("train")
        for quick in (True, False)
    )
    assert rough is not None
    assert exact is not None
    assert rough.peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=0.03)


def run(config: dict[str, Any], **settings: Any) -> Run:
    return Run(counted(TrainingSetup(bf16=True, **settings)), architecture_from_config(config), CAPABILITY)


def test_biases_that_layers_share_go_back_with_the_last_layer_that_reads_them() -> None:
    """T5's positions under checkpointing: half of what is alive, where inputs are long and adapters alone train."""
    setup = TrainingSetup(
        method="lora", weights="bf16", bf16=True, gradient_checkpointing=True, max_source_length=4096,
        per_device_train_batch_size=1,
    )  # fmt: skip
    rough, exact = (
        predict(setup, architecture_from_config(sample.T5_BASE), constants=sample.CONSTANTS, rough=quick).phase("train")
        for quick in (True, False)
    )
    assert rough is not None
    assert exact is not None
    assert rough.peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=0.01)


@pytest.mark.long
def test_lines_by_the_batch_say_what_each_batch_says() -> None:
    asked = run(sample.T5_BASE, do_eval=True, predict_with_generate=True)
    found = lines(asked)
    for batch in (2, 3, 8, 40):
        for name, phase in roughly(run_of(asked, batch)).phases.items():
            most = max(line.bytes + line.each * batch for line in found[name])
            assert most == pytest.approx(phase.allocated, rel=0.01), (batch, name)


def test_what_a_batch_uses_grows_with_it() -> None:
    phases = phases_by_batch(
        TrainingSetup(bf16=True), architecture_from_config(GEMMA3), sample.CONSTANTS, NO_CONTEXT, CAPABILITY
    )
    sizes = [max(phase.high_bytes for phase in phases(batch)) for batch in (1, 2, 4, 16, 256)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 10 * sizes[0]


def test_kinds_of_layers_are_counted() -> None:
    assert sorted(kinds_of(architecture_from_config(GEMMA3)).values()) == [4, 22]
    assert list(kinds_of(architecture_from_config(sample.T5_BASE)).values()) == [12, 12]


@pytest.mark.long
@pytest.mark.parametrize("layers", [600, 10**6])
def test_any_number_of_layers_is_answered(layers: int) -> None:
    deep = architecture_from_config(sample.T5_BASE)._replace(encoder_layers=layers, decoder_layers=layers)
    report = predict(TrainingSetup(), deep, constants=sample.CONSTANTS)
    train = report.phase("train")
    assert train is not None
    assert report.level == "rough"
    assert train.peak_allocated_bytes > 16 * layers * 7 * 10**6  # a layer of each kind has more parameters than these


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1, max_size=30),
    st.integers(1, 5000),
)
def test_the_highest_lines_are_the_highest_for_every_batch(given_lines: list[tuple[int, int]], batch: int) -> None:
    all_lines = [Line(start, each, "forward") for start, each in given_lines]
    kept = highest(all_lines)
    assert set(kept) <= set(all_lines)
    assert max(line.bytes + line.each * batch for line in kept) == max(
        line.bytes + line.each * batch for line in all_lines
    )


@pytest.mark.long
@given(
    st.lists(st.integers(1, 50), max_size=8),
    st.lists(st.integers(51, 90), min_size=5, max_size=12, unique=True),
    st.lists(st.integers(1, 50), max_size=8),
)
def test_what_a_layer_adds_is_found_between_what_stays(before: list[int], layer: list[int], behind: list[int]) -> None:
    shallow, deep = before + layer * 2 + behind, before + layer * 3 + behind
    assert sum(len(block) for _, block in inserted(shallow, deep)) == len(layer)
    rebuilt: list[int] = []
    put = dict(inserted(shallow, deep))
    for at in range(len(shallow) + 1):
        rebuilt += [*put.get(at, []), *shallow[at : at + 1]]
    assert rebuilt == deep
