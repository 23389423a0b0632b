"""Saving a checkpoint: what the libraries gather for it on the GPU, and how many bytes pass through host memory."""

from typing import Any


def save(model: Any, optimizer: Any) -> int:
    """Collect what a checkpoint writes, under the tracer's current phase; its bytes in host memory.

    The model's part is transformers' or PEFT's own choice of tensors, each written once however often it is shared.
    """
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        tensors = list(get_peft_model_state_dict(model).values())
    else:
        tensors = list(model.state_dict().values())
    return _bytes(tensors) + (_bytes(_states(optimizer)) if optimizer is not None else 0)


def _states(optimizer: Any) -> list[Any]:
    import torch

    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


def _bytes(tensors: list[Any]) -> int:
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}.values())
