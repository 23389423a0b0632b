"""Recordings as a report's phases: peaks with the terms of what was alive, and the moment they lie at."""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from kb.core.memory_report import HostLedger, MemoryReport, Phase, PhaseName, TakenByLengths, Term, Verdict
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import Assumption, Spread, TrainingSetup
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.counts import count
from kb.memory.engine.allocator import CachingAllocator, OutOfMemory
from kb.memory.engine.colocated import beside_vllm
from kb.memory.engine.ddp import finds_unused
from kb.memory.engine.expandable import ExpandableAllocator
from kb.memory.engine.families.decoder_types import packs_nothing as packs_nothing
from kb.memory.engine.families.decoder_types import without_sdpa
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.lengths import varied
from kb.memory.engine.optimizers import KNOWN
from kb.memory.engine.options import options_of
from kb.memory.engine.predict import check_followed, record_runs, record_training
from kb.memory.engine.runs.generate import MOST_TOKENS
from kb.memory.engine.world import AMPERE, Booked, Peak, Recording
from kb.memory.host import Loads
from kb.memory.linear import adapter_parameters, default_targets, match_targets
from kb.memory.process import Context, judged
from kb.memory.zero import ranks_of_a_node

PHASES: tuple[PhaseName, ...] = ("load", "train", "evaluate", "generate", "save")
REMAINDERS = "allocator_remainders"
MOMENTS = {"load": "loading", "save": "saving"}


class Found(NamedTuple):
    """One phase's peak: bytes, the ledger of what was alive, where it lies."""

    allocated: int
    reserved: int
    terms: tuple[tuple[str, int], ...]
    moment: str
    use: str = ""  # of generation: in evaluation or in inference


class Followed(NamedTuple):
    """What the engine found of a run. ``ran_out``: it failed inside the GPU's memory."""

    phases: Mapping[PhaseName, Found]
    ran_out: bool = False


# What the host does with a run, and what a report calls it, changes nothing on the GPU.
ELSEWHERE: Mapping[str, object] = {
    "model_name": None, "dataloader_num_workers": 0, "dataloader_pin_memory": True, "dataloader_prefetch_factor": 2,
    "dataloader_persistent_workers": False, "lengths": None, "assumed": (), "unmodelled": (), "unresolved": (),
}  # fmt: skip


# A trainer of its own loss is followed without its evaluation.
OF_EVALUATION: Mapping[str, object] = {
    "do_eval": False, "per_device_eval_batch_size": 8, "eval_samples": None, "eval_accumulation_steps": None,
    "prediction_loss_only": False, "predict_with_generate": False, "inference_batch_size": None,
}  # fmt: skip


def on_gpu(setup: TrainingSetup) -> TrainingSetup:
    """The setup without what changes nothing on a GPU; on one alone nothing of how a run is spread does."""
    spread = setup.spread._replace(nodes=1) if setup.world_size > 1 else Spread()
    return setup._replace(spread=spread, **ELSEWHERE)  # type: ignore[arg-type]


def follow(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int], limit_bytes: int | None = None
) -> Followed:
    """The run's phases; once more inside of ``limit_bytes`` where it reserved more than that.

    PyTorch gives cached blocks back before it fails, so a run whose reserved memory is too much may still fit; then the
    second run's figures are the answer.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    setup = on_gpu(setup)
    if setup.post is not None and not setup.do_predict:
        setup = setup._replace(**OF_EVALUATION)  # type: ignore[arg-type]
    found = _followed(setup, architecture, capability, None)
    most = max((phase.reserved for phase in found.phases.values()), default=0)
    if limit_bytes is None or most <= limit_bytes:
        return found
    if any(phase.allocated > limit_bytes for phase in found.phases.values()):
        return found._replace(ran_out=True)  # no giving back of free blocks makes room for what is alive
    try:
        return _followed(setup, architecture, capability, limit_bytes)
    except OutOfMemory:
        return found._replace(ran_out=True)


@lru_cache(maxsize=512)
def _followed(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int], limit: int | None
) -> Followed:
    phases: dict[str, Found] = {}
    for recording in record_runs(setup, architecture, capability, limit_bytes=limit):
        alive = recording.alive([peak.at for peak in recording.phases.values()])
        for name, peak in recording.phases.items():
            if name not in phases or peak.allocated > phases[name].allocated:
                phases[name] = found_of(recording, name, peak, alive[peak.at])
                if name == "generate":
                    use = "evaluation" if "evaluate" in recording.phases else "inference"
                    if setup.post is not None:
                        use = "training"
                    phases[name] = phases[name]._replace(use=use)
    ordered = {name: phases[name] for name in PHASES if name in phases}
    return Followed(ordered)


def _predictions(setup: TrainingSetup, architecture: Architecture) -> int:
    """Bytes of the logits that evaluation gathers, and of an encoder-decoder its encoder's output."""
    if setup.predict_with_generate or setup.prediction_loss_only:
        return 0
    width = 4 if setup.autocast or setup.weights == "fp32" else 2
    both = architecture.family == "bart"
    length = setup.max_target_length if both else setup.max_source_length
    row = length * architecture.vocab_size + (setup.max_source_length * architecture.d_model if both else 0)
    return (setup.eval_samples or 0) * row * width


