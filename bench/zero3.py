"""Level 1 with DeepSpeed's own ZeRO-3 around the model: its hooks, its coordinator of parameters, its optimizer.

    PYTHONPATH=src:tests LOCAL_RANK=0 DS_ACCELERATOR=cpu python bench/zero3.py [NAME]

writes tests/data/zero3_peaks.json, which the memory engine is tested against; with a row's name it shows that row
beside the engine, act by act where they part. Needs torch, transformers, accelerate and DeepSpeed
(requirements-deepspeed.txt), and no GPU.

No processes stand behind its collectives: they leave what they find. A GPU that is not there has no streams: a stand-in
counts them, and the allocator's model learns which one asks. The engine of DeepSpeed is left out; what it does around
a pass and a step is written here as it does it.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine_diff import Act, acts_of, canonical, followed, parted

from kb.core.setup import Images, Spread, TrainingSetup
from kb.torch_runs import models
from kb.torch_runs.simulation import loading, simulator, training
from kb.torch_runs.simulation.job import Job
from kb.torch_runs.simulation.timeline import peaks_of

# isort: split
import pytest
import torch  # after the simulation, which prepares it
from deepspeed import comm
from deepspeed.accelerator import real_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.comm import coalesced_collectives
from deepspeed.runtime.zero import linear, partition_parameters, partitioned_param_coordinator, stage3
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.timer import NoopTimer

from sharded_by_fsdp import Streams


def accelerator_of(streams: Streams) -> Any:
    """A GPU on paper, as far as ZeRO asks it."""
    event = SimpleNamespace(record=lambda *_: None, query=lambda: True, synchronize=lambda: None)
    answers: dict[str, Any] = {
        "is_synchronized_device": lambda _: False,
        "resolves_data_dependency": lambda _: False,
        "handles_memory_backpressure": lambda _: False,
        "device_name": lambda *_: "cuda",
        "current_device_name": lambda _: "cuda",
        "on_accelerator": lambda _, tensor: tensor.device.type == "cuda",
        "stream": lambda _, stream: streams.stream(stream),
        "default_stream": lambda *_: streams.now,
        "current_stream": lambda *_: streams.now,
        "Stream": property(lambda _: streams.another),
        "Event": property(lambda _: lambda **_: event),
        "empty_cache": lambda _: streams.allocator.empty_cache(),
        "synchronize": lambda *_: None,
        "memory_stats": lambda *_: {},
        "pin_memory": lambda _, tensor, *__: tensor,
    }
    return type("Accelerator", (CPU_Accelerator,), answers)()


DONE = SimpleNamespace(wait=lambda: None)
COLLECTIVES = {
    "is_initialized": lambda: True,
    "get_rank": lambda group=None: 0,
    "get_world_group": lambda: None,
    "get_global_rank": lambda group=None, group_rank=0: group_rank,
    "has_all_gather_into_tensor": lambda: True,
    "barrier": lambda *_, **__: None,
    "broadcast": lambda *_, **__: None,
    "all_reduce": lambda *_, **__: None,
    "all_gather_into_tensor": lambda *_, **__: DONE,
    "all_gather": lambda *_, **__: DONE,
}


def simulated_in_zero(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], patch: Any
) -> tuple[list[Act], dict[str, tuple[int, int]]]:
    """What level 1's allocator was asked on the first GPU, and the peaks of its phases. ``patch`` is monkeypatch."""
    streams = Streams()
    _stand_in(streams, setup, patch)
    real_session, one_pass, kept = simulator.open_session, training._pass, []

    @contextmanager
    def session(**given: Any) -> Iterator[Any]:
        with real_session(**given) as tracer:
            streams.allocator = tracer.allocator
            yield tracer

    def optimizer_of(model: Any, asked: TrainingSetup) -> Any:
        kept.append(_stage3(model, asked, real_optimizer(model, asked)))
        return kept[0]

    passes = iter(range(1, 1000))

    def with_engine(model: Any, asked: TrainingSetup, *rest: Any) -> None:
        zero = kept[0]
        zero.set_gradient_accumulation_boundary(next(passes) % asked.gradient_accumulation_steps == 0)
        zero.clear_backward_seen_flag()
        zero.enter_backward()
        one_pass(model, asked, *rest)
        zero.overlapping_partition_gradients_reduce_epilogue()
        zero.backward_epilogue()
        zero.exit_backward()

    real_optimizer = training.optimizer_of
    patch.setattr(training, "optimizer_of", optimizer_of)
    patch.setattr(training, "_pass", with_engine)
    patch.setattr(training, "_mark_states", lambda *_: None)
    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: None)  # DeepSpeed clips
    patch.setattr(simulator, "save", lambda *_: 0)
    patch.setattr(simulator, "open_session", session)
    patch.setattr(simulator, "as_accelerate", lambda model, _, **__: model)  # there is no autocast
    patch.setattr(simulator, "build_model", _built)
    acts: list[Act] = []
    peaks: dict[str, tuple[int, int]] = {}
    for run in simulator.runs_of(Job(setup, config, capability)):
        acts += acts_of(run.events)
        found = peaks_of(run.events)
        peaks |= {name: (one.allocated_bytes, one.reserved_bytes) for name, one in found.items() if name != "save"}
    return acts, peaks


