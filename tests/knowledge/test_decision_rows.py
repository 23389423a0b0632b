"""Decision trees: whole, unambiguous, every leaf reachable, the notes' figures, and no answer guessed."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from catalog_sample import load_guide
from kb.advice.fit.decision import Values, nominal_gb, walk
from kb.core.expression import Tree, compile_tree, fact_names
from kb.core.text import placeholders_in

DECISIONS: dict[str, Any] = dict(load_guide()["decisions"])
TREES = [(name, tree["id"]) for name, row in DECISIONS.items() for tree in row["trees"]]
ANSWERED = {"gpu_memory_gb": 24, "concurrent": False, "solar_api": False, "max_new_tokens": 120}


def tree_of(decision: dict[str, Any], tree: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in decision["trees"] if row["id"] == tree)
    return found


def conditions(decision: dict[str, Any]) -> list[Tree]:
    edges = [edge for tree in decision["trees"] for node in tree["nodes"].values() for edge in node["edges"]]
    flags = [flag for leaf in decision["leaves"].values() for flag in leaf.get("flags", ())]
    return [row["when_tree"] for row in (*edges, *flags)]


def numbers(tree: Tree) -> Iterator[float]:
    """Every number that a condition names."""
    for part in tree[1:]:
        if isinstance(part, list):
            yield from numbers(part)
        elif tree[0] == "lit" and isinstance(part, int | float) and not isinstance(part, bool):
            yield part


def assignments(decision: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of both sides of every bound that the conditions name, and of the variables' own ends."""
    domains: list[list[Any]] = []
    for name, row in decision["variables"].items():
        if row["type"] == "bool":
            domains.append([False, True])
            continue
        bounds = {value for tree in conditions(decision) if name in fact_names(tree) for value in numbers(tree)}
        step = 1 if row["type"] == "integer" else 0.25
        near = {bound + by for bound in bounds for by in (-step, 0, step)} | {row["low"], row["high"]}
        domains.append(sorted(value for value in near if row["low"] <= value <= row["high"]))
    for values in product(*domains):
        yield dict(zip(decision["variables"], values, strict=True))


@pytest.mark.parametrize(("name", "tree"), TREES)
def test_exactly_one_edge_of_a_node_is_true(name: str, tree: str) -> None:
    decision = DECISIONS[name]
    nodes = tree_of(decision, tree)["nodes"]
    evaluators = {node: [compile_tree(edge["when_tree"]) for edge in row["edges"]] for node, row in nodes.items()}
    for values in assignments(decision):
        lookup = Values(decision, values)
        for node, edges in evaluators.items():
            assert sum(edge(lookup) is True for edge in edges) == 1, f"{node} with {values}"


@pytest.mark.parametrize("name", DECISIONS)
def test_every_leaf_is_reached(name: str) -> None:
    decision = DECISIONS[name]
    reached = set()
    for tree in decision["trees"]:
        for values in assignments(decision):
            found = walk(decision, values, tree["id"])
            assert found.leaf is not None, f"{tree['id']} with {values} needs {found.needs}"
            reached.add(found.leaf.id)
        reached.add(tree.get("unknown"))
    assert decision["leaves"].keys() <= reached


@pytest.mark.parametrize(("name", "tree"), TREES)
def test_edges_lead_down_to_what_exists(name: str, tree: str) -> None:
    decision, row = DECISIONS[name], tree_of(DECISIONS[name], tree)
    assert not decision["leaves"].keys() & row["nodes"].keys()
    reached: set[str] = set()

    def follow(place: str, above: tuple[str, ...]) -> None:
        assert place not in above, f"{place} leads back to itself"
        reached.add(place)
        if place not in decision["leaves"]:
            for edge in row["nodes"][place]["edges"]:
                follow(edge["to"], (*above, place))

    follow(row["start"], ())
    assert row["nodes"].keys() <= reached
    assert row.get("unknown") is None or row["unknown"] in decision["leaves"]


@pytest.mark.parametrize("name", DECISIONS)
def test_every_number_that_a_text_names_is_known(name: str) -> None:
    decision = DECISIONS[name]
    known = decision["variables"].keys() | decision.get("measured_on", {}).keys()
    for leaf in decision["leaves"].values():
        for text in (leaf["why"], *(flag["text"] for flag in leaf.get("flags", ()))):
            assert {name for name, _, _ in placeholders_in(text["ko"] + text["en"])} <= known
    for row in (*decision["scenarios"], *(use for option in decision["options"] for use in option["uses"])):
        text = row.get("why", row.get("text"))
        assert {name for name, _, _ in placeholders_in(text["ko"] + text["en"])} <= row.get("figures", {}).keys()


@pytest.mark.parametrize(
    ("values", "leaf", "batch"),
    [
        ({"solar_api": True}, "api-bound", 16),
        ({"concurrent": True}, "shared-gpu", 8),
        ({}, "long-output", 16),
        ({"max_new_tokens": 80}, "short-output", 32),
        ({"gpu_memory_gb": 12}, "small-gpu", 8),
        ({"gpu_memory_gb": 8}, "small-gpu", 4),
        ({"gpu_memory_gb": 16}, "ordinary", 16),
        ({"gpu_memory_gb": 80, "max_new_tokens": 64}, "short-output", 32),
    ],
)
def test_system_s11_inference_batch(values: dict[str, Any], leaf: str, batch: int) -> None:
    found = walk(DECISIONS["inference-batch"], ANSWERED | values).leaf
    assert found is not None
    assert (found.id, found.value) == (leaf, batch)


