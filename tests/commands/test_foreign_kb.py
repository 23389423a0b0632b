"""Another package's module called kb: named by what starts the program, and by `kb doctor`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_runs import ENVIRON, ROOT

START = "import sys; from gpu_memory_kb import main; sys.argv = ['kb', *sys.argv[1:]]; sys.exit(main())"


def start(*arguments: str, path: list[Path], language: str = "en_US.UTF-8") -> subprocess.CompletedProcess[str]:
    environ = {**ENVIRON, "PYTHONPATH": os.pathsep.join(map(str, path)), "LC_ALL": language}
    command = [sys.executable, "-c", START, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture
def namesake(tmp_path: Path) -> Path:
    (tmp_path / "kb").mkdir()
    (tmp_path / "kb" / "__init__.py").write_text("__version__ = '9.9'\n")
    installed = tmp_path / "kb_manager-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: kb-manager\nVersion: 0.1.0\n")
    return tmp_path


@pytest.mark.parametrize(
    ("language", "words"), [("en_US.UTF-8", "is another package's"), ("ko_KR.UTF-8", "다른 패키지의 것입니다")]
)
def test_a_namesake_that_comes_first_is_named_with_the_way_out(namesake: Path, language: str, words: str) -> None:
    run = start("check", "train.yaml", path=[namesake, ROOT / "src"], language=language)
    assert run.returncode == 2
    assert words in run.stderr and str(namesake / "kb" / "__init__.py") in run.stderr
    assert "pip uninstall kb kb-manager" in run.stderr and "Traceback" not in run.stderr


def test_a_namesake_whose_import_fails_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "kb.py").write_text("import no_such_module_at_all\n")
    run = start("--version", path=[tmp_path, ROOT / "src"])
    assert run.returncode == 2 and "no_such_module_at_all" in run.stderr and "Traceback" not in run.stderr


def test_the_doctor_names_a_namesake_that_comes_later(namesake: Path) -> None:
    run = start("doctor", "--format", "json", path=[ROOT / "src", namesake])
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["foreign"] == ["kb-manager 0.1.0", str(namesake / "kb" / "__init__.py")]
    assert "another kb is here too: kb-manager 0.1.0" in start("doctor", path=[ROOT / "src", namesake]).stdout
    assert json.loads(start("doctor", "--format", "json", path=[ROOT / "src"]).stdout)["foreign"] == []


def test_the_program_starts_where_it_is_alone() -> None:
    run = start("--version", path=[ROOT / "src"])
    assert run.returncode == 0 and run.stdout.startswith("kb 0.")


@pytest.mark.parametrize(
    "ways", [["-m", "kb.check"], ["-mkb.check"], ["-um", "kb", "check"], ["-X", "utf8", "-m", "kb.check"]]
)
def test_no_module_of_a_project_stands_in_for_pythons(tmp_path: Path, ways: list[str]) -> None:
    for name in ("inspect", "json", "yaml", "argparse", "re", "signal"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a project must not run')\n")
    (tmp_path / "train.yaml").write_text("per_device_train_batch_size: 8\nlearning_rate: 5.0e-5\n")
    command = [sys.executable, *ways, "train.yaml", "--gpu", "rtx-3090"]
    environ = {**ENVIRON, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, encoding="utf-8", check=False)
    assert run.returncode == 0, run.stderr


def test_the_folder_stays_where_another_program_is_started(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import kb\n")
    (tmp_path / "mine" / "train.py").write_text("import beside\nprint(beside.WORD)\n")
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    environ = {**ENVIRON, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mine.train"]
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, encoding="utf-8", check=False)
    assert run.stdout == "found\n", run.stderr


def test_what_lies_beside_the_program_stands_in_for_none_of_pythons_modules(tmp_path: Path) -> None:
    program = tmp_path / "kb"
    program.write_text("import sys\nfrom gpu_memory_kb import main\nsys.exit(main())\n")
    (tmp_path / "argparse.py").write_text("raise SystemExit('somebody has a module of this name')\n")
    environ = {**ENVIRON, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(program), "check", "--help"]
    run = subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", check=False)
    assert run.returncode == 0 and "--gpu" in run.stdout, run.stderr
