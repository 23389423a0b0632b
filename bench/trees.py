"""Makes a folder of configs such as a team keeps: 60 to 100 lines each, no two alike, the same for the same seed.

    python bench/trees.py [--files 10000] [--runs 3] [--seconds 60]

checks such a folder with an empty cache and with a full one, and writes bench/results/trees.json and trees.md. How many
of its files ask the memory engine something of their own is set by a first timing, so that it ends in a few minutes
however long a prediction takes; the others differ from one of those in what changes no memory, as runs of a team do.
"""

import argparse
import datetime
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
MACHINE = ["--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "16"]
TARGET_SECONDS, TARGET_FILES = 5, 10_000
FIRST = 8  # files of the first timing: with one of each kind of text
FEWEST, MOST = 16, 2000  # that ask something of their own

MODELS = (
    "google/mt5-base",
    "google/mt5-small",
    "csebuetnlp/mT5_multilingual_XLSum",
    "google-t5/t5-base",
    "eenzeenee/t5-base-korean-summarization",
    "paust/pko-t5-base",
    "gogamza/kobart-base-v2",
    "facebook/bart-large-cnn",
)

TEAM = """\
# {model}: 대화 요약 실험 {index}
experiment_name: run_{index}
description: "배치 {train} × 누적 {steps}, 길이 {source}"

general:
  model_name: {model}
  data_path: ./data/
  train_path: ./data/train.csv
  val_path: ./data/dev.csv
  model_type: seq2seq
  name: run_{index}

tokenizer:
  bos_token: <s>
  eos_token: </s>
  encoder_max_len: {source}      # 입력 길이
  decoder_max_len: {target}      # 요약 길이
  special_tokens:
{tokens}
training:
  do_train: true
  do_eval: true
  eval_strategy: steps
  eval_steps: {every}

  # 배치
  per_device_train_batch_size: {train}
  per_device_eval_batch_size: {evaluation}
  gradient_accumulation_steps: {steps}  # 유효 배치 {said} 유지

  # 학습
  num_train_epochs: {epochs}
  learning_rate: {rate}
  lr_scheduler_type: cosine
  warmup_steps: 200
  weight_decay: 0.01
  max_grad_norm: 1.0
  fp16: {fp16}
  bf16: {bf16}
  tf32: true
  gradient_checkpointing: {checkpointing}
  optim: {optim}
  dataloader_num_workers: {workers}
  dataloader_pin_memory: true
  dataloader_persistent_workers: {persistent}

  # 저장과 평가
  logging_steps: 50
  save_strategy: steps
  save_steps: {every}
  save_total_limit: 3
  load_best_model_at_end: true
  metric_for_best_model: rougeL
  greater_is_better: true
  predict_with_generate: true
  generation_num_beams: {beams}
  generation_max_length: {target}
  report_to: wandb
  seed: {index}

qlora:
  use_qlora: {adapter}
  lora_rank: {rank}
  lora_alpha: {alpha}
  lora_dropout: 0.05
  target_modules: ["q", "k", "v", "o"]
  load_in_4bit: {adapter}
  bnb_4bit_compute_dtype: "bfloat16"
  bnb_4bit_quant_type: "nf4"

wandb:
  entity: "team"
  project: "summaries"
  name: run_{index}
"""

FLAT = """\
# Run {index}: {model}
model_name_or_path: {model}
dataset_name: dialogues
text_column: dialogue
summary_column: summary
max_source_length: {source}
max_target_length: {target}
pad_to_max_length: false
output_dir: runs/{index}
do_train: true
do_eval: true
do_predict: false

# the batch
per_device_train_batch_size: {train}
per_device_eval_batch_size: {evaluation}
gradient_accumulation_steps: {steps}
num_train_epochs: {epochs}
max_steps: -1

# the optimizer
optim: {optim}
learning_rate: {rate}
lr_scheduler_type: linear
warmup_steps: 500
weight_decay: 0.01
adam_beta1: 0.9
adam_beta2: 0.999
adam_epsilon: 1.0e-8
max_grad_norm: 1.0
label_smoothing_factor: 0.0

# precision and memory
fp16: {fp16}
bf16: {bf16}
tf32: true
gradient_checkpointing: {checkpointing}
torch_compile: false
auto_find_batch_size: false

# evaluation
eval_strategy: steps
eval_steps: {every}
eval_delay: 0
prediction_loss_only: false
predict_with_generate: true
generation_max_length: {target}
generation_num_beams: {beams}
metric_for_best_model: rougeL
greater_is_better: true
load_best_model_at_end: true

# saving and logging
save_strategy: steps
save_steps: {every}
save_total_limit: 2
logging_strategy: steps
logging_steps: 50
logging_first_step: true
report_to: none
log_level: passive
disable_tqdm: false
run_name: run_{index}
seed: {index}
data_seed: 42

# the loader
dataloader_num_workers: {workers}
dataloader_pin_memory: true
dataloader_persistent_workers: {persistent}
dataloader_drop_last: false
remove_unused_columns: true
"""


def write_tree(folder: Path, count: int, distinct: int | None = None, seed: int = 20) -> int:
    """Write ``count`` configs below ``folder``, fifty to a subfolder: half team YAML, three in eight flat YAML, one in
    eight the same as JSON. Returns their lines in all.

    Args:
        distinct: so many ask something of their own of the memory engine, the others the same again; by default each.
    """
    import yaml

    dice = random.Random(seed)
    own = [_values(dice, index) for index in range(count if distinct is None else min(distinct, count))]
    own = own[: max(len(own) // FIRST * FIRST, 1)]  # so that a run and its like are texts of one kind
    lines = 0
    for index in range(count):
        values = {**own[index % len(own)], "index": index}
        if index >= len(own):
            values["rate"], values["epochs"] = f"{dice.randint(10, 99)}.0e-6", dice.randint(1, 20)
        text, suffix = TEAM.format(**values), "yaml"
        if index % 2:
            text = FLAT.format(**values)
        if index % 8 == 3:
            text, suffix = json.dumps(yaml.safe_load(text), indent=2) + "\n", "json"
        path = folder / f"group-{index // 50:03}" / f"run-{index:04}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        lines += text.count("\n")
    return lines


def distinct_in(seconds: float) -> tuple[int, float]:
    """How many files that ask something of their own are checked in so many processor seconds, and the seconds that
    one takes: of a few, without a cache, less what a check takes of which everything is kept."""
    with tempfile.TemporaryDirectory(prefix="kb-trees-") as name:
        folder = Path(name)
        write_tree(folder / "configs", FIRST)
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        cold, warm = (check(folder / "configs", environment)["processor_seconds"] for _ in range(2))
    each = max(cold - warm, 0.001) / FIRST
    return min(max(int(seconds / each), FEWEST), MOST), each


def _values(dice: random.Random, index: int) -> dict[str, object]:
    def word(truth: bool) -> str:
        return str(truth).lower()

    train, steps, workers = dice.choice((4, 8, 12, 16, 20, 32)), dice.choice((1, 2, 4)), dice.choice((0, 2, 4, 8, 16))
    half = dice.choice(("fp16", "bf16", "bf16", "none"))
    adapter, rank = dice.random() < 0.5, dice.choice((8, 16, 64))
    tokens = dice.sample(("#Person1#", "#Person2#", "#PhoneNumber#", "#Address#", "#Email#", "#CarNumber#"), 4)
    return {
        "index": index,
        "model": dice.choice(MODELS),
        "train": train,
        "steps": steps,
        "said": train * steps * dice.choice((1, 1, 1, 2)),
        "evaluation": dice.choice((8, 16, 32)),
        "source": dice.choice((256, 512, 1024)),
        "target": dice.choice((64, 128, 200)),
        "tokens": "".join(f"    - '{token}'\n" for token in tokens),
        "every": dice.choice((100, 200, 500)),
        "epochs": dice.randint(1, 20),
        "rate": dice.choice(("5e-5", "5.0e-5", "1.0e-4", "0.0003")),
        "fp16": word(half == "fp16"),
        "bf16": word(half == "bf16"),
        "checkpointing": word(dice.random() < 0.3),
        "optim": dice.choice(("adamw_torch", "adamw_torch_fused", "adafactor")),
        "workers": workers,
        "persistent": word(workers > 0),
        "beams": dice.choice((1, 4, 8, 12)),
        "adapter": word(adapter),
        "rank": rank,
        "alpha": rank * 2,
    }


def measure(count: int, runs: int, seconds: float) -> dict[str, Any]:
    """Seconds and megabytes of checks over trees of ``count`` files and of a tenth of that."""
    rows = []
    most, each = distinct_in(seconds)
    for files in (count // 10, count):
        with tempfile.TemporaryDirectory(prefix="kb-trees-") as name:
            folder = Path(name)
            write_tree(folder / "configs", files, most)
            environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
            cold = check(folder / "configs", environment)
            warm = min((check(folder / "configs", environment) for _ in range(runs)), key=lambda row: row["seconds"])
            rows.append({"files": files, "distinct": min(most // FIRST * FIRST, files), "cold": cold, "warm": warm})
    return {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "seconds_of_its_own": round(each, 3),
        "rows": rows,
    }


def check(folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """One run: seconds by the clock and on the processor, and the most memory that one of its processes held."""
    command = [sys.executable, "-m", "kb.check", str(folder), *MACHINE, "--quiet", "--lang", "en"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode not in (0, 1):
        raise SystemExit(f"kb.check: exit {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    work = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(seconds, 2),
        "processor_seconds": round(work, 2),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }


def as_markdown(results: dict[str, Any]) -> str:
    largest = results["rows"][-1]
    met = largest["warm"]["seconds"] <= TARGET_SECONDS * largest["files"] / TARGET_FILES
    return "\n".join(
        [
            "# Trees of configs",
            "",
            f"`python bench/trees.py`, {results['date']}, {results['cores']} cores, load average "
            f"{results['load']}. Cold: nothing is in the cache, and "
            "every file is checked, in as many processes as there are cores. Warm: nothing has changed since.",
            "",
            f"So many files ask something of their own of the memory engine; of a first {FIRST} such files one took "
            f"{results['seconds_of_its_own']} processor seconds. The others differ from one of these in what changes "
            "no memory.",
            "",
            "| files | ask something of their own | | seconds | processor seconds | ms a file | peak MiB |",
            "|--:|--:|---|--:|--:|--:|--:|",
            *(
                f"| {row['files']:,} | {row['distinct']:,} | {kind} "
                f"| {row[kind]['seconds']} | {row[kind]['processor_seconds']} "
                f"| {row[kind]['seconds'] * 1000 / row['files']:.2f} | {row[kind]['peak_mib']} |"
                for row in results["rows"]
                for kind in ("cold", "warm")
            ),
            "",
            f"Target: {TARGET_FILES:,} files in {TARGET_SECONDS} s, warm. {'Met' if met else 'Missed'}.",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="checks a large folder of configs, cold and warm")
    parser.add_argument("--files", type=int, default=TARGET_FILES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="of a processor, for what is asked anew (60)")
    options = parser.parse_args()
    results = measure(options.files, options.runs, options.seconds)
    text = as_markdown(results)
    print(text)
    (RESULTS / "trees.json").write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    (RESULTS / "trees.md").write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
