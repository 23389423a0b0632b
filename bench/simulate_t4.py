"""The simulator against LoRA and QLoRA runs measured on a Tesla T4 by fitcheck-llm (PyPI, MIT): allocated and reserved.

    python bench/simulate_t4.py FOLDER [PART]

FOLDER holds fitcheck-llm's archives (``*.json`` with ``runs``); PART keeps the runs whose name contains it. The step is
that of its ``scripts/measure.py``: no Trainer, the model's outputs stay until the next step's replace them.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from kb.core.setup import TrainingSetup
from kb.torch_runs.simulation.loading import build_model
from kb.torch_runs.simulation.session import open_session
from kb.torch_runs.simulation.torch_modules import torch

MIB = 1 << 20
TURING = (7, 5)


class Outcome(NamedTuple):
    """MiB, of the second step. The phases were measured in the third, which is no different."""

    loaded: float
    allocated: float
    reserved: float
    forward: float
    backward: float
    optimizer: float
    seconds: float


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    """The archive's summary of ``config.json``, whole again."""
    known = row["model_config"]
    qwen = "Qwen" in row["model_id"]
    return {
        "model_type": "qwen2" if qwen else "llama",
        "architectures": ["Qwen2ForCausalLM" if qwen else "LlamaForCausalLM"],
        "vocab_size": known["vocab_size"],
        "hidden_size": known["hidden_size"],
        "num_hidden_layers": known["num_layers"],
        "num_attention_heads": known["num_attention_heads"],
        "num_key_value_heads": known["num_kv_heads"],
        "intermediate_size": known["intermediate_size"],
        "tie_word_embeddings": known["tie_word_embeddings"],
        "max_position_embeddings": 8192,
    }


def setup_of(run: dict[str, Any]) -> TrainingSetup:
    nf4 = run["quantization"] == "nf4"
    return TrainingSetup(
        method="qlora" if nf4 else "lora",
        weights=run["precision"],
        attn_implementation=run["attn_impl"],
        padded=False,
        per_device_train_batch_size=run["batch_size"],
        max_source_length=run["seq_len"],
        gradient_checkpointing=run["grad_checkpoint"],
        lora_r=run["lora_rank"],
        lora_target_modules=tuple(run["lora_targets"]),
        load_in_4bit=nf4,
        bnb_4bit_use_double_quant=run["double_quant"],
    )


def simulate(row: dict[str, Any], load_ahead: int = 0) -> Outcome:
    """The steps of ``measure.py``."""
    run, start = row["run"], time.perf_counter()
    with open_session(TURING, sdpa_backend="efficient" if run["attn_impl"] == "sdpa" else None) as tracer:
        model = build_model(config_of(row), setup_of(run), tracer, load_ahead=load_ahead)
        model.train()
        tracer.padded = False
        if run["attn_impl"] == "sdpa":
            expand_grouped_heads()
        loaded = tracer.allocator.allocated
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        batch = torch.zeros(run["batch_size"], run["seq_len"], dtype=torch.long, device="cuda")

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            tracer.phase = "forward"
            out = model(input_ids=batch, labels=batch)
            tracer.phase = "backward"
            out.loss.backward()
            tracer.phase = "optimizer"
            optimizer.step()

        step()
        step()
    spans = [span for span in tracer.spans if span.phase in ("forward", "backward", "optimizer")]
    second = spans[3:6]
    return Outcome(
        loaded / MIB,
        max(span.peak_allocated for span in second) / MIB,
        max(span.peak_reserved for span in second) / MIB,
        *(span.peak_allocated / MIB for span in second),
        time.perf_counter() - start,
    )


def expand_grouped_heads() -> None:
    """What ``measure.py`` does before SDPA; the session restores it."""
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    def expanded(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Any:
        if key.size(-3) != query.size(-3):
            groups = query.size(-3) // key.size(-3)
            key = key.repeat_interleave(groups, dim=-3)
            value = value.repeat_interleave(groups, dim=-3)
            named.pop("enable_gqa", None)
        return original(query, key, value, *rest, **named)

    functional.scaled_dot_product_attention = expanded


def print_errors(label: str, errors: list[float]) -> None:
    if errors:
        mean, worst = sum(map(abs, errors)) / len(errors), max(errors, key=abs)
        print(f"{label:24} {len(errors):3} rows  mean {mean:.4%}  worst {worst:+.4%}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("part", nargs="?", default="")
    arguments.add_argument("--ahead", type=int, default=0, help="by how many weights the load's reading leads")
    asked = arguments.parse_args()
    errors: dict[str, list[float]] = {}
    for path in sorted(asked.folder.glob("*.json")):
        for row in json.loads(path.read_text())["runs"]:
            run, measured = row["run"], row["measured"]
            size = f"{run['batch_size']}x{run['seq_len']}"
            name = f"{row['model_id'].split('/')[-1]} {size} {run['attn_impl']} {run['quantization']}"
            if asked.part not in name:
                continue
            got = simulate(row, asked.ahead)
            found = {}
            for what in ("loaded", "allocated", "reserved", "forward", "backward", "optimizer"):
                key = {"loaded": "after_load_allocated_mib"}.get(what, f"peak_{what}_mib")
                found[what] = getattr(got, what) / measured[key] - 1
                errors.setdefault(f"{run['quantization']} {what}", []).append(found[what])
            shown = "  ".join(f"{what} {error:+.4%}" for what, error in found.items())
            print(f"{name:50} {shown}  {got.seconds:.1f} s", flush=True)
    for label in sorted(errors):
        print_errors(label, errors[label])


if __name__ == "__main__":
    main()
