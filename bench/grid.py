"""Makes the grid of traces that predictions are tested against: tests/data/traces/grid_<family>.json.

    python bench/grid.py                     # what is missing; stop and start again as you like
    python bench/grid.py --models gpt2 kobart --rows 12
    python bench/grid.py --anew              # after the simulator has changed: every row again

Needs torch, transformers, peft and bitsandbytes, and no GPU. One process at a time, which a new one relieves after some
rows: what the libraries leave behind adds up. The rows of a model are drawn by its name, so that the same row is always
the same run. A run that fails is said and left out.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from itertools import cycle, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_from
from kb.memory import UnsupportedArchitectureError, architecture_from_config, parameter_count

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "tests" / "data" / "traces"
CAPABILITY = (8, 6)
ROWS = 28  # of each model
ROWS_OF_A_PROCESS = 12
ABOUT = (
    "Simulated, not measured: the unmodified transformers, peft and bitsandbytes code on fake CUDA tensors (compute "
    "capability 8.6), every storage booked in a model of PyTorch's caching allocator. No GPU. Made by bench/grid.py. "
    "Each phase of a row has the peak of allocated and of reserved bytes. Models are dimensions in config.json's names."
)
MODELS = {
    "t5": ("t5-small", "t5-base", "mt5-small", "flan-t5-small", "pko-t5-base"),
    "bart": ("kobart", "bart-base", "bart-large"),
    "decoder": ("gpt2", "opt-125m", "pythia-160m", "smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b",
                "gemma-2b", "phi-1.5", "kogpt2", "qwen1.5-moe-a2.7b"),
    "encoder": ("klue-bert-base", "klue-roberta-small", "kcelectra-base", "electra-small", "deberta-v3-small",
                "bert-base-uncased", "distilbert-base-uncased", "roberta-base"),
}  # fmt: skip
METHODS = ("full", "lora", "qlora")
PRECISIONS: tuple[Mapping[str, Any], ...] = ({}, {"bf16": True}, {"fp16": True}, {"weights": "bf16"})
ATTENTIONS = ("sdpa", "eager")
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adafactor", "sgd")
BATCHES = (1, 2, 4, 8, 16, 24)
SOURCES = (48, 128, 200, 256, 512, 1024)
TARGETS = (16, 64, 130)
OFTEN = 250_000_000  # parameters up to which a model takes its turn; those of larger ones come less often
MOST_TOKENS = 8192  # in one batch: enough for activations to decide, and a trace of seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", metavar="ID", help="only these of rules/models")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of each model ({ROWS})")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--anew", action="store_true", help="trace rows again that are there")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    documents = {family: _read(TRACES / f"grid_{family}.json") for family in MODELS}
    pool = _pool()
    for family, name, number, setup in _missing(documents, options):
        if time.monotonic() > end:
            break
        start = time.monotonic()
        try:
            phases = pool.submit(trace, documents[family]["models"][name], setup).result()
        except Exception as error:
            print(f"{name} {number}: {type(error).__name__}: {str(error)[:200]}; {setup}", flush=True)
            if isinstance(error, BrokenProcessPool):
                pool = _pool()
            continue
        print(f"{name} {number}: {time.monotonic() - start:.1f} s", flush=True)
        documents[family]["rows"].append({"model": name, "setup": setup, "phases": phases})
        _write(TRACES / f"grid_{family}.json", documents[family])
    pool.shutdown()
    return 0


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=ROWS_OF_A_PROCESS)


def _missing(
    documents: Mapping[str, dict[str, Any]], options: argparse.Namespace
) -> list[tuple[str, str, int, dict[str, Any]]]:
    """Rows to trace: in turn one of every model, each beginning at another method and precision, small models first,
    so that a run that is stopped early has still seen all families, methods and precisions."""
    found = []
    for family, names in MODELS.items():
        document = documents[family]
        for name in names:
            if options.models and name not in options.models:
                continue
            config = _config(name, family)
            if config is None:
                continue
            document["models"][name] = config
            if options.anew:
                document["rows"] = [row for row in document["rows"] if row["model"] != name]
            known = {_key(row["model"], row["setup"]) for row in document["rows"]}
            size = parameter_count(architecture_from_config(config))
            for number, setup in enumerate(setups_of(name, family, options.rows, config), 1):
                if _key(name, setup) not in known:
                    turn = (number + 5 * names.index(name)) % options.rows
                    found.append(((1 + turn) * max(1, size / OFTEN), (family, name, number, setup)))
    return [row for _, row in sorted(found, key=lambda item: item[0])]


def _config(name: str, family: str) -> dict[str, Any] | None:
    """The dimensions of a row of rules/models; None, said, where there is none or its type is not known."""
    path = ROOT / "rules" / "models" / f"{name}.yaml"
    if not path.is_file():
        print(f"{name}: not in rules/models", file=sys.stderr)
        return None
    config: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["architecture"]
    try:
        found = architecture_from_config(config).family
    except UnsupportedArchitectureError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    if found != family:
        print(f"{name}: of the family {found}, not {family}", file=sys.stderr)
        return None
    return config


def setups_of(name: str, family: str, rows: int, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one model: every method with every precision in turn, the rest drawn by the model's name."""
    draw = random.Random(name)
    most = architecture_from_config(config).max_positions or max(SOURCES)
    for _, (method, precision) in zip(range(rows), cycle(product(METHODS, PRECISIONS)), strict=False):
        source = draw.choice([length for length in SOURCES if length <= most])
        batch = draw.choice([size for size in BATCHES if size * source <= MOST_TOKENS])
        made: dict[str, Any] = {
            "method": method,
            **precision,
            "per_device_train_batch_size": batch,
            "max_source_length": source,
            "attn_implementation": draw.choice(ATTENTIONS),
            "optim": draw.choice(OPTIMIZERS),
            "gradient_checkpointing": draw.random() < 0.35,
            "gradient_accumulation_steps": draw.choice((1, 1, 1, 4)),
            "padded": draw.random() < 0.7,
        }
        if method != "full":
            made["lora_r"] = draw.choice((8, 16, 64))
            made["lora_dropout"] = draw.choice((0.0, 0.05))
        if method == "qlora":
            made["load_in_4bit"] = True
            made["bnb_4bit_use_double_quant"] = draw.random() < 0.5
        if family in ("t5", "bart"):
            made["max_target_length"] = draw.choice(TARGETS)
            made["label_smoothing_factor"] = draw.choice((0.0, 0.0, 0.0, 0.1))
        yield _shortened(made | _evaluation(draw, family, source))