def found_of(recording: Recording, name: str, peak: Peak, alive: Iterable[tuple[int, Booked, str]]) -> Found:
    """A phase's peak with its ledger: what was alive then, largest first; rounding is a term of its own."""
    sums: dict[str, int] = {}
    for _, booked, term in alive:
        sums[term] = sums.get(term, 0) + booked.requested
    rest = peak.allocated - sum(sums.values())
    if rest:
        sums[REMAINDERS] = rest
    terms = tuple(sorted(sums.items(), key=lambda item: -item[1]))
    last = recording.log[peak.at] if peak.at >= 0 else None
    moment = MOMENTS.get(name) or (last.moment if isinstance(last, Booked) else "forward")
    return Found(peak.allocated, peak.reserved, terms, "decoding" if name == "generate" else moment)


def report_of(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    memory: int | None,
    capability: tuple[int, int] | None,
) -> MemoryReport:
    """The run's phases with the verdict against ``memory`` bytes of a GPU.

    The report's host ledger is empty: it is the caller's.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    limit = None if memory is None else memory - context.low
    found = _follow_or_refuse(setup, architecture, capability, limit)
    quantized = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    read = setup.zero_stage in (
        1,
        2,
    )  # what these do is read from their source alone; stage 3 was run in the simulation
    band = constants["band_train" if read else "band_simulated"]
    upper = constants["band_simulated_quantized"] if quantized else band
    phases = tuple(phase_found(name, found.phases[name], setup, context, band, upper) for name in found.phases)
    if setup.post is not None and setup.post.colocated and memory is not None:
        phases = beside_vllm(phases, setup.post.colocated, architecture, memory)
    phases, verdict = judged(phases, memory, constants)
    if found.ran_out:
        verdict = Verdict("oom", verdict.phase, verdict.term)
    assumed = setup.assumed
    if capability is None:
        assumed += (Assumption("gpu.compute_capability", ".".join(map(str, AMPERE)), "kernels_of_ampere"),)
    if setup.fsdp or setup.zero_stage:
        reason = "deepspeed_source" if read else "first_process"
        assumed += (Assumption("parallel.world_size", setup.world_size, reason),)
    elif setup.data_parallel_size > 1 and setup.do_train and setup.spread.find_unused is None:
        assumed += (Assumption("training.ddp_find_unused_parameters", finds_unused(setup), "library_default"),)
    if setup.load_in_8bit and not setup.load_in_4bit:
        assumed += (Assumption("lora.load_in_8bit", True, "no_outliers"),)
    if setup.post is not None:
        assumed += (Assumption("training.loss", setup.post.kind, "loss_computed"),)
    if setup.attn_implementation == "sdpa" and without_sdpa(architecture):
        assumed += (Assumption("training.attn_implementation", "eager", "no_sdpa_of_the_type"),)
    if quantized and architecture.engine and packs_nothing(architecture):
        bits = 8 if setup.load_in_8bit else 4
        assumed += (Assumption(f"quantization.load_in_{bits}bit", False, "no_layer_is_packed"),)
    if setup.attn_implementation == "flash":
        assumed += (Assumption("training.attn_implementation", "sdpa", "flash_as_sdpa"),)
    if setup.do_eval and not (setup.predict_with_generate or setup.prediction_loss_only or setup.eval_samples):
        assumed += (Assumption("evaluation.samples", setup.eval_accumulation_steps or 1, "one_evaluation_step"),)
    if setup.method != "full":
        targets = setup.lora_target_modules or default_targets(architecture)
        unmatched = match_targets(architecture, targets)[1] if targets else ()
        if unmatched:
            assumed += (Assumption("lora.target_modules", list(unmatched), "unmatched_targets"),)
    return MemoryReport("engine", assumed, phases, HostLedger((), 0, 0, None), verdict)


def engine_loads(setup: TrainingSetup, architecture: Architecture) -> Loads:
    """What passes through host memory: the weights as loaded and what a checkpoint of the model holds."""
    width = 4 if setup.weights == "fp32" else 2
    counts = count(architecture)
    parameters = counts.total * width
    if setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora":
        eight = setup.load_in_8bit and not setup.load_in_4bit
        parameters = counts.quantizable // (1 if eight else 2) + (counts.total - counts.quantizable) * 2
    saved, trained = parameters, counts.total
    if setup.method != "full":
        targets = setup.lora_target_modules or default_targets(architecture)
        trained = adapter_parameters(architecture, targets, setup.lora_r) if targets else 0
        saved = 4 * trained
    gathered = _predictions(setup, architecture) if setup.do_eval else 0
    offloaded = 0
    if setup.fsdp and setup.offload_param:
        offloaded = _offloaded(setup, parameters, trained)
    elif setup.zero_stage and setup.offload_optimizer:  # masters, their gradients and moments; 16 bits to copy back
        offloaded = (4 * 4 + 2) * trained * ranks_of_a_node(setup) // setup.data_parallel_size
    return Loads(parameters, saved if setup.do_train else 0, offloaded, gathered)


def _offloaded(setup: TrainingSetup, parameters: int, trained: int) -> int:
    """Bytes of one node's host memory under FSDP's ``CPUOffloadPolicy``: shards, their gradients and AdamW's moments.

    What trains is fp32 under mixed precision, and adapters are so without it too.
    """
    wide = 4 if setup.autocast or setup.weights == "fp32" or setup.method != "full" else 2
    frozen = parameters if setup.method != "full" else 0
    moments = 2 if setup.do_train and setup.optim.startswith("adamw") else 0
    gradients = 1 if setup.do_train else 0
    return (frozen + trained * wide * (1 + gradients + moments)) * ranks_of_a_node(setup) // setup.world_size


def reserved_by_lengths(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int] | None
) -> TakenByLengths:
    """What training takes of the GPU with batches padded to their longest sample: of the project's data where the setup
    knows its lengths, else of an assumed spread.

    Raises:
        UnsupportedArchitectureError: something that the engine does not follow, by name.
    """
    lengths = varied(setup.max_source_length, setup.per_device_train_batch_size, known=setup.lengths)
    try:
        alike, drawn = (
            record_training(setup, architecture, CachingAllocator(), capability or AMPERE, sources)
            for sources in (None, lengths)
        )
    except NotFollowedError as error:
        raise UnsupportedArchitectureError(f"{architecture.model_type}: {error.what}") from None
    fixed, varying = alike.phases["train"], drawn.phases["train"]
    paged = drawn.replay(ExpandableAllocator(), "train")
    return TakenByLengths(fixed.allocated, fixed.reserved, varying.reserved, paged)


def why_not(setup: TrainingSetup, architecture: Architecture) -> str | None:
    """What of a run the engine does not follow, in the field's words; None where it follows all of it."""
    try:
        options_of(setup, default_targets(architecture) or ())
        check_followed(architecture, setup)
        if setup.do_train and setup.optim not in KNOWN:
            return f"optim {setup.optim}"
        if architecture.family == "decoder" and _beams(setup) > 1:
            return "num_beams"
        if _tokens(setup) > MOST_TOKENS:
            return f"{_tokens(setup)} new tokens"
    except NotFollowedError as error:
        return error.what
    return None


