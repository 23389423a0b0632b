"""Fake batches, shaped as a data collator shapes them: every row as long as the config lets it be."""

from typing import Any

from kb.core.setup import TrainingSetup


def batch_of(model: Any, setup: TrainingSetup, rows: int) -> dict[str, Any]:
    """Token ids, mask and labels for ``rows`` samples, on the fake GPU.

    An encoder-decoder has target labels of their own length, a language model its input as labels, a classifier one
    label for a sample or for a token.
    """
    import torch

    def tokens(length: int, value: int = 0) -> Any:
        return torch.full((rows, length), value, dtype=torch.long, device="cuda")

    source = setup.max_source_length
    batch = {"input_ids": tokens(source), "attention_mask": tokens(source, 1)}
    config, kind = model.config, _kind(model)
    if config.is_encoder_decoder:
        return {**batch, "labels": tokens(setup.max_target_length)}
    if kind.endswith("ForQuestionAnswering"):
        ends = {
            name: torch.zeros(rows, dtype=torch.long, device="cuda") for name in ("start_positions", "end_positions")
        }
        return {**batch, **ends}
    if kind.endswith(("ForSequenceClassification", "ForMultipleChoice")):
        return {**batch, "labels": torch.zeros(rows, dtype=torch.long, device="cuda")}
    return {**batch, "labels": tokens(source)}


def _kind(model: Any) -> str:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return type(inner).__name__
