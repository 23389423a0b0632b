"""Makes the traces that the memory engine is tested against: tests/data/engine_traces.json.

    python bench/engine_grid.py                  # what is missing; stop and start again as you like
    python bench/engine_grid.py --models nllb --rows 8
    python bench/engine_grid.py --stale          # after engine and simulation have changed: rows that the engine gives
                                                 # other figures for are traced again

Rows are drawn by a model's name; every tenth is held out: never look at it while the engine is changed. A row names
only what is not the default, and no target modules where they are its model's (``targets``). ``lengths`` are those of
the batches of a run whose padding is dynamic, targets in their share. Needs torch, transformers, peft and bitsandbytes,
and no GPU.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import grid
from engine_models import MODELS

from kb.core.setup_json import setup_from
from kb.memory import architecture_from_config

PATH = grid.ROOT / "tests" / "data" / "engine_traces.json"
ROWS = 15
HELD_OUT = 10  # one row in so many
ROWS_OF_A_PROCESS = 30
WORKERS = 2
APART_BYTES = 100_000  # what saves, and small sums, may differ by
SEQ2SEQ = ("marian", "m2m_100", "t5", "mt5", "bart", "mbart", "pegasus", "whisper", "longt5", "led")
ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "electra",
    "distilbert",
    "albert",
    "modernbert",
    "deberta-v2",
    "mpnet",
    "longformer",
    "big_bird",
    "xlnet",
)
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")
_QUERY_VALUE = ("query", "value")
TARGETS = {
    **dict.fromkeys(ENCODERS, _QUERY_VALUE),
    "distilbert": ("q_lin", "v_lin"),
    "modernbert": ("Wqkv",),
    "deberta-v2": ("query_proj", "value_proj"),
    "mpnet": ("q", "v"),
    "t5": ("q", "v"),
    "mt5": ("q", "v"),
    "longt5": ("q", "v"),
    "xlnet": ("layer_1", "layer_2"),
    "led": ("query", "value", "q_proj", "v_proj"),
    "gpt2": ("c_attn",),
    "phi3": ("qkv_proj",),
    **dict.fromkeys(("gpt_neox", "falcon", "bloom"), ("query_key_value",)),
}
METHODS: tuple[Mapping[str, Any], ...] = (
    *({},) * 4,
    *({"method": "lora"},) * 3,
    *({"method": "qlora", "load_in_4bit": True},) * 2,
    {"method": "qlora", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    {"method": "lora", "load_in_8bit": True},
    {"method": "lora", "use_dora": True},
)
PRECISIONS: tuple[Mapping[str, Any], ...] = (
    {}, {"bf16": True}, {"bf16": True}, {"fp16": True}, {"weights": "bf16"}, {"weights": "bf16", "bf16": True},
)  # fmt: skip
OPTIMIZERS = ("adamw_torch_fused",) * 3 + (
    "adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "adafactor", "sgd", "lion_32bit",
    "lion_8bit", "paged_lion_8bit",
)  # fmt: skip
SOURCES = (24, 48, 100, 128, 200, 256, 333, 512, 777, 1024, 2048)
TARGET_LENGTHS = (7, 16, 64, 130)
SEEING = {"llava": (601, 777, 1024, 1300), "llava_next": (2048, 2333, 3072)}  # lengths with room for a picture
FROZEN = ((), (), ("vision_tower",), ("vision_tower", "multi_modal_projector"), ("language_model", "lm_head"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, help="only these")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of each model ({ROWS})")
    parser.add_argument("--stale", action="store_true", help="trace again what the engine gives other figures for")
    options = parser.parse_args()
    document = grid._read(PATH)
    if options.stale:
        return trace_again(document, options.models)
    document.setdefault("targets", {})
    known = {_key(row) for row in document["rows"]}
    pool = _pool()
    for number in range(options.rows):
        for name in options.models or MODELS:
            document["models"][name] = MODELS[name]
            document["targets"][name] = targets_of(name)
            row = drawn(name, number)
            if _key(row) in known:
                continue
            start = time.monotonic()
            try:
                row["phases"] = pool.submit(trace, name, row).result()
            except Exception as error:
                print(f"{name} {number}: {type(error).__name__}: {str(error)[:160]}; {row}", flush=True)
                if isinstance(error, BrokenProcessPool):
                    pool = _pool()
                continue
            document["rows"].append(row)
            if len(document["rows"]) % 10 == 0:
                write(document)
            print(f"{name} {number}: {time.monotonic() - start:.1f} s", flush=True)
    write(document)
    pool.shutdown()
    return 0


def trace_again(document: dict[str, Any], models: Sequence[str] | None) -> int:
    """Bring stored figures up to date. Where the engine agrees with a row, simulation has not changed there either:
    they are equal."""
    rows = [row for row in document["rows"] if not models or row["model"] in models]
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        found = pool.map(followed, [row["model"] for row in rows], rows, chunksize=16)
        stale = [row for row, peaks in zip(rows, found, strict=True) if _is_stale(row, peaks)]
    print(f"{len(stale)} of {len(rows)} rows differ", flush=True)
    for start in range(0, len(stale), WORKERS * ROWS_OF_A_PROCESS):
        some = stale[start : start + WORKERS * ROWS_OF_A_PROCESS]
        with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
            for row, phases in zip(some, pool.map(trace, [row["model"] for row in some], some), strict=True):
                row["phases"] = phases
        write(document)
        print(f"{start + len(some)} of {len(stale)}", flush=True)
    return 0


def followed(name: str, row: Mapping[str, Any]) -> dict[str, list[int]]:
    """The engine's peaks of a row; none of one that it does not follow."""
    from kb.memory.engine.faults import NotFollowedError
    from kb.memory.engine.predict import record_runs, record_training

    setup = setup_of(row, targets_of(name))
    given = setup_from(setup)
    architecture = architecture_from_config(MODELS[name])
    try:
        if "lengths" in row:
            recordings = [record_training(given, architecture, grid.CAPABILITY, row["lengths"])]
        else:
            recordings = record_runs(given, architecture, grid.CAPABILITY)
    except NotFollowedError:
        return {}
    return {
        name: [peak.allocated, peak.reserved]
        for recording in recordings
        for name, peak in recording.phases.items()
        if name in row["phases"]
    }


