"""The pre-commit hooks, the GitHub action and the GitLab template, each run as its service would run it."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from effort import EXHAUSTIVE
from packages import BEING_WRITTEN, CONSTRAINED, ROOT, call, missing
from yaml_file import read_yaml

BAD = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 8\nfp16: true\noutput_dir: out\n"
BROKEN = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 8\noutput_dir: 'out\n"
FOREIGN = "services: {web: {image: nginx}}\n"
PRE_COMMIT = (sys.executable, "-m", "pre_commit")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a config that is wrong and files that are no configs."""
    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "train.yaml").write_text(BAD, "utf-8")
    (folder / "compose.yaml").write_text(FOREIGN, "utf-8")
    (folder / "chart.yaml").write_text("name: {{ .Values.name }}\n", "utf-8")
    (folder / "package.json").write_text("{}\n", "utf-8")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=kb", "-c", "user.email=kb@example.org", "-c", "commit.gpgsign=false"]
    return call(["git", *identity, *arguments], folder)


@pytest.mark.exhaustive
def test_the_pre_commit_hooks_find_and_fix(project: Path, sdist_source: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("pre_commit") is None:
        missing("pre-commit is not installed: make test installs it")
    hooks = tmp_path / "hooks"
    shutil.copytree(sdist_source, hooks, ignore=BEING_WRITTEN)
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    git(hooks, "init", "-q")
    git(hooks, "add", "--force", ".")
    git(hooks, "commit", "-qm", "kb")
    revision = git(hooks, "rev-parse", "HEAD").strip()
    arguments = ["--gpu", "rtx-3090", "--lang", "en"]
    listed = [{"id": name, "args": arguments} for name in ("kb-check", "kb-fix")]
    config = {"repos": [{"repo": str(hooks), "rev": revision, "hooks": listed}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), "utf-8")
    git(project, "add", ".")
    environment = {**CONSTRAINED, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "GIT_CONFIG_NOSYSTEM": "1"}
    said = call([*PRE_COMMIT, "run", "--all-files", "--verbose", "kb-check"], project, codes=(1,), env=environment)
    assert "configs/train.yaml:3:7: error t5-fp16-overflow" in said
    assert "compose.yaml" not in said and "chart.yaml" not in said
    said = call([*PRE_COMMIT, "run", "--all-files", "kb-fix"], project, codes=(1,), env=environment)
    assert "files were modified by this hook" in said
    assert "fp16: false" in (project / "configs" / "train.yaml").read_text("utf-8")
    call([*PRE_COMMIT, "run", "--all-files"], project, env=environment)
    (project / "configs" / "broken.yaml").write_text(BROKEN, "utf-8")
    git(project, "add", ".")
    for hook in ("kb-check", "kb-fix"):
        said = call([*PRE_COMMIT, "run", "--all-files", hook], project, codes=(1,), env=environment)
        assert "configs/broken.yaml:3:13" in said and "exit code: 2" in said


GH = """\
#!/bin/sh
# Stands in for the GitHub CLI: writes down what it was asked.
for word in "$@"; do
  echo "$word" >> "$GH_LOG"
  case "$word" in body=@*) cp "${word#body=@}" "$GH_LOG.body";; esac
done
case "$*" in *--paginate*) cat "$GH_COMMENTS";; esac
"""


class Runner:
    """What of the Actions runner a composite action needs: contexts, expressions, outputs, the steps in order."""

    def __init__(self, folder: Path, project: Path, inputs: Mapping[str, str], event: Mapping[str, Any]) -> None:
        self.action = read_yaml(ROOT / "action.yml")
        given = {name: str(spec.get("default", "")) for name, spec in self.action["inputs"].items()}
        assert set(inputs) <= set(given)
        github = {"action_path": str(ROOT), "token": "t", "repository": "me/project", **event}
        self.contexts: dict[str, Any] = {"inputs": {**given, **inputs}, "github": github, "steps": {}}
        self.project, self.temp = project, folder
        folder.mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "gh").write_text(GH)
        (folder / "bin" / "gh").chmod(0o755)
        (folder / "comments").write_text("")
        self.uses: list[tuple[str, dict[str, str]]] = []

    def value(self, expression: str) -> str:
        """An expression of names, strings, ``==``, ``!=``, ``&&`` and ``||``."""
        for joint, whole in (("||", any), ("&&", all)):
            parts = [part.strip() for part in expression.split(joint)]
            if len(parts) > 1:
                values = [self.value(part) for part in parts]
                wanted = [value for value in values if bool(value) == (whole is any)]
                return wanted[0] if wanted else values[-1]
        if compared := re.fullmatch(r"(.+?)\s*(==|!=)\s*(.+)", expression):
            return "true" if (self.value(compared[1]) == self.value(compared[3])) == (compared[2] == "==") else ""
        if expression.startswith("'"):
            return expression.strip("'")
        found: Any = self.contexts
        for name in expression.split("."):
            found = found.get(name, "") if isinstance(found, dict) else ""
        return str(found)

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", lambda match: self.value(match[1]), text)

    def use(self, bin_folder: Path) -> None:
        """An environment that holds kb, in the place of the one that the first step would make."""
        (self.temp / "kb").symlink_to(bin_folder.parent, target_is_directory=True)

    def run(self) -> int:
        for step in self.action["runs"]["steps"]:
            if step.get("name") == "Install kb" and (self.temp / "kb").exists():
                continue
            if "if" in step and not self.value(" ".join(step["if"].split())):
                continue
            if "uses" in step:
                self.uses.append((step["uses"], {name: self.filled(text) for name, text in step["with"].items()}))
                continue
            if code := self.step(step):
                return code
        return 0

    def step(self, step: Mapping[str, Any]) -> int:
        outputs = self.temp / "outputs"
        outputs.write_text("")
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
            **CONSTRAINED,
            **{name: self.filled(text) for name, text in step.get("env", {}).items()},
            "PATH": f"{self.temp / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary"),
            "GH_LOG": str(self.temp / "gh"), "GH_COMMENTS": str(self.temp / "comments"),
        }  # fmt: skip
        assert step["shell"] == "bash"
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=self.project, env=environment, capture_output=True, text=True, timeout=300,
                              check=False)  # fmt: skip
        self.said = done.stdout + done.stderr
        (self.temp / "log").open("a").write(self.said)
        lines = [line.partition("=") for line in outputs.read_text().splitlines()]
        self.contexts["steps"][step.get("id", "")] = {"outputs": {name: value for name, _, value in lines}}
        return done.returncode


