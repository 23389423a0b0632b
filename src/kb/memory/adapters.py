"""What LoRA adapters keep for backward, from the modules they wrap."""

from functools import lru_cache

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.memory.linear import LinearModule
from kb.memory.shape import Shape

CROSS = ("EncDecAttention.k", "EncDecAttention.v", "encoder_attn.k_proj", "encoder_attn.v_proj")
DROPOUT_MASK = 1
FP32, HALF = 4, 2
# layers that read one tensor, by the last part of their name: queries, keys and values; a feed-forward's two inputs
_ATTENTION = ("q", "k", "v", "q_proj", "k_proj", "v_proj", "query", "key", "value", "query_proj", "key_proj",
              "value_proj", "q_lin", "k_lin", "v_lin")  # fmt: skip
_GATES = ("wi_0", "wi_1", "gate_proj", "up_proj")
_ENTRY = ("fc1", "dense_h_to_4h", *_GATES)  # of a feed-forward
_OUTPUTS = (".o", "self_attn.o_proj", ".out_proj", "self_attn.dense", "attention.dense", "attention.output.dense",
            "attn.c_proj", "attention.out_lin")  # fmt: skip
_RELU_DOWN = "fc2"


class Reach(NamedTuple):
    """Input features of the wrapped linear layers, added up, by stack and by whose tokens they read; and their number
    (each keeps a product of the rank's width). ``parameters`` by stack."""

    encoder_features: int
    encoder_modules: int
    decoder_features: int
    decoder_modules: int
    cross_features: int  # in the decoder, over source tokens
    cross_modules: int
    head_features: int
    embeddings: int
    encoder_weights: int  # in + out features of the wrapped layers
    decoder_weights: int
    head_weights: int
    embedding_weights: int
    widest_embedding: int


@lru_cache(maxsize=256)
def reach(targets: tuple[LinearModule, ...]) -> Reach:
    def over(chosen: list[LinearModule]) -> tuple[int, int]:
        return sum(m.in_features * m.number for m in chosen), sum(m.number for m in chosen)

    linear = [m for m in targets if m.kind == "linear"]
    encoder = [m for m in linear if m.stack == "encoder"]
    cross = [m for m in linear if m.stack == "decoder" and m.name.endswith(CROSS)]
    decoder = [m for m in linear if m.stack == "decoder" and not m.name.endswith(CROSS)]
    embeddings = [m for m in targets if m.kind == "embedding"]

    def weights(chosen: list[LinearModule]) -> int:
        return sum((m.in_features + m.out_features) * m.number for m in chosen)

    encoder_features, encoder_modules = over(encoder)
    decoder_features, decoder_modules = over(decoder)
    cross_features, cross_modules = over(cross)
    return Reach(
        encoder_features=encoder_features,
        encoder_modules=encoder_modules,
        decoder_features=decoder_features,
        decoder_modules=decoder_modules,
        cross_features=cross_features,
        cross_modules=cross_modules,
        head_features=over([m for m in linear if m.stack == "head"])[0],
        embeddings=len(embeddings),
        encoder_weights=weights(encoder),
        decoder_weights=weights(decoder + cross),
        head_weights=weights([m for m in linear if m.stack == "head"]),
        embedding_weights=weights(embeddings),
        widest_embedding=max((m.in_features for m in embeddings), default=0),
    )


def _input_of(module: LinearModule, arch: Architecture) -> str:
    """A name for the tensor that a wrapped layer reads: the same for layers that share it."""
    if module.name.endswith(CROSS):
        return "encoder's output"
    if arch.parallel and arch.norms == 1 and (module.leaf in _ATTENTION or module.leaf in _ENTRY):
        return "layer's norm"
    if module.leaf in _ATTENTION or module.leaf in _GATES:
        return module.name.rpartition(".")[0]
    return module.name


class Shared(NamedTuple):
    """Features of the tensors that wrapped layers read, each counted once, where nothing comes between: encoder's and
    decoder's layers, and whether the encoder's output is among them. What autograd keeps anyway is left out."""

    encoder_features: int
    decoder_features: int
    encoder_output: bool


@lru_cache(maxsize=256)
def shared_inputs(targets: tuple[LinearModule, ...], arch: Architecture, eager: bool) -> Shared:
    """The inputs of wrapped layers where nothing drops them out or casts them."""
    inputs: dict[str, LinearModule] = {}
    for module in targets:
        # scaled_dot_product_attention keeps its result, and relu its own
        given = not eager and module.name.endswith(_OUTPUTS)
        given |= arch.activation == "relu" and module.leaf == _RELU_DOWN
        if module.kind == "linear" and not given:
            inputs.setdefault(_input_of(module, arch), module)
    crossing = inputs.pop("encoder's output", None)

    def over(stack: str) -> int:
        return sum(module.in_features * module.number for module in inputs.values() if module.stack == stack)

    return Shared(over("encoder"), over("decoder"), crossing is not None)


class Kept(NamedTuple):
    """Bytes kept by the adapters of all layers of a stack, and outside the stacks; ``crossing``: the encoder's output,
    which all layers of the decoder read."""

    encoder: int
    decoder: int
    outside: int
    crossing: int


def input_bytes(s: Shape) -> int:
    """Bytes an element that a wrapped layer keeps of its own copy of its input: adapters are fp32 (peft's
    ``autocast_adapter_dtype``), or computed in half under autocast; dropout keeps a mask."""
    return (HALF if s.autocast else FP32) + (DROPOUT_MASK if s.lora_dropout else 0)


def dora_bytes(s: Shape, module: LinearModule) -> int:
    """Bytes a token that DoRA keeps beside: the layer's own result and the adapter's, which its magnitudes scale."""
    own = s.weight_bytes if s.quantized else s.compute_bytes
    return (own + (HALF if s.autocast else FP32)) * module.out_features * module.number


def shares_inputs(s: Shape) -> bool:
    """Whether wrapped layers keep the tensor that they are given: fp32, with no dropout and no cast in between."""
    return not (s.lora_dropout or s.autocast or s.weight_bytes == HALF)


def kept(found: Reach, rank: int, s: Shape, targets: tuple[LinearModule, ...]) -> Kept:
    """A wrapped linear layer keeps its input, dropped out or cast for it alone, and the product of the rank's width."""
    width = HALF if s.autocast else FP32
    te, td = s.source_tokens, s.target_tokens
    encoder = rank * width * te * found.encoder_modules
    decoder = rank * width * (td * found.decoder_modules + te * found.cross_modules)
    crossing = 0
    if shares_inputs(s):
        inputs = shared_inputs(targets, s.arch, s.eager)
        encoder += width * te * inputs.encoder_features
        decoder += width * td * inputs.decoder_features
        crossing = width * te * s.arch.d_model * inputs.encoder_output
    else:
        each = input_bytes(s)
        encoder += each * te * found.encoder_features
        decoder += each * (td * found.decoder_features + te * found.cross_features)
    if s.dora:
        encoder += sum(te * dora_bytes(s, m) for m in targets if m.stack == "encoder")
        decoder += sum(
            (te if m.name.endswith(CROSS) else td) * dora_bytes(s, m) for m in targets if m.stack == "decoder"
        )
    outside = td * (found.head_features * input_bytes(s) + rank * width * bool(found.head_features))
    return Kept(encoder, decoder, outside + found.embeddings * rank * FP32 * max(te, td), crossing)
