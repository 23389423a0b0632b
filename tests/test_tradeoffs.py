"""rules/tradeoffs: which option covers a value, and the settings that options name."""

from itertools import pairwise
from typing import Any

import pytest

from kb.advice.tradeoffs import covering
from kb.knowledge import load_catalog, load_guide

TRADEOFFS: dict[str, Any] = dict(load_guide()["tradeoffs"])
each_tradeoff = pytest.mark.parametrize("tradeoff", TRADEOFFS.values(), ids=TRADEOFFS)


def test_batch_12_is_fast_high_and_best() -> None:
    """S17."""
    option = covering(TRADEOFFS["training-batch-size"], 12).option
    assert option is not None
    assert [word["en"] for word in option["aspects"].values()] == ["fast", "high", "best"]


def test_batch_6_is_covered_by_no_row_and_has_two_neighbours() -> None:
    """S17: the notes leave 5 to 7 out."""
    found = covering(TRADEOFFS["training-batch-size"], 6)
    assert found.option is None
    assert found.below is not None and found.below["high"] == 4
    assert found.above is not None and found.above["low"] == 8


def test_the_last_range_is_open() -> None:
    option = covering(TRADEOFFS["training-batch-size"], 500).option
    assert option is not None and option["low"] == 32


def test_below_the_first_range_there_is_only_a_neighbour_above() -> None:
    found = covering(TRADEOFFS["inference-batch-size"], 1)
    assert (found.option, found.below) == (None, None)
    assert found.above is not None and found.above["low"] == 8


def test_profiles_have_no_ranges_to_look_up() -> None:
    with pytest.raises(ValueError, match="no values of a setting"):
        covering(TRADEOFFS["speed-or-memory"], 8)


@each_tradeoff
def test_options_are_distinct_and_name_real_settings(tradeoff: Any) -> None:
    facts = load_catalog().facts
    ids = [option["id"] for option in tradeoff["options"]]
    assert len(ids) == len(set(ids))
    named = {name for option in tradeoff["options"] for key in ("set", "change") for name in option.get(key, {})}
    named |= {tradeoff["setting"]} if "setting" in tradeoff else set()
    assert [name for name in named if name not in facts or not facts[name].setting] == []


@each_tradeoff
def test_every_option_has_a_word_for_every_aspect(tradeoff: Any) -> None:
    for option in tradeoff["options"]:
        assert option.get("aspects", {}).keys() == tradeoff.get("aspects", {}).keys()


@each_tradeoff
def test_ranges_do_not_overlap(tradeoff: Any) -> None:
    ranges = sorted((o["low"], o.get("high", float("inf"))) for o in tradeoff["options"] if "low" in o)
    assert all(low <= high for low, high in ranges)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))


def test_both_profiles_have_one_effective_batch() -> None:
    batches = {
        option["set"]["training.per_device_train_batch_size"] * option["set"]["training.gradient_accumulation_steps"]
        for option in TRADEOFFS["speed-or-memory"]["options"]
    }
    assert batches == {32}
