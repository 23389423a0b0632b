"""rules/tradeoffs: what options cover, and the settings that they name."""

from itertools import pairwise
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide

TRADEOFFS: dict[str, Any] = dict(load_guide()["tradeoffs"])
each_tradeoff = pytest.mark.parametrize("tradeoff", TRADEOFFS.values(), ids=TRADEOFFS)


def test_the_notes_leave_gaps_between_their_batches() -> None:
    """S17: no option covers 5 to 7, nor 17 to 31; nothing is interpolated."""
    options = [option for option in TRADEOFFS["training-batch-size"]["options"] if "low" in option]
    covered = {batch for option in options for batch in range(option["low"], option.get("high", 40) + 1)}
    assert sorted(set(range(1, 41)) - covered) == [5, 6, 7, *range(17, 32)]


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
