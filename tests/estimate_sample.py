"""``kb estimate`` in a process of its own, and runs to ask it for."""

import json
from pathlib import Path

from command_runs import run_kb
from output_schemas import answers_to

T5 = ("--model", "t5-base", "--precision", "bf16", "--batch", 16, "--seq-in", 512, "--seq-out", 128)
T5_CONFIG = {
    "model_type": "t5", "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "num_layers": 6, "vocab_size": 32128,
}  # fmt: skip


def estimate(*arguments: object, code: int = 0, stdin: str | None = None) -> dict:
    run = run_kb(*arguments, "--format", "json", "--lang", "en", module="kb.estimate", stdin=stdin)
    assert run.returncode == code, run.stderr
    made = json.loads(run.stdout)
    answers_to("estimate", made)
    return made


def refusal(*arguments: object, language: str = "en") -> str:
    run = run_kb(*arguments, "--lang", language, module="kb.estimate")
    assert (run.returncode, run.stdout) == (2, ""), run.stdout or run.stderr
    return run.stderr


def config_json(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**T5_CONFIG, **changes}), "utf-8")
    return path
