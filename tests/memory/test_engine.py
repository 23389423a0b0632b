"""The memory engine against recorded runs of the real code: allocated and reserved bytes, phase by phase."""

import sys
from collections import defaultdict
from hashlib import sha256
from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import Spread, TrainingSetup
from kb.memory import UnsupportedArchitectureError, architecture_from_config, match_targets, parameter_count, predict
from kb.memory.engine.ddp import assigned
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.ops.attention import efficient_backward_bytes, flash_backward_bytes
from kb.memory.engine.report import refused, why_not
from kb.memory.engine.trace import trace
from kb.memory.engine.world import workspace_bytes
from kb.memory.parameters import count

sys.path.insert(0, str(sample.ROOT / "bench"))

from accuracy_engine import DERIVED, HELD_OUT, Traced, all_compared, engine_traces

TRACES = list(engine_traces())
BLOCK = 512
# All that bench/results/accuracy.md lists: 1.0 % of ALBERT in bf16, 8.3 % of what BART reserved once.
KNOWN_FAR = {("albert", "train"), ("albert", "evaluate"), ("bart-large", "train")}
STABLELM = next(run.config for run in TRACES if run.model == "stablelm-2")


def by_hash(part: str, of_a_model: int) -> list[Traced]:
    """So many rows of each model, by a hash of what was traced; ``make bench-accuracy`` compares them all."""
    of: dict[str, list[tuple[str, Traced]]] = defaultdict(list)
    for run in TRACES:
        if run.part == part:
            of[run.model].append((sha256(f"{run.model} {run.phases}".encode()).hexdigest(), run))
    return [run for rows in of.values() for _, run in sorted(rows, key=lambda row: row[0])[:of_a_model]]


def test_there_are_1500_traced_runs_of_which_a_tenth_is_held_out() -> None:
    held_out = sum(run.part == HELD_OUT for run in TRACES)
    assert len(TRACES) >= 1500
    assert held_out >= len(TRACES) * 0.07  # rows of a model are numbered; the last ten may not be full
    assert len({run.model for run in TRACES}) >= 50
    assert sum(run.lengths is not None for run in TRACES) >= 100


@pytest.mark.long
@pytest.mark.parametrize(("part", "of_a_model"), [(DERIVED, 1), (HELD_OUT, 1)])
def test_nearly_every_phase_equals_its_trace_to_a_block(part: str, of_a_model: int) -> None:
    """A block is 512 bytes: special tokens that a config names, or does not, are one each."""
    runs = by_hash(part, of_a_model)
    rows, left = all_compared(runs)
    assert len(runs) - left >= 50
    wrong = [
        row for row in rows if abs(row.allocated[0] - row.allocated[1]) > BLOCK or row.reserved[0] != row.reserved[1]
    ]
    assert len(wrong) <= len(rows) * 0.05, [(row.run.model, row.run.setup, row.phase) for row in wrong]
    far = {(row.run.model, row.phase) for row in rows if row.far}
    assert far <= KNOWN_FAR
    assert all(abs(row.error("allocated")) <= 0.011 and abs(row.error("reserved")) <= 0.09 for row in rows)


def report(setup: TrainingSetup, config: dict[str, Any] = STABLELM, **more: Any) -> Any:
    return predict(setup, architecture_from_config(config), constants=sample.CONSTANTS, **more)


def refusal(setup: TrainingSetup, config: dict[str, Any]) -> str:
    """What of the model or of the run the engine does not follow."""
    try:
        named = why_not(setup, architecture_from_config(config))
        if named is None:
            report(setup, config)
    except UnsupportedArchitectureError as error:
        return str(error)
    return named or ""


def test_a_type_that_the_engine_alone_knows_is_predicted() -> None:
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=2, do_eval=True)
    made = report(setup, gpu=sample.RTX_3090)
    assert made.level == "engine"
    assert [phase.name for phase in made.phases] == ["load", "train", "evaluate", "save"]
    train = made.phase("train")
    assert sum(term.bytes for term in train.terms) == train.peak_allocated_bytes
    terms = {term.name for term in train.terms}
    assert {"parameters", "optimizer", "autocast_copies", "activations_decoder"} <= terms
    assert train.low_bytes < train.process_used_bytes < train.high_bytes


def test_parameters_of_such_a_type_are_counted_as_transformers_builds_it() -> None:
    architecture = architecture_from_config({**STABLELM, "num_hidden_layers": 24})
    assert parameter_count(architecture) == 1_644_515_328  # stabilityai/stablelm-2-1_6b


