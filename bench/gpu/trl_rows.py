"""What bench/gpu/trl_runs.py measured as a file of rules/measurements: each row is a command with its config."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import yaml

from kb.knowledge import load_catalog
from kb.torch_runs.probe.rows import campaign_yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "trl", "datasets", "liger-kernel")
ABOUT = {
    "ko": "임의 가중치의 모델과 단어 하나가 토큰 하나인 데이터로 TRL의 명령을 세 스텝 돌리고 "
    "torch의 할당·예약 메모리 최댓값을 쟀습니다. "
    "표본은 모두 같은 길이라 배치에 패딩이 없습니다. dpo와 kto의 답은 표본의 일부이며, 보상은 답의 길이입니다.",
    "en": "TRL's commands run for three steps on models of random weights and data in which a word is a token; torch's "
    "peaks of allocated and reserved memory. All samples are equally long, so that no batch is padded. Of dpo and kto "
    "the answer is a part of the sample; the reward is the answer's length.",
}
DRAWN = {
    "ko": "설정은 고르지 않고 무작위로 뽑았으며, 재기 전에 예측을 맞춰 보지 않았습니다.",
    "en": "Settings were drawn at random, not chosen, and no prediction was fitted to them before they were measured.",
}
ANSWERED = ("dpo", "kto", "grpo", "rloo")  # whose samples have an answer beside the rest


def write(folder: Path, journal: Path, *, drawn: bool = False) -> Path:
    """The file, written from a journal and the folders of its runs, whose settings were ``drawn`` at random or listed.

    Raises:
        ValueError: no run of the journal was measured.
    """
    entries = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    kept = [each for each in entries if "outcome" not in each["result"] and not each["result"]["retries"]]
    about = {language: f"{text} {DRAWN[language]}" for language, text in ABOUT.items()} if drawn else ABOUT
    if not kept:
        raise ValueError(f"{journal}: no run of it was measured")
    first = kept[0]
    gpu = first["machine"]["gpu_name"]
    found = next((each.id for each in load_catalog().gpus.values() if gpu in (each.name, *each.aliases)), None)
    name = found or "-".join(gpu.casefold().split())
    identity = f"trl-{'drawn-' if drawn else ''}{name}-{max(each['date'] for each in kept)}"
    models = {each["run"]["model"] for each in kept}
    text = campaign_yaml(
        identity,
        [row_of(each, folder) for each in sorted(kept, key=lambda each: str(each["place"]))],
        title={
            "ko": f"{gpu}에서 잰 TRL 명령의 GPU 메모리" + ", 무작위로 뽑은 설정" * drawn,
            "en": f"GPU memory of TRL's commands measured on {gpu}" + ", settings drawn at random" * drawn,
        },
        about=about,
        date=max(each["date"] for each in kept),
        command="python bench/gpu/trl_runs.py FOLDER" + " --drawn 48" * drawn,
        machine=({"gpu": found} if found else {}) | first["machine"],
        stack=first["stack"],
        models={each: _config(folder / "models" / each) for each in models},
        source="kb-gpu-bench",
        writer="bench/gpu/trl_runs.py",
    )
    path = ROOT / "rules" / "measurements" / f"{identity}.yaml"
    path.write_text(text, "utf-8")
    return path


def row_of(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run's row."""
    run, result = entry["run"], entry["result"]
    start = "torchrun --nproc_per_node 1 -m trl.scripts." if run["torchrun"] else "trl "
    row = {
        "model": run["model"],
        "run": f"{start}{run['kind']} --config config.yaml",
        "config": yaml.safe_load((folder / entry["place"] / "config.yaml").read_text("utf-8")),
        "tokens": run["length"],
    }
    if run["kind"] in ANSWERED:
        row["answer_tokens"] = run["answer"]
    return row | {"phases": {"train": {name: result[name] for name in ("allocated_bytes", "reserved_bytes")}}}


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return {name: value for name, value in found.items() if value is not None}
