"""The counts of a run, and how they are kept."""

import json

from kb.report.check.text import Tally
from kb.session.tree import Told


def test_what_is_kept_of_a_file_is_what_was_told() -> None:
    tally = Tally(files=1, units=2, info=3, hidden=3, bare=1, needs=("gpu.memory_total",), rule="a-rule")
    told = Told("text", tally, (), (("named", "a", "b", "c"),))
    again = Told.restored(json.loads(json.dumps(told.stored())))
    assert again == told and again.tally.plus(tally).hidden == 6


def test_counts_add_up() -> None:
    whole = Tally(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ("b",), "x").plus(Tally(needs=("a",), rule="y"))
    assert whole == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ("a", "b"), "x")
