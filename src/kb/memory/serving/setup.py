"""One server: the options that decide its memory, in vLLM's names, and what it holds of a model."""

from collections.abc import Mapping
from typing import Any, Literal

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.memory.config_fields import UnsupportedArchitectureError, number
from kb.memory.parameters import count

Engine = Literal["vllm", "sglang", "tgi", "llama.cpp", "transformers"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "tgi", "llama.cpp", "transformers")

FLOATS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Bytes of one element of the cache; q8_0 and q4_0 keep one fp16 scale for 32 elements.
CACHE_TYPES = {
    **FLOATS, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp8_e4m3fn": 1.0, "f32": 4.0, "f16": 2.0, "bf16": 2.0,
    "q8_0": 34 / 32, "q4_0": 18 / 32,
}  # fmt: skip
# Bytes of one packed weight. awq and gptq: 4 bits and, for 128 weights, an fp16 scale and a 4-bit zero point
# (gptq-int8: 8 bits, and one of 8);
# bitsandbytes: 4 bits and an fp32 scale for 64, itself quantized or not; q8_0: 8 bits and an fp16 scale for 32;
# mxfp4: 4 bits and a scale of 8 bits for 32.
PACKED = {
    "fp8": 1.0, "int8": 1.0, "awq": 0.5 + 2.5 / 128, "gptq": 0.5 + 2.5 / 128, "gptq-int8": 1 + 3 / 128,
    "bitsandbytes": 0.5 + 4 / 64, "q8_0": 34 / 32, "mxfp4": 0.5 + 1 / 32,
}  # fmt: skip
# The same with scales of 8 bits, and one fp32 scale for 256 of these.
NESTED = 0.5 + 1 / 64 + 4 / (64 * 256)
WIDE_SCALES_FROM = (0, 9, 2)  # vLLM makes the scales fp32 as it loads (bitsandbytes_loader.py, dequantize_dq)
# Other names of these. What TGI calls bitsandbytes has 8 bits (launcher/src/main.rs); vLLM's has 4.
_OTHER_NAMES = {"awq_marlin": "awq", "gptq_marlin": "gptq"}
_OF_TGI = {
    "bitsandbytes": "int8",
    "bitsandbytes-nf4": "bitsandbytes",
    "bitsandbytes-fp4": "bitsandbytes",
    "eetq": "int8",
}
PACKS_TABLES = ("q8_0",)  # these pack embeddings and the output layer too
PACKS_EXPERTS = ("mxfp4",)  # these pack experts alone


def packing_of(engine: str, name: str, stored: str | None = None) -> str:
    """What an engine's name of a quantization means, as a key of :data:`PACKED` where that is known.

    Args:
        engine: whose name it is.
        name: the name; of a checkpoint that is stored packed it says less than what that holds.
        stored: how the checkpoint is packed, where its own name says so.
    """
    name = name.casefold()
    found = (_OF_TGI if engine == "tgi" else {}).get(name) or _OTHER_NAMES.get(name, name)
    return stored if stored and (found == "compressed-tensors" or stored.startswith(found)) else found


class Measured(NamedTuple):
    """Bytes on one rank that somebody measured, as the engine's log prints them; None: to be predicted."""

    weights: int | None = None
    non_torch: int | None = None
    activations: int | None = None
    graphs: int | None = None


class ServingSetup(NamedTuple):
    """One server. None leaves an option to the engine's default. Sizes in bytes, lengths in tokens."""

    engine: Engine
    release: tuple[int, ...]
    gpu_bytes: int  # of one GPU, as CUDA sees it
    dtype: str = "bfloat16"
    quantization: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    utilization: float | None = None  # the engine's own share: static of SGLang, CUDA fraction of TGI
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_bytes: int | None = None  # vLLM: the cache's size itself
    block_size: int | None = None
    uses: frozenset[str] = frozenset()  # features that rules/serving asks for, by their names there; and "eager"
    offload_bytes: int = 0  # weights that vLLM keeps in host memory, on each GPU
    called: str = "server"  # or "python", LLM(); or "engine", what a program makes of AsyncEngineArgs
    gpu_id: str = ""
    gpu_most: int = 0  # the most that CUDA was printed to offer of such a GPU, where that is more
    of_any_release: bool = False  # of one that nobody names: no graphs and no sampler, which some release leaves out
    measured: Measured = Measured()

    @property
    def eager(self) -> bool:
        """Whether CUDA graphs are off."""
        return "eager" in self.uses

    @property
    def packed_bytes(self) -> float:
        """Bytes of one packed weight; of one as it is where nothing packs them."""
        if self.quantization is None:
            return FLOATS[self.dtype]
        early = self.engine == "vllm" and () < self.release < WIDE_SCALES_FROM
        if self.quantization == "bitsandbytes" and (early or self.engine == "tgi"):  # TGI: layers/bnb.py
            return NESTED
        return PACKED[self.quantization]

    @property
    def cache_bytes(self) -> float:
        """Bytes of one element of the KV cache."""
        return CACHE_TYPES[self.dtype if self.kv_cache_dtype == "auto" else self.kv_cache_dtype]


