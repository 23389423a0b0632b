"""kb from Python: what the command line says, typed, and the notebook that shows it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kb
from warm_runs import ENVIRON, run_text

ROOT = Path(__file__).parents[2]
CONFIG = {
    "model_name_or_path": "google/mt5-small",
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "max_source_length": 512,
    "max_target_length": 128,
    "learning_rate": 3e-4,
}
BOX = {"gpu": "rtx-3090", "host_memory": "60GB", "cpus": 16}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRON, timeout=300, check=False
    )


def test_importing_kb_imports_nothing_of_it() -> None:
    run = python("import sys, kb; print(sorted(name for name in sys.modules if name.startswith(('kb.', 'yaml'))))")
    assert run.stdout.strip() == "[]", run.stderr


def test_every_name_of_the_api_is_there_and_others_are_not() -> None:
    for name in (
        "lint",
        "predict",
        "predict_many",
        "replace",
        "recommend",
        "machine_of",
        "message",
        "findings",
        "UserError",
        "TrainingSetup",
    ):
        assert name in dir(kb)
        assert callable(getattr(kb, name))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = kb.no_such_name  # type: ignore[attr-defined]


def test_a_program_may_ask_for_the_hints_of_every_class() -> None:
    """In a process of its own: a check imports no ``typing``, and hints are then the names of core/typed.py."""
    run = python("import kb, typing; [typing.get_type_hints(getattr(kb, name)) for name in kb._CLASSES]")
    assert (run.returncode, run.stderr) == (0, "")


def test_a_dict_is_checked_as_its_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a dict lies in no folder: the working one's project is its own
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG, indent=2))
    by_dict, by_path = kb.lint(CONFIG, BOX), kb.lint(path, BOX)
    assert by_dict.units[0].prediction == by_path.units[0].prediction
    assert [finding for _, finding in kb.findings(by_dict)] == [finding for _, finding in kb.findings(by_path)]
    box = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", 16)
    run = run_text("kb.check", path, *box, "--format", "json", "--notes", "--lang", "en")
    told = json.loads(run.stdout)["files"][0]["findings"]
    assert [row["message"] for row in told] == [kb.message(finding) for _, finding in kb.findings(by_path)]


def test_a_folder_gives_a_unit_for_each_run(tmp_path: Path) -> None:
    for batch in (4, 8):
        (tmp_path / f"{batch}.json").write_text(json.dumps({**CONFIG, "per_device_train_batch_size": batch}))
    setups = [unit.setup for unit in kb.lint(str(tmp_path), BOX).units]
    assert [setup.per_device_train_batch_size for setup in setups if setup] == [4, 8]


@dataclasses.dataclass
class Arguments:
    """The shape of transformers' TrainingArguments: a dataclass whose defaults to_dict() spells out."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 5e-5
    fp16: bool = False
    optim: str = "adamw_torch_fused"
    output_dir: str | None = None
    weight_decay: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def test_training_arguments_say_what_differs_from_their_defaults() -> None:
    result = kb.lint(Arguments(per_device_train_batch_size=4, fp16=True), BOX, model="google/mt5-base")
    (unit,) = result.units
    assert unit.model is not None and unit.model.id == "mt5-base"
    assert unit.setup is not None and (unit.setup.per_device_train_batch_size, unit.setup.fp16) == (4, True)
    assert "training.optim" not in unit.unit.settings
    assert "t5-fp16-overflow" in {finding.rule for _, finding in kb.findings(result)}


def test_a_setup_a_config_and_a_path_are_predicted_alike(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    by_config = kb.predict(CONFIG, BOX)
    assert kb.predict(path, BOX) == by_config
    setup = kb.lint(CONFIG, BOX).units[0].setup
    assert setup is not None
    by_setup = kb.predict(setup, kb.machine_of("rtx-3090", host_memory="60GB", cpus=16))
    assert by_setup.phases == by_config.phases
    assert by_setup.verdict == by_config.verdict


def test_what_is_recommended_fits_and_holds_the_effective_batch() -> None:
    answer = kb.recommend("distilgpt2", BOX, effective_batch=32, source_length=512)
    assert answer.setup is not None and answer.setup.effective_batch_size == 32
    assert kb.predict(answer.setup, BOX).verdict.status == "fits"


def test_the_command_of_the_same_name_does_not_take_the_function_away() -> None:
    for imports in ("import kb.recommend, kb", "import kb; kb.recommend; import kb.recommend"):
        said = python(f"{imports}\ntry: kb.recommend('t5-small', 'none')\nexcept kb.UserError as fault: print(fault)")
        assert "GPU" in said.stdout, said.stderr


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: kb.lint("nowhere.yaml"), "does not exist"),
        (lambda: kb.lint(CONFIG, "rtx-3900"), "rtx-3900"),
        (lambda: kb.lint(CONFIG, {"gpu": "t4", "host_memory": "60XB"}), "60XB"),
        (lambda: kb.lint(CONFIG, "t4", select=["no-such-rule"]), "no-such-rule"),
        (lambda: kb.lint(CONFIG, "t4", dialect="nonsense"), "nonsense"),
        (lambda: kb.lint({}, "t4"), "config"),
        (lambda: kb.predict({**CONFIG, "model_name_or_path": "no/such"}, "t4"), "no/such"),
        (lambda: kb.predict(kb.TrainingSetup(), "t4"), "model"),
        (lambda: kb.recommend("no/such", "t4"), "no/such"),
        (lambda: kb.recommend("t5-small", "none"), "GPU"),
    ],
)
def test_a_fault_is_a_value_error_with_a_sentence(ask: Any, said: str) -> None:
    with pytest.raises(kb.UserError) as caught:
        ask()
    assert isinstance(caught.value, ValueError)
    assert said in str(caught.value)
    assert "{" not in str(caught.value)


