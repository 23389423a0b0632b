"""Whole simulations, some in the simulator's process: recorded traces are met, ledgers add up, faults have names."""

import json
import pickle
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.torch_runs.simulation import Simulated, SimulationError, simulate
from kb.torch_runs.simulation.job import (
    BadModelError,
    BeyondPositionsError,
    CrashedError,
    NoAdaptersError,
    RemoteCodeError,
)
from simulation_here import in_this_process
from simulation_needs import require_simulator

require_simulator()

TRACES = Path(__file__).parents[2] / "data" / "traces"
AMPERE = (8, 6)
GIB = 1 << 30
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 8000,
    "max_position_embeddings": 128,
}


def run(setup: TrainingSetup, config: dict[str, Any], **more: Any) -> Simulated:
    with in_this_process():
        return in_a_process(setup, config, **more)


def in_a_process(setup: TrainingSetup, config: dict[str, Any], **more: Any) -> Simulated:
    return simulate(setup, config, constants=sample.CONSTANTS, compute_capability=AMPERE, **more)


def row_of(kind: str, model: str, **settings: Any) -> tuple[dict[str, Any], TrainingSetup, dict[str, Any]]:
    """The recorded trace of a model with exactly these settings."""
    data = json.loads((TRACES / f"{kind}.json").read_text("utf-8"))
    wanted = {"do_train": False, "do_eval": True, **settings}
    (row,) = (row for row in data["rows"] if row["model"] == model and row["setup"] == wanted)
    return data["models"][model], TrainingSetup(**row["setup"]), row


DECODER = TrainingSetup(
    method="lora",
    bf16=True,
    do_eval=True,
    do_predict=True,
    eval_samples=80,
    per_device_train_batch_size=2,
    max_source_length=64,
    inference_batch_size=2,
    inference_max_length=60,
)


@cache
def small_decoder() -> Simulated:
    return run(DECODER, LLAMA)


@pytest.mark.exhaustive
def test_a_long_answer_whose_middle_only_grows_the_cache_agrees_with_its_trace() -> None:
    settings = {"max_target_length": 120, "generation_max_length": 120, "per_device_eval_batch_size": 16}
    config, setup, row = row_of("generation", "kobart", predict_with_generate=True, generation_num_beams=5, **settings)
    phase = run(setup, config).report.phase("generate")
    assert phase is not None
    assert phase.peak_allocated_bytes == pytest.approx(row["allocated"], rel=0.001)
    assert phase.peak_reserved_bytes == pytest.approx(row["reserved"], rel=0.005)


@pytest.mark.exhaustive
def test_evaluation_that_gathers_logits_agrees_with_its_trace() -> None:
    config, setup, row = row_of("evaluation", "kobart", bf16=True, eval_samples=24)
    phase = run(setup, config).report.phase("evaluate")
    assert phase is not None
    assert phase.peak_allocated_bytes == pytest.approx(row["allocated"], rel=0.002)
    assert any(term.name == "gathered" for term in phase.terms)


def test_every_phase_asked_for_is_there_and_its_terms_add_up() -> None:
    report = small_decoder().report
    assert report.level == "simulated"
    assert [phase.name for phase in report.phases] == ["load", "train", "evaluate", "generate", "save"]
    for phase in report.phases:
        assert sum(term.bytes for term in phase.terms) == phase.peak_allocated_bytes, phase.name
        assert phase.peak_allocated_bytes <= phase.peak_reserved_bytes


def test_terms_have_words() -> None:
    from kb.knowledge import load_words

    words = load_words("en")
    for phase in small_decoder().report.phases:
        assert f"moment.{phase.moment}" in words
        assert {f"term.{term.name}" for term in phase.terms} <= words.keys()


def test_what_holds_the_memory_is_told_apart() -> None:
    phases = {phase.name: {term.name for term in phase.terms} for phase in small_decoder().report.phases}
    assert {"parameters", "adapters"} <= phases["load"]
    assert {"activations_decoder", "autocast_copies", "optimizer", "loss"} <= phases["train"]
    assert "gathered" in phases["evaluate"]
    assert "kv_cache_self" in phases["generate"]