def _stand_in(streams: Streams, setup: TrainingSetup, patch: Any) -> None:
    patch.setattr(real_accelerator, "ds_accelerator", accelerator_of(streams))
    for name, answer in COLLECTIVES.items():
        patch.setattr(comm, name, answer)
    patch.setattr(comm, "get_world_size", lambda group=None: setup.world_size)

    patch.setattr(partition_parameters, "_dist_allgather_fn", lambda *_, **__: DONE)
    patch.setattr(coalesced_collectives, "_torch_reduce_scatter_fn", lambda *_, **__: DONE)
    patch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    patch.setattr(torch.nn.functional, "linear", linear.zero3_linear_wrap)  # as zero.Init leaves it
    patch.setattr(partitioned_param_coordinator, "assert_ints_same_as_other_ranks", lambda *_: None)
    patch.setattr(stage3, "count_used_parameters_in_backward", lambda parameters: len(parameters))
    patch.setattr(partition_parameters.Init, "param_persistence_threshold", 0, raising=False)


def _built(config: Mapping[str, Any], setup: TrainingSetup, tracer: Any, **_: Any) -> Any:
    """The model on the host, in the type of products."""
    with tracer.unbooked():
        narrow = "bf16" if setup.bf16 else setup.weights
        model: Any = loading.meta_model(config, setup._replace(weights=narrow))
        loading.move(model, tracer)
        model.config.use_cache = False
        if setup.gradient_checkpointing:
            again = {"use_reentrant": setup.use_reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=again)
        if setup.method != "full":
            model = loading._with_adapters(model, setup, tracer)
        if setup.checkpoints_trained:
            models.checkpoint_trained(model)
        dtype = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[narrow])
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    tracer.name_modules(model)
    for buffer in model.buffers():
        tracer.book(buffer)
    return model


def _stage3(model: Any, setup: TrainingSetup, optimizer: Any) -> Any:
    spread, dtype = setup.spread, next(model.parameters()).dtype

    def given(name: str, value: Any) -> dict[str, Any]:
        return {} if value is None else {name: value}

    zero = {
        "stage": 3,
        **given("reduce_bucket_size", spread.reduce_bucket),
        **given("stage3_prefetch_bucket_size", spread.prefetch_bucket),
        **given("stage3_max_live_parameters", spread.max_live_parameters),
        **given("stage3_max_reuse_distance", spread.max_reuse_distance),
        **given("overlap_comm", spread.overlap_comm),
        "contiguous_gradients": spread.contiguous_gradients,
        **({"offload_optimizer": {"device": "cpu"}} if setup.offload_optimizer else {}),
        **({"offload_param": {"device": "cpu"}} if setup.offload_param else {}),
    }
    config = {
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": zero, "bf16": {"enabled": dtype == torch.bfloat16}
    }  # fmt: skip
    read = DeepSpeedZeroConfig(**zero)
    return stage3.DeepSpeedZeroOptimizer_Stage3(
        model,
        optimizer,
        {},
        timers=NoopTimer(),
        ds_config=config,
        static_loss_scale=1.0,
        clip_grad=1.0,
        contiguous_gradients=read.contiguous_gradients,
        reduce_bucket_size=read.reduce_bucket_size,
        prefetch_bucket_size=read.prefetch_bucket_size,
        max_reuse_distance=read.max_reuse_distance,
        max_live_parameters=read.max_live_parameters,
        param_persistence_threshold=read.param_persistence_threshold,
        model_persistence_threshold=read.model_persistence_threshold,
        reduce_scatter=read.reduce_scatter,
        overlap_comm=read.overlap_comm,
        offload_optimizer_config=read.offload_optimizer,
        offload_param_config=read.offload_param,
        sub_group_size=read.sub_group_size,
        offload_ratio=1.0,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        gradient_accumulation_dtype=dtype,
        communication_data_type=dtype,
    )


