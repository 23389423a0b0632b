"""`kb estimate --simulate`: the simulator's answer in the same report, and the prediction where it has none."""

import json
import os
from pathlib import Path

import pytest

from command_runs import ROOT
from command_runs import run_kb as kb
from effort import EXHAUSTIVE
from estimate_sample import T5, T5_CONFIG, config_json, estimate, refusal
from kb.commands.estimate import main
from output_schemas import answers_to
from simulation_here import in_this_process
from simulation_needs import require_simulator

MIB = 2**20
SMALL = {**T5_CONFIG, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 1, "vocab_size": 1000}
RUN = ("--batch", 2, "--seq-in", 32, "--seq-out", 8, "--gpu", "t4")


class Here:
    """The command in this process, its simulation as well: the same answers without another start of torch."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, *arguments: object, language: str, code: int = 0) -> str:
        with in_this_process():
            assert main([*map(str, arguments), "--lang", language]) == code
        shown = self._capsys.readouterr()
        return shown.err if code else shown.out

    def json(self, *arguments: object) -> dict:
        made = json.loads(self.text(*arguments, "--format", "json", language="en"))
        answers_to("estimate", made)
        return made


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Here:
    require_simulator()
    return Here(capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return config_json(tmp_path, **SMALL)


@pytest.mark.exhaustive
def test_a_simulation_matches_its_trace(here: Here) -> None:
    made = here.json(*T5, "--attention", "sdpa", "--gpu", "rtx-3090", "--simulate")
    assert made["level"] == "simulated"
    assert made["phases"]["train"]["peak_allocated_bytes"] / MIB == pytest.approx(11140, rel=0.01)
    assert made["simulation"]["software"]["torch"]
    assert made["simulation"]["tops"]["train"][0]["bytes"] > MIB


@pytest.mark.exhaustive
def test_a_simulation_leaves_a_drawing_a_timeline_and_a_snapshot(model: Path, tmp_path: Path) -> None:
    require_simulator()
    drawn, line, snapshot = (tmp_path / name for name in ("memory.svg", "memory.json", "memory.pickle"))
    files = ("--plot", drawn, "--timeline", line, "--snapshot", snapshot)
    made = estimate("--model-config", model, *RUN, "--simulate", *files)
    assert drawn.read_text("utf-8").startswith("<svg")
    data = json.loads(line.read_text("utf-8"))
    peak = max(allocated for _, allocated, *_ in data["points"])
    assert all(sum(roles) == allocated for _, allocated, _, *roles in data["points"])
    assert data["tops"]["train"] == made["simulation"]["tops"]["train"]
    assert peak == made["phases"]["train"]["peak_allocated_bytes"]
    assert snapshot.stat().st_size > 0


def test_a_simulation_is_said_in_words(model: Path, here: Here) -> None:
    for language, word in {"en": "Level 1", "ko": "1단계"}.items() if EXHAUSTIVE else [("ko", "1단계")]:
        assert word in here.text("--model-config", model, *RUN, "--simulate", language=language)


def test_a_model_without_a_closed_form_is_simulated(tmp_path: Path, here: Here) -> None:
    config = {"model_type": "blenderbot-small", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
              "vocab_size": 1000, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
              "decoder_ffn_dim": 128}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), "utf-8")
    assert "blenderbot-small" in refusal("--model-config", path, *RUN)
    made = here.json("--model-config", path, *RUN, "--simulate")
    assert (made["level"], made["model"]) == ("simulated", None)


def test_an_architecture_that_transformers_does_not_know_is_said(tmp_path: Path, here: Here) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, "model_type": "abacus"}), "utf-8")
    for language in ("en", "ko"):
        assert "abacus" in here.text("--model-config", path, *RUN, "--simulate", language=language, code=2)


def test_a_simulation_that_takes_too_long_leaves_the_prediction(model: Path) -> None:
    require_simulator()
    made = estimate("--model-config", model, *RUN, "--simulate", "--time-limit", 1)
    assert made["level"] == "engine"
    assert made["phases"] == estimate("--model-config", model, *RUN)["phases"]
    assert any("1 s" in note for note in made["notes"]), made["notes"]


@pytest.mark.exhaustive
def test_a_simulation_that_takes_too_much_memory_leaves_the_prediction(model: Path) -> None:
    require_simulator()
    made = estimate("--model-config", model, *RUN, "--simulate", "--memory-limit", "40MB")
    assert made["level"] == "engine"
    assert len(made["notes"]) == 2


def test_without_torch_the_prediction_answers_and_says_why(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch that cannot be imported stands before the real one."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n", "utf-8")
    run = _kb_with_path(f"{hidden}{os.pathsep}{ROOT / 'src'}", "--model-config", model, *RUN, "--simulate")
    made = json.loads(run)
    assert made["level"] == "engine"
    assert any("torch" in note for note in made["notes"])


def _kb_with_path(path: str, *arguments: object) -> str:
    import subprocess
    import sys

    environ = {**os.environ, "PYTHONPATH": path, "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "kb.estimate", *map(str, arguments), "--format", "json"]
    run = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)
    assert "Traceback" not in run.stderr
    return run.stdout


@pytest.mark.exhaustive
def test_remote_code_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    require_simulator()
    trace = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(f"open({str(trace)!r}, 'w').close()\n", "utf-8")
    config_json(tmp_path, **SMALL, auto_map={"AutoModelForSeq2SeqLM": "modeling_own.Own"})
    kb("--model-config", tmp_path, *RUN, "--simulate", module="kb.estimate")
    assert not trace.exists()
