"""The real worker on a CPU: models from a config run by the Trainer, a real data loader.

A process that imports the Trainer takes ten seconds to start, so that only those tests have one that are about it.
"""

import json
import threading
from pathlib import Path

import pytest

from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_json
from kb.torch_runs.probe import worker
from kb.torch_runs.probe.events import Told, read_events
from kb.torch_runs.probe.trial import Limits, Trial, as_json
from probe_sample import TINY_T5, probe, require
from trainer_runs import require_trainer

QWEN = {
    "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": True,
    "max_position_embeddings": 256,
}  # fmt: skip
MASKED_BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
SMALL = TrainingSetup(
    do_eval=True, predict_with_generate=True, generation_max_length=6, generation_num_beams=2,
    per_device_train_batch_size=2, per_device_eval_batch_size=2, max_source_length=16, max_target_length=8,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _needs() -> None:
    require(("torch", "transformers", "accelerate", "peft", "psutil"))


def trial(config: dict[str, object], setup: TrainingSetup = SMALL, *phases: str) -> Trial:
    phases = phases or ("train", "evaluate", "generate")
    return Trial("smoke", "cpu", setup_json(setup), config, "tiny", phases, 4, limits=Limits(240))


def told(folder: Path, asked: Trial, code: int = 0) -> Told:
    """What the worker tells of a trial that it runs in this process, and ends with."""
    require_trainer()
    (folder / "trial.json").write_text(json.dumps(as_json(asked)), "utf-8")
    assert worker.main(str(folder / "trial.json"), str(folder / "events.jsonl")) == code
    assert "host-peak" not in {thread.name for thread in threading.enumerate()}, "it would go on looking for ever"
    return read_events(str(folder / "events.jsonl"))


def test_adapters_and_accumulation_of_a_decoder(tmp_path: Path) -> None:
    setup = SMALL._replace(
        method="lora", lora_target_modules=("q_proj", "v_proj"), bf16=True, gradient_accumulation_steps=2,
        gradient_checkpointing=True,
    )  # fmt: skip
    said = told(tmp_path, trial(QWEN, setup))
    assert said.finished, said.fault
    assert list(said.phases) == ["load", "forward", "backward", "step", "train", "evaluate", "generate"]
    assert said.facts["trainable"] == 1792


def test_a_masked_language_model_is_measured_with_its_own_head(tmp_path: Path) -> None:
    said = told(tmp_path, trial(MASKED_BERT, SMALL._replace(method="lora", lora_r=4), "train", "evaluate"))
    assert said.finished, said.fault
    # layers × targets × factors: a classifier's head would train too
    assert said.facts["trainable"] == 2 * 2 * 2 * 32 * 4


def test_a_config_that_is_no_model_is_a_crash_with_transformers_words(tmp_path: Path) -> None:
    said = told(tmp_path, trial({"model_type": "nonsense"}), code=1)
    assert said.fault is not None and (said.fault["status"], said.fault["phase"]) == ("crash", "load")
    assert "nonsense" in said.fault["reason"]


def test_a_seq2seq_config_json_is_measured_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_T5))
    run = probe(tmp_path, "smoke", "--model-config", "config.json", "--backend", "cpu", "--batch", "2",
                "--seq-in", "16", "--seq-out", "8", "--steps", "4", language="ko")  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "4스텝을 실행했고 아무것도 저장하지 않았습니다." in run.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "kb-probe.jsonl"}
    _, run_line, _ = (tmp_path / "kb-probe.jsonl").read_text("utf-8").splitlines()
    outcome = json.loads(run_line)["outcome"]
    assert outcome["status"] == "ok", outcome
    assert list(outcome["phases"]) == ["load", "forward", "backward", "step", "train", "evaluate", "generate"]
    assert all(sizes["host_bytes"] > 0 for sizes in outcome["phases"].values())
    assert outcome["host"]["peak_rss_bytes"] >= outcome["host"]["peak_uss_bytes"] > 0
    assert outcome["trainable"] == 45696 and outcome["step_seconds"] and outcome["samples_per_second"]
    assert outcome["stack"]["transformers"] and "gpu_name" not in outcome["machine"]
    assert "peak_bytes" not in outcome  # nothing of a CPU is GPU memory


@pytest.mark.exhaustive
def test_workers_of_a_real_loader_are_counted_with_what_they_hold(tmp_path: Path) -> None:
    run = probe(tmp_path, "host", "--workers", "0,2", "--format", "json")
    assert run.returncode == 0, run.stderr
    alone, two = (trial["outcome"] for trial in json.loads(run.stdout)["trials"])
    assert alone["samples_per_second"] > 0 and two["samples_per_second"] > 0
    assert "worker" not in alone["host"] and two["host"]["worker"]["uss_bytes"] > 0
    assert two["host"]["worker"]["pss_bytes"] < two["host"]["worker"]["rss_bytes"]  # shared pages are shared out
    assert two["host"]["total_pss_bytes"] > two["host"]["main"]["pss_bytes"]