PATH = Path(__file__).resolve().parents[1] / "tests" / "data" / "zero3_peaks.json"
CAPABILITY = (8, 6)
LLAMA = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16,
         "num_key_value_heads": 4, "num_hidden_layers": 6, "vocab_size": 32000, "max_position_embeddings": 2048,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-5}  # fmt: skip
SMALL = {**LLAMA, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2, "vocab_size": 1000}
DEEP = {**LLAMA, "num_hidden_layers": 8, "vocab_size": 1000}  # what is gathered, and not the logits, decides its peak
TIED = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
BIASED = {**SMALL, "model_type": "stablelm", "use_qkv_bias": True, "partial_rotary_factor": 0.25}
SEES = {"depth": 2, "num_heads": 4, "in_channels": 3, "patch_size": 14, "temporal_patch_size": 2,
        "spatial_merge_size": 2, "hidden_size": 96, "intermediate_size": 212, "out_hidden_size": 128,
        "window_size": 112, "fullatt_block_indexes": [1]}  # fmt: skip
QWEN_VL = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "model_type": "qwen2_5_vl", "image_token_id": 5,
           "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8,
           "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "vision_config": SEES}  # fmt: skip
PLACED = {**SEES, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
QWEN3_VL = {"model_type": "qwen3_vl", "image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7,
            "vision_end_token_id": 8, "vision_config": {name: value for name, value in PLACED.items()
                                                        if name not in ("window_size", "fullatt_block_indexes")},
            "text_config": {**SMALL, "model_type": "qwen3_vl_text", "num_attention_heads": 4, "head_dim": 32,
                            "num_key_value_heads": 2,
                            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5]}}}  # fmt: skip
CLIP = {"model_type": "clip_vision_model", "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_channels": 3, "image_size": 56, "patch_size": 14}  # fmt: skip
LLAVA = {"model_type": "llava", "image_token_index": 5, "vision_config": CLIP, "text_config": SMALL}
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
GEMMA = {"hidden_size": 128, "intermediate_size": 288, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000, "model_type": "gemma", "head_dim": 32}  # fmt: skip
PALIGEMMA = {"model_type": "paligemma", "image_token_index": 5, "projection_dim": 128, "vision_config": SIGLIP,
             "text_config": GEMMA}  # fmt: skip
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WORDS = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "vocab_size": 32000, **IDS}
FALCON = {**WORDS, "model_type": "falcon"}
BLOOM = {**WORDS, "model_type": "bloom"}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 6, "n_head": 12, "vocab_size": 32000, "n_positions": 1024}
MIXTRAL = {**SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
GPT_OSS = {**SMALL, "model_type": "gpt_oss", "intermediate_size": 128, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
           "sliding_window": 64}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 768, "d_ff": 2048, "num_heads": 12, "d_kv": 64, "num_layers": 4,
      "vocab_size": 32128}  # fmt: skip
BART = {"model_type": "bart", "d_model": 768, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": 32000,
        "max_position_embeddings": 1024, **IDS}  # fmt: skip
BERT = {**WORDS, "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 768,
        "num_attention_heads": 12, "intermediate_size": 2048}  # fmt: skip
BASE: dict[str, Any] = {"bf16": True, "world_size": 2, "zero_stage": 3, "per_device_train_batch_size": 2}
AGAIN = {"gradient_checkpointing": True, "world_size": 8}
TIGHT = {"max_reuse_distance": 0, "prefetch_bucket": 943_718, "max_live_parameters": 10_000_000}
NARROW = {"reduce_bucket": 200_000}
LATE = {"max_reuse_distance": 5_000_000, "prefetch_bucket": 5_000_000, "max_live_parameters": 40_000_000}
LORA = {"method": "lora", "lora_target_modules": ("q_proj", "v_proj", "down_proj"), "weights": "bf16",
        "lora_dropout": 0.1}  # fmt: skip
