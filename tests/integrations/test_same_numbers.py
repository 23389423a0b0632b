"""The same config on the same machine has the same numbers wherever they are asked for."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kb
from catalog_sample import CATALOG
from command_runs import run_kb as command
from effort import few
from kb.core.result import UnitResult
from kb.integrations import browser
from kb.integrations.editor.session import Session
from kb.report.json_parts import prediction_object
from trainer_runs import PACKAGES

VERSIONS = {"transformers": "5.23.0", "torch": "2.13.0"}
# As the Trainer's arguments have them. The batch is too large for the GPU, and the workers for the host.
SETTINGS = {
    "model_name_or_path": "google-t5/t5-base",
    "output_dir": "out",
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 4,
    "max_source_length": 512,
    "max_target_length": 128,
    "learning_rate": 3e-4,
    "optim": "adamw_torch",
    "fp16": True,
    "attn_implementation": "eager",
    "dtype": "float32",
    "dataloader_num_workers": 64,
    "gradient_checkpointing": False,
    "do_train": True,
}
TEXT = "".join(f"{name}: {json.dumps(value)}\n" for name, value in SETTINGS.items())
RUN = """\
general:
  model_name: google-t5/t5-base
training:
  per_device_train_batch_size: 4
  dataloader_num_workers: 64
"""
BOX = ("--gpu", "rtx-3090", "--cpus", "16", "--host-memory")

Numbers = tuple[set[tuple[str, str, int]], Mapping[str, Any] | None]


# where not even the process alone stays within the share to use; where one worker does; where the cores decide
@pytest.mark.exhaustive
@pytest.mark.parametrize("memory", few(["4GB", "9GB", "60GB"]))
def test_the_workers_that_a_fix_writes_are_those_recommended_and_planned(memory: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    box = (*BOX, memory)
    recommended = json.loads(command("--model", "t5-base", *box, "--format", "json", module="kb.recommend").stdout)
    workers = recommended["config"]["training.dataloader_num_workers"]
    planned = json.loads(command(path, *box, "--format", "json", module="kb.plan").stdout)["plans"][0]
    assert planned["host"]["steps"][-1]["set"]["training.dataloader_num_workers"]["after"] == workers
    command(path, *box, "--fix", module="kb.check")
    assert f"dataloader_num_workers: {workers}\n" in path.read_text()


def of_object(unit: Mapping[str, Any]) -> Numbers:
    """What a JSON report says of a run."""
    return {(row["rule"], row["severity"], row["line"]) for row in unit["findings"]}, unit["prediction"]


def of_result(unit: UnitResult) -> Numbers:
    found = {(each.rule, each.severity, each.span.line) for each in unit.findings}
    assert unit.prediction is not None
    return found, json.loads(json.dumps(prediction_object(unit.prediction)))


SAID: dict[tuple[str, int | None], Numbers] = {}  # by the command line, which each face is held against


def by_command(path: Path, memory: str, count: int | None) -> Numbers:
    counted = () if count is None else ("--gpus", count)
    run = command(path, *BOX, memory, *counted, "--format", "json", "--notes", module="kb.check")
    return of_object(json.loads(run.stdout)["files"][0])


def by_lint(path: Path, memory: str, count: int | None) -> Numbers:
    machine = kb.machine_of("rtx-3090", gpus=count, host_memory=memory, cpus=16)
    return of_result(kb.lint(path, machine).units[0])


def by_named_lint(path: Path, memory: str, count: int | None) -> Numbers:
    machine = {"gpu": "rtx-3090", "gpus": count, "host_memory": memory, "cpus": 16}
    return of_result(kb.lint(path, machine).units[0])


def by_trainer(path: Path, memory: str, count: int | None) -> Numbers:
    if any(importlib.util.find_spec(package) is None for package in PACKAGES):
        pytest.skip("the callback needs torch and transformers")
    from kb.integrations.trainer.forecast import Forecast, Knowledge
    from kb.integrations.trainer.live import LiveRun

    machine = kb.machine_of("rtx-3090", gpus=count, host_memory=memory, cpus=16)
    run = LiveRun(SETTINGS, {}, CATALOG.models["t5-base"], 0, world_size=count or 1)
    assert run.text() == TEXT.replace('"', "")
    device = SimpleNamespace(type="cuda", index=0)
    return of_result(Forecast(run, Knowledge("en"), device=device, machine=machine).result)


def by_editor(path: Path, memory: str, count: int | None) -> Numbers:
    session = Session("en", {"gpu": "rtx-3090", "gpus": count, "hostMemory": memory, "cpus": 16})
    (unit,) = session.check(path.read_text(), str(path)).units()
    return of_result(unit)


def by_browser(path: Path, memory: str, count: int | None) -> Numbers:
    versions = " ".join(f"{library}=={version}" for library, version in VERSIONS.items())
    asked = {"gpu": "rtx-3090", "gpus": count, "host_memory": memory, "cpus": "16", "versions": versions}
    report = json.loads(browser.check(path.read_text(), json.dumps(asked), "en"), object_hook=_without_title)["report"]
    return of_object(report["files"][0])


def _without_title(row: dict[str, Any]) -> dict[str, Any]:
    """The page's reports name each term for the reader too."""
    return {name: value for name, value in row.items() if name != "title"}


@pytest.mark.parametrize("face", [by_lint, by_named_lint, by_trainer, by_editor, by_browser])
@pytest.mark.parametrize(("count", "memory"), few([(None, "60GB"), (1, "60GB"), (2, "60GB"), (2, "251GB")], 2))
def test_every_face_says_what_the_command_line_does(
    face: Callable[[Path, str, int | None], Numbers],
    memory: str,
    count: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if face is by_trainer and count is None:
        pytest.skip("a run that has started knows on how many GPUs it is")
    path = tmp_path / "run.yaml"
    path.write_text(TEXT.replace('"', ""))
    named = "".join(f'{library} = "{version}"\n' for library, version in VERSIONS.items())
    (tmp_path / "kb.toml").write_text(f"[versions]\n{named}")
    monkeypatch.chdir(tmp_path)
    if (memory, count) not in SAID:
        SAID[memory, count] = by_command(path, memory, count)
    said = SAID[memory, count]
    assert {rule for rule, *_ in said[0]} >= {"more-workers-than-cores"}
    assert face(path, memory, count) == said
