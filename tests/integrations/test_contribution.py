"""The forms of the Contribute page: their file is what `kb rules validate` takes, or its faults are named."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kb.integrations.contribution import entry_file
from rules_copy import copy_of_rules
from site_needs import ROOT

L4 = {"id": "l4-next", "name": "NVIDIA L4 Next", "aliases": "L4 Next, l4n", "reported": "23,034", "capability": "8.9",
      "sold": "24", "memory_bandwidth": "300.5"}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 6, "vocab_size": 32128,
    "num_decoder_layers": 6, "feed_forward_proj": "relu", "relative_attention_num_buckets": 32,
    "tie_word_embeddings": True, "architectures": ["T5ForConditionalGeneration"], "dropout_rate": 0.1,
}  # fmt: skip
MODEL = {"id": "t5-mine", "name": "me/t5-mine", "aliases": "my t5", "config": json.dumps(T5)}


def made(kind: str, form: dict[str, Any], language: str = "en") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(entry_file(kind, json.dumps(form), language))
    return answer


@pytest.mark.parametrize(("kind", "form"), [("hardware", L4), ("models", MODEL)])
def test_a_form_filled_in_makes_a_file_that_kb_rules_validate_takes(
    kind: str, form: dict[str, Any], tmp_path: Path
) -> None:
    answer = made(kind, form)
    assert answer["problems"] == []
    assert answer["path"] == f"rules/{kind}/{form['id']}.yaml"
    rules = copy_of_rules(tmp_path)
    (tmp_path / answer["path"]).write_text(answer["text"], "utf-8")
    command = [sys.executable, "-m", "kb.rules", "validate", str(tmp_path / answer["path"]), "--rules", str(rules)]
    run = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr


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
])  # fmt: skip
def test_what_is_wrong_is_said_at_its_field(kind: str, form: dict[str, Any], field: str, said: str) -> None:
    problems = made(kind, form, "ko")["problems"]
    assert [problem["field"] for problem in problems] == [field] * len(problems) != []
    assert any(said in problem["message"] for problem in problems)
