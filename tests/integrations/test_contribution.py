"""The forms of the Contribute page: their file is what `kb rules validate` takes, or its faults are named."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kb.integrations.contribution import entry_file
from rules_copy import few_rules
from site_needs import ROOT

L4 = {"id": "l4-next", "name": "NVIDIA L4 Next", "aliases": "L4 Next, l4n", "reported": "23,034", "capability": "8.9",
      "sold": "24", "memory_bandwidth": "300.5"}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 6, "vocab_size": 32128,
    "num_decoder_layers": 6, "feed_forward_proj": "relu", "relative_attention_num_buckets": 32,
    "tie_word_embeddings": True, "architectures": ["T5ForConditionalGeneration"], "dropout_rate": 0.1,
}  # fmt: skip
RULE = {
    "id": "batch-over-a-hundred", "area": "batch", "severity": "warning", "confidence": "medium",
    "when": "training.per_device_train_batch_size > 100",
    "title_ko": "배치가 백을 넘음", "title_en": "A batch over a hundred",
    "message_ko": "배치가 {training.per_device_train_batch_size}개입니다.",
    "message_en": "The batch is {training.per_device_train_batch_size}.",
    "why_ko": "까닭을 적습니다.", "why_en": "A reason.",
    "fires": "training: {per_device_train_batch_size: 128}\ngeneral: {model_name: google/mt5-base}",
    "silent": "training: {per_device_train_batch_size: 8}\ngeneral: {model_name: google/mt5-base}",
    "set": "training.per_device_train_batch_size: 64", "safety": "unsafe", "fix_ko": "줄입니다.", "fix_en": "Lower it.",
    "source": "https://example.org/batches", "source_title": "On batches", "source_kind": "article",
}  # fmt: skip
RUN = {
    "id": "l4-t5-mine", "gpu_name": "NVIDIA L4", "gpu": "l4", "memory": "23034", "date": "2026-11-01",
    "stack": "torch==2.9.0, transformers==5.0.0", "command": "python train.py", "model": "me/t5-mine",
    "config": json.dumps(T5), "task": "train", "method": "full", "precision": "bf16", "attention": "sdpa",
    "gradient_checkpointing": "false", "optimizer": "adamw_torch", "batch": "8", "source_length": "512",
    "target_length": "128", "allocated": "3,000.5", "reserved": "3200", "process": "3500",
}  # fmt: skip
MODEL = {"id": "t5-mine", "name": "me/t5-mine", "aliases": "my t5", "config": json.dumps(T5)}


def made(kind: str, form: dict[str, Any], language: str = "en") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(entry_file(kind, json.dumps(form), language))
    return answer


@pytest.mark.parametrize(("kind", "form"), [("hardware", L4), ("models", MODEL), ("measurements", RUN)])
def test_a_form_filled_in_makes_a_file_that_kb_rules_validate_takes(
    kind: str, form: dict[str, Any], tmp_path: Path
) -> None:
    answer = made(kind, form)
    assert answer["problems"] == []
    assert answer["path"] == f"rules/{kind}/{form['id']}.yaml"
    rules = few_rules(tmp_path)
    (tmp_path / answer["path"]).write_text(answer["text"], "utf-8")
    command = [sys.executable, "-m", "kb.rules", "validate", str(tmp_path / answer["path"]), "--rules", str(rules)]
    run = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr


def test_a_rule_comes_with_its_source_and_the_config_that_its_fix_makes(tmp_path: Path) -> None:
    answer = made("checks", RULE)
    assert answer["problems"] == []
    (source,) = answer["beside"]
    assert [answer["path"], source["path"]] == [
        "rules/checks/batch/batch-over-a-hundred.yaml", "rules/sources/batch-over-a-hundred.yaml"
    ]  # fmt: skip
    rules = few_rules(tmp_path)
    for file in (answer, source):
        (tmp_path / file["path"]).write_text(file["text"], "utf-8")
    for command in (["validate", str(tmp_path / answer["path"])], ["test", RULE["id"]]):
        whole = [sys.executable, "-m", "kb.rules", *command, "--rules", str(rules)]
        run = subprocess.run(whole, cwd=ROOT / "src", capture_output=True, text=True, check=False, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr
    assert "fixed: |\n    training: {per_device_train_batch_size: 64}" in answer["text"]


@pytest.mark.parametrize(("kind", "form", "field", "said"), [
    ("hardware", {**L4, "id": "L4 Next"}, "id", "정규식"),
    ("hardware", {**L4, "aliases": "l4-24gb"}, "aliases", "l4"),
    ("hardware", {**L4, "aliases": ""}, "aliases", "비어"),
    ("hardware", {**L4, "reported": "a lot"}, "reported", "number"),
    ("hardware", {**L4, "reported": ""}, "reported", "number"),
    ("hardware", {**L4, "capability": "8"}, "capability", "정규식"),
    ("hardware", {**L4, "sold": "48"}, "sold", "48 GB"),
    ("hardware", {**L4, "tdp": "fast"}, "tdp", "number"),
    ("models", {**MODEL, "name": "t5-mine"}, "name", "정규식"),
    ("models", {**MODEL, "config": "{"}, "config", "line 1"),
    ("models", {**MODEL, "config": "[]"}, "config", "{ … }"),
    ("models", {**MODEL, "config": '{"model_type": "mamba"}'}, "config", "mamba"),
    ("models", {**MODEL, "config": json.dumps({**T5, "d_model": None})}, "config", "d_model"),
    ("models", {**MODEL, "id": "t5-small"}, "id", "t5-small"),
    ("checks", {**RULE, "when": "training.batch > 3"}, "when", "training.batch"),
    ("checks", {**RULE, "fires": RULE["silent"]}, "fires", "실제: silent"),
    ("checks", {**RULE, "silent": RULE["fires"]}, "silent", "실제: fires"),
    ("checks", {**RULE, "title_ko": ""}, "title_ko", "비어"),
    ("checks", {**RULE, "message_en": "no number"}, "message_en", "자리 표시"),
    ("checks", {**RULE, "set": "lower it"}, "set", "name: value"),
    ("checks", {**RULE, "set": "training.no: 3"}, "set", "training.no"),
    ("checks", {**RULE, "source": "no-such"}, "source", "no-such"),
    ("checks", {**RULE, "source_title": ""}, "source_title", "비어"),
    ("checks", {**RULE, "id": "t5-fp16-overflow"}, "id", "이미"),
    ("measurements", {**RUN, "gpu": "l5"}, "gpu", "l5"),
    ("measurements", {**RUN, "date": "today"}, "date", "정규식"),
    ("measurements", {**RUN, "reserved": "2000"}, "reserved", "reserved"),
    ("measurements", {**RUN, "process": "99999"}, "process", "gpu_memory"),
    ("measurements", {**RUN, "allocated": ""}, "allocated", "allocated"),
    ("measurements", {**RUN, "batch": "many"}, "batch", "many"),
    ("measurements", {**RUN, "id": "fitcheck-t4-ladder"}, "id", "이미"),
])  # fmt: skip
def test_what_is_wrong_is_said_at_its_field(kind: str, form: dict[str, Any], field: str, said: str) -> None:
    problems = made(kind, form, "ko")["problems"]
    assert [problem["field"] for problem in problems] == [field] * len(problems) != []
    assert any(said in problem["message"] for problem in problems)
