"""TRL's own command on models with random weights: what a run of SFT, DPO, KTO, GRPO, RLOO or a reward model takes.

    python bench/gpu/trl_runs.py FOLDER              # writes models, data and configs, runs each, prints what it took
    python bench/gpu/trl_runs.py FOLDER --prepare    # the configs alone, for `kb estimate FOLDER/…/config.yaml`
    python bench/gpu/trl_runs.py FOLDER --write      # the journal's rows as rules/measurements/trl-<name>-<date>.yaml
    python bench/gpu/trl_runs.py FOLDER --drawn 48   # so many runs of settings drawn at random instead

A word is a token, and every sample is as long as the config lets it be. Needs torch, transformers, trl and datasets.
"""

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import trl_rows
import yaml
from campaign import machine_of

from kb.torch_runs.probe.worker import stack

ROOT = Path(__file__).resolve().parents[2]
STEPS, SAMPLES = 3, 96
LARGE = "llama-3.1-8b"  # of which few runs are made
BRIEF = {"max_steps": STEPS, "report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
LORA = {"use_peft": True, "dtype": "bfloat16", "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
QLORA = LORA | {"load_in_4bit": True}
FULL = {"dtype": "float32"}
HALF = {"dtype": "bfloat16"}
# What the process runs: TRL's own script, and then what torch's allocator says of it.
PRELUDE = """
import json, os, pathlib, runpy, sys, torch
import trial
torch.cuda.memory._record_memory_history(context=None, max_entries=trial.MOST_ACTS)
sys.argv = ["trl", "--config", "config.yaml"]
try:
    runpy.run_module("trl.scripts.{kind}", run_name="__main__")
finally:
    stats = torch.cuda.memory_stats()
    pathlib.Path("acts.z").write_bytes(trial.history())
    print("took:", json.dumps({{"allocated_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.peak"], "retries": stats["num_alloc_retries"]}}), flush=True)
"""
# One process as torchrun starts it: accelerate then wraps the model in DDP.
TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


class TrlRun(NamedTuple):
    """One command: ``length`` is a whole sample's, ``answer`` the tokens of it that are answered."""

    kind: str
    model: str
    method: str
    settings: Mapping[str, Any]
    length: int
    answer: int
    torchrun: bool = False

    @property
    def name(self) -> str:
        own = "-".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.kind}-{self.model}-{self.method}-{self.length}-{self.answer}-{own}".replace(" ", "")


TARGETS = (["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
METHODS = {"full": FULL, "half": HALF, "lora": LORA, "qlora": QLORA}


def runs() -> Iterator[TrlRun]:
    """Every kind with every method, the rest spread over them."""
    small, middle, large = "smollm2-135m", "smollm2-360m", "llama-3.2-1b"
    plain, open_ = {"gradient_checkpointing": True}, {"gradient_checkpointing": False}
    for kind in ("sft", "dpo", "kto", "reward"):
        for method, model, length, batch, more in (
            ("full", small, 512, 4, plain), ("full", small, 300, 2, open_), ("half", middle, 512, 4, plain),
            ("lora", large, 1024, 2, plain), ("lora", middle, 512, 4, open_), ("qlora", large, 512, 4, plain),
            ("qlora", small, 777, 3, open_), ("lora", small, 1024, 8, plain | {"gradient_accumulation_steps": 2}),
        ):  # fmt: skip
            yield TrlRun(kind, model, method, {"per_device_train_batch_size": batch} | more, length, length // 3)
    for method, model in (("full", small), ("lora", middle)):
        yield TrlRun(
            "dpo", model, method, {"per_device_train_batch_size": 4, "precompute_ref_log_probs": True}, 512, 200
        )
        yield TrlRun("sft", model, method, {"per_device_train_batch_size": 2, "packing": True,
                                            "packing_strategy": "wrapped"}, 1024, 300)  # fmt: skip
    for method, model, batch in (("full", small, 4), ("half", small, 2), ("lora", middle, 2)):
        given = {"per_device_train_batch_size": batch, **plain}
        yield TrlRun("sft", model, method, given | {"use_liger_kernel": True}, 1024, 300)
        yield TrlRun("sft", model, method, given, 512, 100, torchrun=True)
    large_batch = {"per_device_train_batch_size": 2, **plain}
    for kind, method in (("sft", "qlora"), ("sft", "lora"), ("dpo", "qlora")):
        yield TrlRun(kind, LARGE, method, large_batch, 1024, 300)
    for kind in ("grpo", "rloo"):
        for method, model, prompt, answer, more in (
            ("full", small, 256, 128, {}), ("half", middle, 128, 100, {"beta": 0.04}), ("lora", middle, 256, 256, {}),
            ("lora", large, 256, 128, {"beta": 0.04}), ("full", small, 100, 300, {"beta": 0.04}),
            ("qlora", small, 128, 64, {}),
        ):  # fmt: skip
            given = {"per_device_train_batch_size": 8, "num_generations": 8, **more}
            yield TrlRun(kind, model, method, given, prompt + answer, answer)


def drawn(count: int, seed: int = 29) -> list[TrlRun]:
    """Runs whose settings nobody chose: what was not looked at while the memory engine was written."""
    draw = random.Random(seed)
    kinds = ("sft", "dpo", "kto", "reward", "grpo", "rloo")
    found = [_drawn(kinds[number % len(kinds)], draw) for number in range(count)]
    return [run for run in found if run.model not in UNREAD]


# transformers 5 reads a tokenizer of whole words as Qwen2's own, and every sample as empty.
UNREAD = ("qwen2.5-0.5b",)


def _drawn(kind: str, draw: random.Random) -> TrlRun:
    method = draw.choice(("full", "half", "lora", "lora", "qlora"))
    model = draw.choice(("smollm2-135m", "smollm2-360m", "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b"))
    length, rows = draw.randrange(160, 1400), draw.randint(1, 6)
    answer = max(16, round(length * draw.uniform(0.1, 0.9)))
    given: dict[str, Any] = {
        "per_device_train_batch_size": rows,
        "gradient_checkpointing": draw.random() < 0.6,
        "gradient_accumulation_steps": draw.choice((1, 1, 2, 4)),
        "optim": draw.choice(("adamw_torch_fused", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "sgd")),
    }
    if method in ("lora", "qlora"):
        given |= {"lora_r": draw.choice((8, 32, 64)), "lora_target_modules": draw.choice(TARGETS)}
    if kind == "sft":
        given |= draw.choice(({}, {}, {"use_liger_kernel": True}, {"packing": True, "packing_strategy": "wrapped"}))
    if kind == "dpo":
        given |= draw.choice(({}, {}, {"precompute_ref_log_probs": True}, {"loss_type": ["ipo"]}))
    if kind in ("grpo", "rloo"):
        length, answer = min(length, 700), min(answer, 300)
        groups = draw.choice((4, 8))
        given |= {
            "per_device_train_batch_size": groups,
            "num_generations": groups,
            "beta": draw.choice((0.0, 0.04)),
            "gradient_accumulation_steps": draw.choice((1, 2)),
        }
    return TrlRun(kind, model, method, given, length, answer)


def prepare(folder: Path, chosen: Sequence[TrlRun]) -> list[tuple[TrlRun, Path]]:
    """Each run's folder with its config; kb reads the same file."""
    found = []
    for number, run in enumerate(chosen):
        place = (folder / f"{number:02}-{run.kind}-{run.model}-{run.method}").resolve()
        place.mkdir(parents=True, exist_ok=True)
        own: dict[str, Any] = {"model_name_or_path": f"models/{run.model}", "dataset_name": "data", "bf16": True,
                               "output_dir": "out", **BRIEF, **METHODS[run.method], **run.settings}  # fmt: skip
        if run.kind == "reward" and run.method in ("lora", "qlora"):
            own["lora_task_type"] = "SEQ_CLS"
        if run.kind in ("grpo", "rloo"):
            own |= {"max_completion_length": run.answer, "reward_funcs": ["rewarding.by_length"],
                    "generation_kwargs": {"min_new_tokens": run.answer}}  # fmt: skip
            (place / "rewarding.py").write_text(
                "def by_length(completions, **_):\n    return [float(len(c)) for c in completions]\n"
            )
        else:
            own["max_length"] = run.length
        (place / "config.yaml").write_text(yaml.safe_dump(own, sort_keys=False), "utf-8")
        (place / "models").unlink(missing_ok=True)
        (place / "models").symlink_to("../models")
        data = place / "data"
        data.mkdir(exist_ok=True)
        (data / "train.jsonl").write_text("\n".join(map(json.dumps, samples(run))) + "\n", "utf-8")
        found.append((run, place))
    for name in sorted({run.model for run in chosen}):
        path = folder / "models" / name
        path.mkdir(parents=True, exist_ok=True)
        architecture = yaml.safe_load((ROOT / "rules" / "models" / f"{name}.yaml").read_text("utf-8"))["architecture"]
        config = architecture | {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        (path / "config.json").write_text(json.dumps(config), "utf-8")
    return found


def samples(run: TrlRun) -> Iterator[dict[str, Any]]:
    draw = random.Random(run.name)

    def words(count: int) -> str:
        return " ".join(f"w{draw.randint(3, 999)}" for _ in range(count))

    prompt = run.length - run.answer
    for number in range(SAMPLES):
        if run.kind in ("grpo", "rloo"):
            yield {"prompt": words(prompt)}
        elif run.kind == "sft":
            yield {"text": words(run.length - 1)}  # the end of the text is a token, here and below
        elif run.kind == "kto":
            yield {"prompt": words(prompt), "completion": " " + words(run.answer - 1), "label": number % 2 == 0}
        elif run.kind == "reward":
            yield {"chosen": words(run.length - 1), "rejected": words(run.length - 1)}
        else:
            answers = {name: " " + words(run.answer - 1) for name in ("chosen", "rejected")}
            yield {"prompt": words(prompt), **answers}


def write_model(path: Path, device: str) -> None:
    """Random weights and a tokenizer of whole words beside the config."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    config = AutoConfig.from_pretrained(path)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(path)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()  # the runs come beside
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{n}": n for n in range(3, config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(path)
    if AutoTokenizer.from_pretrained(path)("w10 w11")["input_ids"] != [10, 11]:
        raise SystemExit(f"{path}: transformers reads this tokenizer as another, and samples have no known length")


def take(run: TrlRun, place: Path, timeout: float) -> dict[str, Any]:
    """What the command took, or how it failed."""
    began = time.monotonic()
    paths = (str(Path(__file__).parent), str(ROOT / "src"), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                   "PYTHONPATH": os.pathsep.join(filter(None, paths))}  # fmt: skip
    if run.torchrun:
        environment |= TORCHRUN | {"MASTER_PORT": str(29500 + int(place.name[:2]))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE.format(kind=run.kind)], cwd=place, capture_output=True, text=True,
            timeout=timeout, check=False, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"outcome": "time"}
    line = next((line for line in done.stdout.splitlines() if line.startswith("took: ")), "took: {}")
    found: dict[str, Any] = json.loads(line.removeprefix("took: "))
    if done.returncode:
        found = {"outcome": "failed", "error": done.stderr[-1200:]} | found
    return found | {"seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true", help="write the configs and stop")
    parser.add_argument("--write", action="store_true", help="write the journal's rows to rules/measurements")
    parser.add_argument("--only", default="", help="what a run's name must hold")
    parser.add_argument("--drawn", type=int, help="so many runs of settings drawn at random")
    parser.add_argument("--limit", type=int, help="runs at most")
    parser.add_argument("--workers", type=int, default=1, help="runs side by side")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a run")
    parser.add_argument("--device", default="cuda", help="where random weights are drawn")
    parser.add_argument("--journal", type=Path, default=Path("trl-journal.jsonl"))
    options = parser.parse_args()
    chosen = list(runs()) if options.drawn is None else drawn(options.drawn)
    wanted = [(run, place) for run, place in prepare(options.folder, chosen) if options.only in run.name]
    wanted = random.Random(7).sample(wanted, len(wanted))[: options.limit]
    wanted.sort(key=lambda each: each[0].model == LARGE)  # the others do not wait for its files
    if options.prepare:
        return 0
    if options.write:
        print(trl_rows.write(options.folder, options.journal, drawn=options.drawn is not None))
        return 0
    for name in sorted({run.model for run, _ in wanted} - {LARGE}):
        write_model(options.folder / "models" / name, options.device)
    written = threading.Thread(target=write_model, args=(options.folder / "models" / LARGE, options.device))
    if any(run.model == LARGE for run, _ in wanted):
        written.start()

    machine = machine_of(options.device)

    def work(given: tuple[TrlRun, Path]) -> None:
        run, place = given
        if run.model == LARGE:
            written.join()
        result = take(run, place, options.timeout)
        about = {"date": datetime.date.today().isoformat(), "machine": machine, "stack": stack(trl_rows.PACKAGES)}
        entry = {"run": run._asdict(), "place": place.name, "result": result, **about}
        with options.journal.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
        print(place.name, json.dumps(result)[-400:], flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(work, wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
