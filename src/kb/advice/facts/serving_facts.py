"""Facts of vLLM and its like: of a unit that starts an inference server, its model's heads and what its memory holds;
of vLLM inside a training process, what its share of the GPU leaves for its KV cache.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from kb.advice.run.named_model import IN_4BIT
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.hardware import DetectedGpu
from kb.core.model import DYNAMIC_4BIT, Model
from kb.core.release import parse_version
from kb.core.setup import Colocated, TrainingSetup
from kb.core.units import GIB
from kb.memory import UnsupportedArchitectureError
from kb.memory.serving.answer import Served, serve
from kb.memory.serving.budget import NO_CHUNKS_BELOW, sampler_bytes
from kb.memory.serving.setup import (
    CACHE_TYPES,
    ENGINES,
    FLOATS,
    PACKED,
    ServedModel,
    ServingSetup,
    as_packed,
    packing_of,
    served_model,
)

Lookup = Callable[[str], Any]
TYPES = {"auto": None, "half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}
LENGTHS = {
    "vllm": "serving.max_model_len",
    "sglang": "serving.context_length",
    "tgi": "serving.max_total_tokens",
    "llama.cpp": "serving.ctx_size",
}
SHARES = {
    "vllm": "serving.gpu_memory_utilization",
    "sglang": "serving.mem_fraction_static",
    "tgi": "serving.cuda_memory_fraction",
}
TOKENS = {
    "vllm": "serving.max_num_batched_tokens",
    "sglang": "serving.chunked_prefill_size",
    "tgi": "serving.max_batch_prefill_tokens",
}


class ServingFacts:
    """Computed facts under ``serving.``; every one is None where what it needs is not known.

    What a server lacks is told only where it lacks it at the best: with the least that others were measured to take,
    and, of an unknown release, with the largest share, no graphs and no sampler.

    Args:
        unit: the server.
        setting: a setting's value, with the defaults of its format.
        model: the model as found by its name.
        gpu: the smallest of the machine.
        free: whether that GPU was asked, so that what is free of it is known.
        release_of: the release of a library that the project names.
        engines: the data of ``rules/serving``, read when first needed.
        packed: finds the model that its own owner packs under a name, that model's name, and how.
        constants: the figures of ``rules/constants.yaml``.
    """

    def __init__(
        self,
        unit: Unit,
        setting: Lookup,
        model: Model | None,
        gpu: DetectedGpu | None,
        *,
        free: bool,
        release_of: Callable[[str], tuple[int, ...] | None],
        engines: Callable[[], Mapping[str, Any]],
        packed: Callable[[str], tuple[Model | None, str, str | None]],
        constants: Mapping[str, float],
    ) -> None:
        self._unit, self._setting, self._gpu = unit, setting, gpu
        named = self._value("model.name")
        self._named, self._packing = named if isinstance(named, str) else None, None
        if model is None and self._named is not None:
            model, self._named, self._packing = packed(self._named)
        self._model = model if model is not None and not model.guessed_from else None
        self._packing = self._packing or (self._model and self._model.packed)
        self._free, self._release_of, self._engines, self._constants = free, release_of, engines, constants

    def providers(self) -> dict[str, Lookup]:
        """Each computed fact by name."""
        found: dict[str, Callable[[], Any]] = {
            "release": lambda: self.release,
            "ranks": self._ranks,
            "gpus_needed": self._gpus_needed,
            "heads": lambda: self._shape and self._shape.heads,
            "kv_heads": lambda: None if self._shape is None or self._shape.latent else self._shape.kv_heads,
            "positions": self._positions,
            "length": lambda: self._lengthy and self._lengthy.options.max_model_len,
            "share": lambda: self._budget("share"),
            "kv_most": lambda: self._budget("kv_high"),
            "weights": lambda: self._term("weights", least=True),
            "activations": lambda: self._term("activations"),
            "sampler": self._sampler,
            "kv_tokens": lambda: self._usual and self._usual.kv_tokens,
            "concurrency": self._concurrency,
            "longest": lambda: self._usual and self._usual.longest,
            "utilization_needed": lambda: self._usual and self._usual.utilization_needed,
            "fits_whole": self._fits_whole,
            "free_share": self._free_share,
        }
        return {f"serving.{name}": _by_any_name(find) for name, find in found.items()}

    @property
    def engine(self) -> str:
        return str(self._setting("serving.engine"))

    @cached_property
    def release(self) -> tuple[int, ...] | None:
        """The release of the engine, a package of its name; None where nothing says it."""
        return self._release_of(self.engine)

    def _value(self, name: str) -> Any:
        value = self._setting(name)
        return None if is_unknown(value) else value

    def _number(self, name: str) -> int | None:
        value = self._value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def _ranks(self) -> int | None:
        tensor, stages = self._number("serving.tensor_parallel_size"), self._number("serving.pipeline_parallel_size")
        return tensor * stages if tensor and stages else None

    def _gpus_needed(self) -> int | None:
        """GPUs of all ranks; of replicas that several commands or Ray may start those of one."""
        ranks, replicas = self._ranks(), self._setting("serving.data_parallel_size")
        named = {key.replace("-", "_") for key in self._unit.keys}
        apart = any(
            key.startswith("data_parallel_") for key in named - {"data_parallel_size", "data_parallel_rpc_port"}
        )
        if apart or "headless" in named or self._value("serving.enable_dp_attention") is not False:
            replicas = 1
        return ranks * replicas if ranks and isinstance(replicas, int) else None

    @cached_property
    def _shape(self) -> ServedModel | None:
        model = self._model
        if model is None:
            return None
        try:
            found = served_model(model.name, model.architecture, self._positions())
            return as_packed(found, self._packing, sees=self._sees)
        except UnsupportedArchitectureError:
            return None

    @property
    def _sees(self) -> bool:
        """Whether the profiling runs pictures through a tower, of which nothing is counted."""
        return self._model is not None and self._model.architecture.vision is not None

    def _positions(self) -> int | None:
        """The model's positions, where its row is of this very name: relatives of one size differ in them."""
        model, named = self._model, self._named
        if model is None or named is None:
            return None
        same = named.casefold() in (model.name.casefold(), model.id.casefold())
        return model.max_length if same else None

    @cached_property
    def _setup(self) -> ServingSetup | None:
        """The server at its best; None where an option has a value that is not known or not modelled."""
        gpu, shape, engine = self._gpu, self._shape, self.engine
        if gpu is None or shape is None or engine not in ENGINES:
            return None
        options = self._options(engine)
        if options is None or shape.heads % options["tensor_parallel"] or shape.layers < options["pipeline_parallel"]:
            return None
        newest = parse_version(self._engines()[engine]["newest"])
        release = self.release
        setup = ServingSetup(
            engine=engine,
            release=release or newest,
            gpu_bytes=gpu.visible_bytes(self._constants["usable_memory_ratio"], best=True),
            gpu_id=gpu.gpu.id if gpu.gpu is not None else "",
            called=str(self._value("serving.called") or "server"),
            **options,
        )
        if release is None and engine in ("vllm", "sglang"):  # what any release would leave at the most
            setup = setup._replace(of_any_release=True)
        by_length = engine == "vllm" and setup.release < NO_CHUNKS_BELOW  # its first step is as long as a request
        return None if by_length and not self._has_length(setup) else setup

    def _has_length(self, setup: ServingSetup) -> bool:
        """Whether the longest request is known: said, or the positions of the model itself."""
        return bool(setup.max_model_len or (self._shape and self._shape.positions))

    def _options(self, engine: str) -> dict[str, Any] | None:
        """The options of a setup; None where one of them is not known."""
        named = str(self._value("serving.dtype") or "auto").casefold()
        dtype = TYPES.get(named, named) or "bfloat16"
        packing = self._value("serving.quantization")
        stored, known = stored_packing(str(self._value("model.name")), engine)
        if not known:
            return None
        packing = packing_of(engine, str(packing), self._packing) if packing else stored or self._packing
        cache = str(self._value("serving.kv_cache_dtype") or "auto")
        ranks, stages = self._number("serving.tensor_parallel_size"), self._number("serving.pipeline_parallel_size")
        known = dtype in FLOATS and (packing is None or packing in PACKED) and cache in ("auto", *CACHE_TYPES)
        if not (known and ranks and stages) or engine == "llama.cpp":
            return None  # a GGUF file's bytes do not follow from the model's name
        share = self._value(SHARES[engine])
        if isinstance(share, int | float) and not 0 < share <= 1:
            return None  # another rule says so
        length, tokens = self._setting(LENGTHS[engine]), self._setting(TOKENS[engine])
        seqs = self._setting("serving.max_num_seqs")
        if any(is_unknown(each) for each in (length, tokens, seqs, self._setting(SHARES[engine]))):
            return None
        direct = self._number("serving.kv_cache_memory_bytes")
        offload = self._value("serving.cpu_offload_gb")
        return {
            "dtype": dtype,
            "quantization": packing,
            "tensor_parallel": ranks,
            "pipeline_parallel": stages,
            "utilization": share if isinstance(share, int | float) else None,
            "max_model_len": length if isinstance(length, int) and length > 0 else None,
            "max_num_seqs": seqs if isinstance(seqs, int) and seqs > 0 else None,
            "max_num_batched_tokens": tokens
            if isinstance(tokens, int) and tokens > 0
            else prefill_of_tgi(self._value, self.release),
            "kv_cache_dtype": cache,
            "kv_cache_bytes": direct,
            "block_size": self._number("serving.block_size"),
            "uses": features_used(self._setting),
            "offload_bytes": round(offload * GIB) if isinstance(offload, int | float) else 0,
        }

    @cached_property
    def _served(self) -> Served | None:
        setup, shape = self._setup, self._shape
        if setup is None or shape is None:
            return None
        return serve(shape, setup, self._engines()[setup.engine], self._constants)

    @property
    def _lengthy(self) -> Served | None:
        """The server, for what its longest request decides; None where that is not known."""
        served = self._served
        return served if served is not None and self._has_length(served.setup) else None

    @cached_property
    def _usual(self) -> Served | None:
        """The server as the newest release has it where nobody names one: what is advised is not the best of any."""
        served = self._lengthy
        if served is None or not served.setup.of_any_release:
            return served
        setup = served.setup._replace(of_any_release=False)
        return serve(served.model, setup, self._engines()[setup.engine], self._constants)

    def _budget(self, field: str) -> Any:
        served = self._served
        return None if served is None or served.budget is None else getattr(served.budget, field)

    def _term(self, name: str, *, least: bool = False) -> int | None:
        terms = self._budget("terms") or ()
        return next((term.low if least else term.bytes for term in terms if term.name == name), None)

    def _sampler(self) -> int | None:
        served = self._served
        if served is None or served.setup.engine != "vllm":
            return None
        return sampler_bytes(served.model, served.options, self._constants)[1]

    def _concurrency(self) -> float | None:
        """Requests of the full length at once, with the least that others were measured to take beside the cache."""
        served = self._lengthy
        if served is None or served.concurrency is None or served.budget is None:
            return None
        budget = served.budget
        if budget.kv <= 0:
            return None  # another rule says so
        return served.concurrency * budget.kv_high / budget.kv

    def _fits_whole(self) -> bool | None:
        """Whether the server starts without offloading, at its worst."""
        setup, shape = self._setup, self._shape
        if setup is None or shape is None or not self._has_length(setup) or self._sees:
            return None
        whole = serve(shape, setup._replace(offload_bytes=0), self._engines()[setup.engine], self._constants)
        if whole.budget is None or whole.concurrency is None or whole.budget.kv <= 0:
            return False
        return whole.concurrency * whole.budget.kv_low / whole.budget.kv >= 1

    def _free_share(self) -> float | None:
        gpu = self._gpu
        if gpu is None or not self._free or gpu.memory_free is None:
            return None
        seen = gpu.memory_total - (gpu.memory_reserved or 0)
        return math.floor(gpu.memory_free / seen * 1000) / 1000 if seen else None


