"""The largest batch and the workers that fit: the largest, and no larger."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import memory_sample as sample
from kb.core.setup import TrainingSetup
from kb.core.units import GIB
from kb.memory import largest_batch, predict, workers_that_fit
from kb.memory.process import usable_bytes
from kb.memory.search import GRAIN, LARGEST_BATCH, PATIENCE, BatchField, largest_dividing, largest_within

T5 = sample.architecture(sample.T5_BASE)
MT5 = sample.architecture(sample.MT5_BASE)
GB = 10**9


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "phases"),
    [
        ("per_device_train_batch_size", ("train",)),
        ("per_device_eval_batch_size", ("evaluate", "generate")),
        ("inference_batch_size", ("generate",)),
    ],
)
@pytest.mark.parametrize("rough", [False, True])
def test_the_batch_found_fits_and_more_does_not(field: BatchField, phases: tuple[str, ...], rough: bool) -> None:
    setup = TrainingSetup(
        bf16=True, do_eval=True, do_predict=field == "inference_batch_size", predict_with_generate=True,
        generation_num_beams=4, generation_max_length=128, inference_num_beams=4, inference_max_length=128,
    )  # fmt: skip
    if field == "inference_batch_size":
        setup = setup._replace(do_train=False, do_eval=False)
    limit = usable_bytes(24 * GIB, sample.CONSTANTS)
    best = largest_batch(setup, T5, field, limit, constants=sample.CONSTANTS, gpu=sample.RTX_3090, rough=rough)

    def used(batch: int) -> int:
        report = predict(
            setup._replace(**{field: batch}), T5, constants=sample.CONSTANTS, gpu=sample.RTX_3090, rough=rough
        )
        sizes = [p.high_bytes for p in report.phases if p.name in phases]
        return max(sizes)

    assert best > 1
    more = best + (1 if rough else max(2 * best // GRAIN, 1))  # the engine is asked as often as is worth it
    assert used(best) <= limit < used(more)


def test_no_batch_fits_where_the_states_alone_do_not() -> None:
    found = largest_batch(TrainingSetup(), MT5, "per_device_train_batch_size", 8 * GIB, constants=sample.CONSTANTS)
    assert found == 0


@pytest.mark.long
def test_workers_stay_within_the_limit_and_the_most_allowed() -> None:
    def fit(limit: int, most: int | None = None) -> int:
        return workers_that_fit(sample.MT5_QLORA, MT5, limit, constants=sample.CONSTANTS, most=most)

    assert fit(60 * GB, most=16) == 16
    assert fit(60 * GB, most=4) == 4
    assert fit(5 * GB) == 0
    many = fit(60 * GB)
    for workers, expected in ((many, True), (many + 1, False)):
        report = predict(sample.MT5_QLORA._replace(dataloader_num_workers=workers), MT5, constants=sample.CONSTANTS)
        assert (report.host.peak_bytes <= 60 * GB) is expected


@pytest.mark.long
@given(st.integers(1, 5000), st.integers(0, 6000), st.data())
def test_the_largest_divisor_within_a_limit_is_found_from_any_of_them(
    whole: int, limit: int, data: st.DataObject
) -> None:
    divisors = [number for number in range(1, whole + 1) if whole % number == 0]
    first = data.draw(st.sampled_from(divisors))
    asked: list[int] = []

    def used(batch: int) -> int:
        asked.append(batch)
        return batch

    found = largest_dividing(used, limit, whole, first)
    assert found == max((number for number in divisors if number <= limit), default=0)
    assert asked[0] == first
    assert len(asked) <= len(divisors).bit_length() + 2  # two more than halving asks: the guess and its neighbour


@example(fixed=0, each=1, bend=0, chunk=421, limit=1266, slope=91, first=1)  # a staircase with few steps: 25
@given(
    fixed=st.integers(0, 10**6),
    each=st.integers(0, 10**5),
    bend=st.integers(0, 200),
    chunk=st.integers(1, 5000),
    limit=st.integers(1, 10**8),
    slope=st.integers(0, 10**5),
    first=st.integers(1, LARGEST_BATCH),
)
def test_what_is_found_fits_and_one_more_does_not_from_any_first_guess(
    fixed: int, each: int, bend: int, chunk: int, limit: int, slope: int, first: int
) -> None:
    asked: list[int] = []

    def used(batch: int) -> int:
        asked.append(batch)
        return 1 + (fixed + each * batch + bend * batch**2) // chunk * chunk

    found = largest_within(used, limit, 1, LARGEST_BATCH, slope, first)
    count = len(asked)
    assert found == 0 or used(found) <= limit
    assert found == LARGEST_BATCH or used(found + 1) > limit
    # where no line is found by then, it doubles and then halves
    assert count <= PATIENCE + 2 * LARGEST_BATCH.bit_length()


def test_a_straight_line_is_known_after_four() -> None:
    asked: list[int] = []

    def used(batch: int) -> int:
        asked.append(batch)
        return 5534 + 98 * batch

    assert largest_within(used, 24064, 1, LARGEST_BATCH) == 189
    assert len(asked) == 4
