"""The parameters of a model, from its dimensions alone: counted by part, and the modules that LoRA can wrap, under
transformers' names, with PEFT's way of choosing among them.

Encoder-decoders (T5, BART) are here; what has one stack is in :mod:`.decoder` and :mod:`.encoder`. Types that only the
engine knows are counted from its own model.
"""

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.typed import Any, Literal, cast

# peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING (peft 0.21); other types must name theirs
_QV = ("q_proj", "v_proj")
DEFAULT_TARGETS: dict[str, tuple[str, ...] | str] = {
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
    "gemma4": r".*language_model\..*\.(q_proj|v_proj)",  # a pattern, which leaves its towers out
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
    ("q", "v"), ("q_proj", "v_proj"), ("query", "value"), ("q_lin", "v_lin"), ("qkv_proj",), ("Wqkv",),
    ("layer_1", "layer_2"),
)  # fmt: skip

Kind = Literal["linear", "embedding"]
Stack = Literal["encoder", "decoder", "head", "embedding"]


class Counts(NamedTuple):
    """Parameters (not bytes) of one model. ``head`` is 0 where the output layer shares the input embedding."""

    embedding: int  # V·D, the input embedding
    head: int
    positions: int  # learned positions
    encoder_linear: int  # weights of the linear layers inside the encoder's blocks
    decoder_linear: int
    biases: int  # bias vectors of those linear layers
    kept_wide: int  # T5's second feed-forward projections: `_keep_in_fp32_modules`, never quantized
    norms: int  # layer norms and relative-position tables
    experts: int = 0  # experts and their routers: parameters, but no linear layers
    outside: int = 0  # of encoders' heads and embeddings: pooler, projections, classifiers

    @property
    def total(self) -> int:
        of_blocks = self.block_linear + self.biases + self.norms + self.experts
        return self.embedding + self.head + self.positions + of_blocks + self.outside

    @property
    def block_linear(self) -> int:
        return self.encoder_linear + self.decoder_linear

    @property
    def quantizable(self) -> int:
        """What 4-bit and 8-bit loading packs: the blocks' linear layers but T5's ``wo``, which transformers keeps."""
        return self.block_linear - self.kept_wide


def stack_of(architecture: Architecture) -> Any:
    """The module that knows the parts of a model: of one stack, or of a type that only the engine knows; None of T5's
    and BART's kin, which are here. Imported where it is asked for: a model needs one of them.
    """
    if architecture.engine:
        return import_module("kb.memory.engine.inventory")
    if architecture.family in ("decoder", "encoder"):
        return import_module(f"{__name__}.{architecture.family}")
    return None


@lru_cache(maxsize=256)
def count(architecture: Architecture) -> Counts:
    """Parameters of a model, as transformers 5 builds it from the same dimensions.

    Models of one stack are counted by their own modules. T5: four projections D·I a block of attention, two (three when
    gated) D·F of feed-forward; BART: the same with biases and learned positions (two rows more than ``max_positions``,
    kept for padding).
    """
    if (stack := stack_of(architecture)) is not None:
        return cast("Counts", stack.count_parts(architecture))
    a = architecture
    attention = 4 * a.d_model * a.num_heads * a.d_kv
    feed_forward = (3 if a.gated else 2) * a.d_model * a.d_ff
    encoder = a.encoder_layers * (attention + feed_forward)
    decoder = a.decoder_layers * (2 * attention + feed_forward)
    biases = norms = positions = 0
    if a.family == "t5":
        norms = (2 * a.encoder_layers + 3 * a.decoder_layers + 2) * a.d_model
        tables = a.encoder_layers + a.decoder_layers if a.model_type == "umt5" else 2
        norms += tables * a.relative_buckets * a.num_heads
    else:
        sublayers = 2 * a.encoder_layers + 3 * a.decoder_layers
        closing = {"mbart": 4, "pegasus": 2}.get(a.model_type, 2)  # layer norms outside the blocks
        norms = 2 * a.d_model * (sublayers + closing)
        if a.biases:
            attentions = a.encoder_layers + 2 * a.decoder_layers
            biases = attentions * 4 * a.d_model + (a.encoder_layers + a.decoder_layers) * (a.d_ff + a.d_model)
        extra_rows = 0 if a.model_type == "pegasus" else 2
        positions = 2 * ((a.max_positions or 0) + extra_rows) * a.d_model
    return Counts(
        embedding=a.vocab_size * a.d_model,
        head=0 if a.tied else a.vocab_size * a.d_model,
        positions=positions,
        encoder_linear=encoder,
        decoder_linear=decoder,
        biases=biases,
        norms=norms,
        kept_wide=(a.encoder_layers + a.decoder_layers) * a.d_model * a.d_ff if a.family == "t5" else 0,
    )


def parameter_count(architecture: Architecture) -> int:
    """All parameters of the model, shared ones once."""
    return count(architecture).total


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


def table_module(name: str, rows: int, width: int) -> LinearModule:
    """An embedding."""
    return LinearModule(name, "embedding", rows, width, 1, "embedding")