def test_targets_of_such_a_type_are_matched_by_name() -> None:
    architecture = architecture_from_config(STABLELM)
    matched, missing = match_targets(architecture, ("q_proj", "down_proj", "nowhere"))
    assert {module.leaf: module.number for module in matched} == {"q_proj": 4, "down_proj": 4}
    assert missing == ("nowhere",)


def test_a_run_that_does_not_fit_the_card_is_out_of_memory() -> None:
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=64, max_source_length=2048)
    assert report(setup, gpu=sample.RTX_3090).verdict.status in ("oom", "likely_oom")


@pytest.mark.parametrize(
    "change",
    [
        {"use_dora": True, "method": "qlora"},
        {"world_size": 2, "spread": Spread(deepspeed=True), "bf16": False, "fp16": True},
        {"optim": "galore_adamw"},
        {"zero_stage": 3},
        {"zero_stage": 2, "bf16": False, "fp16": True},
        {"world_size": 2, "fsdp": True, "method": "lora", "load_in_8bit": True},
        {"do_predict": True, "inference_max_length": 10**7},
    ],
)
def test_what_the_engine_does_not_follow_is_refused_by_name(change: dict[str, Any]) -> None:
    setup = TrainingSetup(bf16=True)._replace(**change)
    with pytest.raises(
        UnsupportedArchitectureError,
        match=r"use_dora|ZeRO-3|ZeRO in fp16|FSDP of 8 bits|DeepSpeed|galore_adamw|new tokens",
    ):
        report(setup)


def test_many_passes_and_steps_are_bounded() -> None:
    setup = TrainingSetup(
        bf16=True, gradient_accumulation_steps=10**6, do_eval=True, per_device_eval_batch_size=1, eval_samples=10**6
    )
    assert report(setup).phase("evaluate").peak_allocated_bytes > report(setup).phase("train").peak_allocated_bytes


def test_more_layers_than_can_be_followed_are_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="1000000 layers"):
        architecture_from_config({**STABLELM, "num_hidden_layers": 10**6})


def test_fields_that_change_the_form_are_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="qk_layernorm"):
        architecture_from_config({**STABLELM, "qk_layernorm": True})
    with pytest.raises(UnsupportedArchitectureError, match="num_attention_heads"):
        architecture_from_config({"model_type": "stablelm"})


FLASH = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


def test_flash_attention_2_is_followed_as_sdpas_flash_kernel_and_that_is_said() -> None:
    llama = sample.architecture({**FLASH, "model_type": "llama"})
    setup = TrainingSetup(bf16=True, per_device_train_batch_size=2, max_source_length=512, attn_implementation="flash")
    made = predict(setup, llama, constants=sample.CONSTANTS, compute_capability=(8, 6))
    roughly = predict(setup, llama, constants=sample.CONSTANTS, compute_capability=(8, 6), rough=True)
    train, known = made.phase("train"), roughly.phase("train")
    assert train is not None
    assert known is not None
    assert train.peak_allocated_bytes == pytest.approx(known.peak_allocated_bytes, rel=0.005)
    assert "flash_as_sdpa" in {assumption.reason for assumption in made.assumed}


def test_what_is_not_followed_of_a_type_is_said_without_its_name_beside_that() -> None:
    error = refused(sample.architecture(sample.T5_BASE), NotFollowedError("flash_attention_2 of t5"))
    assert error.values == {"type": "t5", "what": "flash_attention_2"}


def test_t5_has_no_flash_attention_2() -> None:
    setup = TrainingSetup(attn_implementation="flash")
    assert why_not(setup, sample.architecture(sample.T5_BASE)) == "flash_attention_2"
    assert predict(setup, sample.architecture(sample.T5_BASE), constants=sample.CONSTANTS).level == "rough"


BERT = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
    "num_hidden_layers": 12, "max_position_embeddings": 512,
}  # fmt: skip
DISTILBERT = {
    "model_type": "distilbert",
    "vocab_size": 30522,
    "dim": 768,
    "hidden_dim": 3072,
    "n_heads": 12,
    "n_layers": 6,
}
ALBERT = {**BERT, "model_type": "albert", "vocab_size": 30000, "embedding_size": 128, "hidden_act": "gelu_new"}