def _by_any_name(find: Callable[[], Any]) -> Lookup:
    """A lookup that needs no name: it is of one fact."""
    return lambda name: find()


PREFIX = "colocated."
# What is told of it, by the server's name for the same.
OF_SERVER = (
    "share", "weights", "activations", "kv_most", "kv_tokens", "length", "longest", "concurrency", "utilization_needed",
)  # fmt: skip
STEP_TOKENS = 4096  # max_num_batched_tokens of every release of TRL (`LLM(…)` of its trainers)


def stored_packing(name: str, engine: str) -> tuple[str | None, bool]:
    """How bitsandbytes packed a checkpoint before it was stored, as its name says, and whether its bytes follow.

    Unsloth's dynamic ones keep some layers in 16 bits; and what an engine other than vLLM makes of them was not read.
    """
    name = name.casefold().rstrip("/")
    if not name.endswith(IN_4BIT):
        return None, True
    known = engine == "vllm" and not name.endswith(DYNAMIC_4BIT)
    return "bitsandbytes" if known else None, known


def features_used(value: Lookup) -> frozenset[str]:
    """The features by which releases choose what they set aside, by their names in ``rules/serving``.

    Args:
        value: a setting's value; one that is not known is taken to be off.
    """
    said = {name: value(f"serving.{name}") for name in (
        "v2_model_runner", "enforce_eager", "enable_prompt_embeds", "logits_processors", "speculative_method",
        "disable_hybrid_kv_cache_manager", "disable_cuda_graph",
    )}  # fmt: skip
    known = {name: None if is_unknown(each) else each for name, each in said.items()}
    longer = value("serving.allow_long_max_model_len")
    found = {
        "long": is_unknown(longer) or longer is True,  # perhaps is enough not to refuse a length
        "eager": known["enforce_eager"] is True or known["disable_cuda_graph"] is True,
        "v2_model_runner": known["v2_model_runner"] is True,
        "v1_model_runner": known["v2_model_runner"] is False,
        "one_kind_of_cache": known["disable_hybrid_kv_cache_manager"] is True,
        "data_parallel": value("serving.data_parallel_size") not in (None, 1),  # perhaps is enough for these too
        "dp_attention": value("serving.enable_dp_attention") not in (None, False),
        "prompt_embeds": known["enable_prompt_embeds"] is True,
        "logits_processors": bool(known["logits_processors"]),
        known["speculative_method"]: True,
    }
    return frozenset(str(name) for name, used in found.items() if name and used)


