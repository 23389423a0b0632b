"""Finding the largest batch by trying: which batches are tried, what is found, how the effective batch is held."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.advice.batch_finder import CAVEAT, TRAINERS_OWN, Trial, by_accelerate, find_batch, search
from kb.advice.batches import Split
from kb.knowledge import load_catalog, load_guide


def tried(start: int, largest: int, **options: int) -> list[int]:
    return [trial.batch for trial in find_batch(lambda batch: batch <= largest, start, **options).trials]


def test_a_search_halves_until_one_fits_and_then_closes_in() -> None:
    found = find_batch(lambda batch: batch <= 12, 16)
    assert found.trials == (Trial(16, False), Trial(8, True), Trial(12, True), Trial(14, False), Trial(13, False))
    assert found.largest == 12


@given(start=st.integers(1, 300), largest=st.integers(0, 400), room=st.integers(0, 300))
def test_the_largest_that_fits_is_found_and_nothing_is_tried_twice(start: int, largest: int, room: int) -> None:
    most = start + room
    found = find_batch(lambda batch: batch <= largest, start, most=most)
    assert found.largest == min(largest, most)
    batches = [trial.batch for trial in found.trials]
    assert batches[0] == start and len(set(batches)) == len(batches) <= 20
    assert all(1 <= batch <= most for batch in batches)


def test_a_start_that_fits_is_the_answer_unless_more_is_allowed() -> None:
    assert tried(16, 100) == [16]
    assert tried(16, 100, most=128) == [16, 32, 64, 128, 96, 112, 104, 100, 102, 101]


def test_where_nothing_fits_there_is_no_way_to_the_effective_batch() -> None:
    found = find_batch(lambda batch: False, 8)
    assert [trial.batch for trial in found.trials] == [8, 4, 2, 1]
    assert (found.largest, found.splits) == (0, None)


def test_accumulation_holds_the_effective_batch_of_the_start() -> None:
    exact = find_batch(lambda batch: batch <= 12, 16).splits
    assert exact is not None and exact.exact[0] == Split(8, 2)
    more = find_batch(lambda batch: batch <= 12, 24, accumulation=2, world=2).splits
    assert more is not None and more.exact[0] == Split(12, 4, 2) and more.wanted == 96


def test_a_driver_may_feed_the_search_step_by_step() -> None:
    trying = search(4)
    assert next(trying) == 4
    assert trying.send(False) == 2
    assert trying.send(True) == 3
    with pytest.raises(StopIteration) as ended:
        trying.send(False)
    assert [trial.batch for trial in ended.value.value] == [4, 2, 3]


@pytest.mark.parametrize(("start", "most"), [(0, None), (-1, None), (8, 4)])
def test_a_start_that_is_no_batch_is_refused(start: int, most: int | None) -> None:
    with pytest.raises(ValueError, match="no batch to begin with"):
        next(search(start, most))


@pytest.mark.parametrize(
    ("version", "start", "largest", "batch"),
    [((1, 8, 1), 16, 12, 8), ((1, 9, 0), 16, 12, 12), ((1, 15, 0), 128, 100, 92), ((1, 15, 0), 8, 0, 0)],
)
def test_the_trainers_own_search_depends_on_accelerate(
    version: tuple[int, ...], start: int, largest: int, batch: int
) -> None:
    assert by_accelerate(start, largest, version) == batch


def test_the_setting_and_its_caveat_exist() -> None:
    name, value = TRAINERS_OWN
    fact = load_catalog().facts[name]
    assert fact.setting and fact.type == "bool" and value is True
    assert CAVEAT in {entry["id"] for entry in load_guide()["errata"]["errata"]}
