"""What runs in CI and when a release is published: pinned, with no more rights than it needs."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


REQUIREMENTS = ROOT / "ci" / "requirements"
# Where something is installed for what is published, or in somebody's CI. `.ci/run` installs tests, by constraints.txt.
INSTALLING = [
    *WORKFLOWS,
    ROOT / "action.yml",
    ROOT / "Dockerfile",
    ROOT / "ci" / "kb.gitlab-ci.yml",
    ROOT / ".ci" / "try",
]
INSTALL = re.compile(r"(?:\bpip (?:install|wheel|download)\b|^\s*install |; then install )(.*)")
# The files of hashes; else what lies there already, with nothing of an index; else what the caller names.
BY_HASH = re.compile(r"--require-hashes(?: --requirement \S*/(?:run|build)\.txt\"?)+$")
LYING_THERE = re.compile(r"--no-deps\b.*(?: \.| /source| /wheels/\*\.whl| \"\$KB_SOURCE\")$")
NAMED = re.compile(r'^(?:--\S+ )*"\$(?:KB_PACKAGE|\{KB_PACKAGE:.*\})"')


def unpinned(text: str) -> list[str]:
    """What is installed there of which neither hash nor place is said."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#") and '"$@"' not in line]
    said = [what.strip() for line in lines for what in INSTALL.findall(line)]
    return [what for what in said if not any(form.search(what) for form in (BY_HASH, LYING_THERE, NAMED))]


@pytest.mark.parametrize("path", INSTALLING, ids=lambda path: path.name)
def test_what_is_installed_is_known_by_its_hash(path: Path) -> None:
    assert unpinned(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "- run: pip install twine",
        "RUN python -m pip wheel --no-deps --wheel-dir /wheels twine",
        "RUN pip install --constraint constraints.txt /wheels/kb.whl",
        "- run: python -m pip install --require-hashes --requirement ci/requirements/run.txt twine",
        "  install --upgrade pip",
    ],
)
def test_what_is_not_pinned_is_found(line: str) -> None:
    assert len(unpinned(line)) == 1


def images(path: Path) -> Iterator[str]:
    yield from re.findall(r"^(?:FROM|\s*image:|\s*container:)\s+(\S+)", path.read_text("utf-8"), re.M)


def test_an_image_is_named_by_its_digest() -> None:
    found = [image for path in INSTALLING for image in images(path)]
    assert len(found) >= 3
    assert [image for image in found if not re.search(r"@sha256:[0-9a-f]{64}\Z", image)] == []


def locked(name: str) -> dict[str, str]:
    """The packages of a file of hashes with their versions; each has at least one hash."""
    entries = re.split(r"^(?=[A-Za-z0-9])", (REQUIREMENTS / f"{name}.txt").read_text("utf-8"), flags=re.M)[1:]
    found = {}
    for entry in entries:
        package, version = re.match(r"([\w.-]+)==([\w.]+)", entry).groups()  # type: ignore[union-attr]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), package
        found[canonicalize_name(package)] = version
    return found


def test_the_files_of_hashes_hold_what_is_needed_in_the_versions_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    needed = {
        "run": project["project"]["dependencies"],
        "build": [
            *project["build-system"]["requires"],
            *tomllib.loads((ROOT / "packages/gpu-memory-kb-rules/pyproject.toml").read_text("utf-8"))["build-system"][
                "requires"
            ],
        ],
        "sbom": ["cyclonedx-bom"],
    }
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").split() if "==" in line)
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    for name, wanted in needed.items():
        found = locked(name)
        for requirement in map(Requirement, wanted):
            assert found[canonicalize_name(requirement.name)] in requirement.specifier, f"{name}.txt: make constraints"
        assert {package: version for package, version in found.items() if tested.get(package, version) != version} == {}


def test_what_tests_need_is_not_installed_where_a_release_is_built() -> None:
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            run = "\n".join(step.get("run", "") for step in job["steps"])
            assert not (".ci/run" in run and "make dist" in run), f"{path.name}: {name}"
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.findall(r"^dist(?:-rules)?: (\$.*)", makefile, re.M) == ["$(BUILD)/.installed"] * 2


def test_a_release_has_a_bill_of_materials_and_a_provenance() -> None:
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    assert any("sbom" in step.get("run", "") and "make dist" in step["run"] for step in jobs["build"]["steps"])
    for name in ("release.yml", "release-rules.yml"):
        job = read(ROOT / ".github/workflows" / name)["jobs"]["publish"]
        uses = [step.get("uses", "").partition("@")[0] for step in job["steps"]]
        assert uses.index("actions/attest-build-provenance") < uses.index("pypa/gh-action-pypi-publish")
        assert job["permissions"] == {"id-token": "write", "attestations": "write"}
