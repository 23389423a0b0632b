"""The journal of a campaign, and what becomes of it: a file of rules/measurements."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from kb.knowledge import load_catalog
from kb.machine.arguments import match_gpu
from kb.torch_runs.probe.rows import campaign_yaml

Entry = dict[str, Any]
PARTS = ("forward", "backward", "step")
ABOUT = {
    "ko": "임의 가중치의 모델을 Trainer로 학습하고 평가하고 생성까지 하며, 단계마다 torch의 할당·예약 메모리 최댓값과 "
    "NVML의 프로세스 메모리를 쟀습니다. 실행 하나가 프로세스 하나입니다. 모델은 공개 모델의 크기 그대로이거나, "
    "그 크기에서 층만 줄인 것입니다. 한 GPU에서 여러 실행을 함께 돌렸으므로 걸린 시간은 비교할 수 없습니다.",
    "en": "Models of random weights trained, evaluated and made to generate by the Trainer; torch's peaks of allocated "
    "and reserved memory by phase, and the process's memory by NVML. One process to a run. Models have the dimensions "
    "of published ones, some with fewer layers. Runs went side by side on one GPU, so that times say nothing.",
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
    memory = first["result"]["gpu_memory_bytes"]
    known = match_gpu(gpu, memory, load_catalog().gpus)
    machine = {"gpu": known.id} if known else {}
    return campaign_yaml(
        identity,
        [row_of(entry) for entry in kept],
        title={"ko": f"{gpu}에서 잰 GPU 메모리", "en": f"GPU memory measured on {gpu}"},
        about=ABOUT,
        date=max(entry["date"] for entry in kept),
        command="python bench/gpu/campaign.py",
        machine=machine | {"gpu_memory_bytes": memory} | first["machine"],
        stack=first["stack"],
        models={entry["trial"]["model"]: entry["trial"]["config"] for entry in kept},
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
    return row | {
        "trainable": result["trainable"],
        "phases": {name: _told(name, each) for name, each in result["phases"].items()},
    }


def _told(phase: str, sizes: dict[str, int]) -> dict[str, int]:
    """Of a step's parts what is alive alone: the rest is the step's. Without the process's size where a phase had given
    memory back before it was read."""
    if phase in PARTS:
        return {"allocated_bytes": sizes["allocated_bytes"]}
    whole = sizes.get("process_bytes", 0) >= sizes["reserved_bytes"]
    return sizes if whole else {name: size for name, size in sizes.items() if name != "process_bytes"}
