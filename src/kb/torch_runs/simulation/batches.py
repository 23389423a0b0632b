"""Fake batches, shaped as a data collator shapes them: every row as long as the config lets it be."""

from typing import Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.models import labels_of


def batch_of(model: Any, setup: TrainingSetup, rows: int) -> dict[str, Any]:
    """Token ids, mask and labels for ``rows`` samples, on the fake GPU."""
    import torch

    def numbers(*shape: int, value: int = 0) -> Any:
        return torch.full((rows, *shape), value, dtype=torch.long, device="cuda")

    source = setup.max_source_length
    labels = labels_of(model, setup)
    batch = {"input_ids": numbers(source), "attention_mask": numbers(source, value=1)}
    return batch | {name: numbers(*labels.shape) for name in labels.names}