# the rows of test_memory_encoder.py, whose sources stand there: fp16 weights, no optimizer, the logits' sum as loss
@pytest.mark.parametrize(
    ("config", "batch", "length", "attention", "measured_mib"),
    [
        (DISTILBERT, 8, 256, "eager", 937.9),
        (DISTILBERT, 8, 256, "sdpa", 761.5),
        (ALBERT, 1, 256, "sdpa", 207.7),
        (ALBERT, 4, 512, "eager", 1586.9),
        (ALBERT, 4, 512, "sdpa", 1300.1),
    ],
)
def test_measured_passes_of_encoders_are_met(
    config: dict[str, Any], batch: int, length: int, attention: Any, measured_mib: float
) -> None:
    setup = TrainingSetup(
        weights="fp16", attn_implementation=attention, per_device_train_batch_size=batch, max_source_length=length,
        optim="none", padded=False,
    )  # fmt: skip
    masked = {**config, "architectures": ["XForMaskedLM"]}
    train = report(setup, masked, compute_capability=(7, 5)).phase("train")
    assert train.peak_allocated_bytes / 2**20 == pytest.approx(measured_mib, rel=0.025)


def test_an_encoder_asked_to_generate_is_followed_without_that() -> None:
    setup = TrainingSetup(bf16=True, do_eval=True, predict_with_generate=True, do_predict=True)
    made = report(setup, BERT)
    assert [phase.name for phase in made.phases] == ["load", "train", "evaluate", "save"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "deberta-v2", "type_vocab_size": 0}, "use_reentrant of deberta-v2"),
        ({"hidden_act": "quick_gelu"}, "hidden_act quick_gelu"),
        ({"model_type": "albert", "embedding_size": 128}, "gradient_checkpointing of albert"),
        ({"model_type": "mpnet"}, "gradient_checkpointing of mpnet"),
    ],
)
def test_what_the_engine_does_not_follow_of_an_encoder_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    setup = TrainingSetup(gradient_checkpointing=True, use_reentrant=True)
    assert says in refusal(setup, {**BERT, **change})


def test_a_timeline_names_what_backward_makes_by_its_operator() -> None:
    """By the function of ``ops`` that runs: each operator's gradient has one of its own, whose name it is."""
    config = {**BERT, "num_hidden_layers": 1, "architectures": ["BertForMaskedLM"]}
    moments = trace(TrainingSetup(bf16=True, max_source_length=64), architecture_from_config(config), (8, 6), None, 300)
    named = {tensor.op for moment in moments.moments for tensor in moment.alive}
    assert {"nll_backward", "log_softmax_backward", "embedding_backward"} <= named


@pytest.mark.parametrize(
    ("capability", "head", "narrow", "stages"),
    [  # 2 samples of 12 heads, 512 tokens: delta is 2 × 12 × 512 floats, a tile 64 × 64 floats and a lock of 16 bytes
        ((8, 6), 64, True, ((49152, 3148800),)),
        ((8, 6), 128, True, ((49152, 6294528),)),  # tiles of 128 rows
        ((8, 6), 256, True, ((49152, 37754880),)),  # wider than registers: key's and value's tiles too
        ((7, 5), 128, True, ((49152, 18880512),)),
        ((8, 6), 64, False, ((3145728, 49152, 49152), (49152, 3148800))),  # of fp32 delta's product comes first
        ((8, 6), 128, False, ((6291456, 49152, 49152), (49152, 6297600))),
        ((8, 6), 256, False, ((12582912, 49152, 49152), (49152, 12595200))),
    ],
)
def test_what_attentions_backward_holds_beside_its_results(
    capability: tuple[int, int], head: int, narrow: bool, stages: tuple[tuple[int, ...], ...]
) -> None:
    """In bytes: the simulation asks these formulas as well, so that a comparison with it does not test them."""
    assert efficient_backward_bytes((2, 12, 512, head), 512, capability, narrow=narrow) == stages
    assert flash_backward_bytes(24, 512, 80) == (24 * 512 * 4, 24 * 512 * 96 * 4)
    assert [workspace_bytes(each) for each in ((8, 6), (9, 0))] == [8519680, 32 << 20]


LONGFORMER = {**BERT, "model_type": "longformer", "max_position_embeddings": 514, "attention_window": [32, 64] * 6}
EIGHT_BITS = {"method": "lora", "load_in_8bit": True, "lora_target_modules": ("query", "value")}


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({"architectures": ["LongformerForQuestionAnswering"]}, {}, "questions of longformer"),
        ({"attention_window": 33}, {}, "attention_window is an even number"),
        ({"attention_window": [32, 48] * 6}, {}, "the largest is no multiple"),
        ({}, {"attn_implementation": "flash"}, "flash_attention_2"),
        ({}, EIGHT_BITS, "queries that no adapter wraps"),
    ],
)
def test_what_is_not_followed_of_longformer_is_refused_by_name(
    change: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in refusal(TrainingSetup(max_source_length=64, **given), {**LONGFORMER, **change})


def test_longformer_is_padded_to_whole_windows() -> None:
    one, other = (report(TrainingSetup(max_source_length=length), LONGFORMER) for length in (65, 128))
    terms = [{term.name: term.bytes for term in each.phase("train").terms} for each in (one, other)]
    assert terms[0]["activations_encoder"] == pytest.approx(terms[1]["activations_encoder"], rel=0.001)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["BigBirdForQuestionAnswering"]}, "questions of big_bird"),
        ({"is_decoder": True}, "is_decoder"),
        ({"rescale_embeddings": True}, "rescale_embeddings"),
        ({"attention_type": "full"}, "attention_type full"),
    ],
)
def test_what_is_not_followed_of_big_bird_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    assert says in refusal(TrainingSetup(max_source_length=64), {**BERT, "model_type": "big_bird", **change})


