"""The wheel, built from the checkout and from the sdist, works in an empty environment with no checkout around."""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from kb.check import main
from packages import ROOT, build, call

MACHINE = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "4", "--transformers", "5.23.0", "--torch", "2.13.0")
CONFIG = """\
general: {model_name: google/mt5-base}
training: {per_device_train_batch_size: 8, fp16: true}
"""


def test_rules_with_a_fault_are_not_built(tmp_path: Path) -> None:
    for name in ("src", "rules", "i18n"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    rule = tmp_path / "rules/checks/precision/t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("training.fp16", "training.fp61"), "utf-8")
    with pytest.raises(AssertionError, match=r"t5-fp16-overflow\.yaml:\d+:\d+: .*training\.fp61"):
        build(tmp_path, tmp_path / "dist", "wheel")
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").iterdir())


def data_of(folder: Path) -> set[str]:
    return {str(path.relative_to(ROOT)).replace(os.sep, "/") for path in folder.rglob("*.yaml")}


def test_the_wheel_carries_every_rule_and_text_and_the_bundle(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = data_of(ROOT / "rules") | {"i18n/ko.yaml", "i18n/en.yaml"}
    assert {f"kb/_data/{name}" for name in wanted} <= names
    assert {f"kb/_data/rules/.bundle/{part}.json" for part in ("hot", "cold", "ko", "en")} <= names


def test_the_wheel_carries_nothing_else_of_the_checkout(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"kb", "gpu_memory_kb"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".tmp")]


def test_an_installed_kb_says_what_the_checkout_says(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, "utf-8")
    arguments = ["config.yaml", *MACHINE, "--format", "json"]
    there = json.loads(call([installed / "kb", "check", *arguments], tmp_path, codes=(1,)))
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert there == json.loads(capsys.readouterr().out)
    assert "t5-fp16-overflow" in {finding["rule"] for unit in there["files"] for finding in unit["findings"]}


def test_an_installed_kb_says_its_version_and_explains_a_rule(installed: Path, tmp_path: Path) -> None:
    assert call([installed / "kb", "--version"], tmp_path).startswith("kb ")
    assert "65504" in call([installed / "kb", "rules", "explain", "t5-fp16-overflow", "--lang", "ko"], tmp_path)


def test_an_installed_kb_compiles_nothing_and_writes_nothing(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, "utf-8")
    python = installed / "python"
    where = call([python, "-c", "import kb, os; print(os.path.dirname(kb.__file__))"], tmp_path).strip()
    before = {path: path.stat().st_mtime_ns for path in (Path(where) / "_data").rglob("*")}
    code = "import sys; from kb.check import main; main(sys.argv[1:]); print(*sorted(sys.modules), file=sys.stderr)"
    run = subprocess.run(
        [str(python), "-c", code, "config.yaml", "--gpu", "rtx-3090"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    modules = run.stderr.split()
    assert "kb.knowledge.bundle" in modules
    assert not {"kb.knowledge.compile", "jsonschema", "torch", "rich", "pynvml"} & set(modules)
    assert before == {path: path.stat().st_mtime_ns for path in (Path(where) / "_data").rglob("*")}
