"""Many GPUs: what ZeRO, FSDP and tensor parallelism leave one GPU of the weights, and put on each node's host."""

from typing import Any

import pytest

import memory_sample as sample
from kb.core.setup import Spread, TrainingSetup
from kb.memory.parameters import count
from kb.memory.states import Share, as_run, share_of, states_of

T5 = sample.architecture(sample.T5_BASE)
N = 222_903_552
EMBEDDING = 32128 * 768


def share(architecture: Any = T5, **settings: Any) -> Share:
    setup = as_run(TrainingSetup(**settings))
    return share_of(setup, states_of(setup, architecture), architecture)


def near(expected: float) -> Any:
    """But for what the allocator leaves unsplit: under a hundredth."""
    return pytest.approx(expected, rel=0.01)


# --- as DeepSpeed estimates it (0.19.8, runtime/zero/stage_1_and_2.py and stage3.py), without its buffer factor -------


def test_zero2_offload_holds_deepspeeds_sixteen_bytes_and_the_buffers_between() -> None:
    found = share(bf16=True, world_size=4, zero_stage=2, offload_optimizer=True)
    buffers = 2 * N + 4 * 2 * EMBEDDING  # updated weights, and one gradient on each rank
    assert found.on_host == pytest.approx(16 * N + buffers, rel=1e-6)


def test_zero3_offload_of_everything_leaves_no_weights_on_the_gpu() -> None:
    found = share(bf16=True, world_size=4, zero_stage=3, offload_optimizer=True, offload_param=True)
    assert found.parameters == 0
    # DeepSpeed: 18 bytes (fp32 masters, gradients and moments, 16-bit parameters); and the 16-bit gradients come there
    assert found.on_host == near(20 * N)


def test_stage_3_alone_divides_the_parameters() -> None:
    for stage, gpus in ((1, 1), (2, 1), (3, 4)):
        assert share(bf16=True, world_size=4, zero_stage=stage).parameters == near(2 * N / gpus)


def test_mixed_precision_under_deepspeed_is_a_model_cast_to_half() -> None:
    found = as_run(TrainingSetup(fp16=True, zero_stage=1))
    assert (found.weights, found.autocast) == ("bf16", False)
    assert as_run(TrainingSetup(fp16=True)).autocast
    assert share(bf16=True, zero_stage=1).parameters == near(2 * N)


def test_offloading_to_disk_leaves_the_host_buffers_alone() -> None:
    large = sample.architecture({**sample.MT5_BASE, "d_ff": 65536})  # several sub-groups of a thousand million

    def on_host(**spread: Any) -> int:
        settings: dict[str, Any] = {"bf16": True, "zero_stage": 3, "offload_optimizer": True, "offload_param": True}
        return share(large, **settings, spread=Spread(**spread)).on_host

    total = count(large).total
    assert on_host() == 20 * total
    assert on_host(optimizer_on_disk=True) == (2 + 2) * total + 4 * 4 * 10**9
    assert on_host(params_on_disk=True) == (20 - 2) * total + 2 * 5 * 10**8


def test_part_of_the_optimizer_stays_where_the_ratio_says() -> None:
    whole = share(bf16=True, zero_stage=3, offload_optimizer=True).on_host
    half = share(bf16=True, zero_stage=3, offload_optimizer=True, spread=Spread(optimizer_offload_ratio=0.5)).on_host
    assert whole - half == pytest.approx(12 * N / 2, rel=1e-6)  # of masters and moments; gradients pass through


def test_lora_keeps_the_frozen_weights_whole_below_stage_3() -> None:
    one = share(method="lora", bf16=True, zero_stage=2)
    assert share(method="lora", bf16=True, zero_stage=2, world_size=4).parameters == one.parameters


def test_deepspeed_without_zero_offloads_nothing() -> None:
    assert share(bf16=True, spread=Spread(deepspeed=True), offload_optimizer=True).on_host == 0


# --- FSDP ------------------------------------------------------------------------------------------------------------


def test_fsdp_shards_fp32() -> None:
    assert share(bf16=True, world_size=4, fsdp=True).parameters == near(4 * N / 4)


def test_fsdp_offload_moves_all_states_to_the_node() -> None:
    found = share(bf16=True, world_size=8, fsdp=True, offload_param=True, spread=Spread(nodes=2))
    assert found.parameters == 0
    assert found.on_host == near(16 * N / 2)  # each of two nodes has half


# --- tensor parallel, and the node's host ----------------------------------------------------------------------------


def test_tensor_parallelism_divides_the_layers_and_not_the_samples() -> None:
    setup = TrainingSetup(world_size=8, spread=Spread(tensor_parallel=4))
    assert setup.data_parallel_size == 2
    assert setup.effective_batch_size == 16
    found, blocks = share(world_size=8, spread=Spread(tensor_parallel=4)), count(T5).block_linear
    assert found.parameters == near(share().parameters - 4 * blocks * 3 / 4)
    assert found.trainable == near(N - blocks * 3 / 4)


def test_each_node_offloads_what_its_own_gpus_share() -> None:
    settings: dict[str, Any] = {"bf16": True, "world_size": 8, "zero_stage": 2, "offload_optimizer": True}
    one, two = share(**settings), share(**settings, spread=Spread(nodes=2))
    assert two.on_host == one.on_host // 2
