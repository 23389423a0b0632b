"""How many tokens and requests a server holds, the longest length, and what another option would change."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kb.core.record import NamedTuple
from kb.memory.serving.budget import (
    Budget,
    Resolved,
    budget_of,
    bytes_of_request,
    bytes_of_token,
    default_of,
    resolve,
    weights_bytes,
)
from kb.memory.serving.setup import OF_SEVERAL_SIZES, REPLICAS, ServedModel, ServingSetup

OWN_SHARE = "the share that its release takes"  # what is not known of a server
FIT_LEAST = 4096  # tokens: llama.cpp's --fit shrinks no context below this
LONGEST = 1 << 24  # tokens: no model's positions lie above
# Shares that are never advised: from them on the rules serving-share-near-whole and -static- warn of the very value.
TOO_MUCH = {"vllm": 0.98, "sglang": 0.95, "tgi": 1.01}


class Rank(NamedTuple):
    """One rank: its stage of the pipeline, bytes, and tokens in whole blocks of its budget. Tokens are None where some
    layers keep what is not modelled. Bytes are None, too, where layers keep caches of several sizes."""

    number: int
    stage: int
    kv_bytes_per_token: float | None
    kv_tokens: int | None


class Served(NamedTuple):
    """What a server holds. ``concurrency`` is how many requests of ``max_model_len`` fit at once; below 1 the engine
    refuses to start, or keeps fewer. None: ``not_predicted`` names what is not modelled, or nobody says that length.
    """

    setup: ServingSetup
    model: ServedModel
    options: Resolved
    budget: Budget | None
    ranks: tuple[Rank, ...]
    kv_tokens: int | None
    concurrency: float | None
    longest: int | None  # the largest max_model_len that starts, within the model's positions
    utilization_needed: float | None  # the least share with which max_model_len starts; None where none does
    not_predicted: str = ""
    request_bytes: int | None = None  # of the cache, that one request of the full length takes on one rank

    @property
    def starts(self) -> bool | None:
        """Whether one request of the full length fits, in memory that is there; None, too, where it does at one end of
        the prediction's range alone.
        """
        budget = self.budget
        if budget is None or self.concurrency is None:
            return None if budget is None or budget.kv_high > 0 else False
        if self.setup.engine == "llama.cpp" and self.setup.max_model_len is None:
            return (self.longest or 0) >= min(FIT_LEAST, self.options.max_model_len)
        shortens = self.setup.engine == "sglang" or (self.setup.engine == "tgi" and self.setup.max_model_len is None)
        need = 1 if shortens else self.request_bytes or 1  # these take shorter requests where no whole one fits
        least = budget.kv_low >= need and budget.overrun == 0
        return least if least == (budget.kv_high >= need and budget.overrun_low == 0) else None

    @property
    def holds_whole(self) -> bool:
        """Whether it starts and surely holds one request of the full length."""
        return self.starts is True and self.budget is not None and self.budget.kv_low >= (self.request_bytes or 1)


class Load(NamedTuple):
    """So many requests of one length at once: whether they fit, and what to set."""

    requests: int
    length: int
    holds: bool | None
    fits: int | None  # requests of that length that fit at once
    missing: int  # bytes that one rank lacks


class Change(NamedTuple):
    """One option set otherwise, and what then holds."""

    option: str
    value: object
    served: Served


def serve(model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any], constants: Mapping[str, float]) -> Served:
    """What the server holds.

    Args:
        model: what is served.
        setup: how it is started.
        engine: the engine's data of ``rules/serving``.
        constants: the figures of ``rules/constants.yaml``.
    """
    model = _as_kept(model, setup, engine)
    setup, defaults = _as_tgi_works_out(model, setup, engine)
    options = resolve(model, setup, engine)
    options = options._replace(defaults=(*options.defaults, *defaults))
    budget = budget_of(model, setup, engine, constants)
    ranks = tuple(_ranks(model, setup, options, budget))
    known = weights_bytes(model, setup) is not None
    unknown = model.not_modelled or ("" if budget is not None else OWN_SHARE if known else "the weights")
    if unknown or budget is None:
        return Served(setup, model, options, budget, ranks, None, None, None, None, unknown)
    need = _need(model, setup, options, options.max_model_len)
    tokens = min(rank.kv_tokens for rank in ranks if rank.kv_tokens is not None)
    longest = _longest(model, setup, engine, constants)
    if setup.max_model_len is None and model.longest is None:  # it is the model's own, which nothing says
        held = None if model.windowed_layers else tokens
        return Served(setup, model, options, budget, ranks, held, None, longest, None)
    whole = math.ceil(options.max_model_len / options.block) * options.block
    concurrency = max(budget.kv, 0) / need if model.windowed_layers else tokens / whole
    if model.windowed_layers:  # as vLLM prints it: of requests at full length
        tokens = int(concurrency * options.max_model_len)
    return Served(
        setup=setup,
        model=model,
        options=options,
        budget=budget,
        ranks=ranks,
        kv_tokens=tokens,
        concurrency=concurrency,
        longest=longest,
        utilization_needed=_share_needed(setup, budget, need),
        request_bytes=math.ceil(need),
    )


def _as_tgi_works_out(
    model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any]
) -> tuple[ServingSetup, list[str]]:
    """The setup with the defaults that TGI works out from the model's positions, and their names."""
    found = []
    if setup.engine == "tgi":
        length, tokens = (default_of(engine, name, setup) for name in ("max_total_tokens", "max_batch_prefill_tokens"))
        if length and setup.max_model_len is None:
            setup = setup._replace(max_model_len=min(length, model.longest or length))
            found.append("max_total_tokens")
        if model.longest and setup.max_num_batched_tokens is None and setup.release >= (2,):
            edge = max(tokens - 4096, 0)  # beyond the longest prompt
            setup = setup._replace(max_num_batched_tokens=min(tokens, model.longest + edge))
            found.append("max_batch_prefill_tokens")
    return setup, found


