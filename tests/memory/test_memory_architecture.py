"""config.json files as architectures, and their faults."""

from typing import Any

import pytest

import memory_sample as sample
from catalog_sample import load_catalog
from kb.core.model import Model
from kb.memory import UnsupportedArchitectureError, architecture_from_config, parameter_count
from kb.memory.engine.inventory import inventory
from kb.memory.parameters import count


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (sample.T5_BASE, 222_903_552),
        (sample.MT5_BASE, 582_401_280),
        (sample.KOBART, 123_859_968),
        ({**sample.T5_BASE, "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_layers": 6}, 60_506_624),
        ({**sample.KOBART, "d_model": 1024, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_layers": 12,
          "decoder_layers": 12, "vocab_size": 50265, "max_position_embeddings": 1024}, 406_291_456),
    ],
)  # fmt: skip
def test_parameters_of_known_models(config: dict[str, Any], parameters: int) -> None:
    assert parameter_count(architecture_from_config(config)) == parameters


def test_t5_v1_1_is_gated_and_its_head_is_its_own() -> None:
    config = {**sample.T5_BASE, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "d_ff": 2048}
    found = architecture_from_config(config)
    assert found.gated
    assert not found.tied
    assert parameter_count(found) == 247_577_856


def test_umt5_has_a_position_bias_in_every_layer() -> None:
    mt5 = architecture_from_config(sample.MT5_BASE)
    umt5 = architecture_from_config({**sample.MT5_BASE, "model_type": "umt5"})
    assert parameter_count(umt5) - parameter_count(mt5) == 22 * 32 * 12


def test_dropout_rates_of_bart_are_read() -> None:
    found = architecture_from_config({**sample.KOBART, "attention_dropout": 0.1, "activation_dropout": 0.0})
    assert (found.attention_dropout, found.activation_dropout) == (True, False)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "model_type"),
        ({"model_type": "rwkv"}, "rwkv"),
        ({**sample.T5_BASE, "d_ff": None}, "d_ff is missing"),
        ({**sample.T5_BASE, "d_kv": "64"}, "d_kv must be a positive whole number"),
        ({**sample.T5_BASE, "num_heads": 0}, "num_heads must be a positive whole number"),
        ({**sample.T5_BASE, "num_layers": True}, "num_layers"),
        ({**sample.T5_BASE, "tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({**sample.KOBART, "decoder_ffn_dim": 4096}, "encoder_ffn_dim 3072 and decoder_ffn_dim 4096 differ"),
        ({**sample.KOBART, "encoder_attention_heads": 7, "decoder_attention_heads": 7}, "not a multiple"),
        ({**sample.KOBART, "attention_dropout": 2}, "attention_dropout must be between 0 and 1"),
    ],
)
def test_a_config_that_cannot_be_used_says_which_field(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=says):
        architecture_from_config(config)


ONE_OF_EACH = list({each.architecture.model_type: each for each in load_catalog().models.values()}.values())


@pytest.mark.parametrize("model", ONE_OF_EACH, ids=lambda model: model.architecture.model_type)
def test_no_part_of_a_model_is_counted_below_nothing(model: Model) -> None:
    """By the engine's own modules, whatever the type; beside the dimensions' count where that knows the type."""
    found = inventory(model.architecture)[1]
    assert min(found) >= 0 and found.norms > 0
    assert found.total == model.parameters
    if not model.architecture.engine and model.architecture.family in ("decoder", "bart"):
        assert found == count(model.architecture)


def test_biases_are_those_of_the_blocks_and_the_heads_go_with_the_head() -> None:
    phi = next(each.architecture for each in ONE_OF_EACH if each.architecture.model_type == "phi")
    found = inventory(phi)[1]
    assert found.head == phi.vocab_size * (phi.d_model + 1)
    layer = 4 * phi.d_model + phi.d_ff + phi.d_model
    assert found.biases == phi.decoder_layers * layer


# As published: of the words only what is not the type's default.
GEMMA_3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                    "num_hidden_layers": 34, "sliding_window": 1024},
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                      "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
                      "vision_use_head": False},
}  # fmt: skip


def test_gemma_3_that_sees_is_counted_with_its_tower() -> None:
    found = architecture_from_config(GEMMA_3_4B)
    assert parameter_count(found) == 4_300_079_472
    assert found.vision is not None
    assert (found.vision.merge, found.window, sum(found.slides), found.tied) == (4, 1024, 29, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mm_tokens_per_image": 250}, "mm_tokens_per_image 250 of 64 × 64 patches"),
        ({"image_token_index": 262_208}, "image_token_index beyond vocab_size"),
        ({"text_config": {**GEMMA_3_4B["text_config"], "use_bidirectional_attention": True}}, "use_bidirectional"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "vision_use_head"),
    ],
)
def test_what_is_not_followed_of_gemma_3_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=said):
        architecture_from_config({**GEMMA_3_4B, **given})


QWEN3_VL_4B: dict[str, Any] = {
    "model_type": "qwen3_vl", "tie_word_embeddings": True,
    "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 2560, "intermediate_size": 9728,
                    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
    "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560,
                      "deepstack_visual_indexes": [5, 11, 17]},
}  # fmt: skip


def test_qwen_3_that_sees_is_counted_with_its_tower() -> None:
    found = architecture_from_config(QWEN3_VL_4B)
    assert parameter_count(found) == 4_437_815_808
    assert found.vision is not None
    assert (found.vision.states, found.vision.places, found.vision.side, found.d_kv) == ((6, 12, 18), 2304, 32, 128)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"deepstack_visual_indexes": [5, 24]}, r"deepstack_visual_indexes \[5, 24\] of 24 layers"),
        ({"deepstack_visual_indexes": 5}, "a list of layers' numbers"),
        ({"patch_size": [16, 16]}, "patch_size"),
    ],
)
def test_what_is_wrong_of_qwen_3_s_tower_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    vision = {**QWEN3_VL_4B["vision_config"], **given}
    with pytest.raises(UnsupportedArchitectureError, match=said):
        architecture_from_config({**QWEN3_VL_4B, "vision_config": vision})