@pytest.mark.exhaustive
def test_types_are_known_to_a_type_checker(tmp_path: Path) -> None:
    source = tmp_path / "use.py"
    source.write_text("""\
import kb
result = kb.lint({"fp16": True}, "t4")
reveal_type(result)
reveal_type([finding.rule for _, finding in kb.findings(result)])
reveal_type(kb.predict(kb.TrainingSetup(model_name="t5-small"), kb.machine_of("t4")).verdict.status)
answer = kb.recommend("t5-small", "t4", effective_batch=32)
reveal_type(answer.setup)
kb.recommend("t5-small", task="fly")
""")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(source)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**ENVIRON, "MYPYPATH": str(ROOT / "src")},
        check=False,
    )
    told = [line.partition(": ")[2] for line in run.stdout.splitlines() if "use.py" in line]
    revealed = [line for line in told if "Revealed" in line]
    # mypy spells a named tuple out, with its name at the end
    assert revealed[0].endswith('fallback=kb.core.result.CheckResult]"'), run.stdout
    assert revealed[1].endswith('"list[str]"')
    assert "Literal['oom']" in revealed[2]
    assert revealed[3].endswith('fallback=kb.core.setup.TrainingSetup] | None"')
    assert [line for line in told if line.startswith("error")] and 'Literal["fly"]' in run.stdout.replace("'", '"')


@pytest.mark.exhaustive
def test_the_example_notebook_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "kb.ipynb").read_text("utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    exec("\n".join("".join(cell["source"]) for cell in cells), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "t5-fp16-overflow" in said and "rtx-3900" in said


def test_the_level_says_what_answered() -> None:
    assert kb.predict(CONFIG, BOX).level == "engine"
    assert kb.predict({**CONFIG, "use_liger_kernel": True}, BOX).level == "engine"
    roughly, exactly = (kb.predict_many([CONFIG], BOX, rough=rough)[0] for rough in (True, False))
    assert roughly["verdict"] == exactly["verdict"]
    assert roughly["process_used_bytes"] == pytest.approx(exactly["process_used_bytes"], rel=0.2)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "kb" / "py.typed").exists()


def test_many_configs_give_a_row_each_as_one_would_and_a_bad_one_stops_none() -> None:
    grid = [{**CONFIG, "per_device_train_batch_size": batch} for batch in (4, 16, 64, 4)]
    rows = kb.predict_many([*grid, {"per_device_train_batch_size": 4}, {"training": "\ud800"}], BOX)
    for config, row in zip(grid, rows, strict=False):
        report = kb.predict(config, BOX)
        worst = max(report.phases, key=lambda phase: phase.process_used_bytes)
        assert (row["verdict"], row["phase"]) == (report.verdict.status, worst.name)
        assert (row["process_used_bytes"], row["high_bytes"]) == (worst.process_used_bytes, worst.high_bytes)
        assert row["host_bytes"] == report.host.peak_bytes and row["error"] is None
    assert [row["train_batch"] for row in rows[:4]] == [4, 16, 64, 4]
    assert len({tuple(row) for row in rows}) == 1  # the same keys in each: a table
    assert all(row["verdict"] is None and row["error"].endswith(".") for row in rows[4:])


def test_many_refuses_what_is_no_dict_and_a_machine_that_it_does_not_know() -> None:
    with pytest.raises(kb.UserError, match="predict_many takes dicts"):
        kb.predict_many(["train.yaml"], BOX)
    with pytest.raises(kb.UserError, match="rtx-3090"):
        kb.predict_many([CONFIG], "rtx-309")


def test_a_setup_is_changed_by_its_own_names_alone() -> None:
    setup = kb.TrainingSetup(model_name="google/mt5-base", per_device_train_batch_size=8)
    assert kb.replace(setup, bf16=True) == kb.TrainingSetup(
        model_name="google/mt5-base", per_device_train_batch_size=8, bf16=True
    )
    with pytest.raises(kb.UserError, match="did you mean: per_device_train_batch_size"):
        kb.replace(setup, per_device_train_batch=4)