def _is_stale(row: Mapping[str, Any], found: Mapping[str, Sequence[int]]) -> bool:
    """Whether a phase has moved by more than what engine and simulation are ever apart."""
    return any(
        abs(one - other) > APART_BYTES
        for name, peak in row["phases"].items()
        if name in found and name != "save"
        for one, other in zip(peak, found[name], strict=True)
    )


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=ROWS_OF_A_PROCESS)


def write(document: Mapping[str, Any]) -> None:
    """A line for each model and each row, rows by model in the order of their making."""
    order = {name: at for at, name in enumerate(document["models"])}
    rows = sorted(document["rows"], key=lambda row: order[row["model"]])
    parts = [f'"about": {json.dumps(document["about"])}', f'"software": {json.dumps(document["software"])}']
    for part in ("models", "targets"):
        lines = ",\n".join(f"{json.dumps(name)}: {_line(value)}" for name, value in document[part].items())
        parts.append(f'"{part}": {{\n{lines}\n}}')
    parts.append('"rows": [\n' + ",\n".join(map(_line, rows)) + "\n]")
    temporary = PATH.with_suffix(".tmp")
    temporary.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")
    temporary.replace(PATH)


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps([row["model"], row["setup"], row.get("lengths")], sort_keys=True)


def targets_of(name: str) -> list[str]:
    """The modules that adapters of a model wrap where its row names none."""
    return list(TARGETS.get(str(MODELS[name]["model_type"]), ("q_proj", "v_proj")))


def drawn(name: str, number: int) -> dict[str, Any]:
    """One row of a model, drawn by its name and number."""
    config = MODELS[name]
    kind = str(config["model_type"])
    draw = random.Random(f"engine {name} {number}")
    most = min(architecture_from_config(config).max_positions or SOURCES[-1], SOURCES[-1])
    source = draw.choice([length for length in SOURCES if length <= most])
    setup: dict[str, Any] = {
        **draw.choice(METHODS),
        **draw.choice(PRECISIONS),
        "per_device_train_batch_size": draw.choice([n for n in grid.BATCHES if n * source <= grid.MOST_TOKENS]),
        "max_source_length": source,
        "attn_implementation": draw.choice(grid.ATTENTIONS),
        "optim": draw.choice(OPTIMIZERS),
        "gradient_checkpointing": draw.random() < 0.4,
        "gradient_accumulation_steps": draw.choice((1, 1, 1, 2)),
        "padded": draw.random() < 0.65,
        "label_smoothing_factor": draw.choice((0.0, 0.0, 0.0, 0.1)),
    }
    setup["use_reentrant"] = setup["gradient_checkpointing"] and draw.random() < 0.3
    if setup.get("method", "full") != "full":
        setup |= _adapters(draw, setup, kind)
    if kind in SEQ2SEQ:
        setup["max_target_length"] = draw.choice(TARGET_LENGTHS)
    lengths = None
    if draw.random() < 0.15 and kind != "whisper":  # which hears a fixed length
        lengths = _lengths(draw, setup)
    elif draw.random() < 0.55:
        setup |= _evaluation(draw, kind)
    if lengths is None and draw.random() < 0.2 and kind not in ENCODERS:
        beams = draw.choice((1, 1, 3)) if kind in SEQ2SEQ else 1
        setup |= {"do_predict": True, "inference_batch_size": draw.choice((1, 3, 4)), "inference_num_beams": beams,
                  "inference_max_length": draw.choice((7, 12))}  # fmt: skip
    if kind in ("albert", "mpnet", "xlnet"):
        setup |= {"gradient_checkpointing": False, "use_reentrant": False}  # transformers refuses it
    if kind == "gpt_oss":
        setup = {name: value for name, value in setup.items() if not name.startswith(("inference_", "do_predict"))}
    if kind in MIXTURES:
        setup.pop("lora_target_modules", None)  # all of them, by which PEFT means experts too
    if kind == "deberta-v2":
        setup["use_reentrant"] = False  # torch refuses it: what all layers share would be run back twice
    if kind in SEEING:
        setup, lengths = _pictured(draw, setup, kind), None
    if kind == "m2m_100":
        setup["padded"] = True  # its layers are dropped at random, which a simulation of no padding takes for all
    row = {"model": name, "setup": grid._shortened(setup)}
    if number % HELD_OUT == HELD_OUT - 1:
        row["part"] = "held out"
    return row if lengths is None else row | {"lengths": lengths}


