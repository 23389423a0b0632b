"""Published measurements in the form of one JSON object a line: what can be made of each row, and why not of the rest.

A line has model, mode (train, infer, evaluate, generate, load), precision, optimizer, method, grad_ckpt, batch, seq_in,
seq_out, gpu, attn, measured_peak_mib, what_was_measured, bound; more is allowed, null is unknown. Where ``notes`` say
how long the data is ("tokens 3234±2548, min 91, max 19548"), the row's setup knows its lengths.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from accuracy_rows import ROOT, Left, Row, setup_from_flags
from truth_lengths import is_of_ms_swift, lengths_of, with_settings_of_ms_swift

from kb.advice.question import RunSettings
from kb.advice.run.named_model import ModelIndex
from kb.config.text.parsing import LOADER
from kb.core.catalog import Catalog
from kb.core.hardware import Gpu
from kb.core.units import GIB, MIB

# What no row of rules/models has: dimensions as the published config.json gives them.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "pythia-410m": {"model_type": "gpt_neox", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                    "num_attention_heads": 16, "vocab_size": 50304, "max_position_embeddings": 2048,
                    "rotary_pct": 0.25, "tie_word_embeddings": False, "hidden_act": "gelu"},
    "gpt2-large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20, "vocab_size": 50257,
                   "n_positions": 1024},
    "distilbert-base-uncased": {"model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "n_layers": 6,
                                "n_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512},
    "albert-base-v2": {"model_type": "albert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                       "num_attention_heads": 12, "embedding_size": 128, "vocab_size": 30000,
                       "max_position_embeddings": 512, "hidden_act": "gelu_new"},
}  # fmt: skip
OVER = (">gpu", "oom", "out of memory")
ENDINGS = ("-deduped", "-hf", "-instruct", "-v0.1")
MODES = {"train": ("train", "train"), "infer": ("evaluate", "evaluate"), "evaluate": ("evaluate", "evaluate"),
         "generate": ("generate", "generate"), "load": ("train", "load")}  # fmt: skip


def truth_rows(folder: Path, catalog: Catalog) -> Iterator[Row | Left]:
    """Every line of every ``*.jsonl`` in the folder."""
    index = ModelIndex(catalog.models, catalog.called)
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            data = json.loads(line) if line.strip() else {}
            if "what_was_measured" in data:
                yield _row(data, index, catalog)


def _row(data: Mapping[str, Any], index: ModelIndex, catalog: Catalog) -> Row | Left:
    kind = " ".join(str(data[part]) for part in ("mode", "method") if data.get(part))
    campaign = f"{data['id'].rpartition('-')[0]} {str(data['model']).rpartition('/')[2]} {kind}"

    def left(reason: str) -> Left:
        return Left(campaign, data["id"], reason)

    if data["mode"] not in MODES:
        return left(f"mode {data['mode']}")
    quantity = _quantity(data["what_was_measured"])
    if quantity is None:
        return left(f"measures {data['what_was_measured']}")
    config = _dimensions(data) or _config(str(data["model"]), index)
    if config is None:
        return left(f"no dimensions of {data['model']}")
    task, phase = MODES[data["mode"]]
    if phase != "load" and not isinstance(data.get("seq_in"), int):
        return left(f"its length is not a number: {data.get('seq_in')}")
    if data.get("method") not in ("full", "lora", "qlora"):
        return left(f"method {data['method']}")
    if "int8" in str(data.get("precision") or ""):
        return left(f"precision {data['precision']}")
    size, over = data.get("measured_peak_mib"), str(data.get("bound") or "").casefold() in OVER
    gpu = _gpu(str(data.get("gpu") or ""), catalog)
    memory = gpu.memory_total if gpu else _named_memory(str(data.get("gpu") or ""))
    if size is None and not (over and memory):
        return left("no figure")
    setup = setup_from_flags(_flags(data, task), catalog)._replace(
        padded=False,
        prediction_loss_only=True,
        prepare_for_kbit="-true" not in str(data.get("precision")),  # half throughout: no fp32 beside the 4 bits
    )
    setup = setup._replace(lengths=lengths_of(str(data.get("notes") or ""), setup.max_source_length))
    if is_of_ms_swift(data):
        setup = with_settings_of_ms_swift(setup, data)
    return Row(
        campaign=campaign,
        id=data["id"],
        model=str(data["model"]),
        config=config,
        setup=setup,
        phase=phase,
        truth={} if size is None else {quantity: round(size * MIB)},
        gpu=gpu,
        memory_bytes=memory,
        ran_out=over,
    )


def _flags(data: Mapping[str, Any], task: Any) -> RunSettings:
    precision = str(data.get("precision") or "fp32").casefold()
    half = "bf16" if "bf16" in precision or "bfloat16" in precision else "fp16" if "16" in precision else "fp32"
    autocast = any(word in precision for word in ("autocast", "amp", "mixed")) or half == "fp32"
    four_bit = "nf4" in precision or "4bit" in precision
    method = "qlora" if four_bit and data["method"] != "full" else data["method"]
    targets = data.get("targets")
    return RunSettings(
        task=task,
        method=method,
        precision=half if autocast else f"pure-{half}",
        optimizer=_optimizer(str(data.get("optimizer") or "none").casefold()),
        batch=data.get("batch") or 1,
        accumulation=data.get("grad_accum"),
        source_length=data["seq_in"] if isinstance(data.get("seq_in"), int) else 1,
        target_length=data["seq_out"] if isinstance(data.get("seq_out"), int) else None,
        gradient_checkpointing=bool(data.get("grad_ckpt")),
        attention=data.get("attn") if data.get("attn") in ("eager", "sdpa", "flash") else None,
        lora_rank=data.get("lora_r") or data.get("lora_rank") or _noted_rank(str(data.get("notes") or "")),
        lora_targets=tuple(targets) if isinstance(targets, list) else None,
        double_quant="-dq" in precision,
    )


def _optimizer(name: str) -> str:
    if "adamw" in name:
        return "adamw_bnb_8bit" if "8" in name else "adamw_torch"
    return name if name in ("sgd", "adafactor", "none") else "adamw_torch"


def _noted_rank(notes: str) -> int | None:
    match = re.search(r"lora_r=(\d+)|LoRA r(\d+)", notes)
    return int(match[1] or match[2]) if match else None


def _quantity(text: str) -> str | None:
    folded = text.casefold()
    if "allocated" in folded or folded.startswith("vram"):
        return "allocated"
    if "peak includes" in folded or "context" in folded.replace("excl. context", "") or "minus torch" in folded:
        return None  # of a run with other parts, or of no run
    if "reserved" in folded:
        return "reserved"
    return "process" if any(word in folded for word in ("nvml", "nvidia-smi", "process")) else None


def _dimensions(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Those that the row itself gives, as an object or as text."""
    given = data.get("arch")
    found: Mapping[str, Any] | None = json.loads(given) if isinstance(given, str) else given
    return found


def _config(name: str, index: ModelIndex) -> Mapping[str, Any] | None:
    model = index.resolve(name)
    if model is not None:
        path = ROOT / "rules" / "models" / f"{model.id}.yaml"
        found: Mapping[str, Any] = yaml.load(path.read_text("utf-8"), LOADER)["architecture"]
        return found
    tail = name.casefold().rpartition("/")[2]
    for ending in ENDINGS:
        tail = tail.removesuffix(ending)
    return CONFIGS.get(tail)


def _named_memory(text: str) -> int | None:
    """16 GiB of ``RTX3080Ti-16GB (laptop)``; vendors mean GiB."""
    match = re.search(r"(\d+) ?GB", text)
    return int(match[1]) * GIB if match else None


def _gpu(text: str, catalog: Catalog) -> Gpu | None:
    """``A100-SXM4-40GB`` is the catalogue's a100-40gb; None where the catalogue has no such card."""
    folded = re.sub(r"-(sxm\d?|pcie)", "", text.casefold())
    for name in (folded, folded.rpartition("-")[0]):
        if name in catalog.gpus:
            return catalog.gpus[name]
    return None
