"""How a server is started: the options that decide its memory, in vLLM's names."""

from typing import Literal

from kb.core.record import NamedTuple

Engine = Literal["vllm", "sglang", "tgi", "llama.cpp", "transformers"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "tgi", "llama.cpp", "transformers")

FLOATS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Bytes of one element of the cache; q8_0 and q4_0 keep one fp16 scale for 32 elements.
CACHE_TYPES = {
    **FLOATS, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp8_e4m3fn": 1.0, "f32": 4.0, "f16": 2.0, "bf16": 2.0,
    "q8_0": 34 / 32, "q4_0": 18 / 32,
}  # fmt: skip
# Bytes of one packed weight. awq and gptq: 4 bits and, for 128 weights, an fp16 scale and a 4-bit zero point;
# bitsandbytes: 4 bits and an fp32 scale for 64, itself quantized or not; q8_0: 8 bits and an fp16 scale for 32.
PACKED = {
    "fp8": 1.0, "int8": 1.0, "awq": 0.5 + 2.5 / 128, "gptq": 0.5 + 2.5 / 128, "bitsandbytes": 0.5 + 4 / 64,
    "q8_0": 34 / 32,
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


def packing_of(engine: str, name: str) -> str:
    """What an engine's name of a quantization means, as a key of :data:`PACKED` where that is known."""
    name = name.casefold()
    return (_OF_TGI if engine == "tgi" else {}).get(name) or _OTHER_NAMES.get(name, name)


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
    eager: bool = False
    offload_bytes: int = 0  # weights that vLLM keeps in host memory, on each GPU
    python: bool = False  # LLM() in Python, not the API server
    gpu_id: str = ""
    measured: Measured = Measured()

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
