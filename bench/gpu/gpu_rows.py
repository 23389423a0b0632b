"""The journal of a campaign, and what becomes of it: a file of rules/measurements."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from kb.knowledge import load_catalog
from kb.machine.detect import match_gpu
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
# Of a campaign of long answers (``long_generation`` in gpu_trials.py).
GENERATION = {
    "title": {"ko": "{gpu}에서 긴 텍스트를 생성하며 잰 GPU 메모리", "en": "GPU memory of long generation on {gpu}"},
    "about": {
        "ko": "임의 가중치의 공개 모델이 새 토큰을 100개에서 400개까지 생성하는 동안 torch의 할당·예약 메모리 최댓값과 "
        "NVML의 프로세스 메모리를 쟀습니다. 모든 답의 길이가 같고, 실행 하나가 프로세스 하나입니다.",
        "en": "Published models of random weights generated 100 to 400 new tokens; torch's peaks of allocated and "
        "reserved memory, and the process's memory by NVML. All answers are equally long; one process to a run.",
    },
}
# Of a campaign of large models, and of models that see or hear (``large`` in gpu_trials.py).
LARGE = {
    "title": {
        "ko": "{gpu}에서 잰 큰 모델과 이미지·음성 모델의 GPU 메모리",
        "en": "GPU memory of large models, and of models that see or hear, on {gpu}",
    },
    "about": {
        "ko": "파라미터 13억~140억 개인 공개 모델과 이미지·음성을 입력받는 모델을 임의 가중치로 만들어 Trainer로 "
        "학습하고 평가하며, 단계마다 torch의 할당·예약 메모리 최댓값과 NVML의 프로세스 메모리를 쟀습니다. 대부분 "
        "LoRA와 QLoRA이고, 층 수는 공개 모델 그대로입니다. 실행 하나가 프로세스 하나이며, 한 GPU에서 여러 실행을 "
        "함께 돌렸으므로 걸린 시간은 비교할 수 없습니다.",
        "en": "Published models of 1.3 to 14 billion parameters, and models of images and of sound, all of full depth "
        "and with random weights, trained and evaluated by the Trainer, most with LoRA or QLoRA; torch's peaks of "
        "allocated and reserved memory by phase, and the process's memory by NVML. One process to a run. Runs went "
        "side by side on one GPU, so that times say nothing.",
    },
}
# Of a campaign whose trials were held to a limit (bench/gpu/limits.py), by what they do.
LIMITED = {
    "train": {
        "title": {"ko": "{gpu}에서 메모리를 제한한 학습", "en": "Training held to a limit of memory on {gpu}"},
        "about": {
            "ko": "임의 가중치의 모델을 Trainer로 학습하되 torch가 예약할 수 있는 메모리를 제한해 끝까지 도는지를 "
            "봤습니다. 제한은 예측한 최소 예약량의 0.97배에서 1.01배까지, 또는 그 최소와 제한 없이 예약하는 양의 "
            "사이입니다. 실행 하나가 프로세스 하나이고 optimizer는 네 스텝을 돕니다.",
            "en": "Models of random weights trained by the Trainer, while torch could reserve only so much: does the "
            "run end? Limits are 0.97 to 1.01 times the least that was predicted for the run, or lie between that and "
            "what it reserves without a limit. One process to a run, four steps of the optimizer.",
        },
    },
    "generate": {
        "title": {"ko": "{gpu}에서 메모리를 제한한 생성", "en": "Generation held to a limit of memory on {gpu}"},
        "about": {
            "ko": "임의 가중치의 모델이 Trainer의 predict로 텍스트를 생성하되 torch가 예약할 수 있는 메모리를 제한해 "
            "끝까지 도는지를 봤습니다. 제한은 예측한 최소 예약량의 0.97배에서 1.01배까지, 또는 그 최소와 제한 없이 "
            "예약하는 양의 사이입니다. 실행 하나가 프로세스 하나입니다.",
            "en": "Models of random weights generated text in the Trainer's predict, while torch could reserve only "
            "so much: does the run end? Limits are 0.97 to 1.01 times the least that was predicted for the run, or "
            "lie between that and what it reserves without a limit. One process to a run.",
        },
    },
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
    kept = [entry for entry in entries if entry["recordable"] and not spoilt(entry)]
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
    title, about = {"ko": f"{gpu}에서 잰 GPU 메모리", "en": f"GPU memory measured on {gpu}"}, ABOUT
    phase = limited(kept)
    only_generate = all(entry["trial"]["phases"] == ["generate"] for entry in kept)
    large = LARGE if first.get("large") else None
    words = LIMITED[phase] if phase else GENERATION if only_generate else large
    if words:
        title, about = {language: text.format(gpu=gpu) for language, text in words["title"].items()}, words["about"]
    return campaign_yaml(
        identity,
        [row_of(entry) for entry in kept],
        title=title,
        about=about,
        date=max(entry["date"] for entry in kept),
        command=f"python bench/gpu/campaign.py{_option(first, phase, only_generate=only_generate)}",
        machine=machine | {"gpu_memory_bytes": memory} | first["machine"],
        stack=first["stack"],
        models={entry["trial"]["model"]: entry["trial"]["config"] for entry in kept},
        source="kb-gpu-bench",
        writer="bench/gpu/campaign.py",
    )


def _option(entry: Entry, limited_phase: str, *, only_generate: bool) -> str:
    """With which a campaign makes these trials."""
    if limited_phase:
        return " --trials FILE"
    return " --large" if entry.get("large") else " --generation" * only_generate


def limited(entries: list[Entry]) -> str:
    """What trials do that were held to a limit: the first of their phases; empty where none was.

    Raises:
        ValueError: some were, and others were not, or they do different things.
    """
    found = {entry["trial"]["phases"][0] if entry["trial"].get("limit") else "" for entry in entries}
    if len(found) > 1:
        raise ValueError("the journal mixes trials with and without a limit, or of two kinds: give each their own "
                         "--journal")  # fmt: skip
    return str(*found)


def spoilt(entry: Entry) -> bool:
    """Whether a trial failed, or met a full GPU, after which torch gives memory back that it would have kept: what one
    with a limit is there to show, but for one that had no room for the model alone."""
    result, limit = entry["result"], entry["trial"].get("limit")
    if limit:  # what loading left reserved may be more than the limit, which then holds nothing back
        over = any(sizes["reserved_bytes"] > limit for sizes in result.get("phases", {}).values())
        return over or result.get("outcome", "oom") != "oom" or "phases" not in result
    return "outcome" in result or result.get("retries", 0) > 0


def row_of(entry: Entry) -> Entry:
    """A trial's row: the settings of a TrainingSetup that are not its defaults, and what was measured."""
    trial, result = entry["trial"], entry["result"]
    row: Entry = {"model": trial["model"], "setup": trial["setup"]}
    if trial["lengths"]:
        row["lengths"] = trial["lengths"]
    if trial["expandable"]:
        row["expandable_segments"] = True
    if trial.get("limit"):
        row |= {"limit_bytes": trial["limit"], "retries": result["retries"]}
        if result.get("outcome"):
            return row | {"outcome": result["outcome"]}
        phase = trial["phases"][0]
        return row | {"phases": {phase: _told(phase, result["phases"][phase])}}
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
