"""The wheel, built from the checkout and from the sdist, works in an empty environment with no checkout around."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from effort import EXHAUSTIVE
from kb.commands.check import main
from kb.knowledge.packed import ARCHIVE, SOURCES, part_of
from packages import BEING_WRITTEN, CONSTRAINED, ROOT, build, call, missing
from rules_copy import few_rules

MACHINE = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "4", "--transformers", "5.23.0", "--torch", "2.13.0")
CONFIG = """\
general: {model_name: google/mt5-base}
training: {per_device_train_batch_size: 8, fp16: true}
"""


@pytest.mark.exhaustive
def test_rules_with_a_fault_are_not_built(tmp_path: Path) -> None:
    few_rules(tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    rule = tmp_path / "rules/checks/precision/t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("training.fp16", "training.fp61"), "utf-8")
    with pytest.raises(AssertionError, match=r"t5-fp16-overflow\.yaml:\d+:\d+: .*training\.fp61"):
        build(tmp_path, tmp_path / "dist", "wheel")
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").iterdir())


def data_of(folder: Path) -> set[str]:
    """Every source below a folder, by its name in the checkout."""
    return {str(path.relative_to(ROOT)).replace(os.sep, "/") for path in folder.rglob("*.yaml")}


def test_the_wheel_carries_every_rule_and_text_and_the_bundle(wheel: Path) -> None:
    built = zipfile.ZipFile(wheel)
    names = set(built.namelist())
    packed = json.loads(part_of(built.read(f"kb/_data/{ARCHIVE}"), SOURCES))
    for name in data_of(ROOT / "rules") | {"i18n/ko.yaml", "i18n/en.yaml"}:
        assert packed[name] == (ROOT / name).read_bytes().decode()
    assert {f"kb/_data/rules/.bundle/{part}" for part in ("hot.json", "ko.json", "en.json")} <= names


def test_the_wheel_stays_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 3_300_000  # the rules, packed, are 0.9 MB of it, and grow: tables by release


def test_an_installed_kb_shows_tries_and_validates_its_rules(installed: Path, tmp_path: Path) -> None:
    data = Path(call([installed / "python", "-c", "import kb; print(kb.__path__[0])"], tmp_path).strip()) / "_data"
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    kept, other = {"XDG_CACHE_HOME": str(tmp_path / "cache")}, {"XDG_CACHE_HOME": os.devnull, "TMPDIR": str(tmp_path)}
    shown = (ROOT / "rules/checks/precision/t5-fp16-overflow.yaml").read_text("utf-8")
    for cache in (kept, other, kept):  # one that can be written, one that cannot
        assert call([installed / "kb", "rules", "show", "t5-fp16-overflow"], tmp_path, env=cache) == shown
    assert "RTX 3090" in call([installed / "kb", "rules", "explain", "rtx-3090"], tmp_path, env=other)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}, "a temporary folder is left"
    (folder,) = (tmp_path / "cache" / "kb").glob("sources-*")
    call([installed / "kb", "rules", "test", "t5-fp16-overflow"], tmp_path, env=kept)
    if EXHAUSTIVE:  # all are read anew
        assert " 0 " not in call([installed / "kb", "rules", "validate", "--lang", "en"], tmp_path, env=kept)
    few_rules(tmp_path, folder)
    shutil.rmtree(tmp_path / "i18n")  # none beside the rules: the packed texts count
    assert " 0 " not in call(
        [installed / "kb", "rules", "validate", "--rules", "rules", "--lang", "en"], tmp_path, env=kept
    )
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, "utf-8")
    said = call([installed / "kb", "check", config, *MACHINE, "--rules", "rules"], tmp_path, codes=(1,), env=kept)
    assert "t5-fp16-overflow" in said
    assert before == {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_the_wheel_carries_nothing_else_of_the_checkout(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"kb", "gpu_memory_kb", "gpu_memory_kb.py"}
    assert not [
        name for name in names if "__pycache__" in name or name.endswith((".tmp", "stamp.json", "readings.json"))
    ]


def test_an_installed_kb_says_what_the_checkout_says(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, "utf-8")
    arguments = ["config.yaml", *MACHINE, "--format", "json"]
    there = json.loads(call([installed / "kb", "check", *arguments], tmp_path, codes=(1,)))
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    here = json.loads(capsys.readouterr().out)
    assert there.pop("rules").endswith(here.pop("rules"))  # a wheel puts the date before what they hold
    assert there == here
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


@pytest.mark.exhaustive
def test_the_same_sources_make_the_same_bytes(sdist_source: Path, wheel: Path, tmp_path: Path) -> None:
    """Wherever they lie, and whenever their files were written."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(sdist_source, copy, ignore=BEING_WRITTEN)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1_500_000_000))
    pairs = [(build(sdist_source, tmp_path / "one", "sdist"), build(copy, tmp_path / "other", "sdist"))]
    if EXHAUSTIVE:  # all rules are compiled anew
        pairs.append((wheel, build(copy, tmp_path / "wheel", "wheel")))
    for one, other in pairs:
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.exhaustive
def test_the_bill_of_materials_lists_what_an_installation_brings(installed: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("cyclonedx_py") is None:
        missing("cyclonedx-bom is not installed: make test installs it")
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    said = json.loads(call([*command, installed / "python"], tmp_path))
    names = {component["name"].lower().replace("_", "-") for component in said["components"]}
    assert {"gpu-memory-kb", "pyyaml", "pathspec", "jsonschema", "nvidia-ml-py", "psutil", "shtab"} <= names
    assert "torch" not in names and "timestamp" not in said["metadata"]


def test_the_container_image_is_made_of_what_is_there_and_runs_without_root() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    stages = "\n".join(lines).split("\nFROM ")
    images = {line.split()[1] for line in lines if line.startswith("FROM ")}
    (image,) = images
    assert re.fullmatch(r"python:\S+@sha256:[0-9a-f]{64}", image), "by its digest"
    final = [line.split(maxsplit=1) for line in stages[-1].splitlines() if line and not line.startswith("#")]
    said = {words[0]: words[1] for words in final if len(words) == 2}
    assert said["USER"] not in ("root", "0")
    assert json.loads(said["ENTRYPOINT"]) == ["kb"]
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[0] == "*" and all((ROOT / name).exists() for name in let_in)
    wanted = {"src", "rules", "i18n", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "ci/requirements"}
    assert wanted == let_in, "what hatch_build.py and pyproject.toml read"


@pytest.mark.exhaustive
def test_the_image_s_build_installs_a_kb_that_runs(tmp_path: Path) -> None:
    """The steps of the Dockerfile on just the files that .dockerignore lets in; no container is needed for that. Its
    smaller kin: what lies there is let in, above, and the installed wheel runs.
    """
    source = tmp_path / "source"
    source.mkdir()
    for name in (line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] == "!"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".bundle"))
        else:
            shutil.copy(ROOT / name, source)
    # this environment's pip works on that one; what is installed is compiled where it is imported
    call([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], tmp_path)
    pip = f"{sys.executable} -m pip --python {tmp_path / 'venv' / 'bin' / 'python'}"
    (tmp_path / "wheels").mkdir()
    shutil.copy(ROOT / "ci" / "requirements" / "run.txt", tmp_path / "wheels")
    steps = [
        line[4:] for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines() if line.startswith("RUN python")
    ]
    assert len(steps) == 4
    for step in steps:
        step = step.replace("/source", str(source)).replace("/wheels", str(tmp_path / "wheels"))
        command = step.replace("python -m pip", pip)
        call(["sh", "-c", command], tmp_path, env={**CONSTRAINED, "PIP_CONSTRAINT": ""})
    assert call([tmp_path / "venv" / "bin" / "kb", "--version"], tmp_path).startswith("kb ")
