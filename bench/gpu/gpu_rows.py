"""The journal of a campaign, and what becomes of it: a file of rules/measurements."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from kb.torch_runs.probe.rows import architecture_of, campaign_yaml

Entry = dict[str, Any]
ABOUT = {
    "ko": "임의 가중치의 모델을 Trainer로 학습하고 평가하고 빔 탐색을 하며, 단계마다 torch의 할당·예약 메모리 최댓값과 "
    "NVML의 프로세스 메모리를 쟀습니다. 실행 하나가 프로세스 하나입니다.",
    "en": "Models of random weights trained and evaluated by the Trainer and decoded with beams; torch's peaks of "
    "allocated and reserved memory by phase, and the process's memory by NVML. One process to a run.",
}


def read_journal(path: Path) -> dict[str, Entry]:
    """Entries by trial, the last one of each; a line cut short by a killed campaign is left out."""
    found: dict[str, Entry] = {}
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
                found[entry["id"]] = entry
            except (ValueError, KeyError):
                continue
    return found


def append(path: Path, entry: Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
        stream.flush()


def as_yaml(identity: str, entries: list[Entry]) -> str:
    """The file as rules/schema/measurement.json wants it.

    Raises:
        ValueError: there is no recordable row, or rows of several machines or stacks are mixed.
    """
    kept = [entry for entry in entries if entry["recordable"] and not spoilt(entry["result"])]
    if not kept:
        raise ValueError("nothing to record: rows come from runs on a GPU that did not fail")
    for part in ("machine", "stack"):
        if len({json.dumps(entry[part], sort_keys=True) for entry in kept}) > 1:
            raise ValueError(f"the journal mixes several of {part}: give each its own --journal")
    first = kept[0]
    gpu = first["machine"]["gpu_name"]
    return campaign_yaml(
        identity,
        [row_of(entry) for entry in kept],
        title={"ko": f"{gpu}에서 잰 GPU 메모리", "en": f"GPU memory measured on {gpu}"},
        about=ABOUT,
        date=max(entry["date"] for entry in kept),
        command="python bench/gpu/campaign.py",
        machine=first["machine"],
        stack=first["stack"],
        models={entry["trial"]["model"]: architecture_of(entry["trial"]["config"]) for entry in kept},
        source="kb-gpu-bench",
        writer="bench/gpu/campaign.py",
    )


def spoilt(result: Entry) -> bool:
    """Whether a trial failed, or met a full GPU, after which torch gives memory back that it would have kept."""
    return "outcome" in result or result.get("retries", 0) > 0


def row_of(entry: Entry) -> Entry:
    """A trial's row: the settings of a TrainingSetup that are not its defaults, and what was measured."""
    trial, result = entry["trial"], entry["result"]
    row: Entry = {"model": trial["model"], "setup": trial["setup"]}
    if trial["lengths"]:
        row["lengths"] = trial["lengths"]
    if trial["expandable"]:
        row["expandable_segments"] = True
    return row | {name: result[name] for name in ("outcome", "trainable", "step_seconds", "phases") if name in result}