def _as_kept(model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any]) -> ServedModel:
    """The model as the server keeps it: a release may give the layers that slide as much cache as those that do not,
    and replicas may share experts, or have the attention whole.
    """
    if "dp_attention" in setup.uses or ("data_parallel" in setup.uses and model.active_experts):
        return model._replace(weights=None, not_modelled=REPLICAS)
    # Where all layers of a model slide, those of a relative that takes longer requests do not (Phi-3.5 beside Phi-3).
    longer = model.of_relative and (setup.max_model_len or LONGEST) > (model.positions or LONGEST)
    if not model.full_layers and not longer:
        return model
    if model.full_layers and default_of(engine, "windowed_cache", setup, model) is not False:
        return model
    return model._replace(full_layers=model.full_layers + model.windowed_layers, windowed_layers=0)


def unsure(budget: Budget) -> Budget:
    """The budget of weights whose bytes are not sure: they are taken to be packed as the model's name says, nobody says
    how long their table of positions is, or they hold towers that a rank may have whole and a flag leaves out.
    """
    weights = budget.terms[0]
    if weights.status != "exact":
        return budget
    terms = (weights._replace(status="modelled"), *budget.terms[1:])
    return budget._replace(terms=terms, status="modelled" if budget.status == "exact" else budget.status)


def load(served: Served, requests: int, length: int) -> Load:
    """Whether so many requests, each of ``length`` tokens with its answer, are held at once."""
    budget = served.budget
    if budget is None or served.not_predicted:
        return Load(requests, length, None, None, 0)
    each = _need(served.model, served.setup, served.options, length)
    fits = math.floor(max(budget.kv, 0) / each)
    return Load(requests, length, fits >= requests, fits, max(math.ceil(requests * each - budget.kv), 0))


