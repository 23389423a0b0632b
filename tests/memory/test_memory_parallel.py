"""Many GPUs: DDP's buckets, ZeRO beside DeepSpeed's own estimators, FSDP's units, tensor parallelism, nodes."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import Spread, TrainingSetup
from kb.memory.counts import count
from kb.memory.parallel import Units, as_run, units
from kb.memory.states import States, states_of
from memory_sample import roughly

T5 = sample.architecture(sample.T5_BASE)
MT5 = sample.architecture(sample.MT5_BASE)
N = 222_903_552
EMBEDDING = 32128 * 768
BUCKET = 500_000_000


def states(**settings: Any) -> States:
    return states_of(as_run(TrainingSetup(**settings)), T5)


def near(expected: float) -> Any:
    """But for what the allocator leaves unsplit: under a hundredth."""
    return pytest.approx(expected, rel=0.01)


# --- as DeepSpeed estimates it (0.19.8, runtime/zero/stage_1_and_2.py and stage3.py), without its buffer factor -------


def zero2_gpu(parameters: int, gpus: int) -> float:
    """2 bytes a parameter everywhere; 16-bit and fp32 gradients, fp32 masters and two moments shared out."""
    return 2 * parameters + (2 + 4 + 4 + 8) * parameters / gpus


def zero3_gpu(parameters: int, gpus: int) -> float:
    """As stage 2, but for the 16-bit gradients, which it leaves out; DeepSpeed 0.19.8 has a buffer of them all."""
    return 18 * parameters / gpus


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_zero2_is_deepspeeds_own_estimate(gpus: int) -> None:
    found = states(bf16=True, world_size=gpus, zero_stage=2)
    cast_to_fp32 = 4 * N // gpus  # the step's; its flattened 16-bit copy is not in DeepSpeed's estimate
    held = found.parameters + found.gradients + found.optimizer + cast_to_fp32
    assert held == near(zero2_gpu(N, gpus))
    assert found.step_temporaries == pytest.approx(6 * N / gpus, rel=1e-6)


@pytest.mark.parametrize("gpus", [2, 8])
def test_zero3_is_deepspeeds_own_estimate_and_what_it_gathers(gpus: int) -> None:
    found = states(bf16=True, world_size=gpus, zero_stage=3)
    assert found.parameters + found.optimizer + 4 * N // gpus == near(zero3_gpu(N, gpus))
    assert found.gradients == near(2 * N / gpus)
    assert found.gathered == near(2 * N)  # DeepSpeed counts its largest layer; its reuse distance keeps all of a T5


def test_zero2_offload_holds_deepspeeds_sixteen_bytes_and_the_buffers_between() -> None:
    found = states(bf16=True, world_size=4, zero_stage=2, offload_optimizer=True)
    assert found.optimizer == found.gradients == found.step_temporaries == 0
    buffers = 2 * N + 4 * 2 * EMBEDDING  # updated weights, and one gradient on each rank
    assert found.on_host == pytest.approx(16 * N + buffers, rel=1e-6)


def test_zero3_offload_of_everything_leaves_the_gpu_what_is_gathered() -> None:
    found = states(bf16=True, world_size=4, zero_stage=3, offload_optimizer=True, offload_param=True)
    assert (found.parameters, found.gradients, found.optimizer) == (0, 0, 0)
    assert found.gathered > 0
    # DeepSpeed: 18 bytes (fp32 masters, gradients and moments, 16-bit parameters); and the 16-bit gradients come there
    assert found.on_host == near(20 * N)


# --- stages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "divided"), [(1, ("optimizer",)), (2, ("optimizer", "gradients")),
                                                (3, ("optimizer", "gradients", "parameters"))])  # fmt: skip
def test_zero_stages_divide_what_they_shard(stage: int, divided: tuple[str, ...]) -> None:
    one, four = states(zero_stage=1), states(world_size=4, zero_stage=stage)
    assert one.optimizer == 12 * N  # a master beside the weights, even where these are fp32
    for name in ("optimizer", "gradients", "parameters"):
        share = 4 if name in divided else 1
        assert getattr(four, name) == near(getattr(one, name) / share)


def test_mixed_precision_under_deepspeed_is_a_model_cast_to_half() -> None:
    found = as_run(TrainingSetup(fp16=True, zero_stage=1))
    assert (found.weights, found.autocast) == ("bf16", False)
    assert as_run(TrainingSetup(fp16=True)).autocast
    assert states(bf16=True, zero_stage=1).parameters == near(2 * N)
    assumed = roughly(TrainingSetup(bf16=True, zero_stage=1), T5, constants=sample.CONSTANTS).assumed
    assert "cast_to_half" in {each.reason for each in assumed}


def test_the_reduce_bucket_is_taken_whole_and_twice_where_it_overlaps() -> None:
    assert states(bf16=True, zero_stage=2).buckets == 2 * BUCKET
    assert states(bf16=True, zero_stage=2, spread=Spread(overlap_comm=True)).buckets == 4 * BUCKET
    assert states(bf16=True, zero_stage=3, spread=Spread(overlap_comm=True)).buckets == 2 * BUCKET
    assert states(bf16=True, zero_stage=2, spread=Spread(reduce_bucket=768 * 768)).buckets == 2 * 768 * 768
    assert states(bf16=True, zero_stage=2, spread=Spread(contiguous_gradients=False)).buckets == 2 * N


def test_zero3_gathers_less_where_it_reuses_less() -> None:
    tight = Spread(max_reuse_distance=0, prefetch_bucket=0)
    found = states(bf16=True, world_size=4, zero_stage=3, spread=tight)
    assert found.gathered == near(2 * EMBEDDING)  # the largest module at work
    ahead = states(bf16=True, world_size=4, zero_stage=3, spread=tight._replace(prefetch_bucket=10_000_000))
    assert ahead.gathered - found.gathered == near(2 * 10_000_000)
    capped = tight._replace(prefetch_bucket=10_000_000, max_live_parameters=EMBEDDING)
    assert states(bf16=True, world_size=4, zero_stage=3, spread=capped).gathered == found.gathered
    assert states(bf16=True, zero_stage=3, spread=tight).gathered == 0  # one GPU has it all


def test_offloading_to_disk_leaves_the_host_buffers_alone() -> None:
    large = sample.architecture({**sample.MT5_BASE, "d_ff": 65536})  # several sub-groups of a thousand million

    def on_host(**spread: Any) -> int:
        settings: dict[str, Any] = {"bf16": True, "zero_stage": 3, "offload_optimizer": True, "offload_param": True}
        return states_of(as_run(TrainingSetup(**settings, spread=Spread(**spread))), large).on_host

    total = count(large).total
    assert on_host() == 20 * total
    assert on_host(optimizer_on_disk=True) == (2 + 2) * total + 4 * 4 * 10**9
    assert on_host(params_on_disk=True) == (20 - 2) * total + 2 * 5 * 10**8


def test_part_of_the_optimizer_stays_where_the_ratio_says() -> None:
    whole = states(bf16=True, zero_stage=3).optimizer
    half = states(bf16=True, zero_stage=3, offload_optimizer=True, spread=Spread(optimizer_offload_ratio=0.5))
    assert half.optimizer == pytest.approx(whole / 2, rel=1e-6)


def test_lora_shares_out_its_adapters_states_and_keeps_the_frozen_weights_whole_below_stage_3() -> None:
    one = states(method="lora", bf16=True, zero_stage=2)
    four = states(method="lora", bf16=True, zero_stage=2, world_size=4)
    assert four.parameters == one.parameters
    assert four.optimizer == one.optimizer // 4 == 12 * one.trainable // 4


# --- DDP and DeepSpeed alone -----------------------------------------------------------------------------------------


def test_ddp_copies_the_gradients_into_buckets_unless_they_are_views_of_them() -> None:
    assert states(world_size=4).buckets == states().gradients
    assert states(world_size=4, spread=Spread(gradient_as_bucket_view=True)).buckets == 0
    assert states().buckets == 0


def test_deepspeed_without_zero_keeps_masters_on_every_gpu() -> None:
    found = states(bf16=True, world_size=4, spread=Spread(deepspeed=True))
    assert found.optimizer == near(12 * N)
    assert found.buckets == 2 * N  # all gradients, where they are fewer than a bucket holds
    assert states(bf16=True, spread=Spread(deepspeed=True), offload_optimizer=True).on_host == 0  # offload needs ZeRO


# --- FSDP ------------------------------------------------------------------------------------------------------------


def test_units_are_the_largest_layer_and_all_that_no_layer_holds() -> None:
    found = units(count(T5), T5)
    assert found.layer == 8 * 768 * 768 + 2 * 768 * 3072  # a decoder's: two attentions
    assert found.root == N - count(T5).block_linear
    assert units(count(MT5), MT5) == Units(8 * 768 * 768 + 3 * 768 * 2048, 582_401_280 - count(MT5).block_linear)


def test_fsdp_shards_fp32_and_gathers_half() -> None:
    found = states(bf16=True, world_size=4, fsdp=True)
    for name, width in (("parameters", 4), ("gradients", 4), ("optimizer", 8)):
        assert getattr(found, name) == near(width * N / 4)
    unit = units(count(T5), T5)
    assert found.gathered == near(2 * (unit.root + 3 * unit.layer))
    assert found.buckets == 2 * (unit.root + 2 * unit.layer)


def test_fsdp_gathers_more_without_resharding_and_everything_without_wrapping() -> None:
    base = {"bf16": True, "world_size": 4, "fsdp": True}
    gathered = [
        states(**base, spread=spread).gathered
        for spread in (Spread(fsdp_version=1), Spread(), Spread(fsdp_reshard=False), Spread(fsdp_wrapped=False))
    ]
    assert gathered == sorted(gathered)
    assert gathered[-1] == near(2 * 3 * N)  # whole, and copied out of a gathered buffer


def test_fsdp_offload_moves_all_states_to_the_node() -> None:
    found = states(bf16=True, world_size=8, fsdp=True, offload_param=True, spread=Spread(nodes=2))
    assert (found.parameters, found.gradients, found.optimizer, found.step_temporaries) == (0, 0, 0, 0)
    assert found.on_host == near(16 * N / 2)  # each of two nodes has half


# --- tensor parallel, and the node's host ----------------------------------------------------------------------------


def test_tensor_parallelism_divides_the_layers_and_not_the_samples() -> None:
    setup = TrainingSetup(world_size=8, spread=Spread(tensor_parallel=4))
    assert setup.data_parallel_size == 2
    assert setup.effective_batch_size == 16
    found, whole = states_of(setup, T5), states()
    blocks = count(T5).block_linear
    assert found.parameters == near(whole.parameters - 4 * blocks * 3 / 4)
    reasons = {each.reason for each in roughly(setup, T5, constants=sample.CONSTANTS).assumed}
    assert "blocks_split" in reasons


def test_each_node_offloads_what_its_own_gpus_share() -> None:
    settings: dict[str, Any] = {"bf16": True, "world_size": 8, "zero_stage": 2, "offload_optimizer": True}
    one, two = states(**settings), states(**settings, spread=Spread(nodes=2))
    assert two.on_host == one.on_host // 2
