"""Other programs that predict memory, asked about the same rows. They live in an environment of their own."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accuracy_rows import ROOT, Row

from kb.advice.formulas import work_out
from kb.core.expression import is_unknown
from kb.memory import architecture_from_config, parameter_count

PLACE = ROOT / "bench" / ".venv-rivals"
REQUIREMENTS = ROOT / "bench" / "requirements-rivals.txt"
WORKER = Path(__file__).with_name("rivals_worker.py")
NAMES = ("fitcheck-llm", "accelerate", "DeepSpeed", "the notes' formula")
SECONDS = 1800


class Rivals(NamedTuple):
    """Bytes by row, rival and quantity; what failed, and which versions answered."""

    answers: Mapping[str, Mapping[str, Mapping[str, int]]]
    failed: Mapping[str, str]
    versions: Mapping[str, str]


def install() -> Path:
    """The environment's Python; made from PyPI where it is not there or its requirements changed.

    DeepSpeed is built from source and imports torch while it is: so torch goes first, and nothing is isolated.
    """
    python = PLACE / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = PLACE / "requirements.txt"
    wanted = REQUIREMENTS.read_text("utf-8")
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return python
    venv.create(PLACE, clear=True, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lines = [line for line in wanted.splitlines() if line and not line.startswith("#")]
    first = [line for line in lines if not line.startswith("deepspeed")]
    subprocess.run([*pip, "setuptools", "wheel", *first], check=True)
    rest = [line for line in lines if line.startswith("deepspeed")]
    subprocess.run([*pip, "--no-build-isolation", *rest], check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    stamp.write_text(wanted, "utf-8")
    return python


def ask(rows: Sequence[Row], notes: Mapping[str, Any], python: Path | None) -> Rivals:
    """What every rival says of the rows.

    Args:
        notes: the entry ``guide-gpu-memory`` of the guide's formulas.
        python: of the rivals' environment; None asks the notes alone.
    """
    answers: dict[str, dict[str, Mapping[str, int]]] = {row.id: {} for row in rows}
    failed: Mapping[str, str] = {}
    versions: Mapping[str, str] = {}
    if python is not None:
        text = "".join(json.dumps(_plain(row)) + "\n" for row in rows)
        run = subprocess.run(
            [str(python), str(WORKER)], input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if run.returncode:
            print(run.stderr, file=sys.stderr)
            raise SystemExit(f"the rivals stopped with {run.returncode}; --no-rivals leaves them out")
        *lines, last = run.stdout.splitlines()
        for line in lines:
            data = json.loads(line)
            answers[data["id"]].update(data["answers"])
        closing = json.loads(last)
        failed, versions = closing["failed"], closing["versions"]
    for row in rows:
        if (total := _by_notes(row, notes)) is not None:
            answers[row.id]["the notes' formula"] = {"allocated": total}
    return Rivals(answers, failed, versions)


def _plain(row: Row) -> dict[str, Any]:
    """What a rival is told of a row."""
    setup, arch = row.setup, architecture_from_config(row.config)
    half = "fp16" if setup.fp16 else "bf16" if setup.bf16 else setup.weights
    task = "load" if row.phase == "load" else "train" if row.phase == "train" else row.phase
    return {
        "id": row.id,
        "model": row.model,
        "config": dict(row.config),
        "decoder_only": arch.family == "decoder",
        "parameters": parameter_count(arch),
        "task": task,
        "method": setup.method,
        "precision": half,
        "autocast": setup.autocast,
        "optimizer": setup.optim,
        "batch": setup.per_device_train_batch_size,
        "source": setup.max_source_length,
        "rank": setup.lora_r,
        "targets": list(setup.lora_target_modules or ()),
        "double_quant": setup.bnb_4bit_use_double_quant,
        "checkpointing": setup.gradient_checkpointing,
        "attention": setup.attn_implementation,
        "gpu": row.gpu.id if row.gpu else None,
    }


def _by_notes(row: Row, formula: Mapping[str, Any]) -> int | None:
    """The field notes' rule of thumb for training; it knows neither adapters nor other phases."""
    setup, arch = row.setup, architecture_from_config(row.config)
    if row.phase != "train" or setup.method != "full":
        return None
    given = {
        "parameters": parameter_count(arch),
        "bytes_per_parameter": 2 if setup.autocast or setup.weights != "fp32" else 4,
        "batch_size": setup.per_device_train_batch_size,
        "sequence_length": setup.max_source_length,
        "hidden_size": arch.d_model,
    }
    total = work_out(formula, given, use="claimed")["total"]
    return None if is_unknown(total) else round(total)