@lru_cache(maxsize=256)
def modules(architecture: Architecture) -> tuple[LinearModule, ...]:
    """Linear layers and embeddings, grouped over the layers, named as ``model.named_modules()`` names them."""
    if (stack := stack_of(architecture)) is not None:
        return cast("tuple[LinearModule, ...]", stack.modules_of(architecture))
    return _t5_modules(architecture) if architecture.family == "t5" else _bart_modules(architecture)


def _t5_modules(a: Architecture) -> tuple[LinearModule, ...]:
    inner = a.num_heads * a.d_kv
    found = [table_module("shared", a.vocab_size, a.d_model)]
    stacks: tuple[tuple[Stack, int, tuple[str, ...]], ...] = (
        ("encoder", a.encoder_layers, ("SelfAttention",)),
        ("decoder", a.decoder_layers, ("SelfAttention", "EncDecAttention")),
    )
    for stack, layers, attentions in stacks:
        found.append(table_module(f"{stack}.embed_tokens", a.vocab_size, a.d_model))
        shapes = []
        for position, attention in enumerate(attentions):
            shapes += [(f"layer.{position}.{attention}.{leaf}", a.d_model, inner) for leaf in ("q", "k", "v")]
            shapes.append((f"layer.{position}.{attention}.o", inner, a.d_model))
        dense = f"layer.{len(attentions)}.DenseReluDense"
        shapes += [(f"{dense}.{leaf}", a.d_model, a.d_ff) for leaf in (("wi_0", "wi_1") if a.gated else ("wi",))]
        shapes.append((f"{dense}.wo", a.d_ff, a.d_model))
        found += [
            LinearModule(f"{stack}.block.*.{name}", stack, rows, columns, layers) for name, rows, columns in shapes
        ]
    return (*found, LinearModule("lm_head", "head", a.d_model, a.vocab_size, 1))


def _bart_modules(a: Architecture) -> tuple[LinearModule, ...]:
    found = [table_module("model.shared", a.vocab_size, a.d_model)]
    stacks: tuple[tuple[Stack, int, tuple[str, ...]], ...] = (
        ("encoder", a.encoder_layers, ("self_attn",)),
        ("decoder", a.decoder_layers, ("self_attn", "encoder_attn")),
    )
    for stack, layers, attentions in stacks:
        found.append(table_module(f"model.{stack}.embed_tokens", a.vocab_size, a.d_model))
        if a.max_positions:
            found.append(table_module(f"model.{stack}.embed_positions", a.max_positions + 2, a.d_model))
        shapes = [
            (f"{attention}.{leaf}", a.d_model, a.d_model)
            for attention in attentions
            for leaf in ("k_proj", "v_proj", "q_proj", "out_proj")
        ]
        shapes += [("fc1", a.d_model, a.d_ff), ("fc2", a.d_ff, a.d_model)]
        found += [
            LinearModule(f"model.{stack}.layers.*.{name}", stack, rows, columns, layers)
            for name, rows, columns in shapes
        ]
    return (*found, LinearModule("lm_head", "head", a.d_model, a.vocab_size, 1))


def default_targets(architecture: Architecture) -> tuple[str, ...] | str | None:
    """PEFT's default target modules for a model type, or a pattern of them; None where PEFT wants them named."""
    return DEFAULT_TARGETS.get(architecture.model_type)


def targets_for(architecture: Architecture) -> tuple[str, ...]:
    """PEFT's default targets, or of a type that PEFT does not list, its query and value projections; where it has none
    by a known name, all linear layers."""
    known = default_targets(architecture)
    if known is not None:  # names, for a config that lists them: a pattern is none
        return known if isinstance(known, tuple) else ("all-linear",)
    leaves = {module.leaf for module in modules(architecture)}
    return next((names for names in PROJECTIONS if leaves.issuperset(names)), ("all-linear",))


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


def names_of_pattern(architecture: Architecture, pattern: str) -> tuple[str, ...] | None:
    """A regular expression as the names of a list that matches the same modules; None where no last names do, such as
    of one layer's modules or of one of two towers, and where the expression matches none or cannot be used."""
    try:
        matched, missing = _match_pattern(architecture, pattern)
    except UnknownTargetsError:
        return None
    names = tuple(dict.fromkeys(module.leaf for module in matched))
    return None if missing or match_targets(architecture, names)[0] != matched else names


def _match_pattern(architecture: Architecture, pattern: str) -> tuple[tuple[LinearModule, ...], tuple[str, ...]]:
    from kb.core.patterns import PatternError, compiled  # few configs have one

    matched = []
    try:
        ready = compiled(pattern)
        for module in modules(architecture):
            count = sum(map(ready.fullmatch, module.paths()))
            if count:
                matched.append(module._replace(number=count))
                holder = next(module.paths()).rpartition(".")[0]
                if ready.fullmatch(holder):
                    raise PatternError(f"{holder} is no layer that PEFT wraps")
    except PatternError as error:
        raise UnknownTargetsError(f"target_modules {pattern[:60]!r}: {error}") from None
    return tuple(matched), () if matched else (pattern,)


def adapter_parameters(architecture: Architecture, targets: tuple[str, ...] | str | None, r: int) -> int:
    """Parameters of the LoRA adapters: r·(in + out) for each matched module, linear or embedding, no biases."""
    matched, _ = match_targets(architecture, targets)
    return sum(r * (module.in_features + module.out_features) * module.number for module in matched)
