"""The memory engine beside the simulation (level 1) under several releases of transformers.

    make bench-releases                             # all of bench/releases/, and the one of constraints.txt
    make bench-releases ARGS=--again                # score what is recorded, after a change of the engine
    make bench-releases ARGS="--only 4.46 --held"   # fails where what is measured is not what is recorded

A release's packages lie in a folder of their own, bench/.venv-releases/, ahead of those of .venv on the path: torch is
the same for all. Results in bench/results/releases.json and releases.md; ``tests/memory/test_releases.py`` holds the
engine to them.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kb.core.setup import TrainingSetup

BENCH = Path(__file__).parent
PINS = BENCH / "releases"
FOLDERS = BENCH / ".venv-releases"
RESULTS = BENCH / "results" / "releases.json"
CAPABILITY = (8, 6)
PHASES = ("load", "train", "evaluate", "generate")

_DECODER = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2,
            "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 2048, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_SEQ2SEQ = {"d_model": 512, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "encoder_attention_heads": 8,
            "decoder_attention_heads": 8, "encoder_layers": 3, "decoder_layers": 3, "vocab_size": 32000,
            "max_position_embeddings": 1024, "pad_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 2}  # fmt: skip
_ENCODER = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_hidden_layers": 4,
            "vocab_size": 32000, "max_position_embeddings": 512}  # fmt: skip
_T5 = {"d_model": 512, "d_ff": 1024, "num_heads": 8, "d_kv": 64, "num_layers": 3}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**_DECODER, "model_type": "llama"},
    "qwen2": {**_DECODER, "model_type": "qwen2"},
    "mistral": {**_DECODER, "model_type": "mistral"},
    "gemma2": {**_DECODER, "model_type": "gemma2", "head_dim": 64, "sliding_window": 4096},
    "gpt2": {"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 32000, "n_positions": 1024},
    "gpt_neox": {**_DECODER, "model_type": "gpt_neox", "num_key_value_heads": 8},
    "t5": {**_T5, "model_type": "t5", "vocab_size": 32000},
    "mt5": {**_T5, "model_type": "mt5", "vocab_size": 64000, "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False},
    "bart": {**_SEQ2SEQ, "model_type": "bart"},
    "bert": {**_ENCODER, "model_type": "bert"},
    "roberta": {**_ENCODER, "model_type": "roberta", "max_position_embeddings": 514},
}  # fmt: skip
LATER: dict[str, dict[str, Any]] = {
    "electra": {**_ENCODER, "model_type": "electra", "embedding_size": 512},
    "phi3": {**_DECODER, "model_type": "phi3"},
    "falcon": {"model_type": "falcon", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
               "vocab_size": 32000, "new_decoder_architecture": False},
    "m2m_100": {**_SEQ2SEQ, "model_type": "m2m_100", "activation_function": "relu"},
    "mixtral": {**_DECODER, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**_DECODER, "model_type": "qwen3_moe", "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 704},
}  # fmt: skip
# Types at which nobody looked to change what an earlier release does: a score of their own.
HELD_OUT: dict[str, dict[str, Any]] = {
    "starcoder2": {**_DECODER, "model_type": "starcoder2"},
    "phi": {**_DECODER, "model_type": "phi", "num_key_value_heads": 8},
    "mbart": {**_SEQ2SEQ, "model_type": "mbart"},
    "distilbert": {"model_type": "distilbert", "dim": 512, "hidden_dim": 1408, "n_heads": 8, "n_layers": 4,
                   "vocab_size": 32000, "max_position_embeddings": 512},
}  # fmt: skip
ENCODERS = ("bert", "distilbert", "electra", "roberta")  # which generate nothing
TARGETS = {"phi3": ("qkv_proj", "o_proj"), "distilbert": ("q_lin", "v_lin")}
NAMED = (
    "m2m_100",
    "mbart",
    "mixtral",
    "phi",
    "qwen3_moe",
    "starcoder2",
    *TARGETS,
)  # PEFT 0.14 has no targets for some of them
_BASE = TrainingSetup(
    per_device_train_batch_size=4, per_device_eval_batch_size=4, max_source_length=512, max_target_length=128,
    do_eval=True, optim="adamw_torch",
)  # fmt: skip
WAYS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": True},
    "bf16, eager": {"bf16": True, "attn_implementation": "eager"},
    "bf16, checkpointing": {"bf16": True, "gradient_checkpointing": True},
    "LoRA": {"method": "lora", "bf16": True, "weights": "bf16"},
    "QLoRA": {"method": "qlora", "bf16": True, "weights": "bf16", "load_in_4bit": True, "gradient_checkpointing": True},
    "generate": {"do_train": False, "predict_with_generate": True, "generation_max_length": 64,
                 "generation_num_beams": 4},
}  # fmt: skip
FEWER = ("bf16", "LoRA", "QLoRA", "generate")  # of all types but MODELS
HEAD = (
    "# Releases of transformers",
    "",
    "The memory engine beside the simulation of the real code: small models, torch of `constraints.txt`. Each cell:",
    "mean / worst of predicted over simulated, less one. Held out: allocated, of types that no change of the code was",
    "made for.",
    "",
    "| transformers | phases | allocated | reserved | phases held out | held out | not simulated |",
    "|---|---:|---:|---:|---:|---:|---|",
)
Peaks = dict[str, list[int]]  # by phase: allocated, reserved


class Score(NamedTuple):
    """Of one release: predicted over simulated, less one, for each model, way and phase."""

    release: str
    allocated: dict[str, float]
    reserved: dict[str, float]
    held_out: dict[str, float]  # allocated, of :data:`HELD_OUT`, which the others are without
    refused: dict[str, str]  # what the simulation has no answer for, and why


def cases() -> Iterator[tuple[str, dict[str, Any], TrainingSetup]]:
    """A name, a ``config.json`` and a setup, as its config says it without naming the attention."""
    for model, config in (MODELS | LATER | HELD_OUT).items():
        for way, given in WAYS.items():
            if (model in MODELS or way in FEWER) and (way != "generate" or model not in ENCODERS):
                setup = _BASE._replace(**given)
                if setup.method != "full" and model in NAMED:
                    setup = setup._replace(lora_target_modules=TARGETS.get(model, ("q_proj", "v_proj")))
                yield f"{model}, {way}", dict(config), setup


def simulate() -> dict[str, Any]:
    """What the real code asks for under the transformers that is installed; in a process of its own."""
    from kb.torch_runs.simulation.job import Job, SimulationError
    from kb.torch_runs.simulation.simulator import runs_of  # loads torch, ahead of transformers
    from kb.torch_runs.simulation.timeline import peaks_of

    # isort: split
    import transformers

    rows: dict[str, Peaks | str] = {}
    for name, config, setup in cases():
        try:
            found: Peaks = {}
            for run in runs_of(Job(setup, config, CAPABILITY)):
                found |= {
                    phase: [peak.allocated_bytes, peak.reserved_bytes] for phase, peak in peaks_of(run.events).items()
                }
            rows[name] = {phase: found[phase] for phase in PHASES if phase in found}
        except (SimulationError, RuntimeError, AttributeError, TypeError) as error:  # of releases that it cannot run
            rows[name] = f"{type(error).__name__}: {error}"[:160]
    return {"transformers": transformers.__version__, "rows": rows}


def predicted(config: Mapping[str, Any], setup: TrainingSetup, release: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """The engine's peaks by phase, of the run as a project with this release has it."""
    from kb.memory import architecture_from_config
    from kb.memory.engine.predict import record_runs
    from kb.memory.releases import earlier_release, has_sdpa

    architecture = architecture_from_config(config)
    setup = setup._replace(earlier=earlier_release(architecture.model_type, release))
    if setup.attn_implementation == "sdpa" and not has_sdpa(architecture.model_type, release):
        setup = setup._replace(attn_implementation="eager")
    found = {}
    for recording in record_runs(setup, architecture, CAPABILITY):
        found |= {phase: (peak.allocated, peak.reserved) for phase, peak in recording.phases.items()}
    return found


