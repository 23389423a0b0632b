"""The modules that LoRA can wrap, under transformers' names, and PEFT's way of choosing among them."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

from kb.core.model import Architecture
from kb.core.record import NamedTuple

# peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING (peft 0.21); other types must name theirs
_QV = ("q_proj", "v_proj")
DEFAULT_TARGETS = {
    "t5": ("q", "v"),
    "mt5": ("q", "v"),
    "bart": _QV,
    "gpt2": ("c_attn",),
    "opt": _QV,
    "gpt_neox": ("query_key_value",),
    "llama": _QV,
    "mistral": _QV,
    "mixtral": _QV,
    "phi": (*_QV, "fc1", "fc2"),
    "gemma": _QV,
    "gemma2": _QV,
    "gemma3_text": _QV,
    "qwen2": _QV,
    "qwen3": _QV,
    "bert": ("query", "value"),
    "roberta": ("query", "value"),
    "xlm-roberta": ("query", "value"),
    "electra": ("query", "value"),
    "deberta-v2": ("query_proj", "value_proj"),
    "deberta": ("in_proj",),
    "stablelm": _QV,
    "bloom": ("query_key_value",),
    "falcon": ("query_key_value",),
    "gptj": _QV,
    "gpt_neo": _QV,
}
# What model types call the projections that PEFT adapts by default; XLNet's are parameters and no layers, of which it
# has only those of the feed-forward.
PROJECTIONS = (
    ("q", "v"), ("q_proj", "v_proj"), ("query", "value"), ("q_lin", "v_lin"), ("qkv_proj",), ("layer_1", "layer_2"),
)  # fmt: skip

Kind = Literal["linear", "embedding"]
Stack = Literal["encoder", "decoder", "head", "embedding"]


class UnknownTargetsError(ValueError):
    """LoRA targets that cannot be resolved for this architecture."""


class LinearModule(NamedTuple):
    """``number`` modules of one shape. ``name`` is the dotted path, with ``*`` for the layer's number."""

    name: str
    stack: Stack
    in_features: int
    out_features: int
    number: int
    kind: Kind = "linear"

    @property
    def leaf(self) -> str:
        return self.name.rpartition(".")[2]

    def paths(self) -> Iterator[str]:
        if "*" not in self.name:
            yield self.name
        else:
            for index in range(self.number):
                yield self.name.replace("*", str(index), 1)


@lru_cache(maxsize=256)
def modules(architecture: Architecture) -> tuple[LinearModule, ...]:
    """Linear layers and embeddings, grouped over the layers, named as ``model.named_modules()`` names them."""
    if architecture.engine:  # imported where used, as only these models need it
        from kb.memory.engine.inventory import inventory

        return inventory(architecture)[0]
    if architecture.family == "t5":
        return _t5_modules(architecture)
    if architecture.family == "bart":
        return _bart_modules(architecture)
    if architecture.family == "encoder":  # imported where used, as only these models need it
        from kb.memory import encoder_parts

        return encoder_parts.modules_of(architecture)
    from kb.memory import decoder_parts

    return decoder_parts.modules_of(architecture)


def _t5_modules(a: Architecture) -> tuple[LinearModule, ...]:
    inner = a.num_heads * a.d_kv
    found = [LinearModule(name="shared", stack="embedding", in_features=a.vocab_size, out_features=a.d_model, number=1,
                          kind="embedding")]  # fmt: skip
    stacks: tuple[tuple[Stack, int, tuple[str, ...]], ...] = (
        ("encoder", a.encoder_layers, ("SelfAttention",)),
        ("decoder", a.decoder_layers, ("SelfAttention", "EncDecAttention")),
    )
    for stack, layers, attentions in stacks:
        found.append(LinearModule(name=f"{stack}.embed_tokens", stack="embedding", in_features=a.vocab_size,
                                  out_features=a.d_model, number=1, kind="embedding"))  # fmt: skip
        shapes = []
        for position, attention in enumerate(attentions):
            shapes += [(f"layer.{position}.{attention}.{leaf}", a.d_model, inner) for leaf in ("q", "k", "v")]
            shapes.append((f"layer.{position}.{attention}.o", inner, a.d_model))
        dense = f"layer.{len(attentions)}.DenseReluDense"
        shapes += [(f"{dense}.{leaf}", a.d_model, a.d_ff) for leaf in (("wi_0", "wi_1") if a.gated else ("wi",))]
        shapes.append((f"{dense}.wo", a.d_ff, a.d_model))
        found += [
            LinearModule(name=f"{stack}.block.*.{name}", stack=stack, in_features=rows, out_features=columns,
                         number=layers)
            for name, rows, columns in shapes
        ]  # fmt: skip
    found.append(LinearModule(name="lm_head", stack="head", in_features=a.d_model, out_features=a.vocab_size, number=1))
    return tuple(found)


