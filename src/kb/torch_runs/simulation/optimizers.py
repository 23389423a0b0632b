"""The Trainer's optimizers: which class, with which groups, and what of bitsandbytes' states lies on the host.

Import only in the simulator's process.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kb.core.setup import TrainingSetup
from kb.torch_runs.releases import decayed_names
from kb.torch_runs.simulation.job import BadJobError

if TYPE_CHECKING:
    import torch
else:
    from kb.torch_runs.simulation.torch_modules import torch

LEARNING_RATE = 1e-4
# Settings of the Trainer that an optimizer's handler reads; none of them changes a byte.
DEFAULTS = {"learning_rate": LEARNING_RATE, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
            "weight_decay": 0.0, "optim_args": None, "optim_target_modules": None}  # fmt: skip
UNDECAYED = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
OLD_NAMES = {"adamw_8bit": "adamw_bnb_8bit"}


class OwnAdamW(torch.optim.Optimizer):
    """``adamw_hf``: the AdamW that transformers had up to 4.49 (``AdamW`` of optimization.py), which went with 4.50.

    The same tensors in the same order: both moments, and of each tensor the root of the second with epsilon in it,
    whose name lives until the next tensor's takes it. Steps are counted on the host.
    """

    def __init__(self, groups: Any, lr: float) -> None:
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, *_: Any) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                state["exp_avg"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["exp_avg_sq"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                denominator = state["exp_avg_sq"].sqrt().add_(1e-6)
                parameter.addcdiv_(state["exp_avg"], denominator, value=-group["lr"])


def optimizer_of(model: "torch.nn.Module", setup: TrainingSetup) -> "torch.optim.Optimizer | None":
    """None for ``none``. Two groups of parameters, as the Trainer makes them: with weight decay and without.

    Raises:
        BadJobError: the Trainer has no such optimizer, or it needs a package or setting that is not there.
    """
    if setup.optim == "none":
        return None
    kind, options = _class_and_options(OLD_NAMES.get(setup.optim, setup.optim), model)
    decayed = _decayed(model)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for name, parameter in named if name in decayed], "weight_decay": 0.0},
        {"params": [parameter for name, parameter in named if name not in decayed], "weight_decay": 0.0},
    ]
    optimizer: torch.optim.Optimizer = kind([group for group in groups if group["params"]], **options)
    if "8bit" in setup.optim:
        _keep_embeddings_wide(model)
    return optimizer


def _class_and_options(name: str, model: "torch.nn.Module") -> tuple[Any, dict[str, Any]]:
    """As ``Trainer.get_optimizer_cls_and_kwargs``; the usual ones without the seconds that importing it takes."""
    if name in ("adamw_torch", "adamw_torch_fused"):
        return torch.optim.AdamW, {"lr": LEARNING_RATE, **({"fused": True} if name.endswith("fused") else {})}
    if name == "adamw_hf":
        return OwnAdamW, {"lr": LEARNING_RATE}
    from transformers.trainer import Trainer
    from transformers.training_args import OptimizerNames

    try:
        args = SimpleNamespace(**DEFAULTS, optim=OptimizerNames(name))
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args, model)  # type: ignore[arg-type]
    except (ValueError, ImportError, AttributeError) as error:
        raise BadJobError(name="optim", value=f"{name} ({error})") from error
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise BadJobError(name="optim", value=name)
    return kind, options


def _decayed(model: "torch.nn.Module") -> set[str]:
    return decayed_names(model, UNDECAYED)


def _keep_embeddings_wide(model: "torch.nn.Module") -> None:
    """The Trainer keeps the states of embeddings in 32 bits."""
    import bitsandbytes

    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


@contextmanager
def paged_on_host() -> Iterator[None]:
    """bitsandbytes' paged states live in managed memory, which PyTorch's allocator never sees."""
    if "bitsandbytes" not in sys.modules:  # no optimizer of it was made
        yield
        return
    import bitsandbytes
    from bitsandbytes import functional

    replaced = {"get_paged": _host_tensor, "fill": _nothing, "prefetch_tensor": _nothing}
    before = {name: getattr(functional, name) for name in replaced}
    for name, stand_in in replaced.items():
        setattr(functional, name, stand_in)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(functional, name, original)
        bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()  # it would keep the model for ever


def _host_tensor(*shape: int, dtype: Any = None, device: Any = None) -> "torch.Tensor":
    tensor = torch.empty(*shape, dtype=dtype, device="cpu")
    tensor.is_paged = True  # type: ignore[attr-defined]
    return tensor


def _nothing(*_: Any, **__: Any) -> None:
    return None