def pull_request(fork: bool = False) -> dict[str, Any]:
    whose = "someone/project" if fork else "me/project"
    return {
        "event_name": "pull_request",
        "event": {"pull_request": {"number": 7, "head": {"repo": {"full_name": whose}}}},
    }


def test_the_action_annotates_uploads_comments_and_fails(
    project: Path, wheel: Path, installed: Path, tmp_path: Path
) -> None:
    """Its first step, which installs kb as `installed` does, runs with --exhaustive."""
    runner = Runner(tmp_path / "runner", project, {"package": str(wheel), "gpu": "rtx-3090"}, pull_request())
    if not EXHAUSTIVE:
        runner.use(installed)
    assert runner.run() == 1
    log = (runner.temp / "log").read_text()
    assert "::error file=configs/train.yaml,line=3," in log
    ((uses, arguments),) = runner.uses
    assert uses.startswith("github/codeql-action/upload-sarif@")
    sarif = json.loads(Path(arguments["sarif_file"]).read_text("utf-8"))
    assert "t5-fp16-overflow" in {result["ruleId"] for result in sarif["runs"][0]["results"]}
    body = (runner.temp / "gh.body").read_text("utf-8")
    assert body.startswith("<!-- kb-check -->") and "RTX 3090" in body
    assert "POST" in (runner.temp / "gh").read_text().split()
    assert body == (runner.temp / "summary").read_text("utf-8")