def _pictured(draw: random.Random, setup: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A picture in each sample, and parts that are frozen; without what is not followed of models that see."""
    left = ("inference_", "do_predict", "label_smoothing", "max_source_length", "per_device_train")
    made = {name: value for name, value in setup.items() if not name.startswith(left)}
    side = 24 if kind == "llava" else 0
    sizes = (side, side) if side else (draw.randint(200, 900), draw.randint(200, 900))
    frozen = draw.choice(FROZEN)
    made |= {"images": [1, *sizes], "max_source_length": draw.choice(SEEING[kind]),
             "per_device_train_batch_size": draw.choice((1, 2, 3))}  # fmt: skip
    if frozen and ("language_model" not in frozen or made.get("method", "full") == "full"):
        made |= {"frozen": list(frozen), "checkpoints_trained": draw.random() < 0.4}
    return made


def _adapters(draw: random.Random, setup: Mapping[str, Any], kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {"lora_r": draw.choice((8, 16, 64)), "lora_dropout": draw.choice((0.0, 0.05))}
    if draw.random() < 0.35:
        made["lora_target_modules"] = ["all-linear"]
    if setup.get("load_in_4bit") or setup.get("load_in_8bit"):
        made["prepare_for_kbit"] = draw.random() < 0.75
        made["half_tables"] = kind not in SEQ2SEQ + ENCODERS and draw.random() < 0.2
    made["trained_type"] = draw.choice(("peft",) * 6 + ("fp32", "bf16"))
    return made


def _evaluation(draw: random.Random, kind: str) -> dict[str, Any]:
    """Evaluation after training, or of its own; by generating now and then where the model can."""
    made: dict[str, Any] = {"do_eval": True, "per_device_eval_batch_size": draw.choice((1, 2, 4, 7))}
    made["do_train"] = draw.random() < 0.85
    if kind in SEQ2SEQ and draw.random() < 0.4:
        return made | {"predict_with_generate": True, "generation_num_beams": draw.choice((1, 2, 4)),
                       "generation_max_length": draw.choice((8, 12))}  # fmt: skip
    made["prediction_loss_only"] = draw.random() < 0.5
    if not made["prediction_loss_only"] and draw.random() < 0.3:
        made["eval_accumulation_steps"] = draw.choice((1, 2))
        made["eval_samples"] = draw.choice((5, 16))
    return made


def _lengths(draw: random.Random, setup: Mapping[str, Any]) -> list[int]:
    """Padded lengths of some steps' batches, the longest anywhere among them."""
    most = setup["max_source_length"]
    passes = draw.choice((2, 3, 5)) * setup["gradient_accumulation_steps"]
    found = [draw.randint(min(16, most), most) for _ in range(passes)]
    found[draw.randrange(passes)] = most
    return found


def setup_of(row: Mapping[str, Any], targets: Sequence[str]) -> dict[str, Any]:
    """A row's settings with its model's targets where it has adapters and names none."""
    adapted = row["setup"].get("method", "full") != "full"
    given: dict[str, Any] = {"lora_target_modules": list(targets)} if adapted else {}
    return given | row["setup"]


def trace(name: str, row: Mapping[str, Any]) -> dict[str, list[int]]:
    """Peaks of allocated and reserved bytes by phase; in this process, which has torch loaded already."""
    setup = setup_of(row, targets_of(name))
    if "lengths" not in row:
        return grid.trace(MODELS[name], setup)
    from kb.torch_runs.simulation.simulator import training_run
    from kb.torch_runs.simulation.timeline import peaks_of

    events = training_run(MODELS[name], setup_from(setup), grid.CAPABILITY, row["lengths"])
    return {phase: [peak.allocated_bytes, peak.reserved_bytes] for phase, peak in peaks_of(events).items()}


if __name__ == "__main__":
    sys.exit(main())