def test_system_s11_short_outputs_come_with_caution() -> None:
    found = walk(DECISIONS["inference-batch"], ANSWERED | {"max_new_tokens": 80}).leaf
    assert found is not None and found.caution and found.use == 32 and not found.flags


@pytest.mark.parametrize("tree", ["to-use", "as-noted"])
def test_system_s11_90_tokens_are_32_by_the_tree_and_flagged(tree: str) -> None:
    found = walk(DECISIONS["inference-batch"], ANSWERED | {"max_new_tokens": 90}, tree).leaf
    assert found is not None
    assert (found.value, found.use) == (32, 16)
    assert [(flag.id, flag.lines) for flag in found.flags] == [("over-80-tokens", "130")]


def test_system_s11_a_small_gpu_is_asked_about_before_the_api() -> None:
    values = ANSWERED | {"gpu_memory_gb": 12, "solar_api": True}
    found = walk(DECISIONS["inference-batch"], values).leaf
    assert found is not None
    assert (found.low, found.high) == (4, 8) and found.low <= (found.use or 0) <= found.high
    noted = walk(DECISIONS["inference-batch"], values, "as-noted").leaf
    assert noted is not None
    assert (noted.value, noted.use) == (16, 8)
    assert "small-card" in [flag.id for flag in noted.flags]


def test_the_note_lets_an_api_run_share_the_gpu_and_the_tree_to_use_does_not() -> None:
    values = ANSWERED | {"solar_api": True, "concurrent": True}
    used, noted = (walk(DECISIONS["inference-batch"], values, tree).leaf for tree in ("to-use", "as-noted"))
    assert used is not None and noted is not None
    assert (used.value, noted.value, noted.use) == (8, 16, 8)


def test_the_path_holds_each_question_with_its_answer() -> None:
    path = walk(DECISIONS["inference-batch"], ANSWERED).path
    assert [step.node for step in path] == ["gpu-size", "sharing", "api", "length"]
    assert [step.answer.en for step in path] == ["24 GB or more", "no", "no", "yes"]
    assert all(step.question.ko and step.question.en for step in path)


def test_a_missing_answer_is_named_and_not_guessed() -> None:
    decision = DECISIONS["inference-batch"]
    nothing = walk(decision, {})
    assert nothing.leaf is None and nothing.path == () and nothing.needs == ("gpu_memory_gb",)
    assert nothing.fallback is not None and nothing.fallback.value == 16
    halfway = walk(decision, {"gpu_memory_gb": 24, "concurrent": False})
    assert halfway.leaf is None and halfway.needs == ("solar_api",)
    assert [step.node for step in halfway.path] == ["gpu-size", "sharing"]


@pytest.mark.parametrize("wrong", ["24", True, float("nan"), -1, 0, 10**9])
def test_an_answer_that_cannot_be_is_missing(wrong: Any) -> None:
    assert walk(DECISIONS["inference-batch"], ANSWERED | {"gpu_memory_gb": wrong}).needs == ("gpu_memory_gb",)


def test_an_answer_that_changes_nothing_is_not_asked_for() -> None:
    decision = {
        "id": "same-either-way",
        "variables": {"a": {"type": "bool"}, "b": {"type": "bool"}},
        "leaves": {"end": {"title": TEXT, "why": TEXT, "value": 1, "status": "computed"}},
        "trees": [
            {
                "id": "only",
                "start": "first",
                "nodes": {"first": both_ways("a", "second", "end"), "second": both_ways("b", "end", "end")},
            }
        ],
    }
    found = walk(decision, {})
    assert found.leaf is not None and found.leaf.id == "end" and found.needs == ()


def test_a_flag_whose_variable_is_missing_says_so() -> None:
    found = walk(DECISIONS["inference-batch"], {"gpu_memory_gb": 24, "concurrent": True}).leaf
    assert found is not None
    assert found.needs == ("max_new_tokens",)


def test_more_beams_lower_the_batch_in_proportion() -> None:
    found = walk(DECISIONS["inference-batch"], ANSWERED | {"num_beams": 10}).leaf
    assert found is not None
    assert (found.value, found.use) == (16, 8)


@pytest.mark.parametrize(
    ("mib", "sold"), [(24_268, 24), (24_576, 24), (12_288, 12), (11_264, 11), (16_160, 16), (81_559, 80)]
)
def test_memory_as_drivers_report_it_is_memory_as_sold(mib: int, sold: int) -> None:
    assert nominal_gb(mib * 2**20) == sold


TEXT = {"ko": "글", "en": "text"}


def both_ways(name: str, yes: str, no: str) -> dict[str, Any]:
    edges = [
        {"when_tree": ["fact", name], "answer": TEXT, "to": yes},
        {"when_tree": ["not", ["fact", name]], "answer": TEXT, "to": no},
    ]
    return {"question": TEXT, "edges": edges}