def score(measured: Mapping[str, Any]) -> Score:
    """The engine against one release's simulations."""
    release = tuple(map(int, measured["transformers"].split(".")))
    allocated, reserved, held_out, refused = {}, {}, {}, {}
    for name, config, setup in cases():
        row = measured["rows"].get(name, "not measured")
        if isinstance(row, str):
            refused[name] = row
            continue
        own = predicted(config, setup, release)
        for phase, (tensors, held) in row.items():
            if name.partition(",")[0] in HELD_OUT:
                held_out[f"{name}, {phase}"] = own[phase][0] / tensors - 1
                continue
            allocated[f"{name}, {phase}"] = own[phase][0] / tensors - 1
            reserved[f"{name}, {phase}"] = own[phase][1] / held - 1
    return Score(measured["transformers"], allocated, reserved, held_out, refused)


def mean_and_worst(errors: Mapping[str, float]) -> tuple[float, float]:
    """Of relative errors: the mean of their sizes, and the one farthest from zero."""
    values = list(errors.values()) or [0.0]
    return sum(map(abs, values)) / len(values), max(values, key=abs)


def installed(pins: Path) -> Path:
    """The folder with the packages of a release, made where it is not there."""
    folder = FOLDERS / pins.stem
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.made")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
        ]
        subprocess.run([*pip, making, "--requirement", pins], check=True)
        making.rename(folder)
    return folder


