"""The nearest run that the engine follows: a setup for each row of the table, and what a reader would expect of it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memory_sample as sample
from effort import examples, few
from kb.core.model import Architecture
from kb.core.setup import EarlierRelease, PostTraining, Spread, TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.follow import Found, follow
from kb.memory.engine.nearest import ROWS, is_like, nearest, one_share
from kb.memory.engine.report import why_not
from kb.memory.parameters import adapter_parameters
from yaml_file import read_yaml

MIB = 1024**2
LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
         "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 2000, "max_position_embeddings": 2048,
         "tie_word_embeddings": False}  # fmt: skip
T5 = {**sample.T5_BASE, "d_model": 256, "d_ff": 512, "num_heads": 4, "num_layers": 3, "vocab_size": 2000}
BART = {**sample.KOBART, "d_model": 128, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "vocab_size": 2000}  # fmt: skip
BERT = {"model_type": "bert", "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
        "num_hidden_layers": 3, "vocab_size": 2000, "max_position_embeddings": 512}  # fmt: skip
DEBERTA = {**BERT, "model_type": "deberta-v2", "relative_attention": True, "position_buckets": 32,
           "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True,
           "type_vocab_size": 0, "position_biased_input": False}  # fmt: skip
ALBERT = {**BERT, "model_type": "albert", "embedding_size": 64}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
EXAONE = {"model_type": "exaone", "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
          "num_key_value_heads": 4, "num_layers": 2, "vocab_size": 2000, "max_position_embeddings": 2048,
          "activation_function": "silu"}  # fmt: skip

BASE = TrainingSetup(bf16=True, per_device_train_batch_size=1, max_source_length=64, max_target_length=16)
FOUR = BASE._replace(world_size=4)
LORA = BASE._replace(method="lora")
QLORA = BASE._replace(method="qlora", load_in_4bit=True)
EIGHT = LORA._replace(load_in_8bit=True)
FP16 = {"bf16": False, "fp16": True}
FSDP1, DEEPSPEED = Spread(fsdp_version=1), Spread(deepspeed=True)
GENERATES = {"do_eval": True, "predict_with_generate": True}

CASES: dict[str, tuple[dict[str, Any], TrainingSetup]] = {
    "optim rmsprop": (T5, BASE._replace(optim="rmsprop")),
    "FSDP with use_liger_kernel": (LLAMA, FOUR._replace(fsdp=True, fused_loss=True)),
    "FSDP with optim adafactor": (LLAMA, FOUR._replace(fsdp=True, optim="adafactor")),
    "use_dora of 4 bits": (LLAMA, QLORA._replace(use_dora=True)),
    "use_dora of 8 bits": (LLAMA, EIGHT._replace(use_dora=True)),
    "FSDP with use_dora": (LLAMA, LORA._replace(world_size=4, fsdp=True, use_dora=True)),
    "ZeRO-3 with use_dora": (LLAMA, LORA._replace(world_size=4, zero_stage=3, use_dora=True)),
    "FSDP1 in fp16": (T5, FOUR._replace(fsdp=True, spread=FSDP1, **FP16)),
    "ZeRO in fp16": (T5, FOUR._replace(zero_stage=2, **FP16)),
    "DeepSpeed in fp16": (T5, FOUR._replace(spread=DEEPSPEED, **FP16)),
    "FSDP on one GPU": (LLAMA, BASE._replace(fsdp=True)),
    "FSDP of 8 bits": (LLAMA, EIGHT._replace(world_size=4, fsdp=True)),
    "FSDP1 of 4 bits in uint8": (LLAMA, QLORA._replace(world_size=4, fsdp=True, spread=FSDP1)),
    "FSDP1 without reshard_after_forward": (
        T5,
        FOUR._replace(fsdp=True, spread=FSDP1._replace(fsdp_reshard=False)),
    ),
    "FSDP with modules_to_save": (LLAMA, LORA._replace(world_size=4, fsdp=True, modules_to_save=("lm_head",))),
    "FSDP with predict_with_generate": (T5, FOUR._replace(fsdp=True, spread=FSDP1, **GENERATES)),
    "FSDP of t5": (T5, FOUR._replace(fsdp=True)),
    "FSDP of bert": (BERT, FOUR._replace(fsdp=True, spread=FSDP1)),
    "FSDP of bart": (BART, FOUR._replace(fsdp=True)),
    "ZeRO with offload_param": (T5, FOUR._replace(zero_stage=2, offload_param=True)),
    "ZeRO without contiguous_gradients": (
        T5,
        FOUR._replace(zero_stage=2, spread=Spread(contiguous_gradients=False)),
    ),
    "ZeRO-3 on one GPU": (LLAMA, BASE._replace(zero_stage=3)),
    "ZeRO-3 on NVMe": (
        LLAMA,
        FOUR._replace(zero_stage=3, offload_optimizer=True, spread=Spread(optimizer_on_disk=True)),
    ),
    "ZeRO-3 with a part offloaded": (
        LLAMA,
        FOUR._replace(zero_stage=3, offload_optimizer=True, spread=Spread(optimizer_offload_ratio=0.5)),
    ),
    "ZeRO-3 with adapters and offload": (LLAMA, LORA._replace(world_size=4, zero_stage=3, offload_param=True)),
    "ZeRO-3 without training": (LLAMA, FOUR._replace(zero_stage=3, do_train=False, do_eval=True)),
    "ZeRO-3 without optim": (LLAMA, FOUR._replace(zero_stage=3, optim="none")),
    "ZeRO of 4 bits": (LLAMA, QLORA._replace(world_size=4, zero_stage=2)),
    "ZeRO of 8 bits": (LLAMA, BASE._replace(load_in_8bit=True, world_size=4, zero_stage=2)),
    "ZeRO with modules_to_save": (LLAMA, LORA._replace(world_size=4, zero_stage=2, modules_to_save=("lm_head",))),
    "ZeRO with adafactor": (T5, FOUR._replace(zero_stage=2, optim="adafactor")),
    "ZeRO with predict_with_generate": (T5, FOUR._replace(zero_stage=2, **GENERATES)),
    "ZeRO-3 of deberta-v2": (DEBERTA, FOUR._replace(zero_stage=3)),
    "ZeRO-3 of mixtral": (MIXTRAL, FOUR._replace(zero_stage=3, earlier=EarlierRelease(experts_apart=True))),
    "tensor_parallel": (LLAMA, BASE._replace(world_size=2, spread=Spread(tensor_parallel=2))),
    "lora_target_modules": (EXAONE, LORA._replace(uncompared=("exaone",))),
    "LoRA on experts of mixtral": (MIXTRAL, LORA._replace(lora_target_modules=("q_proj", "gate_proj"))),
    "LoRA on embed_tokens": (LLAMA, LORA._replace(lora_target_modules=("q_proj", "embed_tokens"), use_dora=True)),
    "LoRA on shared": (T5, LORA._replace(modules_to_save=("shared",))),
    "flash_attention_2": (T5, BASE._replace(attn_implementation="flash")),
    "Unsloth's layers of llama": (LLAMA, BASE._replace(unsloth=True)),
    "offloaded checkpoints of t5": (
        T5,
        BASE._replace(gradient_checkpointing=True, use_reentrant=True, offloads_checkpoints=True),
    ),
    "use_reentrant of t5": (T5, BASE._replace(gradient_checkpointing=True, use_reentrant=True)),
    "gradient_checkpointing of albert": (ALBERT, BASE._replace(gradient_checkpointing=True)),
    "output_router_logits of mixtral": ({**MIXTRAL, "output_router_logits": True}, BASE),
    "experts of 700 of mixtral": ({**MIXTRAL, "intermediate_size": 700}, BASE),
    "20000 new tokens": (LLAMA, BASE._replace(do_train=False, do_predict=True, inference_max_length=20000)),
    "exaone": (EXAONE, BASE),
}
GEMMA = {**LLAMA, "model_type": "gemma"}
ARCHITECTURES = [architecture_from_config(each) for each in (LLAMA, T5, BART, BERT, MIXTRAL, EXAONE, GEMMA)]
REFUSED = (  # only a step shows it, and the libraries refuse as well
    "nothing to train",  # no module is named as the targets are (PEFT)
    "unused parameters without ddp_find_unused_parameters",  # (DDP)
)
TARGETS = (None, "all-linear", ("q", "v", "embed_tokens"), ("q_proj", "gate_proj"))
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "rmsprop", "sgd", "none")


def phase(setup: TrainingSetup, config: dict[str, Any], name: str = "train") -> Found:
    found = nearest(setup, architecture_from_config(config))
    return follow(found.setup, found.architecture, (8, 0)).phases[name]  # type: ignore[index]


def term(name: str, setup: TrainingSetup, config: dict[str, Any], during: str = "train") -> int:
    return dict(phase(setup, config, during).terms).get(name, 0)


@pytest.mark.parametrize("what", few(CASES, 10))
def test_what_is_refused_has_a_nearest_run_that_is_followed(what: str) -> None:
    config, setup = CASES[what]
    architecture = architecture_from_config(config)
    assert why_not(setup, architecture) == what
    found = nearest(setup, architecture)
    assert why_not(found.setup, found.architecture) is None
    assert follow(found.setup, found.architecture, (8, 0)).allocated > MIB
    for language in ("en", "ko"):
        words = read_yaml(sample.ROOT / "i18n" / f"{language}.yaml")
        assert found.assumed
        assert all(words[f"assumption.{each.reason}"] for each in found.assumed)


def test_every_row_of_the_table_is_met() -> None:
    met = {next(row.what for row in ROWS if is_like(what, row.what)) for what in CASES}
    assert met == {row.what for row in ROWS}


def test_a_followed_run_is_its_own_nearest() -> None:
    architecture = architecture_from_config(T5)
    assert nearest(BASE, architecture) == (BASE, architecture, ())
    alone = FOUR._replace(spread=DEEPSPEED)
    assert nearest(alone, architecture).setup == alone


def test_targets_that_nothing_names_are_the_usual_ones_of_every_type_and_loss() -> None:
    glm = {**LLAMA, "model_type": "glm4", "head_dim": 32}
    for config, setup in ((glm, LORA), ({**LLAMA, "model_type": "smollm3"}, LORA._replace(post=PostTraining("sft")))):
        found = nearest(setup, architecture_from_config(config))
        assert found.setup == setup._replace(lora_target_modules=("q_proj", "v_proj"))
        assert [each.reason for each in found.assumed] == ["no_default_targets"]


def test_what_has_no_nearest_run_is_refused_by_name() -> None:
    preferred = FOUR._replace(fsdp=True, post=PostTraining("dpo"))
    with pytest.raises(NotFollowedError, match="FSDP of dpo"):
        nearest(preferred, architecture_from_config(LLAMA))


@pytest.mark.parametrize("config", [LLAMA, T5])
def test_two_gpus_of_a_tensor_parallel_group_hold_less_than_one_each_and_more_than_half(config: dict[str, Any]) -> None:
    one = term("parameters", BASE, config)
    two = term("parameters", BASE._replace(world_size=2, spread=Spread(tensor_parallel=2)), config)
    assert one / 2 < two < one


def test_heads_are_split_evenly_or_rounded_up_and_divide_by_those_of_keys() -> None:
    architecture = architecture_from_config(LLAMA)
    for size in (1, 2, 3, 4, 8, 16):
        share = one_share(architecture, size)
        assert share.kv_heads is not None
        assert share.num_heads * size >= architecture.num_heads
        assert share.num_heads % share.kv_heads == 0
    assert one_share(architecture, 1) == architecture


def test_deepspeed_without_zero_has_all_masters_and_both_moments_on_every_gpu() -> None:
    halves = 2  # bytes of a weight: a master and two moments have four each
    alone = FOUR._replace(spread=DEEPSPEED)
    weights = term("parameters", alone, T5)
    assert term("optimizer", alone, T5) == pytest.approx(3 * 4 / halves * weights, rel=0.01)


def test_gpus_that_share_out_parameters_hold_a_quarter_of_them_each() -> None:
    whole = term("parameters", FOUR._replace(spread=DEEPSPEED), T5)  # in bf16
    assert term("parameters", FOUR._replace(zero_stage=3), T5) == pytest.approx(whole / 4, rel=0.02)
    fsdp = term("parameters", FOUR._replace(fsdp=True), T5)  # shards of what trains are fp32
    assert fsdp == pytest.approx(whole * 2 / 4, rel=0.02)


def test_zero_3_on_one_gpu_gathers_nothing_and_holds_nothing_that_is_offloaded() -> None:
    alone = BASE._replace(zero_stage=3)
    assert term("parameters", alone, LLAMA) == pytest.approx(term("parameters", BASE, LLAMA) / 2, rel=0.02)
    assert not term("gathered_parameters", alone, LLAMA)
    assert term("parameters", alone._replace(offload_param=True), LLAMA) < 1024  # tables of angles


def test_packed_weights_stay_whole_under_zero_2_and_are_shared_out_under_zero_3() -> None:
    second = QLORA._replace(world_size=4, zero_stage=2)
    plain = QLORA._replace(weights="bf16", prepare_for_kbit=False)
    assert term("parameters", second, LLAMA) == pytest.approx(term("parameters", plain, LLAMA), rel=0.02)
    third = second._replace(zero_stage=3)
    assert term("parameters", third, LLAMA) < term("parameters", second, LLAMA) / 3


def test_a_part_of_the_optimizer_that_stays_on_the_gpu_is_more_than_none_and_less_than_all() -> None:
    offloaded = FOUR._replace(zero_stage=3, offload_optimizer=True)
    part = offloaded._replace(spread=Spread(optimizer_offload_ratio=0.5))
    none, some, whole = (
        term("optimizer", each, LLAMA) for each in (offloaded, part, offloaded._replace(offload_optimizer=False))
    )
    assert none < some < whole


def test_weights_that_dora_makes_whole_are_more_than_lora_takes() -> None:
    dora = phase(QLORA._replace(use_dora=True), LLAMA)
    assert dora.allocated > phase(QLORA, LLAMA).allocated


def test_fsdp1_that_does_not_reshard_keeps_what_it_gathered() -> None:
    resharded = FOUR._replace(fsdp=True, spread=FSDP1)
    kept = resharded._replace(spread=FSDP1._replace(fsdp_reshard=False))
    assert term("gathered_parameters", kept, T5) > term("gathered_parameters", resharded, T5)


def test_generation_under_fsdp1_makes_everything_whole() -> None:
    setup = FOUR._replace(fsdp=True, spread=FSDP1, **GENERATES)
    whole = 4 * term("parameters", setup, T5, "generate")
    assert term("gathered_parameters", setup, T5, "generate") == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("what", ["LoRA on experts of mixtral", "LoRA on embed_tokens"])
def test_adapters_that_are_not_followed_are_counted_by_a_higher_rank(what: str) -> None:
    config, setup = CASES[what]
    found = nearest(setup, architecture_from_config(config))
    asked, taken = (
        adapter_parameters(found.architecture, each.lora_target_modules, each.lora_r) for each in (setup, found.setup)
    )
    assert found.setup.lora_r > setup.lora_r
    assert taken >= asked


def test_tables_that_train_whole_are_as_much_as_their_parameters_more() -> None:
    trained = LORA._replace(modules_to_save=("embed_tokens",))
    table = LLAMA["vocab_size"] * LLAMA["hidden_size"] * 4  # fp32: weights, a gradient, two moments
    more = term("adapters", trained, LLAMA) - term("adapters", LORA, LLAMA)
    assert more == table
    assert phase(trained, LLAMA).allocated - phase(LORA, LLAMA).allocated == pytest.approx(4 * table, rel=0.2)
    both = term("adapters", trained, T5) - term("adapters", LORA, T5)
    assert both == 2 * T5["vocab_size"] * T5["d_model"] * 4  # the encoder's and the decoder's, no longer tied


def test_no_shard_is_larger_than_the_bucket_that_gradients_are_joined_in() -> None:
    scattered = FOUR._replace(zero_stage=2, spread=Spread(contiguous_gradients=False))
    contiguous = scattered._replace(spread=Spread())
    assert term("buckets", contiguous, T5) >= 2 * 500_000_000  # DeepSpeed's default, taken whole
    assert term("buckets", scattered, T5) <= 2 * term("parameters", scattered, T5)


spreads = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 1, 2]),
        "deepspeed": st.booleans(),
        "optimizer_offload_ratio": st.sampled_from([1.0, 0.5]),
        "optimizer_on_disk": st.booleans(),
        "params_on_disk": st.booleans(),
        "contiguous_gradients": st.booleans(),
        "fsdp_version": st.sampled_from([1, 2]),
        "fsdp_reshard": st.booleans(),
        "fsdp_wrapped": st.booleans(),
        "packed_on": st.sampled_from(["gpu", "host", "warmed"]),
    }
).map(lambda given: Spread(**given))
setups = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["full", "lora", "qlora"]),
        "do_train": st.booleans(),
        "do_eval": st.booleans(),
        "do_predict": st.booleans(),
        "fp16": st.booleans(),
        "weights": st.sampled_from(["fp32", "bf16", "fp16"]),
        "attn_implementation": st.sampled_from(["eager", "sdpa", "flash"]),
        "per_device_train_batch_size": st.just(1),
        "per_device_eval_batch_size": st.just(1),
        "max_source_length": st.just(64),
        "max_target_length": st.just(16),
        "optim": st.sampled_from(OPTIMIZERS),
        "gradient_checkpointing": st.booleans(),
        "use_reentrant": st.booleans(),
        "predict_with_generate": st.booleans(),
        "generation_max_length": st.sampled_from([20, 20000]),
        "lora_target_modules": st.sampled_from(
            [None, "all-linear", ("q", "v", "embed_tokens"), ("q_proj", "gate_proj")]
        ),
        "modules_to_save": st.sampled_from([(), ("lm_head",), ("embed_tokens", "lm_head")]),
        "use_dora": st.booleans(),
        "load_in_8bit": st.booleans(),
        "prepare_for_kbit": st.booleans(),
        "bnb_4bit_quant_storage": st.sampled_from(["uint8", "bf16", "fp32"]),
        "world_size": st.sampled_from([1, 2, 4]),
        "zero_stage": st.integers(0, 3),
        "offload_optimizer": st.booleans(),
        "offload_param": st.booleans(),
        "spread": spreads,
    }
).map(lambda given: TrainingSetup(**given))


@pytest.mark.exhaustive
@given(setups, st.sampled_from(ARCHITECTURES), st.booleans())
@settings(max_examples=examples(40, 200), deadline=None)
@pytest.mark.long
def test_every_run_has_a_nearest_run_or_is_refused_by_name(
    setup: TrainingSetup, architecture: Architecture, sharded: bool
) -> None:
    if sharded and not setup.zero_stage:
        setup = setup._replace(fsdp=True, spread=setup.spread._replace(deepspeed=False))
    try:
        found = nearest(setup, architecture)
        follow(found.setup, found.architecture, (8, 0))
    except NotFollowedError as error:
        assert error.what in REFUSED
        return
    assert why_not(found.setup, found.architecture) is None
    assert (found.setup, found.architecture) == (setup, architecture) or found.assumed
