"""Many files: a tree is told the same however it is made, and the cache is never wrong and never in the way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from effort import few
from kb.advice.question import Question
from kb.config.discovery import discover
from kb.knowledge import load_words
from kb.report.check.text import summary_line, text_report
from kb.report.terminal import Style
from kb.report.words import Words
from kb.session.around import Checking
from kb.session.cache import RESULTS, ResultCache, context_of, key_of
from kb.session.lookups import Seen, still
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

ROOT = Path(__file__).parents[2]
BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "16", "--lang", "en")
FILES = 34  # and one more: enough for the cache and for three processes


@pytest.fixture(scope="module")
def still_kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of kb that nobody edits while the tests run: its files' times are part of every key."""
    folder = tmp_path_factory.mktemp("kb")
    for name in ("src", "rules", "i18n"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"


class Runner:
    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self.folder = source, folder
        self.cache = folder / "cache"
        self.tree = folder / "configs"

    def __call__(self, *arguments: object, code: int | None = 1, **environ: str) -> subprocess.CompletedProcess[str]:
        run = subprocess.run(
            [sys.executable, "-m", "kb.check", "configs", *BOX, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(self._source),
                "XDG_CACHE_HOME": str(self.cache),
                "LC_ALL": "C.UTF-8",
                **environ,
            },
            timeout=300,
            check=False,
        )
        assert code is None or run.returncode == code, run.stderr
        return run

    @property
    def table(self) -> Path:
        return self.cache / "kb" / RESULTS

    def rows(self) -> int:
        return len(_files(self.table))


@pytest.fixture
def kb(still_kb: Path, tmp_path: Path) -> Runner:
    runner = Runner(still_kb, tmp_path)
    runner.tree.mkdir()
    for number in range(FILES):
        text = f"model_name_or_path: google/mt5-small\nper_device_train_batch_size: {number % 2 + 1}\nfp16: true\n"
        (runner.tree / f"run-{number:02}.yaml").write_text(text)
    (runner.tree / "other.yaml").write_text("services:\n  web: {image: nginx}\n")
    return runner


@pytest.mark.parametrize(
    "arguments",
    few(
        [
            pytest.param(("--format", "json"), id="json"),
            pytest.param((), id="panels"),
            pytest.param(("--quiet",), id="quiet"),
        ]
    ),
)
def test_a_tree_is_told_alike_by_one_process_by_several_and_from_the_cache(kb: Runner, arguments: tuple[str]) -> None:
    # a run that keeps every result: statistics need them all, so compare with fewer files than make a tree
    alone = kb(*arguments, "--no-cache", "--jobs", 1).stdout
    assert not kb.table.exists()
    assert kb(*arguments, "--no-cache", "--jobs", 3).stdout == alone
    assert kb(*arguments).stdout == alone
    assert kb.rows() == FILES + 1
    assert kb(*arguments).stdout == alone
    if "json" in arguments:
        report = json.loads(alone)
        assert len(report["files"]) == FILES
        assert report["summary"]["error"] == sum(
            row["severity"] == "error" for unit in report["files"] for row in unit["findings"]
        )


def test_the_stream_is_the_report_of_a_run_that_keeps_everything(kb: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed = kb("--no-cache", "--transformers", "5.0").stdout
    monkeypatch.chdir(kb.folder)
    catalog = load_catalog()
    wanted = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16", versions={"transformers": "5.0"})
    checker = file_checker(catalog, Project(), wanted, Checking(notes=False))
    inputs = [Input(found.path, named=found.named) for found in discover(["configs"]).files]
    whole = run(inputs, checker).result(checker)
    words = Words("en", load_words("en"), catalog.facts)
    assert text_report(whole, words, Style(), fold=True) == streamed
    assert summary_line(whole, words).split() == streamed[streamed.rindex(f"{FILES} files") :].split()


def test_what_stands_in_many_files_is_told_once_with_its_places(kb: Runner) -> None:
    """JSON and the exit code have each of them."""
    rule = "t5-fp16-overflow"
    told = kb("--quiet").stdout
    rows = json.loads(kb("--quiet", "--format", "json").stdout)["files"]
    found = [(unit["path"], row) for unit in rows for row in unit["findings"] if row["rule"] == rule]
    sentences = {row["message"] for _, row in found}
    assert len(sentences) < len(found)
    assert told.count(f"error {rule}\n") == len(sentences)
    assert told.count(f"told above: {rule}:") == len(found) - len(sentences)
    closing = told[told.rindex(f"\n{rule}: ") :]
    assert f"{rule}: {len(found) - len(sentences)} more places, told above:" in closing
    path, row = [each for each in found if each[1]["message"] == found[0][1]["message"]][1]
    assert f"{path}:{row['line']}," in closing.replace("\n", " ")
    assert f"and {len(found) - len(sentences) - 3} more" in closing.replace("\n", " ")
    assert "\x1d" not in told


@pytest.mark.exhaustive
def test_a_changed_file_and_other_options_are_checked_anew(kb: Runner) -> None:
    kb("--quiet")
    (kb.tree / "run-00.yaml").write_text("model_name_or_path: google/mt5-small\nper_device_train_batch_size: 3\n")
    after = kb("--quiet").stdout
    assert kb.rows() == FILES + 2
    assert after == kb("--quiet", "--no-cache").stdout
    assert (
        kb("--quiet", "--ignore", "t5-fp16-overflow", code=0).stdout
        == kb("--quiet", "--ignore", "t5-fp16-overflow", "--no-cache", code=0).stdout
    )


def test_a_file_that_a_config_names_counts_too(kb: Runner) -> None:
    config = kb.tree / "run-00.yaml"
    config.write_text(config.read_text() + "deepspeed: ds.json\n")
    named = kb.tree / "ds.json"
    for text in ('{"zero_optimization": {"stage": 2}}', '{"zero_optimization": {"stage": 3}}'):
        named.write_text(text)
        assert kb("--format", "json", code=None).stdout == kb("--format", "json", "--no-cache", code=None).stdout
    named.unlink()
    assert kb("--format", "json", code=None).stdout == kb("--format", "json", "--no-cache", code=None).stdout


@pytest.mark.exhaustive
def test_a_hydra_group_file_counts_too(kb: Runner) -> None:
    (kb.tree / "conf" / "training").mkdir(parents=True)
    (kb.tree / "conf" / "config.yaml").write_text("defaults:\n  - training: a\n  - _self_\nmodel: {name: t5-base}\n")
    group = kb.tree / "conf" / "training" / "a.yaml"
    for batch in (4, 4096):
        group.write_text(f"per_device_train_batch_size: {batch}\nlearning_rate: 1.0e-4\n")
        told = kb("--quiet").stdout
        assert told == kb("--quiet", "--no-cache").stdout
    assert "a.yaml [config.yaml]" in told


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _text(table: Path) -> None:
    for file in _files(table):
        file.write_text("this is no value, " * 100)


def _cut_off(table: Path) -> None:
    for file in _files(table):
        raw = file.read_bytes()
        file.write_bytes(raw[: len(raw) // 2])


def _zeros_inside(table: Path) -> None:
    for file in _files(table):
        raw = bytearray(file.read_bytes())
        raw[8 : len(raw) // 2] = bytes(len(raw) // 2 - 8)
        file.write_bytes(raw)


def _empty(table: Path) -> None:
    for file in _files(table):
        file.write_bytes(b"")


def _no_permission(table: Path) -> None:
    cache = table.parents[1]
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")


def _a_file(table: Path) -> None:
    shutil.rmtree(table)
    table.write_text("")


def _folders(table: Path) -> None:
    for file in _files(table):
        file.unlink()
        file.mkdir()


def _another_shape(table: Path) -> None:
    cache = ResultCache(str(table.parent), table.name)
    cache.put([(bytes.fromhex(file.name), ["x", [1, 2]]) for file in _files(table)])


@pytest.mark.exhaustive
def test_a_damaged_cache_changes_nothing(kb: Runner) -> None:
    """A tree checked once, its cache laid there again before each damage."""
    right = kb("--quiet").stdout
    whole = kb.folder / "whole"
    kb.cache.rename(whole)
    for damage in (_text, _cut_off, _zeros_inside, _empty, _no_permission, _a_file, _folders, _another_shape):
        shutil.copytree(whole, kb.cache)
        damage(kb.table)
        for _ in range(2):
            again = kb("--quiet")
            assert (again.stdout, again.stderr) == (right, ""), damage
        shutil.rmtree(kb.cache) if kb.cache.is_dir() else kb.cache.unlink()


@pytest.mark.exhaustive
def test_two_runs_at_once_are_both_right(kb: Runner, still_kb: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(kb, "--quiet") for _ in range(3)]
        told = {run.result().stdout for run in runs}
    assert len(told) == 1
    assert kb("--quiet").stdout in told


def test_a_file_that_cannot_be_read_is_said_each_time(kb: Runner) -> None:
    broken = kb.tree / "broken.yaml"
    broken.write_text("a: [1,\n")
    names = sorted(f"configs/{path.name}" for path in kb.tree.iterdir())
    for _ in range(2):
        run = kb(*names, code=2)
        assert "broken.yaml:" in run.stderr


def test_nothing_recognised_is_said(kb: Runner) -> None:
    for path in kb.tree.iterdir():
        path.write_text("services:\n  web: {image: nginx}\n")
    for _ in range(2):
        assert kb("--quiet", code=2).stderr


@pytest.mark.parametrize("jobs", ["0", "-1", "x", "1000"])
def test_a_number_of_processes_that_cannot_be_is_refused(kb: Runner, jobs: str) -> None:
    assert "--jobs" in kb("--jobs", jobs, code=2).stderr


def test_progress_is_for_terminals_only(kb: Runner) -> None:
    assert kb("--quiet").stderr == ""


def test_a_key_tells_everything_apart_and_a_context_sees_changed_rules(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "a.yaml").write_text("a: 1\n")
    first = context_of({"gpu": "t4"}, [str(rules)])
    assert first == context_of({"gpu": "t4"}, [str(rules)])
    assert first != context_of({"gpu": "l4"}, [str(rules)])
    (rules / "a.yaml").write_text("a: 12\n")
    assert first != context_of({"gpu": "t4"}, [str(rules)])
    keys = {key_of(first, path, named, raw) for path in ("a", "b") for named in (True, False) for raw in (b"", b"x")}
    assert len(keys) == 8


def test_what_was_looked_up_is_remembered_and_looked_up_again() -> None:
    files = {"a": "one"}
    seen = Seen()
    look = seen.text("named", lambda path, name: files.get(name))
    assert (look("x", "a"), look("x", "b")) == ("one", None)
    rows = seen.take()
    lookups = {"named": lambda path, name: files.get(name)}
    assert still(rows, lookups) and not seen.take()
    files["b"] = "new"
    assert not still(rows, lookups)
    assert not still([("unheard-of", "", "", "")], lookups)


def test_a_cache_in_a_folder_that_cannot_be_made_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ResultCache(str(tmp_path / "file" / "below"))
    cache.put([(b"k", [1])])
    assert cache.get(b"k") is None