def _tokens(setup: TrainingSetup) -> int:
    """The longest answer that the run generates."""
    evaluated = setup.generation_max_length if setup.do_eval and setup.predict_with_generate else 0
    return max(evaluated, setup.inference_max_length if setup.do_predict else 0)


def _beams(setup: TrainingSetup) -> int:
    """The most beams that the run generates with."""
    evaluated = setup.generation_num_beams if setup.do_eval and setup.predict_with_generate else 1
    return max(evaluated, setup.inference_num_beams if setup.do_predict else 1)


def _follow_or_refuse(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int] | None, limit: int | None
) -> Followed:
    try:
        return follow(setup, architecture, capability or AMPERE, limit)
    except NotFollowedError as error:
        raise UnsupportedArchitectureError(
            f"{architecture.model_type}: {error.what}: the memory engine does not follow that"
        ) from None


def phase_found(
    name: PhaseName, found: Found, setup: TrainingSetup, context: Context, band: float, upper: float
) -> Phase:
    """One phase as a report has it, as the simulation's: low is what the tensors need, high what the allocator holds.

    ``band`` is the error of allocated memory, ``upper`` by how much reserved memory may be too low.
    """
    batch = None
    if found.use:
        batch = setup.per_device_eval_batch_size
        if found.use == "inference":
            batch = setup.inference_batch_size or batch
        if found.use == "training" and setup.post is not None:
            batch = setup.post.generated_rows
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in found.terms),
        peak_allocated_bytes=found.allocated,
        peak_reserved_bytes=found.reserved,
        process_used_bytes=found.reserved + context.expected,
        low_bytes=round(found.allocated * (1 - band)) + context.low,
        high_bytes=round(found.reserved * (1 + upper)) + context.high,
        moment=found.moment,
        use=found.use,
        batch=batch,
    )
