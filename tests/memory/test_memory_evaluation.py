"""Evaluation's closed form where traces show what decides: masks, products of frozen weights, what training left."""

from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.core.setup import TrainingSetup
from kb.core.units import MIB
from kb.memory import architecture_from_config
from kb.memory.process import kept_workspace
from kb.memory.remainders import copies_of, kept_states, moments_remainder, reused_remainder
from memory_sample import roughly

CONSTANTS = load_catalog().constants
BERT = architecture_from_config(
    {"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
     "num_hidden_layers": 12, "vocab_size": 32000, "max_position_embeddings": 512, "type_vocab_size": 2}
)  # fmt: skip
QWEN = architecture_from_config(
    {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "head_dim": 128,
     "num_key_value_heads": 8, "num_hidden_layers": 28, "vocab_size": 151936, "tie_word_embeddings": True,
     "max_position_embeddings": 40960}
)  # fmt: skip
T5 = architecture_from_config(
    {"model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 12,
     "vocab_size": 32128}
)  # fmt: skip


def evaluated(arch: Any, **given: Any) -> Any:
    phase = roughly(
        TrainingSetup()._replace(do_eval=True, prediction_loss_only=True, **given),
        arch,
        constants=CONSTANTS,
        compute_capability=(8, 6),
    ).phase("evaluate")
    assert phase is not None
    return phase


def term(phase: Any, name: str) -> int:
    return sum(term.bytes for term in phase.terms if term.name == name)


def test_unpadded_eager_scores_in_bf16_are_widened_beside_themselves_and_those_in_fp16_at_once() -> None:
    long = {"attn_implementation": "eager", "padded": False, "per_device_eval_batch_size": 8, "do_train": False}
    scores = 8 * 12 * 512**2
    wider = evaluated(BERT, bf16=True, **long)
    assert wider.peak_allocated_bytes - evaluated(BERT, fp16=True, **long).peak_allocated_bytes <= 4 * scores
    assert term(wider, "temporaries") >= 10 * scores


def test_without_padding_eager_attention_makes_no_mask() -> None:
    given = {"attn_implementation": "eager", "per_device_eval_batch_size": 4, "do_train": False}
    mask = 4 * 512**2 * 4
    padded, packed = evaluated(BERT, padded=True, **given), evaluated(BERT, padded=False, **given)
    assert term(padded, "activations_encoder") - term(packed, "activations_encoder") == mask


def test_a_frozen_output_layer_is_copied_for_its_product_under_autocast() -> None:
    given: dict[str, Any] = {"method": "lora", "bf16": True, "per_device_eval_batch_size": 1, "max_source_length": 128}
    copied = 2 * (128 * QWEN.vocab_size + QWEN.vocab_size * QWEN.d_model)
    assert term(evaluated(QWEN, **given), "logits") == copied


def test_four_bit_weights_are_unpacked_for_a_product_of_few_tokens() -> None:
    given: dict[str, Any] = {"method": "qlora", "load_in_4bit": True, "weights": "bf16", "max_source_length": 48}
    assert term(evaluated(BERT, per_device_eval_batch_size=1, **given), "temporaries") > 2 * 768 * 3072


@pytest.mark.parametrize(
    ("trained", "checkpointed", "biased", "plain"), [(False, False, 1, 0), (True, False, 1, 0), (True, True, 2, 0)]
)
def test_products_with_a_bias_take_a_workspace_of_their_own_for_each_thread(
    trained: bool, checkpointed: bool, biased: int, plain: int
) -> None:
    threads = (1 + trained) * 8 * MIB

    def extra(arch: Any) -> int:
        kept = kept_workspace(arch, 8 * MIB, quantized=False, trained=trained, checkpointed=checkpointed)
        return (kept - threads) // MIB

    assert (extra(BERT), extra(T5)) == (biased, plain)


def test_small_copies_take_the_ends_of_segments_that_training_left() -> None:
    """20 MiB hold 18 MiB of BERT's matrices, and 2 MiB are free at the end: too little more than a copy to be split."""
    ends, rest = 18, 2 * MIB - 2 * 768 * 768
    assert reused_remainder(BERT, 4, 1, copies_of(BERT)) == ends * rest
    assert reused_remainder(BERT, 4, 3, copies_of(BERT)) == 4 * 12 * rest
    assert reused_remainder(BERT, 4, 1, ((MIB, 100), (3 * MIB, 100))) == 0


def test_kept_states_are_the_weight_and_each_moment_of_its_size() -> None:
    assert kept_states({"parameters": 400}) == 1
    assert kept_states({"parameters": 400, "optimizer": 801}) == 3
    assert kept_states({"parameters": 400, "optimizer": 200}) == 1
    assert kept_states({"parameters": 0, "optimizer": 0}) == 1


def test_moments_lie_in_the_segments_of_large_activations() -> None:
    """12 MiB hold a large matrix and a small one, or five small ones: 0.75 MiB are left each time."""
    assert moments_remainder(BERT, 4, 16 * 256 * 768 * 4) == pytest.approx((48 + 48 / 5) * 0.75 * MIB, rel=0.03)
    assert moments_remainder(BERT, 4, 4 * MIB) is None
