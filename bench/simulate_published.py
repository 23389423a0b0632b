"""The simulator against the tables of transformers' model pages (forward and backward, fp16 weights, no optimizer).

    python bench/simulate_published.py ROWS [PART]

ROWS is a file of measured rows, one JSON object a line; PART keeps those whose name contains it. The pages were
measured with transformers 4.4x and torch 2.2 or 2.3: what those kept and transformers 5 does not is in the error.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.simulation.loading import build_model
from kb.torch_runs.simulation.session import open_session
from kb.torch_runs.simulation.torch_modules import torch

MIB = 1 << 20
GPUS = {"RTX3080Ti-16GB (laptop)": (8, 6), "RTX2060-8GB": (7, 5)}
# The models' config.json on the hub, as far as they differ from the class's defaults.
CONFIGS: dict[str, dict[str, Any]] = {
    "EleutherAI/pythia-410m-deduped": {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 50304,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
    },
    "gpt2-large": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 1280,
        "n_head": 20,
        "n_layer": 36,
        "vocab_size": 50257,
        "n_positions": 1024,
    },
    "distilbert-base-uncased": {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]},
    "albert-base-v2": {
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "embedding_size": 128,
        "vocab_size": 30000,
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "hidden_act": "gelu_new",
    },
}


def simulate(row: dict[str, Any]) -> float:
    """Peak allocated MiB."""
    setup = TrainingSetup(weights="fp16", attn_implementation=row["attn"])
    trains = row["mode"] == "train"
    with open_session(GPUS.get(row["gpu"], (8, 6))) as tracer:
        model = build_model(CONFIGS[row["model"]], setup, tracer)
        model.train(trains)
        tracer.padded = False
        tokens = torch.zeros(row["batch"], row["seq_in"], dtype=torch.long, device="cuda")
        inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if CONFIGS[row["model"]]["architectures"][0].endswith(("CausalLM", "LMHeadModel")):
            inputs["use_cache"] = True  # the default then
        for _ in range(2):  # the outputs of one pass live until the next one's replace them
            tracer.phase = "step"
            with torch.set_grad_enabled(trains):
                out = model(**inputs)
            if trains:
                out.logits.sum().backward()
                model.zero_grad()
    return tracer.spans[-1].peak_allocated / MIB


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rows", type=Path)
    arguments.add_argument("part", nargs="?", default="")
    asked = arguments.parse_args()
    for line in asked.rows.read_text().splitlines():
        row = json.loads(line)
        measured = row["measured_peak_mib"]
        name = f"{row['model'].split('/')[-1]} {row['mode']} {row['batch']}x{row['seq_in']} {row.get('attn')}"
        if row["model"] not in CONFIGS or not row.get("attn") or not measured or asked.part not in name:
            continue
        start = time.perf_counter()
        got = simulate(row)
        print(
            f"{name:52} {measured:9.1f} {got:9.1f} {got / measured - 1:+.3%} {time.perf_counter() - start:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
