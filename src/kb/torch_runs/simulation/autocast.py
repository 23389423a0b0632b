"""A model under accelerate's mixed precision.

Import only in the simulator's process.
"""

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from kb.torch_runs.simulation.torch_modules import torch


def as_accelerate(model: "torch.nn.Module", dtype: str) -> "torch.nn.Module":
    """Wrap ``model.forward`` in place as ``Accelerator.prepare_model`` does: autocast inside, float outputs outside.

    ``dtype`` is ``"float16"`` or ``"bfloat16"``. What is called past ``forward`` (an encoder alone) is not wrapped.
    """
    from accelerate.utils.operations import convert_to_fp32

    forward = model.forward
    cast = getattr(torch, dtype)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", dtype=cast):
            outputs = forward(*args, **kwargs)
        return convert_to_fp32(outputs)

    model.forward = functools.update_wrapper(wrapped, forward)
    return model