ON_HOST = {"offload_optimizer": True, "offload_param": True}
# Name → model, settings, how it is spread.
ROWS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    "plain": (LLAMA, {}, {}),
    "accumulated": (SMALL, {"gradient_accumulation_steps": 2, "world_size": 4}, {"reduce_bucket": 200_000}),
    "no overlap": (SMALL, {}, {"overlap_comm": False}),
    "checkpointed": (LLAMA, AGAIN, {}),
    "checkpointed, reentrant": (LLAMA, {**AGAIN, "use_reentrant": True}, {}),
    "nothing kept": (LLAMA, {}, TIGHT),
    "little kept": (LLAMA, {"gradient_checkpointing": True}, LATE),
    "optimizer offloaded": (SMALL, {"offload_optimizer": True}, {"reduce_bucket": 200_000}),
    "all offloaded": (LLAMA, {**AGAIN, **ON_HOST, "gradient_accumulation_steps": 2, "world_size": 4}, LATE),
    "tied": (TIED, {"gradient_checkpointing": True, "world_size": 4}, LATE),
    "lora": (LLAMA, LORA, LATE),
    "lora, checkpointed": (LLAMA, {**LORA, **AGAIN, "gradient_accumulation_steps": 2}, LATE),
    "lora, checkpointed, reentrant": (DEEP, {**LORA, **AGAIN, "use_reentrant": True, "max_source_length": 64}, LATE),
    "fp32": (LLAMA, {"bf16": False}, {}),
    "biases, adamw_torch": (BIASED, {"optim": "adamw_torch", "gradient_accumulation_steps": 2}, {}),
    "sees": (QWEN_VL, {"images": Images(1, 10, 14), "gradient_accumulation_steps": 2}, NARROW),
    "sees, tower frozen": (
        QWEN_VL,
        {"images": Images(2, 10, 14), "frozen": ("visual.",), "checkpoints_trained": True, **AGAIN},
        NARROW,
    ),
    "sees, early states too": (QWEN3_VL, {"images": Images(1, 8, 12), "gradient_accumulation_steps": 2}, NARROW),
    "sees, early states too, checkpointed": (QWEN3_VL, {"images": Images(2, 8, 12), **AGAIN}, NARROW),
    "lora, sees, checkpointed": (LLAVA, {"images": Images(1, 4, 4), **LORA, **AGAIN}, NARROW),
    "sees a prompt as a block": (
        PALIGEMMA,
        {"images": Images(1, 4, 4), "do_eval": True, "prediction_loss_only": True, "per_device_eval_batch_size": 2},
        NARROW,
    ),
    "evaluated": (LLAMA, {"do_eval": True, "prediction_loss_only": True, "per_device_eval_batch_size": 2}, LATE),
    "written attention": (FALCON, AGAIN, LATE),
    "a norm behind the words": (BLOOM, {"gradient_accumulation_steps": 2}, LATE),
    "learned positions": (GPT2, AGAIN, LATE),
    "experts": (MIXTRAL, AGAIN, NARROW),
    "gpt_oss": (GPT_OSS, {"do_eval": True, "prediction_loss_only": True}, NARROW),
    "words of two stacks": (T5, {**AGAIN, "max_target_length": 64}, LATE),
    "positions of two stacks": (BART, {"max_target_length": 64}, LATE),
    "encoder": (BERT, {**AGAIN, "do_eval": True}, NARROW),
    "lora of an encoder": (BERT, {**LORA, "lora_target_modules": ("query", "value")}, NARROW),
}


def setup_of(given: Mapping[str, Any], spread: Mapping[str, Any]) -> TrainingSetup:
    spread = {"reduce_bucket": 20_000_000, **spread}
    return TrainingSetup(**{**BASE, **given}, spread=Spread(deepspeed=True, **spread))


def simulated(name: str) -> tuple[list[Act], dict[str, tuple[int, int]]]:
    config, given, spread = ROWS[name]
    with pytest.MonkeyPatch.context() as patch:
        return simulated_in_zero(config, setup_of(given, spread), CAPABILITY, patch)


def show(name: str) -> None:
    """Peaks of both, and where their acts part."""
    config, given, spread = ROWS[name]
    wanted, peaks = simulated(name)
    found, own = followed(config, setup_of(given, spread), CAPABILITY)
    print(name, peaks, {phase: own[phase] for phase in peaks})
    one, other = canonical(wanted), canonical(found)
    at = parted(one, other)
    if at is not None:
        print(*zip(one[at - 8 : at + 8], other[at - 8 : at + 8], strict=False), sep="\n")


def main() -> None:
    """Record every row, or show one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=ROWS)
    name = parser.parse_args().name
    if name:
        show(name)
        return
    rows = {}
    for name, (config, given, spread) in ROWS.items():
        _, peaks = simulated(name)
        peaks.pop("load", None)
        rows[name] = {"config": config, "setup": given, "spread": spread, "peaks": peaks}
        print(name, peaks)
    PATH.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