def _bart_modules(a: Architecture) -> tuple[LinearModule, ...]:
    found = [LinearModule(name="model.shared", stack="embedding", in_features=a.vocab_size, out_features=a.d_model,
                          number=1, kind="embedding")]  # fmt: skip
    stacks: tuple[tuple[Stack, int, tuple[str, ...]], ...] = (
        ("encoder", a.encoder_layers, ("self_attn",)),
        ("decoder", a.decoder_layers, ("self_attn", "encoder_attn")),
    )
    for stack, layers, attentions in stacks:
        found.append(LinearModule(name=f"model.{stack}.embed_tokens", stack="embedding", in_features=a.vocab_size,
                                  out_features=a.d_model, number=1, kind="embedding"))  # fmt: skip
        if a.max_positions:
            found.append(LinearModule(name=f"model.{stack}.embed_positions", stack="embedding",
                                      in_features=a.max_positions + 2, out_features=a.d_model, number=1,
                                      kind="embedding"))  # fmt: skip
        shapes = [
            (f"{attention}.{leaf}", a.d_model, a.d_model)
            for attention in attentions
            for leaf in ("k_proj", "v_proj", "q_proj", "out_proj")
        ]
        shapes += [("fc1", a.d_model, a.d_ff), ("fc2", a.d_ff, a.d_model)]
        found += [
            LinearModule(name=f"model.{stack}.layers.*.{name}", stack=stack, in_features=rows, out_features=columns,
                         number=layers)
            for name, rows, columns in shapes
        ]  # fmt: skip
    found.append(LinearModule(name="lm_head", stack="head", in_features=a.d_model, out_features=a.vocab_size, number=1))
    return tuple(found)


def default_targets(architecture: Architecture) -> tuple[str, ...] | None:
    """PEFT's default target modules for a model type; None where PEFT demands that they be named."""
    return DEFAULT_TARGETS.get(architecture.model_type)


def targets_for(architecture: Architecture) -> tuple[str, ...] | None:
    """PEFT's default targets, or of a type that PEFT does not list, its query and value projections."""
    known = default_targets(architecture)
    if known is not None:
        return known
    leaves = {module.leaf for module in modules(architecture)}
    return next((names for names in PROJECTIONS if leaves.issuperset(names)), None)


@lru_cache(maxsize=256)
def match_targets(
    architecture: Architecture, targets: tuple[str, ...] | str | None
) -> tuple[tuple[LinearModule, ...], tuple[str, ...]]:
    """Which modules PEFT would wrap, and the targets that match none.

    As peft's ``check_target_module_exists``: an entry of a list matches a module whose path equals it or ends with
    ``"." + entry``; a plain string is a regular expression for the whole path; ``"all-linear"`` is every linear layer
    but the output layer; None is PEFT's default for the architecture.

    Returns:
        Matched modules, each with the count of its layers that matched, and the entries without a match.

    Raises:
        UnknownTargetsError: no targets given and PEFT has no default, or a regular expression that cannot be used.
    """
    if targets is None:
        targets = default_targets(architecture)
        if targets is None:
            raise UnknownTargetsError(
                f"PEFT has no default target modules for {architecture.model_type}; name target_modules"
            )
    if targets in ("all-linear", ("all-linear",)):
        return tuple(m for m in modules(architecture) if m.kind == "linear" and m.stack != "head"), ()
    if isinstance(targets, str):
        return _match_pattern(architecture, targets)
    if "all-linear" in targets:  # no module of PEFT's; ms-swift puts the linear layers in its place
        raise UnknownTargetsError("all-linear among other target modules")
    missing = dict.fromkeys(targets)
    endings = tuple("." + entry for entry in targets)  # of a path with a dot before it
    matched = []
    for module in modules(architecture):
        count = 0
        for path in module.paths():
            if not f".{path}".endswith(endings):
                continue
            count += 1
            for entry in [entry for entry in missing if f".{path}".endswith("." + entry)]:
                del missing[entry]
        if count:
            matched.append(module._replace(number=count))
    return tuple(matched), tuple(missing)


def _match_pattern(architecture: Architecture, pattern: str) -> tuple[tuple[LinearModule, ...], tuple[str, ...]]:
    from kb.core.patterns import PatternError, compiled  # few configs have one

    matched = []
    try:
        ready = compiled(pattern)
        for module in modules(architecture):
            count = sum(map(ready.fullmatch, module.paths()))
            if count:
                matched.append(module._replace(number=count))
    except PatternError as error:
        raise UnknownTargetsError(f"target_modules {pattern[:60]!r}: {error}") from None
    return tuple(matched), () if matched else (pattern,)


def adapter_parameters(architecture: Architecture, targets: tuple[str, ...] | str | None, r: int) -> int:
    """Parameters of the LoRA adapters: r·(in + out) for each matched module, linear or embedding, no biases."""
    matched, _ = match_targets(architecture, targets)
    return sum(r * (module.in_features + module.out_features) * module.number for module in matched)
