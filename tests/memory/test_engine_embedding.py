"""Embedding training as a prediction: what makes it larger, what is refused, and how a project says what it is. Block
by block beside sentence-transformers' lines it stands in ``tests/torch_runs/simulation/test_embedding_acts.py``.
"""

from pathlib import Path
from typing import Any

import pytest

from command_runs import checked_file
from kb.core.setup import PostTraining, TrainingSetup
from kb.memory import architecture_from_config
from kb.memory.engine.predict import record_runs
from kb.memory.engine.report import why_not

BERT = {"model_type": "bert", "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4,
        "num_hidden_layers": 4, "vocab_size": 2000, "max_position_embeddings": 128}  # fmt: skip
BASE = TrainingSetup(bf16=True, per_device_train_batch_size=32, max_source_length=128)


def peak(**post: Any) -> int:
    setup = BASE._replace(post=PostTraining("embedding", **post))
    (run,) = record_runs(setup, architecture_from_config(BERT), (8, 6))
    return run.phases["train"].allocated


def test_each_text_of_a_sample_is_held_and_gradcache_holds_a_few() -> None:
    pairs, triples = peak(), peak(columns=3)
    assert 1.3 < triples / pairs < 1.5
    assert peak(cached=4) < 0.5 * pairs
    assert peak(cached=4, columns=3) < 1.05 * peak(cached=4)  # only embeddings are kept of all
    assert peak(cached=4) < peak(cached=8) < peak(cached=32) < pairs


@pytest.mark.parametrize(
    ("config", "change", "named"),
    [
        ({**BERT, "model_type": "modernbert"}, {}, "embedding of modernbert"),
        (BERT, {"world_size": 2}, "embedding of several GPUs"),
        (BERT, {"gradient_checkpointing": True}, "embedding with gradient_checkpointing"),
        (BERT, {"post": PostTraining("embedding", columns=1)}, "embedding of one column"),
        (
            BERT,
            {"post": PostTraining("embedding", cached=1), "per_device_train_batch_size": 1000},
            "embedding in 2000 parts",
        ),
    ],
)
def test_what_is_not_followed_is_named(config: dict[str, Any], change: dict[str, Any], named: str) -> None:
    setup = BASE._replace(**{"post": PostTraining("embedding"), **change})
    assert why_not(setup, architecture_from_config(config)) == named


CONFIG = (
    "model_name_or_path: FacebookAI/roberta-base\nper_device_train_batch_size: 32\nmax_seq_length: 128\nbf16: true\n"
    "num_train_epochs: 1\nlearning_rate: 2.0e-5\noutput_dir: out\n"
)


def checked(folder: Path) -> Any:
    return checked_file(folder / "train.yaml", "--gpu", "l4")


@pytest.mark.exhaustive
def test_a_project_says_that_its_runs_train_embeddings(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(CONFIG, "utf-8")
    plain = checked(tmp_path)
    (tmp_path / "kb.toml").write_text('[facts]\n"embedding.columns" = 3\n"embedding.mini_batch_size" = 8\n', "utf-8")
    found = checked(tmp_path)
    assert plain["setup"]["post"] is None
    said = {name: found["setup"]["post"][name] for name in ("kind", "columns", "cached", "pooling", "normalizes")}
    assert said == {"kind": "embedding", "columns": 3, "cached": 8, "pooling": "mean", "normalizes": False}
    assert found["prediction"]["level"] == "engine"
