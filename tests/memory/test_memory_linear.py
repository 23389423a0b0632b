"""LoRA targets as PEFT resolves them; the counts were read off peft 0.21.2's own models of these dimensions."""

import pytest

import memory_sample as sample
from kb.core.model import Architecture
from kb.memory import UnknownTargetsError, adapter_parameters, default_targets, match_targets, modules, parameter_count

SMALL_MT5 = sample.architecture(
    {"model_type": "mt5", "vocab_size": 1000, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2,
     "num_decoder_layers": 3, "num_heads": 4, "tie_word_embeddings": True}
)  # fmt: skip
SMALL_BART = sample.architecture(
    {"model_type": "bart", "vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3,
     "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
     "max_position_embeddings": 50}
)  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "targets", "trainable"),
    [
        (SMALL_MT5, ("q", "k", "v", "o", "wi", "wo", "lm_head", "embed_tokens"), 64_704),
        (SMALL_MT5, "all-linear", 51_968),
        (SMALL_MT5, None, 16_384),
        (SMALL_BART, ("q_proj", "v_proj", "fc1", "lm_head", "embed_tokens", "shared"), 56_832),
        (SMALL_BART, "all-linear", 45_568),
        (SMALL_BART, None, 16_384),
    ],
)
def test_trainable_parameters_are_peft_s(
    architecture: Architecture, targets: tuple[str, ...] | str | None, trainable: int
) -> None:
    assert adapter_parameters(architecture, targets, 8) == trainable


def test_parameters_of_the_small_models_are_transformers_own() -> None:
    assert parameter_count(SMALL_MT5) == 288_448
    assert parameter_count(SMALL_BART) == 267_936


def names(architecture: Architecture, targets: tuple[str, ...] | str) -> set[str]:
    return {module.leaf for module in match_targets(architecture, targets)[0]}


def test_a_gated_model_has_no_wi() -> None:
    assert match_targets(SMALL_MT5, ("q", "wi"))[1] == ("wi",)
    assert names(SMALL_MT5, ("wi_0", "wi_1")) == {"wi_0", "wi_1"}


def test_an_entry_matches_at_a_dot_only() -> None:
    matched, _ = match_targets(SMALL_MT5, ("o",))
    assert {module.leaf for module in matched} == {"o"}
    assert match_targets(SMALL_MT5, ("roj",))[1] == ("roj",)


def test_a_longer_entry_narrows_the_match() -> None:
    matched, missing = match_targets(SMALL_MT5, ("SelfAttention.q", "encoder.block.1.layer.0.SelfAttention.v"))
    assert missing == ()
    assert [(module.leaf, module.stack, module.number) for module in matched] == [
        ("q", "encoder", 2), ("v", "encoder", 1), ("q", "decoder", 3),
    ]  # fmt: skip


def test_a_plain_string_is_a_pattern_for_the_whole_path() -> None:
    assert names(SMALL_MT5, r".*decoder.*EncDecAttention\.(q|v)") == {"q", "v"}
    assert match_targets(SMALL_MT5, "q") == ((), ("q",))


@pytest.mark.parametrize("pattern", ["(a+)+b", "(.*)*x", ".*" * 40 + "X"])
def test_a_pattern_with_more_ways_than_time_matches_nothing(pattern: str) -> None:
    assert match_targets(SMALL_MT5, pattern) == ((), (pattern,))


@pytest.mark.parametrize("pattern", ["(", r"(.*)\1", "(?=.*)q", "x" * 4000])
def test_a_pattern_that_is_none_or_looks_around_is_refused(pattern: str) -> None:
    with pytest.raises(UnknownTargetsError):
        match_targets(SMALL_MT5, pattern)


def test_types_without_a_default_must_name_their_targets() -> None:
    umt5 = SMALL_MT5._replace(model_type="umt5")
    assert default_targets(umt5) is None
    with pytest.raises(UnknownTargetsError, match="umt5"):
        match_targets(umt5, None)


def test_module_weights_add_up_to_the_linear_parameters() -> None:
    for architecture in (SMALL_MT5, SMALL_BART):
        blocks = sum(
            module.in_features * module.out_features * module.number
            for module in modules(architecture)
            if module.stack in ("encoder", "decoder")
        )
        embeddings = 1000 * 64
        assert embeddings + blocks < parameter_count(architecture) < (embeddings + blocks) * 1.1
