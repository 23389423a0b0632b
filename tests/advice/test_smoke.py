"""The ramp of batches."""

from catalog_sample import load_guide
from kb.advice.formulas import ramp

GUIDE = load_guide()


def test_the_ramp_carries_the_unrounded_value_on() -> None:
    rungs = list(ramp(GUIDE["formulas"]["batch-ramp"], 20))
    assert [rung.batch for rung in rungs] == [4, 5, 6, 7, 9, 12, 15, 19]
    assert [round(rung.exact, 2) for rung in rungs[:4]] == [4, 5, 6.25, 7.81]
    assert list(ramp(GUIDE["formulas"]["batch-ramp"], 3)) == []
