"""Every fault that was seen in a run or in the libraries' source is a rule, or a rule that says the same is named."""

from pathlib import Path

from catalog_sample import load_catalog
from yaml_file import read_yaml

DATA = Path(__file__).parents[1] / "data"
CANDIDATES: list[str] = read_yaml(DATA / "candidate_rules.yaml")
HOMES: dict[str, str | list[str]] = read_yaml(DATA / "candidate_homes.yaml")
RULES = load_catalog().rules


def test_there_are_179_candidates_each_once() -> None:
    assert len(CANDIDATES) == len(set(CANDIDATES)) == 179


def home_of(name: str) -> set[str]:
    """The rules that say what the candidate says: itself, or those that its home names."""
    home = HOMES.get(name, name)
    return {home} if isinstance(home, str) else set(home)


def test_candidates_are_rules_or_have_a_home() -> None:
    """Where one has none, tests/data/candidate_homes.yaml may name another rule."""
    missing = {name: home_of(name) - RULES.keys() for name in CANDIDATES}
    assert {name: rules for name, rules in missing.items() if rules} == {}


def test_homes_are_for_candidates_that_are_no_rules_themselves() -> None:
    assert HOMES.keys() <= set(CANDIDATES)
    assert not HOMES.keys() & RULES.keys()
