"""What the engine found is kept from one process to the next, by the code that found it."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kb.core.setup import Assumption, TrainingSetup
from kb.knowledge import load_catalog
from kb.memory import answers, is_followed, largest_batch, predict, surely_out_of_memory
from kb.memory.engine import follow, report, rough
from kb.session import cache
from kb.session.cache import CORE_OF_THE_ENGINE, PREDICTIONS, Predictions, ResultCache
from packages import ROOT

MODELS = load_catalog().models
SETUP = TrainingSetup(bf16=True, per_device_train_batch_size=2, max_source_length=128, do_eval=True)
ANSWERS = follow._unlimited, follow._inside, rough._roughly, rough._lines, report.reserved_by_lengths
RUN = follow.Run(SETUP, MODELS["qwen2.5-0.5b"].architecture, (8, 0))


def asked() -> list[object]:
    """One of each kind of answer, as a new process asks: it has none of its own."""
    for answer in ANSWERS:
        answer.cache_clear()  # type: ignore[attr-defined]
    follow._NEVER_FULL.clear()
    follow._recorded.cache_clear()
    found: list[object] = [follow._unlimited(RUN), rough._roughly(RUN), rough._lines(RUN)]
    found.append(report.reserved_by_lengths(SETUP, RUN.architecture, (8, 0)))
    whole = follow._unlimited(RUN)
    follow._NEVER_FULL.clear()
    found += [follow._inside(RUN, whole.reserved), follow._inside(RUN, whole.allocated - (1 << 20))]
    return found


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers._Kept, "store", Predictions(str(tmp_path)))


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("a run was followed again")


def test_a_second_process_follows_nothing_and_finds_the_same(kept: None, monkeypatch: pytest.MonkeyPatch):
    first = asked()
    for module, name in ((follow, "record_runs"), (rough, "roughly"), (rough, "lines"), (report, "record_training")):
        monkeypatch.setattr(module, name, refuse)
    assert asked() == first


def test_other_code_has_answers_of_its_own(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked()
    monkeypatch.setattr(cache, "context_of", lambda *_: b"other code")
    monkeypatch.setattr(answers._Kept, "store", Predictions(str(tmp_path)))
    monkeypatch.setattr(follow, "record_runs", refuse)
    with pytest.raises(AssertionError, match="followed again"):
        asked()


def test_answers_that_are_damaged_are_as_good_as_none(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = asked()
    for file in (tmp_path / PREDICTIONS).rglob("*"):
        if file.is_file():
            file.write_bytes(b"not a value" * 1000)
    monkeypatch.setattr(answers._Kept, "store", Predictions(str(tmp_path)))
    assert asked() == first


@pytest.mark.parametrize("limit", [("MOST_STORED", 256 * 300), ("MAX_FILES", 6)], ids=("bytes", "files"))
def test_what_has_grown_too_large_loses_its_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
):
    cache_ = ResultCache(str(tmp_path))
    keys = [b"same folder" + bytes([number]) for number in range(20)]
    monkeypatch.setattr(f"kb.session.cache.{limit[0]}", limit[1])
    for age, key in enumerate(keys):
        cache_.put([(key, [age])])
        (file,) = tmp_path.rglob(key.hex())
        os.utime(file, (age, age))
    kept = [key for key in keys if cache_.get(key) is not None]
    assert 0 < len(kept) < len(keys)
    assert kept == keys[-len(kept) :]


def test_what_cannot_be_removed_or_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cache_ = ResultCache(str(tmp_path))
    monkeypatch.setattr("kb.session.cache.MAX_FILES", 6)
    keys = [b"same folder" + bytes([number]) for number in range(20)]
    cache_.put([(keys[0], [0])])
    (file,) = tmp_path.rglob(keys[0].hex())
    file.unlink()
    file.mkdir()  # and it is the oldest
    os.utime(file, (1, 1))
    for number, key in enumerate(keys[1:], 1):
        cache_.put([(key, [number])])
    assert cache_.get(keys[0]) is None and cache_.get(keys[-1]) == [19]
    assert len(list(file.parent.iterdir())) <= 7
    cache_.put([(keys[0], [0])])  # a folder stands in its place
    assert not list(tmp_path.rglob("*.tmp"))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    cache_.put([(b"deep", deep), (b"after", 1)])
    assert cache_.get(b"after") == 1


@pytest.mark.exhaustive
def test_a_check_keeps_what_it_predicts_unless_told_not_to(tmp_path: Path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "kb.check", str(ROOT / "examples/mt5-summary-team.yaml"), "--gpu", "rtx-3090"]

    def checked(*more: str) -> str:
        done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 1, done.stderr
        return done.stdout

    kept = tmp_path / "kb" / PREDICTIONS
    first = checked("--no-cache")
    assert not kept.exists()
    assert checked() == first
    assert kept.exists()
    assert checked() == first


def test_a_report_that_is_kept_is_read_without_the_engine(kept: None, monkeypatch: pytest.MonkeyPatch):
    catalog = load_catalog()

    def reports() -> list[object]:
        where = {"constants": catalog.constants, "gpu": catalog.gpus["rtx-3090"], "host_limit_bytes": 60 * 10**9}
        asked = (SETUP, RUN.architecture)
        return [
            *(predict(*asked, **where, rough=rough) for rough in (False, True)),
            is_followed(*asked, (8, 6)),
            surely_out_of_memory(*asked, 1 << 30, constants=catalog.constants),
            largest_batch(*asked, "per_device_eval_batch_size", 8 << 30, constants=catalog.constants, grain=4),
        ]

    first = reports()
    for name in [name for name in sys.modules if name.startswith("kb.memory.engine")]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    assert reports() == first


@pytest.mark.parametrize("value", [date(2026, 1, 1), ("a", "b"), b"bytes"])
def test_what_json_would_change_is_not_kept(kept: None, value: object):
    assumed = (Assumption("training.optim", value, "library_default"),)
    asked = SETUP._replace(assumed=assumed), RUN.architecture
    for _ in range(2):
        report = predict(*asked, constants=load_catalog().constants, rough=True)
        assert report.assumed[0].value == value and type(report.assumed[0].value) is type(value)


def test_the_engines_code_is_all_of_core_that_it_reads() -> None:
    """What is kept counts until that changes, and no longer."""
    source, read, left = ROOT / "src" / "kb", set[str](), sorted((ROOT / "src" / "kb" / "memory").rglob("*.py"))
    while left:
        text = left.pop().read_text("utf-8").replace("from kb.core import late", "from kb.core.__init__ import late")
        assert not re.search(r"^\s*(?:import kb\b|from kb(?:\.core)? import)", text, re.MULTILINE)
        new = {*re.findall(r"^\s*from kb\.core\.(\w+) import", text, re.MULTILINE)} - read
        read |= new
        left += [source / "core" / f"{name}.py" for name in new]
    assert read == CORE_OF_THE_ENGINE