def prefill_of_tgi(value: Lookup, release: object) -> int | None:
    """The longest prefill that TGI from 2.0 to 2.4.0 works out from the longest prompt, where that is said."""
    most = value("serving.max_input_tokens")
    worked_out = isinstance(release, tuple) and (2,) <= release < (2, 4, 1) and release != (2, 4)
    return most + 50 if worked_out and isinstance(most, int) and value("serving.engine") == "tgi" else None


def server_options(vllm: Colocated, setup: TrainingSetup) -> Lookup:
    """The settings of a server that is started as TRL starts its own; others are None."""
    options: Mapping[str, Any] = {
        "serving.engine": "vllm",
        "model.name": setup.model_name,
        "serving.gpu_memory_utilization": vllm.share,
        "serving.max_model_len": vllm.length,
        "serving.max_num_seqs": vllm.requests,
        "serving.max_num_batched_tokens": STEP_TOKENS,
        "serving.tensor_parallel_size": vllm.ranks,
        "serving.pipeline_parallel_size": 1,
        "serving.quantization": "bitsandbytes" if vllm.packed else None,
    }
    return options.get


def server_facts(
    unit: Unit,
    setting: Lookup,
    inside: TrainingSetup | None,
    model: Model | None,
    gpu: DetectedGpu | None,
    **known: Any,
) -> dict[str, Lookup]:
    """Each computed fact by name: of the server that a unit starts, or of the one inside its training process.

    Args:
        setting: a setting's value, with the defaults of its format.
        inside: the run in whose process the server is; None where the unit starts a server.
        known: what else :class:`ServingFacts` takes.
    """
    vllm = inside.post.colocated if inside is not None and inside.post is not None else None
    if inside is None or vllm is None:
        return ServingFacts(unit, setting, model, gpu, **known).providers()
    found = ServingFacts(unit, server_options(vllm, inside), model, gpu, **known).providers()
    return {PREFIX + name: found[f"serving.{name}"] for name in OF_SERVER}