def changes(served: Served, engine: Mapping[str, Any], constants: Mapping[str, float]) -> list[Change]:
    """What other values of single options would give; options that the engine lacks are left out."""
    setup, options = served.setup, served.options
    tried: list[tuple[str, object, ServingSetup]] = []
    if setup.engine in ("vllm", "sglang", "tgi"):
        higher = round(min(options.utilization + 0.05, 0.95), 3)
        if higher > options.utilization:
            tried.append(("utilization", higher, setup._replace(utilization=higher)))
    if setup.cache_bytes > 1:
        small = "q8_0" if setup.engine == "llama.cpp" else "fp8"
        if setup.engine != "transformers":
            tried.append(("kv_cache_dtype", small, setup._replace(kv_cache_dtype=small)))
    if options.max_model_len > 4096:
        half = options.max_model_len // 2
        tried.append(("max_model_len", half, setup._replace(max_model_len=half)))
    if setup.engine == "vllm" and options.max_num_seqs > 64:
        tried.append(("max_num_seqs", 64, setup._replace(max_num_seqs=64)))
    if options.batched_tokens > 2048 and setup.engine in ("vllm", "sglang", "tgi"):
        tried.append(("max_num_batched_tokens", 2048, setup._replace(max_num_batched_tokens=2048)))
    if not setup.eager and setup.engine == "vllm":
        tried.append(("enforce_eager", True, setup._replace(uses=setup.uses | {"eager"})))
    if setup.quantization is None and setup.engine != "transformers" and setup.measured.weights is None:
        packed = "q8_0" if setup.engine == "llama.cpp" else "fp8"
        tried.append(("quantization", packed, setup._replace(quantization=packed)))
    ranks = setup.tensor_parallel * 2
    if setup.engine != "transformers" and served.model.heads % ranks == 0 and setup.measured.weights is None:
        tried.append(("tensor_parallel", ranks, setup._replace(tensor_parallel=ranks)))
    return [Change(name, value, serve(served.model, other, engine, constants)) for name, value, other in tried]


def smallest(
    model: ServedModel,
    setup: ServingSetup,
    engine: Mapping[str, Any],
    constants: Mapping[str, float],
    gpus: Iterable[tuple[str, int]],
) -> str | None:
    """The id of the smallest of ``gpus`` (id, bytes that CUDA sees) on which one request of the full length fits."""
    for name, size in sorted(gpus, key=lambda row: row[1]):
        if serve(model, setup._replace(gpu_bytes=size, gpu_most=0, gpu_id=name), engine, constants).holds_whole:
            return name
    return None


def _ranks(model: ServedModel, setup: ServingSetup, options: Resolved, budget: Budget | None) -> Iterable[Rank]:
    for number in range(setup.tensor_parallel * setup.pipeline_parallel):
        stage = number // setup.tensor_parallel
        if model.not_modelled in OF_SEVERAL_SIZES:
            yield Rank(number, stage, None, None)
            continue
        token = bytes_of_token(model, setup, stage)
        if model.not_modelled:
            yield Rank(number, stage, token, None)
            continue
        blocks = math.floor(max(budget.kv, 0) / (token * options.block)) if budget is not None and token else 0
        yield Rank(number, stage, token, blocks * options.block)


def _need(model: ServedModel, setup: ServingSetup, options: Resolved, length: int) -> float:
    """Bytes of one request on the stage that needs most; transformers holds one layer twice while it grows."""
    stages = range(setup.pipeline_parallel)
    found = max(bytes_of_request(model, setup, length, options.batched_tokens, options.block, s) for s in stages)
    return found * (1 + 1 / model.layers) if setup.engine == "transformers" else found


def _longest(model: ServedModel, setup: ServingSetup, engine: Mapping[str, Any], constants: Mapping[str, float]) -> int:
    """The largest length at which one request surely fits, by halving: a longer one needs more and leaves no more."""

    def fits(length: int) -> bool:
        at = setup._replace(max_model_len=length)
        budget = budget_of(model, at, engine, constants)
        return budget is not None and _need(model, at, resolve(model, at, engine), length) <= budget.kv_low

    low, high = 0, model.longest or LONGEST
    if setup.engine in ("llama.cpp", "transformers"):  # these take a length beyond the model's
        high = max(high, setup.max_model_len or 0)
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _share_needed(setup: ServingSetup, budget: Budget, need: float) -> float | None:
    """The least share of the GPU, in hundredths, at which a request of the full length surely fits; None of one too
    large.
    """
    if setup.engine not in TOO_MUCH or setup.kv_cache_bytes is not None:
        return None
    inside = sum(term.high for term in budget.terms if term.inside)
    outside = sum(term.bytes for term in budget.terms if not term.inside)
    wiggle = budget.share / setup.gpu_bytes / (setup.utilization or 1.0) if setup.engine == "tgi" else 1.0
    needed = math.ceil((inside + need) / setup.gpu_bytes / wiggle * 100) / 100
    return needed if needed < TOO_MUCH[setup.engine] and inside + need + outside <= setup.gpu_bytes else None
