"""bench/gpu: the grid, the journal, and the way of a trial, tried on a CPU; nothing of a CPU is ever recorded."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from kb.knowledge import load_catalog, load_guide

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "bench" / "gpu"
SCHEMA = json.loads((ROOT / "rules" / "schema" / "measurement.json").read_text("utf-8"))


def load(name: str) -> ModuleType:
    """A script of bench/gpu as a module; they import each other by name, as scripts do."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


grid, rows = load("gpu_trials"), load("gpu_rows")


CONFIG = {"model_type": "t5", "vocab_size": 32128, "d_model": 768}


def entry(recordable: bool = True, outcome: str | None = None, **setup: Any) -> dict[str, Any]:
    given = grid.Trial("t5-base", CONFIG, {"bf16": True, **setup}, ("train",))
    sizes = {"allocated_bytes": 2**30, "reserved_bytes": 2**30, "process_bytes": 2**31}
    measured = {"trainable": 222903552, "gpu_memory_bytes": 23 * 2**30, "retries": 0}
    result = {"outcome": outcome} if outcome else {**measured, "phases": {"load": sizes, "train": sizes}}
    return {
        "id": given.id,
        "trial": given._asdict(),
        "date": "2026-11-21",
        "machine": {"gpu_name": "NVIDIA L4", "driver": "570.1", "cpus": 4},
        "stack": {"torch": "2.13.0+cu130"},
        "recordable": recordable,
        "result": result,
    }


def test_the_trials_are_the_engine_s_own_rows_and_published_models() -> None:
    trials = list(grid.trials())
    assert len({trial.id for trial in trials}) == len(trials)
    models = {trial.model for trial in trials}
    assert {"t5-base", "kobart", "gpt2", "llama-few-layers", "bert-few-layers"} <= models
    assert {phase for trial in trials for phase in trial.phases} == {"train", "evaluate", "generate"}
    varied = [trial for trial in trials if trial.lengths]
    assert sum(trial.expandable for trial in varied) * 2 == len(varied)  # each with and without expandable segments
    assert not any(trial.expandable for trial in trials if not trial.lengths)


def test_any_beginning_of_the_order_holds_the_models_evenly() -> None:
    trials = grid.shuffled(list(grid.trials()), 7)
    models = len({trial.model for trial in trials})
    assert len({trial.model for trial in trials[:models]}) == models
    assert [trial.id for trial in trials] == [trial.id for trial in grid.shuffled(list(grid.trials()), 7)]


