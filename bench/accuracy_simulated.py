"""Level 1 on measured rows: one simulation for each run, kept in bench/results so that it is done once."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from accuracy_rows import ROOT, Row

from kb.core.units import MIB
from kb.memory.process import context_of
from kb.torch_runs.simulation import simulate
from kb.torch_runs.simulation.job import SimulationError

ROWS_OF_A_PROCESS = 12  # what the libraries leave behind in a process adds up
STORE = ROOT / "bench" / "results" / "accuracy_simulated.json"
Answers = dict[str, dict[str, int]]


def level_1(rows: Sequence[Row], constants: Mapping[str, float], store: Path = STORE) -> Answers:
    """Bytes by row and quantity. What fails is said and left out.

    A process of its own gets what can be sent to it: the constants alone, and not the whole catalogue. A run is
    simulated anew when its setup, its model or the simulator's code has changed.
    """
    known: dict[str, dict[str, dict[str, int]]] = json.loads(store.read_text("utf-8")) if store.is_file() else {}
    code = _code()
    answers: Answers = {}
    keys = [_key(row, code) for row in rows]
    known = {key: known[key] for key in keys if key in known}  # what older code said is of no use
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=ROWS_OF_A_PROCESS) as pool:
        for number, (key, row) in enumerate(zip(keys, rows, strict=True), 1):
            if key not in known:
                print(f"simulating {number} of {len(rows)}: {row.id}", flush=True)
                try:
                    known[key] = pool.submit(_simulated, row, dict(constants)).result()
                except SimulationError as error:
                    print(f"  {row.id}: {error}")
                    continue
                store.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n", "utf-8")
            if row.phase in known[key]:
                answers[row.id] = known[key][row.phase]
    return answers


def _simulated(row: Row, constants: Mapping[str, float]) -> dict[str, dict[str, int]]:
    if row.setup.keeps_outputs == "step" or row.campaign.endswith(", load"):
        return _as_measured(row, constants)
    found = simulate(row.setup, row.config, constants=constants, gpu=row.gpu, compute_capability=row.capability).report
    return {
        phase.name: {
            "allocated": phase.peak_allocated_bytes,
            "reserved": phase.peak_reserved_bytes,
            "process": phase.process_used_bytes,
        }
        for phase in found.phases
    }


def _as_measured(row: Row, constants: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """The steps of the script that measured the T4 rows, without a Trainer."""
    import simulate_t4

    setup, context = row.setup, context_of(constants, simulate_t4.TURING, row.gpu).expected
    run = {
        "quantization": "nf4" if setup.method == "qlora" else "none",
        "precision": setup.weights,
        "attn_impl": setup.attn_implementation,
        "batch_size": setup.per_device_train_batch_size,
        "seq_len": setup.max_source_length,
        "grad_checkpoint": setup.gradient_checkpointing,
        "lora_rank": setup.lora_r,
        "lora_targets": setup.lora_target_modules,
        "double_quant": setup.bnb_4bit_use_double_quant,
    }
    names = {"num_layers": "num_hidden_layers", "num_kv_heads": "num_key_value_heads"}
    known = dict(row.config) | {short: row.config[name] for short, name in names.items()}
    found = simulate_t4.simulate({"run": run, "model_config": known, "model_id": row.model.replace("qwen", "Qwen")})
    reserved = round(found.reserved * MIB)
    return {
        "load": {"allocated": round(found.loaded * MIB)},
        "train": {"allocated": round(found.allocated * MIB), "reserved": reserved, "process": reserved + context},
    }


def _key(row: Row, code: str) -> str:
    setup = {name: value for name, value in row.setup._asdict().items() if name not in ("assumed", "unresolved")}
    gpu = row.gpu.id if row.gpu else None
    text = json.dumps([setup, row.config, gpu, row.capability, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _code() -> str:
    digest = hashlib.sha256()
    runs = ROOT / "src" / "kb" / "torch_runs"
    for path in sorted([*(runs / "simulation").iterdir(), runs / "models.py", ROOT / "bench" / "simulate_t4.py"]):
        if path.suffix in (".py", ".cpp"):
            digest.update(path.read_bytes())
    return digest.hexdigest()