def measure(folder: Path | None) -> dict[str, Any]:
    """The simulations of one release; of the one in this environment where there is no folder."""
    ahead = [str(BENCH.parent / "src"), *([str(folder)] if folder else [])]
    path = os.pathsep.join([*reversed(ahead), os.environ.get("PYTHONPATH", "")])
    command, environ = [sys.executable, __file__, "--simulate"], {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if run.returncode:  # else libraries' warnings, hundreds of lines of them
        sys.exit(run.stderr)
    return dict(json.loads(run.stdout.splitlines()[-1]))


def summary(scored: Score) -> dict[str, Any]:
    """What the guide shows of a score."""
    return {
        "phases": len(scored.allocated),
        "allocated": mean_and_worst(scored.allocated),
        "reserved": mean_and_worst(scored.reserved),
        "phases_held_out": len(scored.held_out),
        "held_out": mean_and_worst(scored.held_out),
        "refused": sorted({name.partition(",")[0] for name in scored.refused}),
    }


def table(scores: list[Score]) -> str:
    """Markdown."""
    lines = [*HEAD]
    for each in scores:
        columns = (each.allocated, each.reserved, each.held_out)
        cells = [f"{mean:.2%} / {worst:+.1%}" for mean, worst in map(mean_and_worst, columns)]
        cells.insert(2, str(len(each.held_out)))
        models = sorted({name.partition(",")[0] for name in each.refused})
        left = f"{len(each.refused)} ({', '.join(models)})" if each.refused else "–"
        lines.append(f"| {each.release} | {len(each.allocated)} | {' | '.join(cells)} | {left} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", metavar="RELEASE", help="one of bench/releases/, or newest")
    arguments.add_argument("--again", action="store_true", help="simulate nothing; score what is recorded again")
    arguments.add_argument("--held", action="store_true", help="write nothing; fail where a figure is not as recorded")
    arguments.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.simulate:
        print(json.dumps(simulate()))
        return 0
    names = [path.stem for path in sorted(PINS.glob("*.txt"))] + ["newest"]
    recorded = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    found = dict(recorded)
    for name in () if asked.again else names if asked.only is None else [asked.only]:
        found[name] = measure(installed(PINS / f"{name}.txt") if name != "newest" else None)
        print(table([score(found[name])]).splitlines()[-1], flush=True)
    if asked.held:
        differ = [name for name in found if found[name]["rows"] != recorded.get(name, {}).get("rows")]
        print("as recorded" if not differ else f"not as recorded: {', '.join(differ)}")
        return bool(differ)
    scores = {name: score(found[name]) for name in names if name in found}
    written = {name: {**found[name], "score": summary(scored)} for name, scored in scores.items()}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    RESULTS.with_suffix(".md").write_text(table(list(scores.values())), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
