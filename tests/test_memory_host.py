"""The host's ledger, apart from the GPU's: the notes' ranges and the container's limit."""

from typing import Any

import memory_sample as sample
from kb.core.memory_report import HostLedger
from kb.core.setup import TrainingSetup
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
    assert offloaded.peak_bytes - plain.peak_bytes == 8 * 582_401_280
    gathered = host(TrainingSetup(do_eval=True, eval_samples=100))
    assert dict(gathered.terms)["gathered"] == 4 * 100 * (128 * 250112 + 512 * 768)
