"""What a config says of many GPUs: DeepSpeed's buckets and offload, FSDP's options old and new, tensor parallelism."""

from typing import Any

import pytest

from catalog_sample import load_catalog, read_units
from kb.advice.run.settings_reader import (
    SettingsReader,
    assume_one_unit,
    checkpoints_by_fsdp,
    offloads_fsdp,
    spread_of,
    uses_fsdp,
)
from kb.core.setup import Spread, TrainingSetup

CATALOG = load_catalog()


def reader(text: str, path: str = "train.yaml") -> SettingsReader:
    (unit,) = read_units(text, path, CATALOG.dialects, CATALOG.facts)
    return SettingsReader(unit, CATALOG.facts)


def spread(text: str, path: str = "train.yaml", transformers: tuple[int, ...] | None = None) -> Spread:
    return spread_of(reader(text, path), 768, lambda *_: transformers)


TRAINING = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 8\nlearning_rate: 0.001\n"


def deepspeed(block: str) -> Spread:
    return spread(f'{{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{{block}}}}}', "ds.json")


def test_a_config_that_says_nothing_takes_the_defaults() -> None:
    assert spread(TRAINING) == Spread()


def test_buckets_are_read_and_auto_is_the_hidden_size_squared() -> None:
    found = deepspeed('"stage": 3, "reduce_bucket_size": 5e7, "stage3_prefetch_bucket_size": "auto"')
    assert (found.reduce_bucket, found.prefetch_bucket) == (50_000_000, int(0.9 * 768 * 768))
    assert found.deepspeed
    assert deepspeed('"stage": 2').reduce_bucket is None


def test_offload_to_nvme_and_its_ratio_are_read() -> None:
    found = deepspeed('"stage": 3, "offload_optimizer": {"device": "nvme", "ratio": 0.3}, "overlap_comm": true')
    assert (found.optimizer_on_disk, found.params_on_disk) == (True, False)
    assert (found.optimizer_offload_ratio, found.overlap_comm) == (0.3, True)


def test_fsdps_old_words_and_new_settings_mean_the_same() -> None:
    old = spread(TRAINING + "fsdp: shard_grad_op auto_wrap\n")
    new = spread(TRAINING + "fsdp: true\nfsdp_config: {reshard_after_forward: false}\n")
    assert old.fsdp_reshard is new.fsdp_reshard is False
    assert spread(TRAINING + "fsdp: full_shard\n").fsdp_reshard
    assert uses_fsdp(reader(TRAINING + "fsdp: full_shard\n"))
    assert not uses_fsdp(reader(TRAINING))
    assert offloads_fsdp(reader(TRAINING + "fsdp: full_shard offload\n"))
    assert offloads_fsdp(reader(TRAINING + "fsdp: true\nfsdp_config: {cpu_offload: true}\n"))


def test_version_and_wrapping_have_the_defaults_of_transformers() -> None:
    text = TRAINING + "fsdp: full_shard\n"
    assert (spread(text).fsdp_version, spread(text).fsdp_wrapped) == (2, True)
    before = spread(text, transformers=(4, 57))
    assert (before.fsdp_version, before.fsdp_wrapped) == (1, False)
    assert spread(TRAINING + "fsdp: full_shard auto_wrap\n", transformers=(4, 57)).fsdp_wrapped
    assert not spread(TRAINING + "fsdp: true\nfsdp_config: {auto_wrap_policy: NO_WRAP}\n").fsdp_wrapped


def test_tensor_parallel_size_is_read() -> None:
    assert spread(TRAINING + "parallelism_config: {tp_size: 4}\n").tensor_parallel == 4


def test_fsdp_of_accelerates_own_file_has_accelerates_defaults() -> None:
    plain = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmachine_rank: 0\nnum_machines: 1\n"
    found = spread(plain + "fsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", "fsdp.yaml")
    assert (found.fsdp_version, found.fsdp_wrapped, found.fsdp_reshard) == (1, False, True)
    wrapped = (
        plain + "fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_sharding_strategy: FULL_SHARD}\n"
    )
    for transformers in (None, (4, 57)):
        found = spread(wrapped, "fsdp.yaml", transformers)
        assert (found.fsdp_version, found.fsdp_wrapped, found.fsdp_reshard) == (1, True, True)
    assert spread(wrapped.replace("{", "{fsdp_version: 2, ", 1), "fsdp.yaml").fsdp_version == 2


def test_what_fsdp1_gathers_ahead_is_read() -> None:
    plain = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmachine_rank: 0\nnum_machines: 1\n"
    for written, backward, forward in (
        ("fsdp_backward_prefetch: BACKWARD_PRE, fsdp_forward_prefetch: 'true'", "pre", True),
        ("fsdp_backward_prefetch: 2", "post", False),
        ("fsdp_backward_prefetch: NO_PREFETCH", "no", False),
        ("fsdp_offload_params: false", "no", False),
    ):
        found = spread(plain + f"fsdp_config: {{{written}}}\n", "fsdp.yaml")
        assert (found.fsdp_backward_prefetch, found.fsdp_forward_prefetch) == (backward, forward)
    found = spread(TRAINING + "fsdp: full_shard\nfsdp_config: {backward_prefetch: backward_post}\n")
    assert found.fsdp_backward_prefetch == "post"


def test_fsdps_own_checkpointing_counts_where_fsdp_runs() -> None:
    plain = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmachine_rank: 0\nnum_machines: 1\n"
    checkpoints = "fsdp_config: {fsdp_activation_checkpointing: true, fsdp_version: 2}\n"
    assert checkpoints_by_fsdp(reader(plain + checkpoints, "fsdp.yaml"))
    assert not checkpoints_by_fsdp(reader(plain.replace("FSDP", "MULTI_GPU") + checkpoints, "fsdp.yaml"))
    assert not checkpoints_by_fsdp(reader(plain + "fsdp_config: {fsdp_version: 2}\n", "fsdp.yaml"))
    assert checkpoints_by_fsdp(reader(TRAINING + "fsdp: true\nfsdp_config: {activation_checkpointing: true}\n"))


@pytest.mark.parametrize(
    ("text", "release", "listed"),
    [
        ("fsdp: full_shard\n", (4, 57), True),
        ("fsdp: full_shard auto_wrap\n", (4, 57), False),
        ("fsdp: full_shard\n", None, False),
        ("fsdp: true\nfsdp_config: {auto_wrap_policy: NO_WRAP}\n", None, False),
    ],
)
def test_a_model_that_no_policy_wraps_is_said_to_be_one_unit(text: str, release: Any, listed: bool) -> None:
    read = reader(TRAINING + text)
    setup = TrainingSetup(fsdp=True, spread=spread_of(read, 768, lambda *_: release))
    assume_one_unit(read, setup)
    assert [each.reason for each in read.assumed] == ["fsdp_one_unit"] * listed
