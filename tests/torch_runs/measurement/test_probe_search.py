"""The search for the largest batch: begun at the prediction, put right by what trials took, bounded by trials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.advice.batches import Expected, Seen, Sought, after, seek, tried_by_accelerate
from kb.memory.search import largest_within


def searched(start: int, takes: Expected, limit: int, *, expected: Expected | None = None, most: int = 4096) -> Sought:
    """The search on a card of ``limit`` bytes where a batch takes ``takes`` of them."""
    seeking = seek(start, expected=expected, limit_bytes=limit, most=most)
    batch = next(seeking)
    try:
        while True:
            size = takes(batch)
            batch = seeking.send(Seen(batch, size <= limit, size if size <= limit else None))
    except StopIteration as ended:
        found: Sought = ended.value
        return found


def predicted(batch: int) -> int:
    return 2_000 + 150 * batch


@pytest.mark.parametrize("off", [0.93, 1.0, 1.03, 1.07, 1.1])
def test_three_trials_are_enough_where_the_prediction_is_within_a_tenth(off: float) -> None:
    found = searched(40, lambda batch: int(predicted(batch) * off), 8_000, expected=predicted)
    assert len(found.trials) <= 3
    assert found.largest == max(batch for batch in range(100) if int(predicted(batch) * off) <= 8_000)


def test_a_prediction_that_holds_is_proved_by_one_more_trial() -> None:
    found = searched(40, predicted, 8_000, expected=predicted)
    assert [(trial.batch, trial.fits) for trial in found.trials] == [(40, True), (41, False)]
    assert (found.largest, found.next_one) == (40, "failed")


@given(
    base=st.integers(0, 5_000), each=st.integers(1, 400), off=st.floats(0.4, 2.5), limit=st.integers(100, 20_000),
    most=st.integers(1, 300),
)  # fmt: skip
def test_the_largest_that_fits_is_found_whatever_the_prediction_says(
    base: int, each: int, off: float, limit: int, most: int
) -> None:
    def takes(batch: int) -> int:
        return int((base + each * batch) * off)

    def expected(batch: int) -> int:
        return base + each * batch

    start = min(max(largest_within(expected, limit, 1, most), 1), most)
    for known in (expected, None):
        found = searched(start, takes, limit, expected=known, most=most)
        true = max((batch for batch in range(1, most + 1) if takes(batch) <= limit), default=0)
        tried = [trial.batch for trial in found.trials]
        assert len(set(tried)) == len(tried) <= 30
        assert all(1 <= batch <= most for batch in tried)
        # what was computed and not tried may be one off where sizes are rounded
        assert found.largest == true or (found.next_one == "computed" and true - found.largest <= 1)


def test_a_batch_that_fails_against_the_prediction_is_bisected_towards() -> None:
    found = searched(40, lambda batch: 100 if batch <= 21 else 10_000, 8_000, expected=predicted)
    assert (found.largest, found.next_one) == (21, "failed")


def test_without_a_prediction_two_trials_give_the_line() -> None:
    found = searched(4, predicted, 8_000)
    assert [trial.batch for trial in found.trials] == [4, 8, 40, 41]


def test_what_may_not_be_passed_is_the_answer_where_it_fits() -> None:
    found = searched(4, predicted, 8_000, most=16)
    assert (found.largest, found.next_one) == (16, "not_allowed")
    assert all(trial.fits for trial in found.trials)


def test_nothing_fits_ends_at_batch_1() -> None:
    found = searched(8, predicted, 100, expected=predicted)
    assert (found.largest, found.trials[-1].batch) == (0, 1)


def test_a_run_that_only_breaks_is_given_up() -> None:
    seeking = seek(16)
    batch = next(seeking)
    with pytest.raises(StopIteration) as ended:
        while True:
            batch = seeking.send(Seen(batch, False, broke=True))
    assert (ended.value.value.largest, ended.value.value.next_one, len(ended.value.value.trials)) == (0, "unknown", 3)


def test_a_hang_at_one_batch_is_worked_around() -> None:
    seeking = seek(16, expected=predicted, limit_bytes=4_400, most=64)
    batch, tried = next(seeking), []
    with pytest.raises(StopIteration) as ended:
        while True:
            tried.append(batch)
            fits = batch < 16
            batch = seeking.send(Seen(batch, fits, predicted(batch) if fits else None, broke=not fits))
    assert (ended.value.value.largest, tried[0]) == (15, 16)


def test_after_trials_other_batches_are_expected_in_proportion() -> None:
    line = after((Seen(40, True, 4_000),), predicted)
    assert line is not None and line(40) == 4_000 and line(20) == 2_500
    assert after((Seen(40, False),), predicted) is None
    assert after((Seen(40, True, 4_000),), None) is None


@pytest.mark.parametrize(("start", "most"), [(0, 4), (8, 4)])
def test_a_start_that_is_no_batch_is_refused(start: int, most: int) -> None:
    with pytest.raises(ValueError, match="no batch to begin with"):
        next(seek(start, most=most))


def test_the_trainers_own_search_is_counted_as_accelerate_makes_it() -> None:
    assert tried_by_accelerate(128, 40, (1, 15, 0)) == (128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36)
    assert tried_by_accelerate(128, 40, (1, 8, 1)) == (128, 64, 32)
    assert tried_by_accelerate(16, 40, (1, 15, 0)) == (16,)
    assert tried_by_accelerate(2, 0, (1, 8, 1)) == (2, 1)
