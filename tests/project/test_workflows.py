"""What runs in CI and when a release is published: pinned, with no more rights than it needs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}\Z")
USES = re.compile(r"^\s*(?:- )?uses:\s*(\S+)(.*)$", re.M)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_an_action_is_named_by_its_commit_with_its_release_beside(path: Path) -> None:
    for named, rest in USES.findall(path.read_text("utf-8")):
        if named.startswith("./"):
            continue
        assert PINNED.match(named), f"{path.name}: {named}"
        assert re.match(r"\s+# v\d+\.\d+\.\d+\Z", rest), f"{path.name}: {named}: which release is it?"


def test_one_action_is_one_commit_everywhere() -> None:
    commits: dict[str, set[str]] = {}
    for path in [*WORKFLOWS, ROOT / "action.yml"]:
        for named, _ in USES.findall(path.read_text("utf-8")):
            name, _, commit = named.partition("@")
            commits.setdefault(name, set()).add(commit)
    assert {name: found for name, found in commits.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_nothing_may_write_that_a_job_does_not_ask_for(path: Path) -> None:
    workflow = read(path)
    top = workflow["permissions"]  # without it a token may do all that the repository's settings allow
    assert top in ({}, {"contents": "read"}), path.name
    for name, job in workflow["jobs"].items():
        rights = job.get("permissions", top)
        assert isinstance(rights, dict), f"{path.name}: {name}"  # never write-all
        checks_out = any(step.get("uses", "").startswith("actions/checkout@") for step in job["steps"])
        writes = {right for right, how in rights.items() if how == "write"}
        assert not (checks_out and writes), f"{path.name}: {name} runs the checkout's code and may write {writes}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_checkout_keeps_no_token(path: Path) -> None:
    for name, job in read(path)["jobs"].items():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step.get("with", {}).get("persist-credentials") is False, f"{path.name}: {name}"
