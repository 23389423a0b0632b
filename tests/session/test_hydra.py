"""Hydra's trees: composed as hydra-core composes them, and told file by file."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog, shallow_catalog
from kb.advice.question import Question
from kb.config.hydra.composing import Composed, compose
from kb.core.catalog import Catalog
from kb.core.result import UnitResult
from kb.session.composed import GroupFolders
from kb.session.file import FileChecker
from kb.session.fixing import fix_files, fix_once
from kb.session.lookups import read_below
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import FileResult, Input, run

TREE = {
    "config.yaml": """\
defaults:
  - model: t5
  - training: base
  - optional data: none_here
  - db/sub@store: a
  - experiment: fast
  - _self_
  - override hydra/job_logging: default

seed: 42
training:
  num_train_epochs: 3
  gradient_accumulation_steps: ${accum}
accum: 4
out: runs/${model.short}/${seed}
deep: ${training.max}
rate: ${oc.env:KB_TEST_NOT_SET,fast}
""",
    "model/t5.yaml": "model_name_or_path: google/mt5-base\nshort: mt5\nlist: [1, 2]\n",
    "model/bart.yaml": "defaults:\n  - t5\n  - _self_\nmodel_name_or_path: facebook/bart-base\nrel: ${.short}\n",
    "training/base.yaml": "per_device_train_batch_size: 64\nfp16: true\nlearning_rate: 5e-5\n"
    "max_grad_norm: 1.5e0\nmax: ${model.list[1]}\n",
    "db/sub/a.yaml": "defaults:\n  - b@inner\nx: 1\n",
    "db/sub/b.yaml": "y: 2\n",
    "experiment/fast.yaml": "# @package _global_\ndefaults:\n  - override /model: bart\naccum: 8\n"
    "training:\n  max_steps: 10\n  logging_steps: 400\n",
}
OTHERS = {
    "self first": {
        "config.yaml": "defaults:\n  - _self_\n  - g: a\ng:\n  x: 1\n  y: 1\n",
        "g/a.yaml": "x: 2\nz: 3\n",
    },
    "no self": {"config.yaml": "defaults:\n  - g: a\ng:\n  x: 1\n", "g/a.yaml": "x: 2\nz: 3\n"},
    "two options of one group": {
        "config.yaml": "defaults:\n  - g: [a, b]\n  - _self_\nq: 1\n",
        "g/a.yaml": "x: 1\nl: [1, 2]\n",
        "g/b.yaml": "x: 2\nl: [3]\n",
    },
    "group switched off": {"config.yaml": "defaults:\n  - g: null\n  - _self_\nq: 1\n", "g/a.yaml": "x: 1\n"},
    "a config beside it": {"config.yaml": "defaults:\n  - base\n  - _self_\nq: 1\n", "base.yaml": "q: 2\nr: 3\n"},
    "nested groups": {
        "config.yaml": "defaults:\n  - server: apache\n  - _self_\nq: 1\n",
        "server/apache.yaml": "defaults:\n  - db: mysql\n  - /g: a\n  - _self_\nport: 80\n",
        "server/db/mysql.yaml": "user: root\n",
        "g/a.yaml": "x: 1\n",
    },
    "packages": {
        "config.yaml": "defaults:\n  - g: a\n  - g@other: b\n  - g@_global_: c\n  - h: x\n  - _self_\nq: 1\n",
        "g/a.yaml": "# @package foo.bar\nx: 1\n",
        "g/b.yaml": "x: 2\n",
        "g/c.yaml": "w: 3\n",
        "h/x.yaml": "# a comment\n# @package _group_\nv: 4\n",
    },
    "an outer override wins": {
        "config.yaml": "defaults:\n  - s: one\n  - _self_\n  - override s/d: b\nq: 1\n",
        "s/one.yaml": "defaults:\n  - d: a\n  - _self_\n",
        "s/d/a.yaml": "x: a\n",
        "s/d/b.yaml": "x: b\n",
    },
    "a name made of choices": {
        "config.yaml": "defaults:\n  - g: a\n  - h: ${g}_x\n  - _self_\nq: 1\n",
        "g/a.yaml": "x: 1\n",
        "h/a_x.yaml": "y: 2\n",
    },
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "config.yaml"


def composed(primary: Path) -> Composed:
    found = compose(str(primary), primary.read_bytes(), read_below)
    assert found is not None
    return found


def by_hydra(primary: Path) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with initialize_config_dir(str(primary.parent), version_base="1.3"):
            return OmegaConf.to_container(hydra_compose("config"), resolve=True)


@pytest.mark.parametrize("files", [TREE, *OTHERS.values()], ids=["whole tree", *OTHERS])
def test_a_tree_is_composed_as_hydra_composes_it(files: dict[str, str], tmp_path: Path) -> None:
    primary = write(tmp_path, files)
    document = composed(primary).parsed.documents[0]
    assert document is not None
    assert document.plain() == by_hydra(primary)


def test_what_no_file_tells_stays_as_written_and_a_circle_ends(tmp_path: Path) -> None:
    text = (
        "defaults: [_self_]\na: ${b}\nb: ${a}\nc: ${oc.env:X}\nd: ${my.resolver:1}\ne: ${nothing}\nf: ${e}\ng: '${'\n"
    )
    document = composed(write(tmp_path, {"config.yaml": text})).parsed.documents[0]
    assert document is not None
    assert {value for key, value in document.plain().items()} == {
        "${b}", "${a}", "${oc.env:X}", "${my.resolver:1}", "${nothing}", "${e}", "${"
    }  # fmt: skip


def test_interpolations_that_multiply_are_bounded(tmp_path: Path) -> None:
    levels = "".join(f"l{n}: {{a: '${{l{n + 1}}}', b: '${{l{n + 1}}}'}}\n" for n in range(40))
    texts = "".join(f"t{n}: ${{t{n + 1}}}${{t{n + 1}}}\n" for n in range(40))
    document = composed(
        write(tmp_path, {"config.yaml": f"defaults: [_self_]\n{levels}l40: {{x: 1}}\n{texts}t40: ab\n"})
    )
    assert document.parsed.documents[0] is not None


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return shallow_catalog()


ASKED = Question.of(gpu="t4", host_memory="60GB", cpus="8", versions={"transformers": "5.0"})


@pytest.fixture
def checker(catalog: Catalog) -> FileChecker:
    return file_checker(catalog, Project(), ASKED)


@pytest.fixture
def deep() -> FileChecker:
    """For models of their own depth: where it is what fits that is looked at."""
    return file_checker(load_catalog(), Project(), ASKED)


def results(files: tuple[FileResult, ...]) -> dict[str, list[UnitResult]]:
    return {os.path.basename(file.path): list(file.results) for file in files}


def rules_in(units: list[UnitResult]) -> set[str]:
    return {finding.rule for unit in units for finding in unit.findings}


def test_a_finding_stands_in_the_file_and_line_of_its_value(deep: FileChecker, tmp_path: Path) -> None:
    primary = write(tmp_path, TREE)
    outcome = run([Input(str(primary))], deep)
    found = results(outcome.files)
    assert found["config.yaml"][0].model is not None and found["config.yaml"][0].model.id == "bart-base"
    assert found["config.yaml"][0].prediction is not None
    (memory,) = [f for unit in found["base.yaml"] for f in unit.findings if f.rule == "training-peak-exceeds-gpu"]
    assert (memory.span.line, memory.span.column) == (1, 30)
    assert "logging-interval-longer-than-run" in rules_in(found["fast.yaml"])
    # OmegaConf reads 5e-5 and 1.5e0 as numbers, unlike YAML 1.1
    assert not any("yaml-number-is-text" in rules_in(units) for units in found.values())


def test_a_fix_goes_to_the_file_that_says_it_and_one_for_two_files_is_refused(
    deep: FileChecker, tmp_path: Path
) -> None:
    primary = write(tmp_path, TREE)
    before = run([Input(str(primary))], deep)
    (training,) = [file for file in before.files if file.path.endswith("base.yaml")]
    lower = fix_once(deep, training, "config", rules={"training-peak-exceeds-gpu"}, unsafe=True)
    assert [refused.key for refused in lower.refused] == ["config.fix.inherited"]  # accumulation is the primary's
    fixed = fix_files(before, deep, unsafe=True, write=True, notice=lambda key, **values: None)
    assert not fixed.run.unusable
    experiment = (tmp_path / "experiment/fast.yaml").read_text()
    assert experiment == TREE["experiment/fast.yaml"].replace("logging_steps: 400", "logging_steps: 10")
    base = (tmp_path / "training/base.yaml").read_text()
    assert "per_device_train_batch_size: 64" in base and "accumulation" not in base and "training:" not in base
    document = composed(primary).parsed.documents[0]
    assert document is not None and document.plain() == by_hydra(primary)


def test_a_missing_group_file_is_said_where_it_is_named(checker: FileChecker, tmp_path: Path) -> None:
    primary = write(tmp_path, TREE)
    (tmp_path / "training" / "base.yaml").unlink()
    (unit,) = results(run([Input(str(primary))], checker).files)["config.yaml"]
    (missing,) = [finding for finding in unit.findings if finding.rule == "hydra-group-missing"]
    assert (missing.span.line, missing.facts["file"]) == (3, "training/base.yaml")


def test_a_misspelt_choice_gets_the_one_that_was_meant(checker: FileChecker, tmp_path: Path) -> None:
    files = {**TREE, "config.yaml": TREE["config.yaml"].replace("training: base", "training: basee")}
    (unit,) = results(run([Input(str(write(tmp_path, files)))], checker).files)["config.yaml"]
    (missing,) = [finding for finding in unit.findings if finding.rule == "hydra-group-missing"]
    assert missing.facts["file"] == "training/basee.yaml (training/base.yaml?)"


@pytest.mark.parametrize(
    ("files", "key", "place"),
    [
        ({"g/a.yaml": "defaults:\n  - /g: b\n", "g/b.yaml": "defaults:\n  - /g/a\n"}, "config.hydra_cycle", "g/b.yaml"),
        ({"g/a.yaml": "x: [1,\n"}, "config.flow", "g/a.yaml"),
        ({"g/a.yaml": "- 1\n"}, "config.list-at-top", "g/a.yaml"),
    ],
    ids=["circle", "no YAML", "a list"],
)
def test_a_group_file_that_cannot_be_used_is_said_with_its_place(
    files: dict[str, str], key: str, place: str, checker: FileChecker, tmp_path: Path
) -> None:
    primary = write(tmp_path, {"config.yaml": "defaults:\n  - g: a\n  - _self_\nfp16: true\n", **files})
    (fault,) = run([Input(str(primary), named=False)], checker).unusable
    assert fault.path == str(tmp_path / place)
    assert fault.line is not None
    assert fault.key == key or key == "config.flow"


def test_group_files_below_a_primary_config_are_not_checked_alone(checker: FileChecker, tmp_path: Path) -> None:
    write(tmp_path, TREE)
    (tmp_path / "alone.yaml").write_text("model_name_or_path: t5-base\nper_device_train_batch_size: 4\n")
    paths = [str(tmp_path / name) for name in (*TREE, "alone.yaml")]
    files = run([Input(path, named=False) for path in paths], checker).files
    whole = [file for file in files if not file.part_of]
    assert [os.path.basename(file.path) for file in whole] == ["config.yaml", "alone.yaml"]
    groups = GroupFolders()
    assert groups.owner(str(tmp_path / "model/bart.yaml")) == str(tmp_path / "config.yaml")
    assert groups.owner(str(tmp_path / "alone.yaml")) is None


def test_no_file_outside_the_configs_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("x: 1\n")
    primary = write(tmp_path / "conf", {"config.yaml": "defaults:\n  - ../secret\n  - _self_\nq: 1\n"})
    document = composed(primary).parsed.documents[0]
    assert document is not None and document.plain() == {"q": 1}


def test_arguments_of_a_built_object_are_found_wherever_they_stand(checker: FileChecker, tmp_path: Path) -> None:
    text = """\
