"""What a forward pass keeps of one sample: a shallow model tells what the whole one keeps."""

from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.core.setup import Images, TrainingSetup
from kb.memory.engine import kept
from kb.memory.engine.kept import kept_of

MODELS = {name: model.architecture for name, model in load_catalog().models.items()}
SEES = ("qwen2.5-vl-3b", "llava-1.5-7b")
# plain layers, two kinds of them, a mixture, relative positions, two stacks, sound, pictures
NAMES = ("tinyllama-1.1b", "gemma-2-2b", "qwen1.5-moe-a2.7b", "deberta-v3-base", "t5-base", "whisper-tiny", *SEES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "settings",
    [{"bf16": True}, {"weights": "fp16", "method": "qlora", "load_in_4bit": True, "attn_implementation": "eager"}],
)
def test_layers_of_a_shallow_model_add_up_to_the_whole(name: str, settings: dict[str, Any]) -> None:
    architecture = MODELS[name]
    setup = TrainingSetup(**settings, max_source_length=1000, images=Images(1, 24, 32) if name in SEES else None)
    found = kept_of(setup, architecture)
    assert found == kept._grows(kept._read(setup), architecture)
    assert min(found) > 0


def test_frozen_weights_keep_less_and_no_part_is_of_how_a_run_is_spread() -> None:
    llama = MODELS["tinyllama-1.1b"]
    full, lora = (kept_of(TrainingSetup(weights="bf16", method=method), llama) for method in ("full", "lora"))
    assert lora.layers < full.layers and lora.loss == full.loss
    spread = TrainingSetup(weights="bf16", world_size=8, zero_stage=3, gradient_checkpointing=True, fused_loss=True)
    assert kept_of(spread, llama) == full
