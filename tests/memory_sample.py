"""What the memory tests share: constants as the rules give them, models by dimensions, recorded traces."""

import json
from pathlib import Path
from typing import Any

from kb.core.hardware import Gpu
from kb.core.model import Architecture
from kb.core.setup import TrainingSetup
from kb.core.units import MIB
from kb.memory import architecture_from_config
from yaml_file import read_yaml

ROOT = Path(__file__).parent.parent
TRACES = ROOT / "tests" / "data" / "traces"
CONSTANTS: dict[str, float] = {
    name: entry["value"] for name, entry in read_yaml(ROOT / "rules" / "constants.yaml")["constants"].items()
}

T5_BASE = {
    "model_type": "t5", "d_model": 768, "d_ff": 3072, "num_heads": 12, "d_kv": 64, "num_layers": 12,
    "vocab_size": 32128,
}  # fmt: skip
MT5_BASE = {
    "model_type": "mt5", "d_model": 768, "d_ff": 2048, "num_heads": 12, "d_kv": 64, "num_layers": 12,
    "vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
KOBART = {
    "model_type": "bart", "d_model": 768, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "encoder_layers": 6,
    "decoder_layers": 6, "encoder_attention_heads": 16, "decoder_attention_heads": 16, "vocab_size": 30000,
    "max_position_embeddings": 1026,
}  # fmt: skip

RTX_3090 = Gpu(
    id="rtx-3090", name="NVIDIA GeForce RTX 3090", memory_total=24576 * MIB, compute_capability=(8, 6), native_bf16=True
)

# the original guide' config that ran: QLoRA on mT5-base, batch 12, evaluation at 16 × 12 beams
MT5_QLORA = TrainingSetup(
    method="qlora",
    load_in_4bit=True,
    bnb_4bit_use_double_quant=True,
    lora_r=128,
    lora_target_modules=("q", "k", "v", "o", "wi", "wo", "lm_head", "embed_tokens"),
    bf16=True,
    gradient_checkpointing=True,
    optim="adamw_torch",
    per_device_train_batch_size=12,
    per_device_eval_batch_size=16,
    gradient_accumulation_steps=2,
    max_source_length=1024,
    max_target_length=200,
    do_eval=True,
    predict_with_generate=True,
    generation_num_beams=12,
    generation_max_length=200,
    dataloader_num_workers=16,
)


def architecture(config: dict[str, Any]) -> Architecture:
    return architecture_from_config(config)


def traces(kind: str) -> list[tuple[Architecture, TrainingSetup, dict[str, Any]]]:
    """The recorded rows of one kind: architecture, setup, row."""
    document = json.loads((TRACES / f"{kind}.json").read_text("utf-8"))
    models = {name: architecture_from_config(config) for name, config in document["models"].items()}
    rows = []
    for row in document["rows"]:
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in row["setup"].items()}
        rows.append((models[row["model"]], TrainingSetup(**given), row))
    return rows