@pytest.mark.exhaustive
def test_the_action_renews_its_comment_and_passes_where_all_is_well(
    project: Path, installed: Path, tmp_path: Path
) -> None:
    (project / "configs" / "train.yaml").write_text(BAD.replace("fp16", "bf16"), "utf-8")
    inputs = {
        "gpu": "rtx-3090",
        "lang": "ko",
        "sarif": "false",
        "paths": "configs\ncompose.yaml",
    }
    runner = Runner(tmp_path / "runner", project, inputs, pull_request())
    runner.use(installed)
    (runner.temp / "comments").write_text("4711\n")
    assert runner.run() == 0
    words = (runner.temp / "gh").read_text().split()
    assert "PATCH" in words and "repos/me/project/issues/comments/4711" in words
    assert not runner.uses


def test_the_action_writes_nothing_to_a_pull_request_from_a_fork(
    project: Path, installed: Path, tmp_path: Path
) -> None:
    inputs = {"fail-on": "never", "args": "--select precision"}
    runner = Runner(tmp_path / "runner", project, inputs, pull_request(fork=True))
    runner.use(installed)
    assert runner.run() == 0
    assert not (runner.temp / "gh").exists()
    assert "t5-fp16-overflow" in (runner.temp / "summary").read_text("utf-8")


def test_the_action_says_what_cannot_be_used_and_ends_with_two(project: Path, installed: Path, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "runner", project, {"gpu": "rtx4909"}, pull_request())
    runner.use(installed)
    assert runner.run() == 2
    assert "4090" in (runner.temp / "log").read_text()
    assert not (runner.temp / "gh").exists() and not runner.uses


def test_the_action_does_not_pass_a_config_that_cannot_be_read(project: Path, installed: Path, tmp_path: Path) -> None:
    (project / "configs" / "train.yaml").write_text(BROKEN, "utf-8")
    runner = Runner(tmp_path / "runner", project, {"gpu": "rtx-3090"}, pull_request())
    runner.use(installed)
    assert runner.run() == 2
    assert "::error file=configs/train.yaml,line=3," in (runner.temp / "log").read_text()
    ((_, arguments),) = runner.uses
    (run,) = json.loads(Path(arguments["sarif_file"]).read_text("utf-8"))["runs"]
    assert not run["invocations"][0]["executionSuccessful"]
    assert "configs/train.yaml" in (runner.temp / "gh.body").read_text("utf-8")


def run_in_gitlab(project: Path, kb: Path, code: int) -> list[Path]:
    """The template's job, which has to end with this code; its two reports.

    Args:
        kb: the wheel that the job installs, or the ``bin`` of an environment that stands where the job would make one.
    """
    document = read_yaml(ROOT / "ci" / "kb.gitlab-ci.yml")
    job = document["kb-check"]
    variables = {
        **document["variables"],
        "KB_PACKAGE": str(kb),
        "KB_GPU": "rtx-3090",
        "KB_PATHS": "configs compose.yaml",
    }
    lines = job["script"]
    if kb.is_dir():
        assert all(".kb-venv" in line for line in lines[:2])
        (project / ".kb-venv").symlink_to(kb.parent, target_is_directory=True)
        lines = lines[2:]
    call(
        ["bash", "-eo", "pipefail", "-c", "\n".join(lines)],
        project,
        codes=(code,),
        env={**CONSTRAINED, **variables},
    )
    return [project / job["artifacts"]["reports"][kind] for kind in ("codequality", "junit")]


@pytest.mark.exhaustive
def test_the_gitlab_template_reports_and_fails(project: Path, wheel: Path) -> None:
    quality, junit = run_in_gitlab(project, wheel, code=1)
    assert "t5-fp16-overflow" in {entry["check_name"] for entry in json.loads(quality.read_text("utf-8"))}
    assert ET.parse(junit).getroot().get("failures") == "1"


@pytest.mark.exhaustive
def test_the_gitlab_template_does_not_pass_a_config_that_cannot_be_read(project: Path, installed: Path) -> None:
    (project / "configs" / "train.yaml").write_text(BROKEN, "utf-8")
    quality, junit = run_in_gitlab(project, installed, code=2)
    (entry,) = json.loads(quality.read_text("utf-8"))
    assert entry["location"] == {"path": "configs/train.yaml", "lines": {"begin": 3}}
    assert ET.parse(junit).getroot().get("errors") == "1"