def test_inference_of_its_own_starts_without_the_optimizer() -> None:
    phase = small_decoder().report.phase("generate")
    assert phase is not None
    assert "optimizer" not in {term.name for term in phase.terms}


def test_top_tensors_name_the_module_that_made_them() -> None:
    tops = small_decoder().tops["train"]
    assert any("layers.*" in top.module for top in tops)
    assert [top.size_bytes * top.number for top in tops] == sorted(
        (top.size_bytes * top.number for top in tops), reverse=True
    )


def test_the_timeline_holds_the_peaks_and_draws() -> None:
    from kb.knowledge import load_catalog, load_words
    from kb.report.timeline import timeline_svg
    from kb.report.words import Words

    simulated = small_decoder()
    train = simulated.report.phase("train")
    assert train is not None
    spans = [span for span in simulated.timeline.spans if span.phase.startswith("train")]
    inside = [
        point.allocated_bytes for point in simulated.timeline.points if spans[0].start <= point.event < spans[-1].end
    ]
    assert max(inside) == train.peak_allocated_bytes
    one: Any = SimpleNamespace(
        drawn=simulated, report=simulated.report, simulated=simulated, machine=SimpleNamespace(gpu_limit_bytes=None)
    )
    for language in ("en", "ko"):
        drawing = timeline_svg(one, Words(language, load_words(language), load_catalog().facts))
        assert drawing.startswith("<svg")
        assert f"{train.peak_allocated_bytes / GIB:.2f}" in drawing


@pytest.mark.exhaustive
def test_the_simulators_own_process_has_the_same_answer_and_its_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    again = in_a_process(DECODER, LLAMA, snapshot_path=str(path))
    assert again.report == small_decoder().report
    assert again.timeline.spans == small_decoder().timeline.spans  # autocast clears its cache in any order
    snapshot = pickle.loads(path.read_bytes())
    assert snapshot["segments"]
    assert len(snapshot["device_traces"][0]) >= again.timeline.events


@pytest.mark.exhaustive
def test_a_classifier_trains_and_is_evaluated() -> None:
    report = run(TrainingSetup(do_eval=True, eval_samples=2000, max_source_length=128), BERT).report
    assert [phase.name for phase in report.phases] == ["load", "train", "evaluate", "save"]
    train = report.phase("train")
    assert train is not None
    assert "activations_encoder" in {term.name for term in train.terms}


WIDE = TrainingSetup(per_device_train_batch_size=64, max_source_length=512)  # 4.9 GB of tensors, 6.0 GB reserved


def test_a_run_whose_tensors_fit_but_not_between_the_others_runs_out() -> None:
    memory = 5_000_000_000
    report = run(WIDE, LLAMA, gpu_memory_bytes=memory).report
    train = report.phase("train")
    assert train is not None
    assert train.low_bytes < memory
    assert (report.verdict.status, report.verdict.phase) == ("oom", "train")


def test_a_card_that_holds_what_is_reserved_and_little_more_is_tight() -> None:
    train = run(WIDE, LLAMA).report.phase("train")
    assert train is not None
    middle = (train.process_used_bytes + train.high_bytes) // 2
    report = run(WIDE, LLAMA, gpu_memory_bytes=round(middle / sample.CONSTANTS["usable_memory_ratio"])).report
    assert report.verdict.status == "tight"


LORA = {"method": "lora", "lora_target_modules": ("no_such",)}
FAULTS: list[tuple[dict[str, Any], dict[str, Any], type[SimulationError]]] = [
    ({"model_type": "no-such-model"}, {}, BadModelError),
    ({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}, {}, RemoteCodeError),
    (BERT, {"max_source_length": 256}, BeyondPositionsError),
    (BERT, LORA, NoAdaptersError),
]


@pytest.mark.parametrize(("config", "settings", "kind"), FAULTS, ids=["type", "code", "length", "adapters"])
def test_a_model_that_cannot_be_simulated_is_named(
    config: dict[str, Any], settings: dict[str, Any], kind: type[SimulationError]
) -> None:
    with pytest.raises(kind) as caught:
        run(TrainingSetup(**settings), config)
    assert not isinstance(caught.value, CrashedError)
