"""A command of the user's own: where its batch is put in, what its trials show, and what is refused."""

import json
import sys
from pathlib import Path

import pytest

from kb.commands.probe.own_command import BATCH_NAMES, FEW_STEPS, finds_its_own, template_in, with_flags, with_value
from kb.torch_runs.probe.running import run_trial
from kb.torch_runs.probe.tree_watch import HostWatch
from kb.torch_runs.probe.trial import Trial
from probe_sample import probe

TRAIN = """
import argparse, sys
parser = argparse.ArgumentParser()
for name in ("--per_device_train_batch_size", "--max_steps", "--dataloader_num_workers"):
    parser.add_argument(name, type=int, default=0)
parser.add_argument("--save_strategy")
options = parser.parse_args()
assert options.max_steps == 10 and options.save_strategy == "no", options
if options.per_device_train_batch_size > 11:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.")
print({"train_samples_per_second": 10.0 + min(options.dataloader_num_workers, 2)})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "filled"),
    [
        ("train.py --per_device_train_batch_size 8 --bf16", "train.py --per_device_train_batch_size 32 --bf16"),
        ("train.py --per-device-train-batch-size=8", "train.py --per-device-train-batch-size=32"),
        ("train.py --batch_size 8 --lr 1", "train.py --batch_size 32 --lr 1"),
        ("train.py trainer.batch_size=8 x=1", "train.py trainer.batch_size=32 x=1"),
        ("train.py +train.per_device_train_batch_size=8", "train.py +train.per_device_train_batch_size=32"),
    ],
)
def test_the_batch_is_put_where_the_command_has_it(command: str, filled: str) -> None:
    found = template_in(command.split(), BATCH_NAMES)
    assert found is not None and found[0] == "8"
    assert " ".join(with_value(command.split(), found[1], "batch", 32)) == filled


@pytest.mark.parametrize("command", ["train.py --lr 8", "train.py --eval_batch_size 8", "train.py batch", "train.py"])
def test_what_is_no_batch_is_not_taken_for_one(command: str) -> None:
    assert template_in(command.split(), BATCH_NAMES) is None


def test_places_in_the_command_and_a_template_are_filled() -> None:
    assert with_value(["bash", "run.sh", "{batch}"], (), "batch", 4) == ("bash", "run.sh", "4")
    assert with_value(["bash", "run.sh"], ("--bs={batch}",), "batch", 4) == ("bash", "run.sh", "--bs=4")
    assert with_value(["run", "--bs=8", "x"], ("--bs={batch}",), "batch", 4) == ("run", "--bs=4", "x")


def test_a_short_run_takes_the_place_of_a_long_one() -> None:
    words = with_flags(["train.py", "--max_steps", "5000", "--bf16"], FEW_STEPS, "steps", 10)
    assert words == ("train.py", "--max_steps", "10", "--bf16", "--save_strategy", "no")


def test_a_command_that_changes_its_batch_itself_is_known() -> None:
    assert finds_its_own(["--auto_find_batch_size"]) and finds_its_own(["--auto_find_batch_size", "True"])
    assert not finds_its_own(["--auto_find_batch_size", "False"]) and not finds_its_own(["--bf16"])


def test_the_largest_batch_of_a_command_is_found_by_bracketing(folder: Path) -> None:
    run = probe(folder, "max-batch", "--backend", "cpu", "--format", "json", "--", sys.executable, "train.py",
                "--per_device_train_batch_size", "8")  # fmt: skip
    found = json.loads(run.stdout)
    assert (run.returncode, found["largest"]) == (0, {"batch": 11, "next_one": "failed"}), run.stderr
    assert [trial["batch"] for trial in found["trials"]] == [8, 16, 12, 10, 11]
    assert {trial["outcome"]["status"] for trial in found["trials"]} == {"ok", "oom"}
    assert found["trials"][0]["command"][-6:] == ["--per_device_train_batch_size", "8", "--max_steps", "10",
                                                  "--save_strategy", "no"]  # fmt: skip
    assert found["trials"][0]["outcome"]["host"]["peak_rss_bytes"] > 1_000_000


def test_a_command_alone_is_tried_once_as_a_short_run(folder: Path) -> None:
    run = probe(folder, "--backend", "cpu", "--", sys.executable, "train.py", "--per_device_train_batch_size", "8")
    assert run.returncode == 0, run.stderr
    assert "smoke run" in run.stdout and "The command ran to its end." in run.stdout


def test_a_template_puts_the_batch_into_any_command(folder: Path) -> None:
    code = "import sys; sys.exit('CUDA out of memory' if int(sys.argv[2]) > 3 else 0)"
    run = probe(folder, "max-batch", "--backend", "cpu", "--batch-flag", "--size {batch}", "--format", "json", "--",
                sys.executable, "-c", code, "--size", "1")  # fmt: skip
    assert json.loads(run.stdout)["largest"]["batch"] == 3, run.stderr


def test_workers_are_compared_by_rate_and_memory(folder: Path) -> None:
    run = probe(folder, "host", "--workers", "0,2,4", "--format", "json", "--", sys.executable, "train.py",
                "--per_device_train_batch_size", "8")  # fmt: skip
    found = json.loads(run.stdout)
    assert [trial["outcome"]["samples_per_second"] for trial in found["trials"]] == [10, 12, 12], run.stderr
    assert (found["recommended"]["workers"], found["recommended"]["reason"]) == (2, "fastest")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("no-such-program", "--batch", "8"), "there is no program no-such-program"),
        (("./train.py", "--batch", "8"), "not executable"),
        ((sys.executable, "train.py"), "--batch-flag '--batch {batch}'"),
        ((sys.executable, "train.py", "--batch", "8", "--auto_find_batch_size"), "auto_find_batch_size"),
        ((sys.executable, "missing.py", "--batch", "8"), "can't open file"),
        ((), "nothing after --"),
    ],
)
def test_a_command_that_cannot_be_tried_is_said(folder: Path, command: tuple[str, ...], said: str) -> None:
    run = probe(folder, "max-batch", "--backend", "cpu", "--", *command)
    assert run.returncode == 2
    assert said in run.stderr and "Traceback" not in run.stderr


def test_a_model_and_a_command_together_are_refused(folder: Path) -> None:
    run = probe(folder, "max-batch", "--model", "kobart", "--backend", "cpu", "--", "true", "--batch", "1")
    assert run.returncode == 2 and "leave out the model" in run.stderr


def test_a_command_that_ends_before_anybody_looks_still_tells_its_memory(tmp_path: Path) -> None:
    (tmp_path / "peak").write_text("5000000")
    watch = HostWatch(2**22 - 1)
    watch.remember(str(tmp_path / "peak"))
    assert watch.found() == {"peak_rss_bytes": 5_000_000}
    outcome = run_trial(Trial("smoke", "cpu", {}, command=("true",), model="true"))
    assert outcome.status == "ok" and outcome.host["peak_rss_bytes"] > 0


def test_a_time_limit_may_be_a_part_of_a_second_and_nothing_less(folder: Path) -> None:
    run = probe(folder, "smoke", "--backend", "cpu", "--time-limit", "0.5", "--", "sleep", "60")
    assert run.returncode == 1 and "hung" in run.stdout + run.stderr
    for refused in ("0", "nan", "inf"):
        run = probe(folder, "smoke", "--backend", "cpu", "--time-limit", refused, "--", "sleep", "60")
        assert run.returncode == 2 and "seconds" in run.stderr
