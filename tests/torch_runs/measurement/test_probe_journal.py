"""The journal: each trial on disk when it ended, gone on with after a kill, never mixed with another probe's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kb.core.text import UserError
from kb.torch_runs.probe.running import LocalRunner, measure
from kb.torch_runs.probe.trial import Journal, Outcome, trial_key
from probe_sample import scripted

PLAN = {"kind": "max-batch", "model": "kobart"}
DONE = Outcome("ok", 1.0, phases={"train": {"process_bytes": 7}})


def written(path: Path, *batches: int) -> None:
    journal = Journal.open(str(path), PLAN, resume=False)
    for batch in batches:
        journal.append(scripted(batch), DONE)
    journal.close()


def fault(path: Path, plan: dict[str, str] = PLAN, resume: bool = False) -> str:
    with pytest.raises(UserError) as raised:
        Journal.open(str(path), plan, resume)
    return raised.value.key


def test_outcomes_are_there_again_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "journal.jsonl"
    written(path, 4, 8)
    journal = Journal.open(str(path), PLAN, resume=True)
    assert journal.done == {trial_key(scripted(4)): DONE, trial_key(scripted(8)): DONE}


def test_a_line_cut_short_is_tried_again_and_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 4)
    with path.open("a") as stream:
        stream.write('{"key": "abc", "outco')
    journal = Journal.open(str(path), PLAN, resume=True)
    journal.append(scripted(8), DONE)
    journal.close()
    assert len(Journal.open(str(path), PLAN, resume=True).done) == 2


def test_trials_that_the_journal_has_are_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 4)
    journal = Journal.open(str(path), PLAN, resume=True)
    trials = [scripted(5), scripted(4)]
    found = {trial.batch: outcome for trial, outcome in measure(trials, LocalRunner(), journal)}
    assert found[4] == DONE  # as it was written, not as a new run would be
    assert found[5].phases["train"]["process_bytes"] > 7
    assert trial_key(scripted(5)) in journal.done


def test_an_unfinished_journal_is_neither_written_over_nor_taken_for_another_plan(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 4)
    assert fault(path) == "probe.journal_unfinished"
    with pytest.raises(UserError) as raised:
        Journal.open(str(path), {**PLAN, "model": "t5-base"}, resume=True)
    assert (raised.value.key, raised.value.values["settings"]) == ("probe.journal_of_another_plan", "model")


def test_a_finished_journal_makes_way_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(str(path), PLAN, resume=False)
    journal.finish()
    journal.close()
    assert Journal.open(str(path), PLAN, resume=False).done == {}
    assert (tmp_path / "journal.jsonl.old").exists()


def test_two_probes_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal.open(str(path), PLAN, resume=False)
    assert fault(path, resume=True) == "probe.journal_in_use"
    first.close()
    Journal.open(str(path), PLAN, resume=True).close()


def test_what_is_no_journal_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("training: {}\n")
    assert fault(path, resume=True) == "probe.not_a_journal"
    assert path.read_text() == "training: {}\n"


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"plan":' * 100_000, '{"journal": 1, "plan": ' + "[" * 100_000])
def test_a_journal_of_brackets_alone_is_said_to_be_none(deep: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(deep + "\n")
    asked = ["probe", "max-batch", "--model", "kobart", "--backend", "fake", "--fake-limit", "8GiB", "--lang", "en"]
    command = [sys.executable, "-m", "kb", *asked, "--journal", str(path), "--resume"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2 and "is no journal of kb probe" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "outcome",
    [1, {"status": 5, "seconds": 1}, {"status": "ok", "seconds": 1, "phases": {"train": 4}}, {"status": "ok"}],
)
def test_lines_that_hold_no_outcome_are_tried_again(outcome: object, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, 4)
    deep = "[" * 100_000
    with path.open("a") as stream:
        stream.write(json.dumps({"key": trial_key(scripted(8)), "outcome": outcome}) + f'\n{{"key": {deep}\n')
    journal = Journal.open(str(path), PLAN, resume=True)
    assert journal.done.keys() == {trial_key(scripted(4))}


@pytest.mark.parametrize("place", ["/dev/full", "/proc/nowhere/journal.jsonl"])
def test_a_place_that_takes_nothing_is_said_before_anything_runs(place: str) -> None:
    assert fault(Path(place)) == "probe.journal_unwritable"