STATES = "a recurrent state in some layers"  # what is not modelled of a model whose layers keep one
WIDE = "heads of another size in some layers"
FEWER = "another number of KV heads in some layers"
REPLICAS = "parts that replicas share or repeat"  # of a mixture of experts by data parallel
OF_SEVERAL_SIZES = (WIDE, FEWER, REPLICAS)  # one token takes as much as is known of one layer alone
MLA_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
_MIXERS = ("linear_attention", "mamba", "recurrent", "conv", "m")
# Fields of configs whose layers keep another cache than is modelled, and what that is called.
_UNMODELLED = (
    ("attention_chunk_size", "chunked attention"),
    ("global_head_dim", WIDE),
    ("num_global_key_value_heads", FEWER),
    ("index_topk", "sparse attention with an index cache"),
)
_STATES = (
    "full_attention_interval", "hybrid_override_pattern", "mamba_d_state", "ssm_cfg", "state_size", "attn_layer_period",
    "linear_num_value_heads", "mamba_d_conv", "conv_L_cache",
)  # fmt: skip


class Weights(NamedTuple):
    """Parameters (not bytes). ``whole`` are on every rank; the rest is split over the tensor-parallel ranks."""

    embedding: int  # with the output layer where that is its own
    keys_values: int  # projections that make K and V: split by KV heads, so repeated where there are too few
    linear: int  # the other linear layers: what quantization packs
    whole: int  # norms, biases, routers' tables
    experts: int = 0  # which quantization packs too, and some packs alone
    towers: int = 0  # linear layers of what sees, which a server packs as it loads them
    apart: int = 0  # the same of a checkpoint that is packed: in 16 bits

    @property
    def total(self) -> int:
        return sum(self)


class ServedModel(NamedTuple):
    """Dimensions that decide a server's memory. Lengths in tokens; ``weights`` is None where they are not known.

    ``latent`` is MLA's width in elements of one token in one layer; such a layer has neither KV heads nor V.
    ``not_modelled`` names what keeps memory that is not predicted; empty where all is.
    """

    name: str
    model_type: str  # as its config.json has it
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    full_layers: int
    windowed_layers: int
    window: int
    feed_forward: int  # the widest of a dense layer, 0 where none is dense
    active_experts: int
    expert_feed_forward: int
    vocabulary: int
    positions: int | None
    rotary: int  # dimensions of a head that are turned
    latent: int = 0
    recurrent_layers: int = 0
    weights: Weights | None = None
    not_modelled: str = ""
    of_relative: bool = False  # the positions are those of a model of its size: its own may be others

    @property
    def longest(self) -> int | None:
        """The longest request that it takes, where that is known."""
        return None if self.of_relative else self.positions

    @property
    def layers(self) -> int:
        return self.full_layers + self.windowed_layers + self.recurrent_layers


def served_model(name: str, a: Architecture, positions: int | None) -> ServedModel:
    """The served model of a catalogued architecture.

    Raises:
        UnsupportedArchitectureError: it is no decoder: the servers' cache of other families is not modelled.
    """
    if a.family != "decoder":
        raise UnsupportedArchitectureError(f"{a.model_type} is no decoder-only model", "no_decoder", type=a.model_type)
    counts, kv = count(a), a.kv_heads or a.num_heads
    mixing, (whole, windowed) = sum(a.mixes), a.caching
    rows = whole * (a.wide_kv_heads or kv) * (a.wide_d_kv or a.d_kv) * (2 - a.keys_are_values) / 2
    keys_values = round(2 * a.d_model * (rows + windowed * kv * a.d_kv))
    plain = a.vision is not None and not (mixing or a.experts or a.wide_d_kv)  # a tower, and gated layers of one kind
    said = a.decoder_layers * a.d_model * (2 * a.num_heads * a.d_kv + 3 * a.d_ff) + keys_values
    towers = counts.decoder_linear - said if plain else 0
    return ServedModel(
        name=name,
        model_type=a.model_type,
        hidden=a.d_model,
        heads=a.num_heads,
        kv_heads=kv,
        head_size=a.d_kv,
        full_layers=whole,
        windowed_layers=windowed,
        window=a.window or 0,
        feed_forward=a.d_ff if not a.experts or a.dense_layers else a.shared_ff,
        active_experts=a.experts_per_token if a.experts else 0,
        expert_feed_forward=a.expert_ff if a.experts else 0,
        vocabulary=a.vocab_size,
        positions=positions or a.max_positions,
        rotary=round(a.d_kv * a.rotary),
        recurrent_layers=mixing,
        not_modelled=STATES if mixing else WIDE if a.wide_d_kv or a.wide_kv_heads else "",
        weights=Weights(
            embedding=counts.embedding + counts.head,
            keys_values=keys_values,
            linear=counts.decoder_linear - keys_values - towers,
            whole=counts.positions + counts.biases + counts.norms,
            experts=counts.experts,
            towers=towers,
        ),
    )


