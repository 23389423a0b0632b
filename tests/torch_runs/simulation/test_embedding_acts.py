"""Embedding training with in-batch negatives, also a few samples at a time (GradCache): the engine and the simulation
of sentence-transformers' lines ask the allocator for the same blocks in the same order.
"""

from typing import Any

import pytest

from simulation_needs import require_simulator

require_simulator()

from kb.core.setup import PostTraining, TrainingSetup  # noqa: E402
from simulated_runs import same_acts  # noqa: E402

# isort: split
from embedding import simulated  # noqa: E402  # of bench/, which simulated_runs puts on the path

BERT = {"model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
        "num_hidden_layers": 2, "vocab_size": 700, "max_position_embeddings": 64}  # fmt: skip
DISTILBERT = {"model_type": "distilbert", "dim": 64, "hidden_dim": 128, "n_heads": 2, "n_layers": 2, "vocab_size": 700,
              "max_position_embeddings": 64}  # fmt: skip
LORA = {"method": "lora", "lora_target_modules": ("query", "value"), "lora_dropout": 0.1}


@pytest.mark.parametrize(
    ("config", "post", "given"),
    [
        (BERT, {}, {}),
        (DISTILBERT, {"columns": 3, "pooling": "cls", "normalizes": True}, {"bf16": False}),
        ({**BERT, "model_type": "roberta"}, {"columns": 3, "cached": 2}, {"gradient_accumulation_steps": 2}),
        ({**BERT, "model_type": "mpnet"}, {"cached": 4, "pooling": "cls", "normalizes": True}, {"weights": "bf16"}),
        ({**BERT, "model_type": "longformer", "attention_window": 16, "pad_token_id": 1}, {"columns": 3}, {}),
        ({**BERT, "model_type": "xlm-roberta"}, {"normalizes": True}, {**LORA, "attn_implementation": "eager"}),
    ],
    ids=["pairs", "negatives", "cached", "cached in bf16", "windows", "lora"],
)
def test_embedding_training_asks_for_the_same_blocks(
    config: dict[str, Any], post: dict[str, Any], given: dict[str, Any]
) -> None:
    base = TrainingSetup(bf16=True, per_device_train_batch_size=6, max_source_length=24)
    setup = base._replace(post=PostTraining("embedding", **post), **given)
    same_acts(config, setup, simulate=simulated, wrapped="embedding")
