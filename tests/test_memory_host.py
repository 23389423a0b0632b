"""The host's ledger, apart from the GPU's: the notes' ranges and the container's limit."""

from typing import Any

import memory_sample as sample
from kb.core.memory_report import HostLedger
from kb.core.setup import Spread, TrainingSetup
from kb.memory import predict

GB = 10**9
LIMIT = 60 * GB


def host(setup: TrainingSetup = sample.MT5_QLORA, **more: Any) -> HostLedger:
    architecture = sample.architecture(sample.MT5_BASE)
    return predict(setup, architecture, constants=sample.CONSTANTS, host_limit_bytes=LIMIT, **more).host


def test_thirty_two_workers_exceed_the_notes_container() -> None:
    found = host(sample.MT5_QLORA._replace(dataloader_num_workers=32))
    assert found.low_bytes > LIMIT
    assert found.peak_bytes > 85 * GB


def test_sixteen_workers_fit_it_and_their_range_holds_what_was_measured() -> None:
    found = host()
    assert found.low_bytes <= 40 * GB <= found.peak_bytes <= LIMIT
    assert found.limit_bytes == LIMIT


def test_terms_add_up_to_the_upper_end() -> None:
    found = host()
    assert sum(term.bytes for term in found.terms) == found.peak_bytes
    assert dict(found.terms)["workers"] == 32 * GB


def test_gpu_batches_do_not_change_the_host() -> None:
    unpinned = sample.MT5_QLORA._replace(dataloader_pin_memory=False)
    assert host(unpinned).peak_bytes == host(unpinned._replace(per_device_eval_batch_size=64)).peak_bytes


def test_a_large_checkpoint_can_decide_without_workers() -> None:
    found = host(TrainingSetup(do_train=False), checkpoint_bytes=15 * GB)
    assert dict(found.terms)["model_load"] == 18 * GB


def test_offloaded_states_and_gathered_predictions_are_counted() -> None:
    plain = host(TrainingSetup())
    offloaded = host(TrainingSetup(zero_stage=2, offload_optimizer=True))
    # fp32: masters 4, states 8, gradients 4, updated weights 4; and a buffer for one gradient, the embedding's
    assert offloaded.peak_bytes - plain.peak_bytes == 20 * 582_401_280 + 4 * 250112 * 768
    gathered = host(TrainingSetup(do_eval=True, eval_samples=100))
    assert dict(gathered.terms)["gathered"] == 4 * 100 * (128 * 250112 + 512 * 768)


# --- what was measured, beside the notes' range ----------------------------------------------------------------------


def measured(setup: TrainingSetup, **more: Any) -> dict[str, int]:
    return dict(host(setup, **more).measured)


def test_the_measured_floor_is_far_below_the_notes_range_and_does_not_change_it() -> None:
    found = host(sample.MT5_QLORA._replace(dataloader_num_workers=32))
    assert found.status == "oom"  # by the notes
    assert found.XX


def test_a_worker_adds_a_hundredth_of_the_notes_figure() -> None:
    one, nine = (measured(TrainingSetup(dataloader_num_workers=n))["workers"] for n in (1, 9))
    assert nine == 9 * one
    assert one < 0.01 * sample.CONSTANTS["worker_high_bytes"]


def test_batches_are_in_shared_memory_and_page_locked() -> None:
    setup = TrainingSetup(dataloader_num_workers=4, dataloader_prefetch_factor=2)
    batch = 8 * (2 * 512 + 128) * 8
    found = measured(setup)
    assert found["batches_in_flight"] == found["pinned"] == 4 * 2 * batch
    assert "batches_in_flight" not in measured(TrainingSetup())
    assert "pinned" not in measured(setup._replace(dataloader_pin_memory=False))


def test_a_floor_over_the_limit_is_out_of_memory_even_without_workers() -> None:
    setup = TrainingSetup(bf16=True, zero_stage=2, offload_optimizer=True)
    architecture = sample.architecture({**sample.MT5_BASE, "d_ff": 65536})
    found = predict(setup, architecture, constants=sample.CONSTANTS, host_limit_bytes=LIMIT).host
    assert found.measured_bytes > LIMIT
    assert found.status == "oom"


def test_every_gpu_of_a_node_brings_a_process_and_its_workers() -> None:
    setup = TrainingSetup(dataloader_num_workers=2)
    one, four = host(setup), host(setup._replace(world_size=4))
    eight_on_two = host(setup._replace(world_size=8, spread=Spread(nodes=2)))
    assert dict(four.terms)["workers"] == 4 * dict(one.terms)["workers"]
    assert dict(four.measured)["host_process"] == 4 * dict(one.measured)["host_process"]
    assert four.peak_bytes - one.peak_bytes < 3 * (dict(one.terms)["workers"] + GB)  # the notes' base is for the run
    assert (four.peak_bytes, four.measured) == (eight_on_two.peak_bytes, eight_on_two.measured)
