"""Earlier releases of transformers: what a project's own release changes, and how near the engine is to its code."""

import json
import sys
from pathlib import Path

import pytest

from catalog_sample import load_catalog, read_units
from effort import few
from kb.advice.check import Checker
from kb.core.hardware import Machine
from kb.core.setup import EarlierRelease, TrainingSetup
from kb.memory.releases import boundaries_of, earlier_release, has_sdpa

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from releases import RESULTS, cases, mean_and_worst, score, summary

CATALOG = load_catalog()
# What no model does any more that did it in transformers 4.54.
OLD = EarlierRelease(
    caches=True, cache="given", scores_held=True, experts_apart=True, experts_named=True, packs_subclasses=True
)
TUPLES = OLD._replace(tuples_returned=True, checkpoints_units=True)
GPT2 = TUPLES._replace(whole_logits=True, sight_table=True)
ALIKE = EarlierRelease(cache="alike")  # what no model does any more that did it in 5.23
RECORDED = json.loads(RESULTS.read_text("utf-8"))
NEWEST = (5, 24)


def setup_of(model: str, release: tuple[int, ...] | None) -> TrainingSetup:
    text = f"model_name_or_path: {model}\nper_device_train_batch_size: 1\noutput_dir: out\nlearning_rate: 0.001\n"
    (unit,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    versions = {"transformers": release} if release else {}
    setup = Checker(CATALOG, Machine(), versions=lambda library, *_: versions.get(library)).prepare(unit).setup
    assert setup is not None
    return setup


@pytest.mark.parametrize(
    ("model", "release", "attention", "reason"),
    [
        ("t5-base", (4, 57, 6), "eager", "attention_of_release"),
        ("t5-base", (5, 14), "eager", "attention_of_release"),
        ("t5-base", (5, 15), "sdpa", "library_default"),
        ("t5-base", None, "sdpa", "library_default"),
        ("gogamza/kobart-base-v2", (4, 40), "sdpa", "library_default"),
        ("klue/roberta-base", (4, 44, 2), "eager", "attention_of_release"),
        ("Qwen/Qwen2.5-7B", (4, 45), "sdpa", "library_default"),
    ],
)
def test_a_release_without_sdpa_for_a_type_computes_attention_eagerly(model, release, attention, reason) -> None:
    setup = setup_of(model, release)
    assert setup.attn_implementation == attention
    assert [each.reason for each in setup.assumed if each.name == "model.attn_implementation"] == [reason]


@pytest.mark.parametrize(
    ("model_type", "release", "expected"),
    [
        ("llama", (4, 44), TUPLES._replace(causal_loss="wide", whole_logits=True)),
        ("llama", (4, 46, 3), TUPLES._replace(causal_loss="copied")),
        ("llama", (4, 49), OLD._replace(checkpoints_units=True)),
        ("llama", (4, 56), OLD._replace(cache="alike")),
        ("llama", (5, 0), ALIKE._replace(packs_subclasses=True, experts_named=True)),
        ("llama", (5, 4), ALIKE._replace(packs_subclasses=True)),
        ("llama", (5, 5), ALIKE),
        ("llama", (5, 24), EarlierRelease()),
        ("mistral", (4, 47, 1), TUPLES._replace(causal_loss="wide")),
        ("gpt2", (4, 46, 3), GPT2._replace(causal_loss="narrow", cache="tuples")),
        ("gpt2", (4, 48), GPT2._replace(causal_loss="copied", cache="tuples")),
        ("gpt2", (4, 52), GPT2),
        ("llama", (4, 52), OLD),
        ("mixtral", (4, 52), OLD._replace(checkpoints_units=True)),
        ("gpt2", (5, 1), ALIKE._replace(packs_subclasses=True, experts_named=True, sight_table=True)),
        ("gpt_neox", (4, 48), TUPLES._replace(causal_loss="narrow", whole_logits=True, sight_table=True)),
        ("gemma2", (4, 57), OLD._replace(cache="alike", uncapped=True)),
        ("gemma2", (5, 20), ALIKE._replace(uncapped=True)),
        ("gemma2", (5, 21), ALIKE),
        ("gptj", (5, 23), ALIKE._replace(writes_attention=True)),
        ("gptj", (5, 24), EarlierRelease()),
        ("qwen2_5_vl", (5, 23), ALIKE._replace(gives_features=True)),
        ("qwen2_5_vl", (5, 24), EarlierRelease()),
        ("longformer", (5, 23), ALIKE._replace(masks_let_go=True)),
        ("longformer", (5, 24), EarlierRelease()),
        ("electra", (4, 53), OLD._replace(causal_loss="labels")),
        ("electra", (4, 54), OLD._replace(weights_returned=True)),
        ("bart", (4, 54), OLD._replace(caches=False)),
        ("m2m_100", (4, 51), TUPLES._replace(cache="tuples")),
        ("mt5", (4, 54), OLD._replace(caches=False, biases_masked=True)),
        ("mt5", (5, 0), ALIKE._replace(biases_masked=True, packs_subclasses=True, experts_named=True, fills_none=True)),
        ("mt5", (5, 14), ALIKE._replace(biases_masked=True, fills_none=True)),
        ("mt5", (5, 15), ALIKE),
    ],
)
def test_what_a_model_does_otherwise(model_type, release, expected) -> None:
    assert earlier_release(model_type, release) == expected
    assert earlier_release(model_type, NEWEST) == EarlierRelease()
    at = boundaries_of(model_type)
    assert at == tuple(sorted(at))
    for before, after in zip(((0,), *at), (*at, NEWEST), strict=True):  # between two nothing changes
        middle = (after[0], after[1] - 1) if len(after) > 1 and after[1] else before
        if before <= middle < after:
            assert earlier_release(model_type, middle) == earlier_release(model_type, before)


def test_a_setup_is_told_what_its_projects_release_does() -> None:
    assert setup_of("Qwen/Qwen2.5-7B", (4, 46, 3)).earlier == TUPLES._replace(causal_loss="copied")
    assert setup_of("Qwen/Qwen2.5-7B", None).earlier == EarlierRelease()


@pytest.mark.parametrize(("release", "listed"), [((4, 44), ["uncompared"]), ((4, 46), []), ((5, 23), []), (None, [])])
def test_a_release_whose_code_was_only_read_is_listed(release, listed) -> None:
    assumed = setup_of("klue/bert-base", release).assumed
    assert [each.reason for each in assumed if each.name == "transformers.release"] == listed


@pytest.mark.parametrize("name", few(sorted(RECORDED, reverse=True), 2))
@pytest.mark.long
def test_the_engine_is_near_what_the_release_does(name: str) -> None:
    """The rows are simulations of that release's own code: small models, 21 types by 4 to 7 ways."""
    found = score(RECORDED[name])
    assert len(found.allocated) > 200
    if name == "newest":  # 512 bytes of a buffer apart
        assert all(abs(error) < 2e-6 for error in (*found.allocated.values(), *found.held_out.values()))
        assert all(abs(error) < 0.004 for error in found.reserved.values())  # all of them Falcon's, generating
    mean, worst = mean_and_worst(found.allocated)
    assert mean < 0.005 and abs(worst) < 0.05, (mean, worst)
    mean, worst = mean_and_worst(found.held_out)  # a tenth of the phases
    assert len(found.held_out) > len(found.allocated) / 10
    assert mean < 0.01 and abs(worst) < 0.06, (mean, worst)
    mean, worst = mean_and_worst(found.reserved)
    assert mean < 0.03 and abs(worst) < 0.22, (mean, worst)
    assert json.loads(json.dumps(summary(found))) == RECORDED[name]["score"], "bench/releases.py --again scores it anew"


def test_every_case_is_recorded_for_every_release() -> None:
    names, unable = {name for name, _, _ in cases()}, ("gemma2, ", "qwen3_moe, ", "distilbert, QLoRA")
    for release in RECORDED.values():
        assert set(release["rows"]) == names
        assert all(isinstance(row, dict) or name.startswith(unable) for name, row in release["rows"].items())
    assert sum(isinstance(row, str) for row in RECORDED["newest"]["rows"].values()) <= 1


def test_types_are_named_as_transformers_names_them() -> None:
    known = {model.architecture.model_type for model in CATALOG.models.values()}
    assert {"t5", "mt5", "bert", "gpt2", "xlm-roberta"} <= known
    assert all(has_sdpa(model_type, NEWEST) for model_type in known)
