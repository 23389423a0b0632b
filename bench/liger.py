"""What Liger's kernels take in plain training under the simulation (level 1), beside the memory engine's figures.

    python bench/liger.py --liger liger_kernel-0.8.5/src '{"model_type": "llama", …}' bf16=true

liger-kernel is read, not installed (``pip download liger-kernel==0.8.5 --no-deps --no-binary :all:``). The Trainer's
steps run on fake tensors, with the model patched by Liger's own ``_apply_liger_kernel_to_instance``: what its Python
code allocates is seen. A Triton kernel gets what it writes to, and allocates nothing: here it is a call that does
nothing. Settings are those of TrainingSetup, and ``parts='{rope: false}'`` those of ``liger_kernel_config``.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import yaml
from engine_diff import Act, compare_acts, followed, simulated

from kb.core.setup import LigerKernels, TrainingSetup
from kb.core.setup_json import setup_from
from kb.memory.engine.kernel_choice import MULTIPROCESSORS


class Nothing:
    """A Triton kernel, and whatever else is asked of Triton where a module of Liger's is read."""

    def __init__(self, *args: Any, **given: Any) -> None:
        pass

    def __getitem__(self, _: Any) -> Any:
        return lambda *args, **given: None

    def __getattr__(self, name: str) -> Any:
        return _anything(name)

    def __call__(self, *args: Any, **given: Any) -> Any:
        return Nothing()


class Constant:
    """``triton.language.constexpr``."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return self.value == getattr(other, "value", other)

    __hash__ = None  # type: ignore[assignment]


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing()


def without_triton() -> None:
    """Modules of the name ``triton`` whose kernels do nothing."""

    def decorates(*args: Any, **given: Any) -> Any:
        return Nothing() if args and callable(args[0]) else lambda kernel: Nothing()

    known = {
        "__version__": "3.4.0", "jit": decorates, "autotune": decorates, "heuristics": decorates, "Config": Nothing,
        "constexpr": Constant,
        "cdiv": lambda a, b: -(-a // b), "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
    }  # fmt: skip
    for name in ("triton", "triton.language", "triton.language.extra", "triton.language.extra.libdevice",
                 "triton.language.math", "triton.language.extra.cuda", "triton.runtime"):  # fmt: skip
        module: Any = ModuleType(name)
        module.__path__ = []
        module.__getattr__ = _anything
        for attribute, value in known.items():
            setattr(module, attribute, value)
        sys.modules[name] = module
    triton: Any = sys.modules["triton"]
    triton.language = sys.modules["triton.language"]


def patched(parts: Mapping[str, bool]) -> None:
    """Every model that the simulation builds has Liger's kernels."""
    from kb.torch_runs.simulation import simulator
    from kb.torch_runs.simulation.torch_modules import torch

    import_module("torch._inductor.standalone_compile")  # which looks for Triton itself, and does without
    without_triton()
    import liger_kernel.utils as utils

    setattr(utils, "infer_device", lambda: "cuda")  # noqa: B010
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    built, same = simulator.build_model, torch.equal

    def build(*args: Any, **given: Any) -> Any:
        model = built(*args, **given)
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        _apply_liger_kernel_to_instance(model=inner, **parts)
        return model

    simulator.build_model = build  # type: ignore[assignment]
    torch.cuda.device = lambda *_: nullcontext()  # type: ignore[assignment,misc]
    torch.equal = lambda one, other: bool(one.dim()) and same(one, other)  # is a loss's gradient 1? it may be


def _skipping(setup: TrainingSetup) -> None:
    """``Trainer.evaluation_loop`` says ``skip_logits`` where the loss alone is wanted (transformers 5.23.0)."""
    from kb.torch_runs.simulation import simulator, training

    skips = setup.prediction_loss_only and setup.liger_kernels is not None and setup.liger_kernels.skips
    more = {"skip_logits": True} if skips else {}
    simulator.batch_of = lambda *args: training.batch_of(*args) | more


def compared(
    config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int], shown: int
) -> tuple[bool, dict[str, tuple[int, int]]]:
    """Print the peaks of both and, where they part, both logs; whether they are alike, and the simulation's peaks."""
    import torch

    setattr(torch.cuda, "get_device_capability", lambda *_: capability)  # noqa: B010
    known = SimpleNamespace(multi_processor_count=MULTIPROCESSORS[capability])
    torch.cuda.get_device_properties = lambda *_: known  # type: ignore[assignment,return-value]
    _skipping(setup)
    wanted: list[Act]
    wanted, peaks = simulated(config, setup._replace(fused_loss=False, liger_kernels=None), capability)
    found, own = followed(config, setup, capability)
    for name, peak in peaks.items():
        mine = own.get(name, (0, 0))
        print(f"{'=' if mine == peak else '!'} {name:9} allocated {peak[0]:>14,} {mine[0]:>14,}", end="   ")
        print(f"reserved {peak[1]:>14,} {mine[1]:>14,}", flush=True)
    compare_acts(wanted, found, shown)
    return all(own.get(name) == peak for name, peak in peaks.items()), peaks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", help="a config.json's content")
    parser.add_argument("settings", nargs="*", help="name=value, of TrainingSetup; values are YAML")
    parser.add_argument("--liger", required=True, help="the folder src of liger-kernel's source")
    parser.add_argument("--capability", default="8.6")
    parser.add_argument("--context", type=int, default=16, help="acts to show")
    options = parser.parse_intermixed_args()
    sys.path.insert(0, options.liger)
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.settings)}
    patched(given.pop("parts", {}))
    kernels = LigerKernels(**given.pop("kernels", {}))
    setup = setup_from(given)._replace(fused_loss=True, liger_kernels=kernels)
    major, minor = map(int, options.capability.split("."))
    return 0 if compared(json.loads(options.config), setup, (major, minor), options.context)[0] else 1


if __name__ == "__main__":
    sys.exit(main())
