"""What every command that starts a run with a config sets itself is nothing that the config decides."""

import os
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.advice.question import Question
from kb.config.program_files import StartedFiles
from kb.session.around import Checking
from kb.session.command_units import Commands
from kb.session.file import FileChecker
from kb.session.lookups import LOOKUPS, ProjectPrograms, Seen, still
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import FileResult, Input, check_input

CONFIG = "model_name_or_path: gpt2\nlearning_rate: 0.0\nper_device_train_batch_size: 2\nbeta: 0.1\n"
STARTS = "accelerate launch --num_processes 2 scripts/run_dpo.py recipes/dpo.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "recipes" / "dpo.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checker() -> FileChecker:
    question = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="16")
    return file_checker(load_catalog(), Project(), question, Checking(notes=False))


def set_there(top: Path, path: Path) -> dict[str, list[object]]:
    """The flags that the commands of a project set."""
    return Commands(load_catalog(), ProjectPrograms(lambda path: str(top), Seen())).set_by_commands(str(path))


def rules_told(ready: FileChecker, path: str = "recipes/dpo.yaml") -> set[str]:
    result = check_input(Input(path), ready)
    assert isinstance(result, FileResult)
    return {finding.rule for unit in result.results for finding in unit.findings}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"{STARTS} --learning_rate=${{lr}} --beta=0.2\n", False),
        (f"{STARTS} \\\n  --beta=0.2 \\\n  --learning-rate 1e-5 > log 2>&1\n", False),
        (f'srun bash -c "{STARTS} --learning_rate=$1"\n', False),
        ("python train.py --learning_rate 1e-5 --config $WORK/recipes/dpo.yaml\n", False),
        (f"{STARTS} --beta=0.2\n", True),
        (f"{STARTS} --learning_rate_scheduler_type cosine\n", True),
        (f"# {STARTS} --learning_rate=1e-5\n", True),
        ("python train.py recipes/dpo.yaml.old --learning_rate 1e-5\n", True),
        ("accelerate launch --learning_rate 1e-5 scripts/run_dpo.py recipes/dpo.yaml\n", True),  # the launcher's
        (f"{STARTS} --learning_rate=1e-5\n{STARTS} --learning_rate=2e-5\n", False),
        (f"{STARTS} --learning_rate=1e-5\n{STARTS}\n", True),  # one of two starts it as it is
        (f"{STARTS} --learning_rate=1e-5\nCONFIG=recipes/dpo.yaml\n", True),  # what else starts it is not known
        (f"{STARTS} --learning_rate=1e-5\ncd recipes\npython ../train.py --config dpo.yaml\n", True),
        (f"{STARTS} # no --learning_rate 1e-5 here\n", True),
        (f"{STARTS} && python eval.py --learning_rate 1e-5\n", True),
        ("echo --learning_rate of recipes/dpo.yaml\n", True),
        (f"{STARTS} --learning_rate 0.0\n", True),  # what the config says
        ("python train.py --learning_rate 0.0 recipes/dpo.yaml\n", True),
        ("CONFIG=recipes/dpo.yaml\npython train.py $CONFIG --learning_rate 1e-5\n", False),
        ("CONFIG=recipes/dpo.yaml\npython train.py $CONFIG --learning_rate 1e-5\nbash more.sh $CONFIG\n", True),
        (f"sbatch <<EOF\n#!/bin/bash\n{STARTS} --learning_rate \\$1\nEOF\n", False),
        (f"cat > job.sh <<EOF\n{STARTS} --learning_rate 1e-5\nEOF\n", True),  # what becomes of it is not told
    ],
)
def test_a_value_is_no_fault_where_every_command_sets_another(project: Path, script: str, said: bool) -> None:
    assert "learning-rate-zero" in rules_told(checker())
    (project / "jobs" / "dpo.slrm").write_text(f"#!/bin/bash\n{script}")
    assert ("learning-rate-zero" in rules_told(checker())) == said


def test_a_script_names_a_config_from_its_own_folder_too(project: Path) -> None:
    (project / "recipes" / "run.sh").write_text("python ../train.py dpo.yaml --learning_rate=1e-5\n")
    assert "learning-rate-zero" not in rules_told(checker())


ALL = {"", "one", "two"}
RUN = "python train.py recipes/sft.yaml --learning_rate 1e-5"


