"""Whatever the config and the machine: a second run of the fixes changes nothing."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from catalog_sample import load_catalog
from effort import examples
from kb.advice.question import Question
from kb.core.text import UserError
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.rule_examples import KINDS, ExampleRunner
from kb.session.run import FileResult, Kind, kind_of
from kb.session.settling import Settling

pytestmark = pytest.mark.long

CATALOG = load_catalog(whole=True)
RUNNER = ExampleRunner(CATALOG)
SHIPPED = sorted(
    path for path in (Path(__file__).parents[2] / "examples").iterdir() if path.suffix in (".yaml", ".json", ".sh")
)
MACHINES: list[dict[str, str]] = [
    {"gpu": "rtx-3090", "host_memory": "60GB", "cpus": "8"},
    {"gpu": "t4", "host_memory": "16GB", "cpus": "4"},
    {"gpu": "a100-80gb", "host_memory": "200GB", "cpus": "32"},
]
EXAMPLES = [
    (rule.id, number)
    for rule in CATALOG.rules.values()
    for number, each in enumerate(rule.examples)
    if each["expect"] == "fires"
]


def assert_rests(settling: Settling, file: FileResult, kind: Kind) -> None:
    once = settling.settle(file, kind)
    again = settling.settle(once.after, kind)
    assert again.after.text == once.after.text
    assert not again.applied


# Each on one of the machines by turns; on the others too with --exhaustive.
@pytest.mark.parametrize(
    ("path", "machine"),
    [
        pytest.param(
            path,
            machine,
            id=f"{path.name} {machine['gpu']}",
            marks=[pytest.mark.exhaustive] if (number - other) % len(MACHINES) or number % 3 != 1 else [],
        )
        for number, path in enumerate(SHIPPED)
        for other, machine in enumerate(MACHINES)
    ],
)
def test_the_shipped_examples_rest_after_one_run(path: Path, machine: Mapping[str, str]) -> None:
    checker = file_checker(CATALOG, Project(), Question.of(**machine, versions={"transformers": "4.57"}))
    for unsafe in (False, True):
        kind = kind_of(str(path))
        assert_rests(Settling(checker, unsafe=unsafe), checker.check(path.read_bytes(), str(path), kind), kind)


@pytest.mark.exhaustive
@settings(max_examples=examples(2, 60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(EXAMPLES), st.sampled_from(MACHINES), st.booleans())
@example(("foreach-optimizer-buffers", 0), MACHINES[0], True)  # each of these once went on in a second run
@example(("seq2seq-multi-gpu-inflates-loss", 0), MACHINES[0], True)
@example(("lora-base-loaded-in-fp32", 0), MACHINES[1], True)
@example(("suppression-expired", 1), MACHINES[1], True)
def test_a_rules_example_rests_after_one_run(chosen: tuple[str, int], machine: Mapping[str, str], unsafe: bool) -> None:
    written: Mapping[str, Any] = CATALOG.rules[chosen[0]].examples[chosen[1]]
    kind = KINDS.get(written.get("dialect", ""), "config")
    raw = base64.b64decode(written["config"]) if written.get("base64") else written["config"].encode()
    names = {"command": "--command", "shell": "run.sh", "python": "train.py"}
    name = names.get(kind, "a.json" if raw[:1] == b"{" else "a.yaml")
    try:
        checker = RUNNER.checker({**machine, **written})
        file = checker.check(raw, name, kind)
    except UserError:
        return
    assert_rests(Settling(checker, unsafe=unsafe), file, kind)