def as_packed(model: ServedModel, packing: str | None, *, sees: bool) -> ServedModel:
    """The model of a checkpoint that is stored packed: recipes leave what sees in 16 bits (Mistral's
    ``modules_to_not_convert``, ``ignore`` of llm-compressor); bitsandbytes packs it too. Weights are None where what
    sees is not known apart.
    """
    held = model.weights
    if held is None or not sees or packing in (None, "bitsandbytes"):
        return model
    return model._replace(weights=held._replace(towers=0, apart=held.towers) if held.towers else None)


def served_model_of_config(name: str, data: Mapping[str, Any]) -> ServedModel:
    """The served model of a ``config.json`` that is not known for training: cache always, weights where known.

    A multimodal config's text model is read; its other towers are weights that nobody counts here.

    Raises:
        UnsupportedArchitectureError: fields that an attention cache is made of are missing or no numbers.
    """
    inner = data.get("text_config")
    config = {**data, **inner} if isinstance(inner, Mapping) else data
    hidden, heads = number(config, "hidden_size", "n_embd"), number(config, "num_attention_heads", "n_head")
    layers = number(config, "num_hidden_layers", "n_layer", "num_layers")
    mla = isinstance(config.get("kv_lora_rank"), int)
    size = number(config, "head_dim", default=0) or hidden // heads
    latent = number(config, "kv_lora_rank") + number(config, "qk_rope_head_dim") if mla else 0
    window, windowed = _windowed(config, layers)
    recurrent, unmodelled = _recurrent(config, layers)
    positions = config.get("max_position_embeddings")
    weights = None
    if str(config.get("model_type")) in MLA_TYPES and not inner:
        weights = mla_weights(config)
    named = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next((number(config, each) for each in named if config.get(each)), 0)  # Granite 4 writes 0 of none
    return ServedModel(
        name=name,
        model_type=str(config.get("model_type")),
        hidden=hidden,
        heads=heads,
        kv_heads=1 if mla else number(config, "num_key_value_heads", default=heads),
        head_size=size,
        full_layers=layers - windowed - recurrent,
        windowed_layers=windowed,
        window=window,
        feed_forward=number(config, "intermediate_size", "ffn_dim", default=4 * hidden),
        active_experts=number(config, "num_experts_per_tok", default=1) if experts else 0,
        expert_feed_forward=number(config, "moe_intermediate_size", "intermediate_size") if experts else 0,
        vocabulary=number(config, "vocab_size"),
        positions=positions if isinstance(positions, int) and positions > 0 else None,
        rotary=number(config, "qk_rope_head_dim") if mla else size,
        latent=latent,
        recurrent_layers=recurrent,
        weights=weights,
        not_modelled=unmodelled,
    )


def prefill_graphs(tokens: int) -> int:
    """For how many lengths SGLang makes a graph of prefill (``generate_prefill_cuda_graph_batch_sizes``)."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, tokens + 1, 512))
    return sum(each <= tokens for step in steps for each in range(*step))


def mla_weights(config: Mapping[str, Any]) -> Weights:
    """Parameters of DeepSeek-V2 and V3 and their kin, without layers that predict further tokens.

    Formula: transformers' modeling_deepseek_v3: q (by a low rank where there is one), kv_a, kv_b and o; experts in all
    layers but the first ``first_k_dense_replace``.
    """
    hidden, heads, layers = (number(config, n) for n in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    rank, rope, plain, value = (
        number(config, n) for n in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    low = number(config, "q_lora_rank", default=0)
    queries = (hidden + heads * (plain + rope)) * low if low else hidden * heads * (plain + rope)
    attention = queries + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden
    dense = number(config, "first_k_dense_replace", default=0)
    routed, shared = number(config, "n_routed_experts"), number(config, "n_shared_experts", default=0)
    expert = 3 * hidden * number(config, "moe_intermediate_size")
    mixture = (routed + shared) * expert + routed * hidden
    linear = layers * attention + dense * 3 * hidden * number(config, "intermediate_size") + (layers - dense) * mixture
    tables = number(config, "vocab_size") * hidden * (1 if config.get("tie_word_embeddings") else 2)
    norms = layers * (2 * hidden + rank + low) + hidden
    bias = (layers - dense) * routed if config.get("model_type") != "deepseek_v2" else 0
    return Weights(embedding=tables, keys_values=0, linear=linear, whole=norms + bias)


def _windowed(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """The window of sliding layers, and how many slide."""
    window = config.get("sliding_window")
    if not isinstance(window, int) or window <= 0 or config.get("use_sliding_window") is False:
        return 0, 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return window, sum(kind == "sliding_attention" for kind in kinds)
    every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if not isinstance(every, int) and str(config.get("model_type")).startswith("gemma3"):
        every = 6
    return window, layers - layers // every if isinstance(every, int) and every > 0 else layers


def _recurrent(config: Mapping[str, Any], layers: int) -> tuple[int, str]:
    """Layers that keep a state in place of a cache, and the name of what is not modelled."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and (found := sum(kind in _MIXERS for kind in kinds)):
        return found, STATES
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return layers - pattern.count("*"), STATES
    every = config.get("full_attention_interval")
    if isinstance(every, int) and every > 1:
        return layers - layers // every, STATES
    if any(config.get(name) for name in _STATES):
        return 0, STATES
    return 0, next((what for name, what in _UNMODELLED if config.get(name)), "")
