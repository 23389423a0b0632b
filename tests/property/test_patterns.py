"""Whatever the pattern and the text: the linear matcher says what Python's own says, or that it does not know."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from kb.core.patterns import Pattern, PatternError

ATOMS = ["a", "b", ".", "X", r"\.", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", r"[\d_-]", "[a-c0]", "^", "$", r"\b"]
ATOMS += [r"\B", r"\Z", r"\A", "", "é", "(?:)", "\n"]
AFTER = ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}"]


def patterns() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(ATOMS)

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeated = st.builds(lambda body, after: f"(?:{body}){after}", inner, st.sampled_from(AFTER))
        named = st.builds(lambda body, after: f"({body}){after}", inner, st.sampled_from(AFTER))
        several = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(repeated, named, several.map("".join), several.map("|".join))

    return st.recursive(atoms, grown, max_leaves=8)


@settings(max_examples=examples(68, 170), deadline=None)
@given(patterns(), st.text("abcX.1_ \né-", min_size=1, max_size=8))
@example("(.|.)*X", "ababab")
@example("(?:^|a)*b$", "aab")
@example("a$", "a\n")
def test_it_agrees_with_pythons_own_matcher(pattern, text):
    ours = Pattern(pattern)
    assert ours.fullmatch(text) == (re.fullmatch(pattern, text) is not None)
    assert ours.search(text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    "pattern",
    ["(.|.)*X", ".*" * 60 + "X", "(a+)+b", "(a|a)*b", "(a?){60}a{60}b", "((a*)*)*b", r"(\w+\s?)+!", "(x+x+)+y"],
)
def test_patterns_that_have_more_ways_than_time_end(pattern):
    assert not Pattern(pattern).fullmatch("a" * 3000)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)a", "(?<!a)b", r"(a)\1", "(?i)a", "(?i:a)", "(?>a)", "a*+", "(?(1)a|b)", "a{1000}{1000}", "(", "a" * 9999],
)
def test_what_goes_beyond_it_is_refused(pattern):
    with pytest.raises(PatternError):
        Pattern(pattern).fullmatch("a")