XLNET = {"model_type": "xlnet", "d_model": 64, "n_head": 2, "n_layer": 2, "d_inner": 128, "vocab_size": 500}


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({"architectures": ["XLNetLMHeadModel"]}, {}, "XLNetLMHeadModel"),
        ({"attn_type": "uni"}, {}, "attn_type uni"),
        ({"summary_type": "mean"}, {}, "summary_type mean"),
        ({}, {"gradient_checkpointing": True}, "gradient_checkpointing of xlnet"),
        ({}, {"zero_stage": 3, "world_size": 2}, "ZeRO-3 of xlnet"),
    ],
)
def test_what_is_not_followed_of_xlnet_is_refused_by_name(
    change: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in refusal(TrainingSetup(max_source_length=64, **given), {**XLNET, **change})


def test_xlnet_keeps_the_inputs_of_its_layers_where_it_evaluates() -> None:
    setup = TrainingSetup(do_train=False, do_eval=True, max_source_length=512, per_device_eval_batch_size=16)
    kept, plain = (
        report(setup, {**XLNET, "n_layer": 12, "use_mems_eval": keeps}).phase("evaluate") for keeps in (True, False)
    )
    assert kept.peak_allocated_bytes - plain.peak_allocated_bytes >= 8 * 16 * 512 * 64 * 4


LED = {
    "model_type": "led", "d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 500, "attention_window": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({"encoder_layerdrop": 0.1}, {}, "encoder_layerdrop"),
        ({}, {"weights": "fp16"}, "weights of fp16 of led"),
        ({}, {"attn_implementation": "flash"}, "flash_attention_2"),
        ({}, {"gradient_checkpointing": True, "use_reentrant": True}, "use_reentrant of led"),
    ],
)
def test_what_is_not_followed_of_led_is_refused_by_name(
    change: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in refusal(TrainingSetup(**given), {**LED, **change})


LONGT5 = {
    "model_type": "longt5", "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32, "num_layers": 2, "vocab_size": 500,
}  # fmt: skip


GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "num_hidden_layers": 2, "vocab_size": 500, "num_local_experts": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({"output_router_logits": True}, {}, "output_router_logits"),
        ({"intermediate_size": 60}, {}, "intermediate_size 60"),
        ({"layer_types": ["full_attention"]}, {}, "layer_types names 1 layers of 2"),
        ({"num_local_experts": 2}, {}, "num_experts_per_tok 4 of 2"),
        ({}, {"attn_implementation": "flash"}, "flash_attention_2 of gpt_oss"),
    ],
)
def test_what_is_not_followed_of_gpt_oss_is_refused_by_name(
    change: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in refusal(TrainingSetup(**given), {**GPT_OSS, **change})


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({}, {"method": "qlora", "load_in_4bit": True, "lora_target_modules": ("q",)}, "load_in_4bit of longt5"),
        ({"encoder_attention_type": "transient-global"}, {"max_source_length": 15}, "15 tokens, fewer than"),
        ({"feed_forward_proj": "gated-silu"}, {}, "feed_forward_proj gated-silu"),
        ({"encoder_attention_type": "full"}, {}, "encoder_attention_type"),
        ({}, {"attn_implementation": "flash"}, "flash_attention_2"),
    ],
)
def test_what_is_not_followed_of_longt5_is_refused_by_name(
    change: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in refusal(TrainingSetup(**given), {**LONGT5, **change})


def test_longt5_with_beams_is_predicted() -> None:
    setup = TrainingSetup(max_source_length=64, max_target_length=16, do_eval=True, predict_with_generate=True,
                          generation_num_beams=2, generation_max_length=8)  # fmt: skip
    assert report(setup, LONGT5).phase("generate") is not None


DEBERTA = {
    **BERT, "model_type": "deberta-v2", "type_vocab_size": 0, "relative_attention": True, "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "position_buckets": 256, "position_biased_input": False,
}  # fmt: skip


def test_deberta_is_followed_unless_the_engine_cannot() -> None:
    setup = TrainingSetup(bf16=True, gradient_checkpointing=True)
    assert report(setup, DEBERTA).level == "engine"
    assert report(setup._replace(use_reentrant=True), DEBERTA).level == "rough"


def test_targets_that_match_nothing_are_said() -> None:
    setup = TrainingSetup(method="lora", bf16=True, lora_target_modules=("query", "nowhere"))
    assumed = {one.reason: one.value for one in report(setup, BERT).assumed}
    assert assumed["unmatched_targets"] == ["nowhere"]


def test_dora_is_followed() -> None:
    setup = TrainingSetup(method="lora", use_dora=True, bf16=True, lora_target_modules=("query", "value"))
    dora, plain = report(setup, BERT), report(setup._replace(use_dora=False), BERT)
    assert dora.level == "engine"
    magnitudes = 12 * 2 * 768 * 4
    assert adapters_of(dora) - adapters_of(plain) == magnitudes
    assert report(setup._replace(method="qlora", load_in_4bit=True), BERT).level == "rough"


def adapters_of(made: Any) -> int:
    return sum(term.bytes for term in made.phase("train").terms if term.name == "adapters")


def test_ddp_holds_buckets_as_large_as_the_gradients_and_clones_outputs() -> None:
    setup = TrainingSetup(bf16=True, world_size=2)
    alone, spread, known = (
        report(each).phase("train").peak_allocated_bytes
        for each in (setup._replace(world_size=1), setup, setup._replace(spread=Spread(find_unused=False)))
    )
    gradients = 4 * count(architecture_from_config(STABLELM)).total
    assert known - alone == pytest.approx(gradients, rel=0.01)
    assert spread >= known


def test_buckets_are_filled_by_type_until_they_hold_their_limit() -> None:
    sizes = [(3, "f32"), (4, "bf16"), (8, "f32"), (2, "f32"), (30, "f32"), (1, "bf16")]
    assert assigned(sizes, (10, 20)) == [[0, 2], [1, 5], [3, 4]]


def test_every_process_gets_what_all_evaluated() -> None:
    setup = TrainingSetup(bf16=True, do_eval=True, do_train=False, eval_samples=64, per_device_eval_batch_size=4)
    one, both = (report(setup._replace(world_size=ranks)).phase("evaluate").terms for ranks in (1, 2))
    gathered = [next(term.bytes for term in terms if term.name == "gathered") for terms in (one, both)]
    assert gathered[1] == pytest.approx(gathered[0], rel=0.05)  # as many samples in half of the steps


def terms_of(made: Any) -> dict[str, int]:
    return {term.name: term.bytes for term in made.phase("train").terms}


def test_fsdp_keeps_gradients_whole_while_they_accumulate() -> None:
    setup = TrainingSetup(bf16=True, world_size=8, fsdp=True, per_device_train_batch_size=1, max_source_length=16)
    once, often = (report(setup._replace(gradient_accumulation_steps=number)) for number in (1, 4))
    whole = 2 * count(architecture_from_config(STABLELM)).total
    assert terms_of(often)["gradients"] == pytest.approx(whole, rel=0.01)
    assert terms_of(once)["gradients"] < whole * 0.7
    assert once.level == "engine"


def test_zero_shares_out_masters_and_says_that_no_run_confirms_it() -> None:
    setup = TrainingSetup(bf16=True, zero_stage=2, world_size=4, per_device_train_batch_size=1, max_source_length=16)
    made = report(setup._replace(spread=Spread(deepspeed=True, reduce_bucket=10**6)))
    total = count(architecture_from_config(STABLELM)).total
    terms = terms_of(made)
    assert terms["parameters"] == pytest.approx(2 * total, rel=0.01)
    assert terms["optimizer"] == pytest.approx(3 * 4 * total / 4, rel=0.01)
    assert "deepspeed_source" in {one.reason for one in made.assumed}
    first = report(setup._replace(zero_stage=1, gradient_accumulation_steps=2))
    assert first.phase("train").peak_allocated_bytes > made.phase("train").peak_allocated_bytes


def test_offloaded_optimizers_of_zero_are_on_the_host() -> None:
    setup = TrainingSetup(bf16=True, zero_stage=2, world_size=2, per_device_train_batch_size=1, max_source_length=16)
    here, away = report(setup), report(setup._replace(offload_optimizer=True))
    assert "optimizer" not in terms_of(away)
    assert away.host.low_bytes - here.host.low_bytes > 15 * count(architecture_from_config(STABLELM)).total
