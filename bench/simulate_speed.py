"""How long level 1 takes, and level 0 beside it: the issue's two runs, each in its subprocess as ``--simulate`` has it.

    python bench/simulate_speed.py        # writes bench/results/simulation.json

Seconds are wall-clock and of the processor; the load average tells whether the machine had other work.
"""

import json
import os
import resource
import time
from pathlib import Path
from statistics import median

from kb.core.setup import TrainingSetup
from kb.core.units import MIB
from kb.knowledge import load_catalog
from kb.memory import predict
from kb.torch_runs.simulation import simulate

RESULTS = Path(__file__).parent / "results" / "simulation.json"
AMPERE = (8, 6)
T5 = TrainingSetup(bf16=True, per_device_train_batch_size=8, max_source_length=512, max_target_length=128)
QLORA = TrainingSetup(
    method="qlora",
    load_in_4bit=True,
    bf16=True,
    gradient_checkpointing=True,
    per_device_train_batch_size=1,
    max_source_length=4096,
)
RUNS = {"t5-base": ("t5-base", T5), "llama-3-8b qlora 4096": ("llama-3-8b", QLORA)}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
T5_BASE = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 768, "d_kv": 64,
           "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128}  # fmt: skip
CONFIGS = {"t5-base": T5_BASE, "llama-3-8b": LLAMA}
REPEATED = 2000


def main() -> None:
    catalog = load_catalog()
    found: dict[str, object] = {"load_average": os.getloadavg()[0], "processors": os.cpu_count()}
    for name, (model, setup) in RUNS.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = simulate(setup, CONFIGS[model], constants=catalog.constants, compute_capability=AMPERE)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[name] = {
            "seconds": round(answer.seconds, 2),
            "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
            "host_mib": round((answer.subprocess_peak_bytes or 0) / MIB),
            "predict_microseconds": _predict(model, setup),
        }
        print(name, found[name], flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _predict(model: str, setup: TrainingSetup) -> float:
    """Median time of one level 0 report of this run, warm."""
    catalog = load_catalog()
    architecture = catalog.models[model].architecture
    times = []
    for _ in range(REPEATED):
        start = time.perf_counter()
        predict(setup, architecture, constants=catalog.constants, compute_capability=AMPERE)
        times.append(time.perf_counter() - start)
    return round(median(times) * 1e6, 1)


if __name__ == "__main__":
    main()