defaults: [_self_]
model: {_target_: transformers.AutoModelForSeq2SeqLM.from_pretrained, pretrained_model_name_or_path: google-t5/t5-base}
runner:
  arguments:
    _target_: transformers.Seq2SeqTrainingArguments
    per_device_train_batch_size: 4
    gradient_accumulation_steps: 2
"""
    (file,) = run([Input(str(write(tmp_path, {"config.yaml": text})))], checker).files
    (unit,) = file.results
    assert unit.setup is not None and unit.setup.effective_batch_size == 8
    assert unit.unit.settings["training.per_device_train_batch_size"].path[0] == "runner"


def test_a_defaults_list_of_another_program_is_left_alone(checker: FileChecker, tmp_path: Path) -> None:
    text = "defaults:\n  - run: bash\nper_device_train_batch_size: 4\nmodel_name_or_path: t5-base\n"
    (file,) = run([Input(str(write(tmp_path, {"config.yaml": text})))], checker).files
    assert rules_in(list(file.results)).isdisjoint({"hydra-group-missing"})


def test_the_report_is_json_with_every_file(tmp_path: Path) -> None:
    import subprocess
    import sys

    primary = write(tmp_path, TREE)
    done = subprocess.run(
        [sys.executable, "-m", "kb.check", str(primary), "--gpu", "t4", "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=False,
    )
    files = json.loads(done.stdout)["files"]
    assert {os.path.basename(file["path"]) for file in files} >= {"config.yaml", "base.yaml"}
    assert files[0]["prediction"] is not None


def test_watch_hears_a_group_file_change(tmp_path: Path) -> None:
    import subprocess
    import sys
    import threading

    primary = write(tmp_path, TREE)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "kb.check", str(primary), "--gpu", "t4", "--quiet", "--watch", "--lang", "en"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    timer = threading.Timer(120, process.kill)  # a watch that hears nothing must not hang the tests
    timer.start()
    try:
        assert process.stderr is not None and process.stdout is not None
        assert process.stderr.readline()  # the first check is done, and it waits
        (tmp_path / "training/base.yaml").write_text("per_device_train_batch_size: 4\nlearning_rate: 5e-5\n")
        assert process.stderr.readline()  # the second, for the group file
    finally:
        timer.cancel()
        process.kill()
        told = process.stdout.read() if process.stdout else ""
        process.wait()
    assert "effective batch 256 = 64" in told and "effective batch 16 = 4" in told


def test_a_history_reads_the_tree_that_is_there(tmp_path: Path) -> None:
    from kb.commands.history import _read

    primary = write(tmp_path, TREE)
    checker = file_checker(shallow_catalog(), Project(), Question.of(gpu="t4"))
    unit, fault = _read(primary.read_bytes(), str(primary), checker, None)
    assert fault is None and unit is not None
    assert unit.settings["training.per_device_train_batch_size"].value == 64
    _, fault = _read(primary.read_bytes() + b"\n", str(primary), checker, None)  # of another commit
    assert fault is not None and fault[0] == "history.made_of_several"
