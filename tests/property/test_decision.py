"""Any answers to a decision: one leaf or a named need; a further answer never takes back what was known."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog_sample import load_guide
from effort import examples
from kb.advice.fit.decision import walk

INFERENCE: dict[str, Any] = load_guide()["decisions"]["inference-batch"]
ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_memory_gb": st.none() | st.integers(1, 200) | st.floats(1, 200),
        "concurrent": st.none() | st.booleans(),
        "solar_api": st.none() | st.booleans(),
        "max_new_tokens": st.none() | st.integers(1, 2048),
        "num_beams": st.none() | st.integers(1, 64),
    },
)
TREES = st.sampled_from([tree["id"] for tree in INFERENCE["trees"]])


@given(ANSWERS, TREES)
@settings(max_examples=examples(40, 100), deadline=None)
def test_a_walk_ends_in_a_leaf_or_names_what_it_needs(values: dict[str, Any], tree: str) -> None:
    found = walk(INFERENCE, values, tree)
    assert (found.leaf is None) == bool(found.needs)
    assert all(values.get(name) is None for name in found.needs)
    if found.leaf is not None:
        assert found.leaf.value is not None and found.leaf.use is not None
        assert 1 <= found.leaf.use <= found.leaf.value


@given(ANSWERS, ANSWERS, TREES)
@settings(max_examples=examples(40, 100), deadline=None)
def test_more_answers_do_not_change_a_leaf_that_was_found(
    values: dict[str, Any], more: dict[str, Any], tree: str
) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    before, after = walk(INFERENCE, known, tree), walk(INFERENCE, more | known, tree)
    if before.leaf is not None:
        assert after.leaf is not None and after.leaf.id == before.leaf.id
