"""The host's ledger, apart from the GPU's: what was measured, the upper end, the notes' rule of thumb, the limit."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memory_sample as sample
from catalog_sample import load_catalog, read_units
from effort import few
from kb.advice.check import Checker
from kb.advice.fit.estimator import on_gpu
from kb.core.hardware import Machine
from kb.core.memory_report import HostLedger
from kb.core.setup import Spread, TrainingSetup
from kb.memory import predict

GB = 10**9
LIMIT = 60 * GB


def host(setup: TrainingSetup = sample.MT5_QLORA, limit: int | None = LIMIT, **more: Any) -> HostLedger:
    architecture = sample.architecture(sample.MT5_BASE)
    return predict(setup, architecture, constants=sample.CONSTANTS, host_limit_bytes=limit, **more).host


def measured(setup: TrainingSetup, **more: Any) -> dict[str, int]:
    return dict(host(setup, **more).measured)


@pytest.mark.long
def test_both_ends_are_sums_of_their_terms() -> None:
    found = host()
    assert sum(term.bytes for term in found.terms) == found.peak_bytes
    assert sum(term.bytes for term in found.measured) == found.low_bytes


def test_thirty_two_workers_may_exceed_the_notes_container_and_sixteen_may_not() -> None:
    many, few = host(sample.MT5_QLORA._replace(dataloader_num_workers=32)), host()
    assert (many.status, few.status) == ("tight", "fits")
    assert many.low_bytes < 5 * GB < LIMIT < many.peak_bytes
    assert few.low_bytes <= 40 * GB <= few.peak_bytes  # what the notes read with sixteen


def test_the_notes_rule_of_thumb_decides_nothing() -> None:
    """Their 63 to 91 GB for 32 workers, and their 15 GB and more for a run that is measured at one."""
    many = host(sample.MT5_QLORA._replace(dataloader_num_workers=32))
    assert many.claimed_low_bytes == pytest.approx(63 * GB, rel=0.01)
    assert many.claimed_high_bytes == pytest.approx(91 * GB, rel=0.01)
    small = host(TrainingSetup(method="lora"), limit=16 * GB)
    assert small.claimed_low_bytes == 15 * GB
    assert small.claimed_high_bytes > 16 * GB
    assert small.status == "fits"


def test_a_floor_over_the_limit_is_out_of_memory_even_without_workers() -> None:
    setup = TrainingSetup(bf16=True, zero_stage=2, offload_optimizer=True)
    architecture = sample.architecture({**sample.MT5_BASE, "d_ff": 65536})
    found = predict(setup, architecture, constants=sample.CONSTANTS, host_limit_bytes=LIMIT).host
    assert found.low_bytes > LIMIT
    assert found.status == "oom"


@pytest.mark.long
def test_gpu_batches_do_not_change_the_host() -> None:
    unpinned = sample.MT5_QLORA._replace(dataloader_pin_memory=False)
    assert host(unpinned).peak_bytes == host(unpinned._replace(per_device_eval_batch_size=64)).peak_bytes


@pytest.mark.long
def test_offloaded_states_and_gathered_predictions_are_counted() -> None:
    plain = host(TrainingSetup())
    offloaded = host(TrainingSetup(zero_stage=2, offload_optimizer=True))
    # fp32: masters 4, states 8, gradients 4, updated weights 4; and a buffer for one gradient, the embedding's
    more = 20 * 582_401_280 + 4 * 250112 * 768
    assert offloaded.peak_bytes - plain.peak_bytes == offloaded.low_bytes - plain.low_bytes == more
    gathered = host(TrainingSetup(do_eval=True, eval_samples=100))
    assert dict(gathered.terms)["gathered"] == 4 * 100 * (128 * 250112 + 512 * 768)


def test_a_worker_adds_a_hundredth_of_what_the_notes_read() -> None:
    one, nine = (measured(TrainingSetup(dataloader_num_workers=n))["workers"] for n in (1, 9))
    assert nine == 9 * one
    assert one < 0.01 * sample.CONSTANTS["worker_observed_bytes"]


def test_batches_are_in_shared_memory_and_page_locked() -> None:
    setup = TrainingSetup(dataloader_num_workers=4, dataloader_prefetch_factor=2)
    batch = 8 * (2 * 512 + 128) * 8
    found = measured(setup)
    assert found["batches_in_flight"] == found["pinned"] == 4 * 2 * batch
    assert "batches_in_flight" not in measured(TrainingSetup())
    assert "pinned" not in measured(setup._replace(dataloader_pin_memory=False))


def test_every_gpu_of_a_node_brings_a_process_and_its_workers() -> None:
    setup = TrainingSetup(dataloader_num_workers=2)
    one, four = host(setup), host(setup._replace(world_size=4))
    eight_on_two = host(setup._replace(world_size=8, spread=Spread(nodes=2)))
    for name in ("workers", "host_process"):
        assert dict(four.terms)[name] == 4 * dict(one.terms)[name]
        assert dict(four.measured)[name] == 4 * dict(one.measured)[name]
    assert four.claimed_high_bytes - one.claimed_high_bytes < 3 * 5 * GB  # the notes' base is for the run
    assert (four.peak_bytes, four.measured) == (eight_on_two.peak_bytes, eight_on_two.measured)


WORST_FIRST = ("oom", "tight", "fits")


@pytest.mark.exhaustive
@settings(deadline=None)
@given(
    workers=st.integers(0, 64),
    batch=st.integers(1, 64),
    ranks=st.sampled_from((1, 2, 8)),
    method=st.sampled_from(("full", "lora", "qlora")),
    offload=st.booleans(),
    limits=st.tuples(st.integers(0, 400 * GB), st.integers(0, 400 * GB)),
)
@pytest.mark.long
def test_a_larger_limit_never_makes_the_verdict_worse(workers, batch, ranks, method, offload, limits) -> None:
    setup = TrainingSetup(
        dataloader_num_workers=workers,
        per_device_train_batch_size=batch,
        world_size=ranks,
        method=method,
        zero_stage=2 if offload and method == "full" else 0,
        offload_optimizer=offload and method == "full",
    )
    tighter, looser = (WORST_FIRST.index(host(setup, limit=limit).status) for limit in sorted(limits))
    assert tighter <= looser


# --- what the rules make of it ---------------------------------------------------------------------------------------

CATALOG = load_catalog()
LIMITS = tuple(round(size * GB) for size in (0.5, 2, 8, 16, 32, 60, 128, 1000))
SEVERITIES = ("info", "warning", "error")


def on_host(text: str, limit: int, gpus: int = 1) -> dict[str, str]:
    """The findings about host memory: rule → severity."""
    gpu = on_gpu(CATALOG.gpus["a100-80gb"]).gpus[0]
    machine = Machine(
        gpus=(gpu,) * gpus, gpu_source="named", host_memory_bytes=limit, host_memory_source="named", cpus=64
    )
    checker = Checker(CATALOG, machine)
    (unit,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    found = checker.check(unit).findings
    return {each.rule: each.severity for each in found if each.rule.startswith("host-")}


@pytest.mark.parametrize(
    ("model", "more", "gpus"),
    few(
        [
            ("google-bert/bert-base-uncased", "", 1),
            ("google-bert/bert-base-uncased", "dataloader_num_workers: 32", 8),
            ("google/mt5-xl", "dataloader_num_workers: 32", 1),
            ("google/mt5-xl", "", 8),
            ("Qwen/Qwen2.5-7B", "dataloader_num_workers: 4", 1),
            ("Qwen/Qwen2.5-7B", "dataloader_num_workers: 4", 8),
        ],
    ),
)
@pytest.mark.long
def test_a_larger_limit_never_brings_a_worse_finding(model: str, more: str, gpus: int) -> None:
    text = (
        f"model_name_or_path: {model}\noutput_dir: o\nlearning_rate: 1.0e-4\nper_device_train_batch_size: 4\n{more}\n"
    )
    worst = [
        max((SEVERITIES.index(each) for each in on_host(text, size, gpus).values()), default=-1) for size in LIMITS
    ]
    assert worst == sorted(worst, reverse=True)
    assert worst[0] == SEVERITIES.index("error")  # half a GB holds no process
    assert worst[-1] == -1


@pytest.mark.parametrize("size", [12.7, 14, 16, 32])
def test_a_small_model_trains_on_a_small_host(size: float) -> None:
    text = "model_name_or_path: google-bert/bert-base-uncased\noutput_dir: o\nper_device_train_batch_size: 16\n"
    assert on_host(text, round(size * GB)) == {}