@pytest.mark.parametrize(
    ("script", "command", "given"),
    [
        ("one/run.sh", RUN, {"one"}),
        ("one/jobs/run.sh", f"cd ..\n{RUN}", {"one"}),
        ("run.sh", f"cd one && {RUN}", {"one"}),
        ("run.sh", f"cd one || exit 1\n{RUN}", {"one"}),
        ("run.sh", f"(cd two && ls); cd one\n{RUN}", {"one"}),
        ("run.sh", f'cd "$(dirname "${{BASH_SOURCE[0]}}")"/one\n{RUN}', {"one"}),
        ("run.sh", f"cd $ROOT/one\n{RUN}", {"one"}),
        ("run.sh", f"cd ~/one\n{RUN}", {"one"}),
        ("run.sh", f"cd /workspace/one\n{RUN}", {"one"}),
        ("run.sh", f"cd $ROOT\n{RUN}", ALL),  # each may be meant
        ("run.sh", f"D=one\ncd -P $D\n{RUN}", {"one"}),
        ("run.sh", f"cd -- one\n{RUN}", {"one"}),
        ("run.sh", f"cd gone\n{RUN}", ALL),
        ("run.sh", RUN, {""}),
        ("run.sh", f"cd $SLURM_SUBMIT_DIR\n{RUN}", {""}),
        ("run.sh", f"if [ -n $X ]; then cd $SLURM_SUBMIT_DIR; fi\n{RUN}", {""}),
        ("run.sh", f'HERE="$(cd "$(dirname "$0")/one" && pwd)"\n{RUN}', {""}),
        ("run.sh", f"pushd one > /dev/null; ls; popd\n{RUN}", {""}),
        ("run.sh", f"pushd one > /dev/null 2>&1\n{RUN}", {"one"}),
        ("run.sh", f"cd one; cd -\n{RUN}", ALL),
        ("run.sh", f"prep() {{\n  cd one\n}}\n{RUN}", {""}),
        ("run.sh", f"prep() {{\n  cd one\n}}\nprep\n{RUN}", {"one"}),
        ("run.sh", f"run() {{\n  {RUN}\n}}\ncd one\nrun", {"one"}),
        ("run.sh", f"run() {{\n  {RUN}\n}}\ncd one\nrun\ncd ../two\nrun", ALL),
        ("run.sh", f"cat > x <<'EOF'\ncd one\nEOF\n{RUN}", {""}),
        ("run.sh", f"bash <<EOF\ncd one\n{RUN}\nEOF", {"one"}),
        ("run.sh", f"(\ncd one\n)\n{RUN}", {""}),
        ("run.sh", f"(cd one && make)\nfunction run {{\n  {RUN}\n}}\nrun", {""}),
        ("run.sh", f"( go() {{\n  cd one\n}}\ngo )\n{RUN}", {""}),
        ("run.sh", f"(\ncd one\n{RUN}\n)", {"one"}),
        ("run.sh", f"echo 'now; cd one'\n{RUN}", {""}),
        ("run.sh", f"echo it is '#' and; cd one\n{RUN}", {"one"}),
        ("run.sh", f"# it's here: cd two\ncd one\n{RUN}", {"one"}),
        ("run.sh", f'bash -c "cd one && {RUN}"', {"one"}),
        ("run.sh", f'bash -euo pipefail -c "cd one"\n{RUN}', {""}),
        ("run.sh", f"cd one &\n{RUN}", {""}),
        ("run.sh", f"cd one && ls &\n{RUN}", {""}),
        ("run.sh", f"ls one && cd one && {RUN}", {"one"}),
        ("run.sh", f"ls one && cd one\n{RUN}", ALL),
        ("run.sh", f"cd one || cd two\n{RUN}", ALL),
        ("run.sh", f"if ls two; then\n  cd one\nelse\n  cd two\nfi\n{RUN}", ALL),
        ("run.sh", f"for d in one two; do cd $d; {RUN}; cd ..; done", ALL),
        ("run.sh", f"for d in one two; do\n  {RUN}\n  cd one\ndone", ALL),
        ("run.sh", f"cd one\nwhile [ ! -d .git ]; do cd ..; done\n{RUN}", ALL),
        ("run.sh", f'for d in "$@"; do\n  cd $d\ndone\n{RUN}', ALL),
        ("run.sh", f"for lr in 1 2; do\n  (cd one && ls)\n  {RUN}\ndone", {""}),
        ("run.sh", f"for lr in 1 2; do\n  (cd one && {RUN})\ndone", {"one"}),
        ("run.sh", f"case $1 in\n  a) cd one ;;\n  b) cd two ;;\nesac\n{RUN}", ALL),
        ("run.sh", f"cd one\nif true; then\n{RUN}", {"one"}),
        ("Makefile", f"first:\n\tcd one && ls\n\t{RUN}\n", {""}),
        ("Makefile", f"first:\n\t@cd one && \\\n\t  {RUN}\n", {"one"}),
        ("Makefile", f"first:\n\tfor d in one two; do cd $$d; {RUN}; cd ..; done\n", ALL),
        ("Makefile", f".ONESHELL:\nfirst:\n\tcd one\n\t{RUN}\n", ALL),
    ],
)
def test_of_configs_of_one_name_a_command_sets_the_one_that_it_names(
    project: Path, script: str, command: str, given: set[str]
) -> None:
    for folder in ALL:
        (project / folder / "recipes").mkdir(parents=True, exist_ok=True)
        (project / folder / "recipes" / "sft.yaml").write_text(CONFIG)
    (project / script).parent.mkdir(exist_ok=True)
    (project / script).write_text(f"{command}\n")
    assert {each for each in ALL if set_there(project, project / each / "recipes" / "sft.yaml")} == given


