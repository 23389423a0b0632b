"""Decoder types whose attention is their own code: Falcon, BLOOM, GPT-J, GPT-Neo, and what is refused of them."""

from typing import Any

import pytest

import memory_sample as sample
from catalog_sample import load_catalog
from kb.advice.run.no_prediction import unfollowed
from kb.core.setup import Spread, TrainingSetup
from kb.memory import UnsupportedArchitectureError, architecture_from_config, match_targets, parameter_count, predict
from kb.memory.engine.families.decoder_types import TYPES, parts
from kb.memory.releases import earlier_release

FALCON = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "vocab_size": 65024,
}  # fmt: skip
GROUPED = {
    "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
    "num_kv_heads": 8, "new_decoder_architecture": True, "vocab_size": 65024,
}  # fmt: skip
BLOOM = {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880}
GPT_J = {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400}
GPT_NEO = {"model_type": "gpt_neo", "hidden_size": 768, "num_layers": 12, "num_heads": 12, "vocab_size": 50257}
GLM = {
    "model_type": "glm", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "vocab_size": 151552,
}  # fmt: skip


def report(config: dict[str, Any], setup: TrainingSetup) -> Any:
    return predict(setup, architecture_from_config(config), constants=sample.CONSTANTS, compute_capability=(8, 6))


# bench/count_parameters.py builds the same dimensions with transformers 5.23.0
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (FALCON, 6_921_720_704),
        ({**FALCON, "num_kv_heads": 71}, 6_921_720_704),  # fine-tuned ones say so; multi_query is what counts
        (GROUPED, 41_303_293_952),
        (BLOOM, 559_214_592),
        ({**BLOOM, "hidden_size": 4096, "n_layer": 30, "n_head": 32}, 7_069_016_064),
        (GPT_J, 6_050_882_784),
        (GPT_NEO, 125_198_592),
        (GLM, 9_399_951_360),
    ],
)
def test_parameters_are_those_that_transformers_builds(config: dict[str, Any], parameters: int) -> None:
    assert parameter_count(architecture_from_config(config)) == parameters


def test_targets_are_matched_under_the_names_of_the_modelling_files() -> None:
    for config, targets in ((FALCON, ("query_key_value", "dense_4h_to_h")), (GPT_J, ("q_proj", "fc_out"))):
        matched, missing = match_targets(architecture_from_config(config), targets)
        assert {module.leaf for module in matched} == set(targets)
        assert missing == ()


def test_what_is_not_followed_of_such_a_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="flash_attention_2 of bloom"):
        report(BLOOM, TrainingSetup(bf16=True, attn_implementation="flash"))


@pytest.mark.parametrize(
    "sharded", [{"fsdp": True}, {"fsdp": True, "spread": Spread(fsdp_version=1)}, {"zero_stage": 3}]
)
def test_such_types_are_sharded_as_others_are(sharded: dict[str, Any]) -> None:
    setup = TrainingSetup(bf16=True, max_source_length=128, per_device_train_batch_size=1, world_size=4)
    whole, shared = (report(BLOOM, each).phases for each in (setup, setup._replace(**sharded)))
    assert max(each.peak_allocated_bytes for each in shared) < max(each.peak_allocated_bytes for each in whole)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**BLOOM, "apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ({**GROUPED, "parallel_attn": False}, "parallel_attn"),
        ({**FALCON, "num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
        ({**GROUPED, "num_kv_heads": 7}, "num_kv_heads 7"),
        ({**GPT_J, "rotary_dim": 512}, "rotary_dim 512"),
        ({**GPT_NEO, "num_layers": 10**6}, "1000000 layers"),
    ],
)
def test_fields_that_no_such_model_can_have_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=says):
        architecture_from_config(config)


def test_that_a_type_has_no_sdpa_attention_is_said() -> None:
    small = {**BLOOM, "n_layer": 2}
    asked, eager = (report(small, TrainingSetup(attn_implementation=kind)) for kind in ("sdpa", "eager"))
    assert asked.phase("train").peak_allocated_bytes == eager.phase("train").peak_allocated_bytes
    assert "no_sdpa_of_the_type" in {one.reason for one in asked.assumed}
    assert "no_sdpa_of_the_type" not in {one.reason for one in eager.assumed}


def test_four_bits_pack_nothing_of_falcon() -> None:
    setup = TrainingSetup(bf16=True, method="qlora", load_in_4bit=True, prepare_for_kbit=False, max_source_length=16)
    made = report({**FALCON, "num_hidden_layers": 2}, setup)
    weights = next(term.bytes for term in made.phase("load").terms if term.name == "parameters")
    assert weights == pytest.approx(
        2 * parameter_count(architecture_from_config({**FALCON, "num_hidden_layers": 2})), rel=1e-4
    )
    before = report({**FALCON, "num_hidden_layers": 2}, setup._replace(earlier=earlier_release("falcon", (5, 4))))
    assert next(term.bytes for term in before.phase("load").terms if term.name == "parameters") < 0.9 * weights
    assert unfollowed(setup, architecture_from_config(FALCON)) is None


def test_the_types_that_pack_nothing_are_those_that_rules_know() -> None:
    told = load_catalog().facts["model.has_linear_class_of_its_own"].model_types
    assert {name for name, each in TYPES.items() if each.linear is parts.by_hand} == set(told)