def _evaluation(draw: random.Random, family: str, source: int) -> dict[str, Any]:
    """A third of the rows evaluate after training, half of these by generating where the model can."""
    if draw.random() > 0.34:
        return {}
    made: dict[str, Any] = {"do_eval": True, "per_device_eval_batch_size": draw.choice((1, 2, 4, 8))}
    if family in ("t5", "bart") and draw.random() < 0.5:
        made |= {"predict_with_generate": True, "generation_num_beams": draw.choice((1, 4)),
                 "generation_max_length": draw.choice((12, 24))}  # fmt: skip
    else:
        made["prediction_loss_only"] = family not in ("t5", "bart") or draw.random() < 0.3
    return made


def _shortened(setup: dict[str, Any]) -> dict[str, Any]:
    """Without what is the default anyway."""
    defaults = TrainingSetup()._asdict()
    return {name: value for name, value in setup.items() if defaults[name] != value}


def trace(config: Mapping[str, Any], setup: Mapping[str, Any]) -> dict[str, list[int]]:
    """Peaks of allocated and reserved bytes by phase; in this process, which has torch loaded already."""
    from kb.torch_runs.simulation.job import Job, check_job
    from kb.torch_runs.simulation.simulator import runs_of
    from kb.torch_runs.simulation.timeline import peaks_of

    job = Job(setup_from(setup), config, CAPABILITY)
    check_job(job)
    found: dict[str, list[int]] = {}
    for run in runs_of(job):
        for name, peak in peaks_of(run.events).items():
            found[name] = [peak.allocated_bytes, peak.reserved_bytes]
    return found


def _key(name: str, setup: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(setup, sort_keys=True)}"


def _read(path: Path) -> dict[str, Any]:
    if path.is_file():
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return document
    software = {name: version(name) for name in ("transformers", "torch", "peft", "bitsandbytes", "accelerate")}
    return {"about": ABOUT, "software": software, "models": {}, "rows": []}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """A line for each model and each row, so that a change shows as one."""
    models = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in document["models"].items())
    rows = ",\n".join(f"  {json.dumps(row)}" for row in document["rows"])
    head = f'"about": {json.dumps(document["about"])},\n"software": {json.dumps(document["software"])}'
    text = f'{{\n{head},\n"models": {{\n{models}\n}},\n"rows": [\n{rows}\n]\n}}\n'
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