def test_what_lies_elsewhere_is_told(project: Path) -> None:
    (project / "one" / "recipes").mkdir(parents=True)
    (project / "one" / "recipes" / "dpo.yaml").write_text(CONFIG)
    (project / "run.sh").write_text("cd one\npython train.py recipes/dpo.yaml --learning_rate 1e-5\n")
    assert "learning-rate-zero" in rules_told(checker())
    assert "learning-rate-zero" not in rules_told(checker(), "one/recipes/dpo.yaml")


def test_a_script_that_changes_is_seen(project: Path) -> None:
    script = project / "run.sh"
    script.write_text(f"{STARTS} --learning_rate=1e-5\n")
    ready = checker()
    rules_told(ready)
    rows = ready.seen.take()
    assert any(row[0] == "scripts" for row in rows) and still(rows, {**LOOKUPS, **checker().lookups})
    script.write_text(f"{STARTS}\n")
    assert not still(rows, {**LOOKUPS, **checker().lookups})


def test_a_path_in_no_project_and_scripts_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"# \xff\npython train.py dpo.yaml --learning_rate 1\n")
    (tmp_path / "large.sh").write_text("python train.py dpo.yaml " + "-" * (1 << 20))
    (tmp_path / "packed.sh").write_text(f"echo {'QUJD' * 50_000}.yaml {'./' * 50_000} {'--' * 50_000}\n")
    (tmp_path / "gone.sh").symlink_to(tmp_path / "nowhere")
    assert set_there(tmp_path / "other", tmp_path / "dpo.yaml") == {}
    assert set_there(tmp_path, tmp_path / "dpo.yaml") == {"learning_rate": ["1"]}


def test_of_an_address_or_a_file_of_another_computer_nothing_is_looked_up(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    isfile = os.path.isfile
    monkeypatch.setattr("os.path.isfile", lambda path: asked.append(str(path)) or isfile(path))
    names = ("https://host/x/dpo.yaml", "//host/x/dpo.yaml", r"\\host\x\dpo.yaml", "//host/x/train.py")
    (project / "run.sh").write_text("".join(f"python train.py {name} --learning_rate 1e-5\n" for name in names))
    assert "learning-rate-zero" in rules_told(checker())
    started = StartedFiles(lambda path: str(project))
    assert [started.meant(str(project / "run.sh"), name) for name in names[1:]] == [None] * 3
    assert not [path for path in asked if "host" in path]


def test_a_command_that_names_a_config_often_gives_its_flags_once(project: Path) -> None:
    (project / "run.sh").write_text("python train.py " + "recipes/dpo.yaml " * 1000 + "--learning_rate 1\n")
    assert set_there(project, project / "recipes" / "dpo.yaml") == {"learning_rate": ["1"]}
