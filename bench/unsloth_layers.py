"""What Unsloth's layers take in training under the simulation (level 1), beside the memory engine's figures.

    python bench/unsloth_layers.py --unsloth unsloth-2026.10.9 '{"model_type": "llama", …}' method=lora bf16=true

Unsloth's wheel is read, not installed (``pip download --no-deps unsloth==2026.10.9``, unzipped). The steps run on fake
tensors, with the layers of transformers' model calling Unsloth's own autograd functions as its
``LlamaDecoderLayer_fast_forward`` and ``LlamaAttention_fast_forward`` do. A Triton kernel gets what it writes to, and
allocates nothing. Where inputs of checkpointed layers wait is left out: settings are those of TrainingSetup.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import yaml
from engine_diff import compare_acts, followed, simulated
from liger import Nothing, without_triton

from kb.core.setup_json import setup_from
from kb.memory.engine.kernel_choice import MULTIPROCESSORS


def _asked(name: str) -> Any:
    """What a module that is left out is asked for: a class of which nothing is one, or a function that says no."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing if name[:1].isupper() else lambda *_, **__: False


def _stand_in(name: str, folder: Path | None = None, **names: Any) -> None:
    """A module of this name; what it is asked for besides does nothing."""
    module: Any = ModuleType(name)
    module.__path__ = [str(folder)] if folder else []
    if folder is None:
        module.__getattr__ = _asked
    for each, value in names.items():
        setattr(module, each, value)
    sys.modules[name] = module


def kernels_of(folder: Path, capability: tuple[int, int]) -> Any:
    """The modules of Unsloth that hold its layers' functions, without the rest of the package."""
    from packaging.version import Version

    from kb.torch_runs.simulation.torch_modules import torch  # before torch is imported otherwise

    known = SimpleNamespace(multi_processor_count=MULTIPROCESSORS[capability])
    setattr(torch._C, "_cuda_getCurrentRawStream", lambda *_: 0)  # noqa: B010
    setattr(torch.cuda, "get_device_capability", lambda *_: capability)  # noqa: B010
    torch.cuda.get_device_properties = lambda *_: known  # type: ignore[assignment,return-value]
    import_module("torch._inductor.standalone_compile")  # which looks for Triton itself, and does without
    without_triton()
    _stand_in("unsloth", folder / "unsloth")
    _stand_in("unsloth.kernels", folder / "unsloth" / "kernels")
    _stand_in("unsloth.device_type", DEVICE_TYPE="cuda", DEVICE_TYPE_TORCH="cuda", DEVICE_COUNT=1)
    for name in ("unsloth.bnb_availability", "unsloth.kernels.fp8", "unsloth.kernels.nvfp4",
                 "unsloth.kernels.triton_launch", "unsloth.kernels.indexing", "unsloth_zoo"):  # fmt: skip
        _stand_in(name)
    _stand_in("unsloth_zoo.utils", Version=lambda text: Version(str(text).partition("+")[0]))
    names = {"lora": "fast_lora", "norms": "rms_layernorm", "rope": "rope_embedding"}
    found = SimpleNamespace(**{name: import_module(f"unsloth.kernels.{each}") for name, each in names.items()})
    for module, launch in ((found.norms, "_launch"), (found.rope, "_rope_launch")):
        setattr(module, launch, lambda *_, **__: None)
    return found


def patched(found: Any, model_type: str) -> None:
    """The classes of a type's modelling file have Unsloth's functions."""
    import torch

    torch.cuda.device = lambda *_: nullcontext()  # type: ignore[assignment,misc]

    def norm(module: Any, x: Any) -> Any:
        apply = found.norms.Fast_RMS_Layernorm.apply
        return apply(x, module.weight, module.variance_epsilon, False, True, True)

    def attention(self: Any, hidden_states: Any, position_embeddings: Any, **_: Any) -> Any:
        batch, length, _ = hidden_states.shape
        q, k, v = found.lora.apply_lora_qkv(self, hidden_states)
        q, k, v = (each.view(batch, length, -1, self.head_dim) for each in (q, k, v))
        if hasattr(self, "q_norm"):
            q = norm(self.q_norm, q)
            k = norm(self.k_norm, k)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        cos, sin = (each[0] for each in position_embeddings)
        q, k = found.rope.Fast_RoPE_Embedding_QK_Positions.apply(q, k, cos, sin)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = out.transpose(1, 2).reshape(batch, length, -1)
        return found.lora.apply_lora_o(self, out), None

    def layer(self: Any, hidden_states: Any, **given: Any) -> Any:
        residual = hidden_states
        hidden_states = norm(self.input_layernorm, hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **given)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = norm(self.post_attention_layernorm, hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states

    modelling = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    forwards = {"DecoderLayer": layer, "Attention": attention, "MLP": found.lora.apply_lora_mlp_swiglu, "RMSNorm": norm}
    for name, forward in forwards.items():
        changed = next(each for name_of, each in vars(modelling).items() if name_of.endswith(name))
        changed.forward = forward
        if name == "DecoderLayer":  # which its base wraps for checkpoints as the class is made
            changed.__init_subclass__.__func__(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", help="a config.json's content")
    parser.add_argument("settings", nargs="*", help="name=value, of TrainingSetup; values are YAML")
    parser.add_argument("--unsloth", required=True, type=Path, help="the unzipped wheel")
    parser.add_argument("--capability", default="8.6")
    parser.add_argument("--context", type=int, default=16, help="acts to show")
    options = parser.parse_intermixed_args()
    major, minor = map(int, options.capability.split("."))
    config = json.loads(options.config)
    patched(kernels_of(options.unsloth, (major, minor)), config["model_type"])
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.settings)}
    setup = setup_from(given)
    wanted, peaks = simulated(config, setup, (major, minor))
    mine, own = followed(config, setup._replace(unsloth=True, unsloth_layers=True), (major, minor))
    for name, peak in peaks.items():
        one = own.get(name, (0, 0))
        print(f"{'=' if one == peak else '!'} {name:9} allocated {peak[0]:>14,} {one[0]:>14,}", end="   ")
        print(f"reserved {peak[1]:>14,} {one[1]:>14,}", flush=True)
    compare_acts(wanted, mine, options.context)
    return 0 if all(own.get(name) == peak for name, peak in peaks.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