def test_rows_of_a_gpu_answer_to_the_schema() -> None:
    text = rows.as_yaml("gpu-l4-2026-11-21", [entry(), entry(per_device_train_batch_size=16)])
    document = yaml.safe_load(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert [row["setup"].get("per_device_train_batch_size") for row in document["rows"]] == [None, 16]
    assert document["models"]["t5-base"]["architecture"]["vocab_size"] == 32128
    assert document["machine"]["gpu"] == "l4"


def test_what_met_a_full_gpu_or_gave_memory_back_is_not_taken_for_measured() -> None:
    crowded = entry(per_device_train_batch_size=2)
    crowded["result"]["retries"] = 1
    emptied = entry(per_device_train_batch_size=4)
    emptied["result"]["phases"]["train"] = {"allocated_bytes": 2**30, "reserved_bytes": 2**31, "process_bytes": 2**30}
    (row,) = yaml.safe_load(rows.as_yaml("gpu-l4", [crowded, emptied]))["rows"]
    assert row["phases"]["train"] == {"allocated_bytes": 2**30, "reserved_bytes": 2**31}


def test_a_run_held_to_a_limit_says_whether_it_ended() -> None:
    """Memory given back is what such a run is to show; one that had no room for the model shows nothing."""
    ended, over, unbuilt = (entry(per_device_train_batch_size=rows) for rows in (1, 2, 4))
    for each in (ended, over, unbuilt):
        each["trial"]["limit"] = 2**30
        each["result"]["retries"] = 3
    over["result"]["outcome"] = "oom"
    unbuilt["result"] = {"outcome": "oom"}
    document = yaml.safe_load(rows.as_yaml("limits-l4-2026-11-21", [ended, over, unbuilt]))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    first, second = document["rows"]
    assert first["phases"].keys() == {"train"}
    assert (second["outcome"], second["limit_bytes"], second["retries"]) == ("oom", 2**30, 3)
    with pytest.raises(ValueError, match="mixes trials with and without a limit"):
        rows.as_yaml("limits-l4-2026-11-21", [ended, entry()])


def test_generation_held_to_a_limit_has_a_title_and_a_phase_of_its_own() -> None:
    generated, trained = entry(), entry()
    for each in (generated, trained):
        each["trial"]["limit"] = 2**30
        each["result"] |= {"retries": 0}
    generated["trial"]["phases"] = ["generate"]
    generated["result"]["phases"] = {"load": {"allocated_bytes": 1, "reserved_bytes": 1},
                                     "generate": {"allocated_bytes": 2**29, "reserved_bytes": 2**30}}  # fmt: skip
    document = yaml.safe_load(rows.as_yaml("limits-generate-l4-2026-11-21", [generated]))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["title"]["en"].startswith("Generation held to a limit")
    assert document["rows"][0]["phases"].keys() == {"generate"}
    with pytest.raises(ValueError, match="mixes trials"):
        rows.as_yaml("limits-l4-2026-11-21", [generated, trained])


def test_unmeasured_models_are_whole_and_in_no_file_of_measurements() -> None:
    measured = {row.get("model") for each in load_guide()["measurements"].values() for row in each["rows"]}
    models = {trial.model for trial in grid.unmeasured()}
    assert models.isdisjoint(measured)
    assert models <= load_catalog().models.keys()


def test_rows_of_a_cpu_and_failed_runs_are_not_recorded() -> None:
    with pytest.raises(ValueError, match="nothing to record"):
        rows.as_yaml("gpu-none", [entry(recordable=False), entry(outcome="failed"), entry(outcome="time")])


def test_machines_are_not_mixed() -> None:
    other = entry(per_device_train_batch_size=1)
    other["machine"] = {**other["machine"], "driver": "580.2"}
    with pytest.raises(ValueError, match="mixes several of machine"):
        rows.as_yaml("gpu-l4", [entry(), other])


def test_a_line_cut_short_is_left_out_of_the_journal(tmp_path: Path) -> None:
    journal = tmp_path / "deeper" / "journal.jsonl"
    rows.append(journal, entry())
    rows.append(journal, entry(per_device_train_batch_size=2))
    with journal.open("a") as stream:
        stream.write('{"id": "t5-base train')
    assert set(rows.read_journal(journal)) == {entry()["id"], entry(per_device_train_batch_size=2)["id"]}


def campaign(journal: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if missing := [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]:
        if os.environ.get("CI"):
            pytest.fail(f"missing: {', '.join(missing)}")
        pytest.skip(f"missing: {', '.join(missing)}")
    command = [sys.executable, str(FOLDER / "campaign.py"), "--journal", str(journal), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.exhaustive
def test_the_way_of_a_trial_on_a_cpu(tmp_path: Path) -> None:
    """The real Trainer on a tiny T5: every phase is passed, and a second run does not repeat what the journal holds."""
    journal = tmp_path / "journal.jsonl"
    arguments = ("--device", "cpu", "--tiny", "--only", "t5-tiny train", "--timeout", "500")
    first = campaign(journal, *arguments, "--no-write")
    (found,) = rows.read_journal(journal).values()
    assert first.returncode == 0, first.stderr
    assert set(found["result"]["phases"]) == {"load", "forward", "backward", "step", "train"}, found["result"]
    assert found["recordable"] is False
    again = campaign(journal, *arguments)
    assert again.returncode == 1
    assert "no row of this journal comes from a GPU" in again.stderr
    assert len(journal.read_text("utf-8").splitlines()) == 1


@pytest.mark.exhaustive
def test_a_trial_over_its_time_is_ended_and_said(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    campaign(journal, "--device", "cpu", "--tiny", "--limit", "1", "--timeout", "0.1", "--no-write")
    (found,) = rows.read_journal(journal).values()
    assert found["result"] == {"outcome": "time"}
