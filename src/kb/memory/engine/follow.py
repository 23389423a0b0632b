"""A run that the engine follows: each phase's peak with the ledger of what was alive, inside of a limit or without; and
what lies on the GPU before the first step, which is enough to know of some that they cannot fit.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from kb.core.memory_report import Phase, PhaseName, Term, Use
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import Spread, TrainingSetup
from kb.memory import answers
from kb.memory.answers import MOST_KNOWN
from kb.memory.engine.allocator import CachingAllocator, ElasticAllocator, EmptiedAllocator
from kb.memory.engine.deepened import recorded_deep
from kb.memory.engine.faults import NotFollowedError
from kb.memory.engine.kernel_choice import FEWEST_SHARED
from kb.memory.engine.ops.attention import FLASH_GRADIENT_HEAD
from kb.memory.engine.predict import check_followed, loss_of, model_of, record_runs
from kb.memory.engine.runs.train import of_steps
from kb.memory.engine.world import AMPERE, WIDE_WORKSPACE_MAJORS, Peak, Recording, held, world
from kb.memory.process import Context, judged

PHASES: tuple[PhaseName, ...] = ("load", "train", "evaluate", "generate", "save")
REMAINDERS = "allocator_remainders"
MOMENTS = {"load": "loading", "save": "saving"}
# What only steps ask for: before the first one nothing of it is there.
OF_STEPS: Mapping[str, object] = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1,
    "max_source_length": 512, "max_target_length": 128, "generation_max_length": 20, "inference_max_length": 20,
    "attn_implementation": "sdpa", "gradient_checkpointing": False, "use_reentrant": False,
}  # fmt: skip


class Found(NamedTuple):
    """One phase's peak: bytes, the ledger of what was alive, where it lies."""

    allocated: int
    reserved: int
    terms: tuple[tuple[str, int], ...]
    moment: str
    use: Use = ""  # of generation: what for
    held: int = 0  # of training: reserved where nothing cached has to be given back, if that is more


class Followed(NamedTuple):
    """What the engine found of a run. ``ran_out``: it failed inside the GPU's memory. ``gave_back``: it came to the
    limit, and PyTorch gave cached blocks back.

    Of training on a GPU that gives blocks back, some runs out where the engine lets it end
    (rules/measurements/limits-h100-*): what it would hold without a limit is the upper end of what it takes. A growing
    cache of generation lets go of whole segments, so that what is given back serves again.
    """

    phases: Mapping[PhaseName, Found]
    ran_out: bool = False
    gave_back: bool = False

    @property
    def reserved(self) -> int:
        """The most of any phase, in bytes."""
        return max((phase.reserved for phase in self.phases.values()), default=0)

    @property
    def allocated(self) -> int:
        """The most of any phase, in bytes."""
        return max((phase.allocated for phase in self.phases.values()), default=0)


# What the host does with a run, and what a report calls it, changes nothing on the GPU.
ELSEWHERE: Mapping[str, object] = {
    "model_name": None, "dataloader_num_workers": 0, "dataloader_pin_memory": True, "dataloader_prefetch_factor": 2,
    "dataloader_persistent_workers": False, "lengths": None, "assumed": (), "unmodelled": (), "unresolved": (),
}  # fmt: skip
# What a phase alone reads, as it stands where a run does not have the phase.
OF_TRAINING: Mapping[str, object] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
OF_EVALUATION: Mapping[str, object] = {
    "do_eval": False, "per_device_eval_batch_size": 8, "eval_samples": None, "eval_accumulation_steps": None,
    "prediction_loss_only": False, "predict_with_generate": False, "generation_num_beams": 1,
    "generation_max_length": 20,
}  # fmt: skip
OF_INFERENCE: Mapping[str, object] = {
    "inference_batch_size": None, "inference_num_beams": 1, "inference_max_length": 20,
}  # fmt: skip


def on_gpu(setup: TrainingSetup) -> TrainingSetup:
    """The setup without what changes nothing on a GPU; on one alone how a run is spread does so with ZeRO only."""
    spread = setup.spread._replace(nodes=1) if setup.world_size > 1 or setup.zero_stage else Spread()
    return setup._replace(spread=spread, **ELSEWHERE)  # type: ignore[arg-type]


def follow(
    setup: TrainingSetup,
    architecture: Architecture,
    capability: tuple[int, int],
    limits: tuple[int, int] | None = None,
    *,
    among: bool = False,
) -> Followed:
    """The run's phases, where PyTorch may reserve so many bytes surely, and so many perhaps; without ``limits``, on a
    GPU just large enough.

    PyTorch gives cached blocks back before it fails, so a run that would reserve more may still fit. Where nothing is
    too much, what one phase leaves in the cache lies beside what another asks for: no GPU has to be that large. One
    that holds what the phase of most tensors reserves is enough.

    Args:
        among: the GPU is one of many: what the run takes without a limit answers for each, where it decides.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    run = Run(counted(setup), architecture, alike(capability, setup, architecture))
    if limits is None:
        return _enough(_unlimited(run))
    surely, perhaps = limits
    if among:
        found = _enough(_unlimited(run))
        if found.reserved <= surely or found.allocated > perhaps:
            return found._replace(ran_out=found.allocated > perhaps)
    found = _inside_held(run, surely)
    return found._replace(ran_out=found.reserved > perhaps)


def follow_inside(
    setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int], limit: int
) -> Followed:
    """The run's phases where PyTorch may reserve ``limit`` bytes; a phase that runs out of them goes on past them.

    Raises:
        NotFollowedError: something that the engine does not follow.
    """
    return _inside_held(Run(counted(setup), architecture, alike(capability, setup, architecture)), limit)


def counted(setup: TrainingSetup) -> TrainingSetup:
    """The setup without what changes nothing, or is not followed beside a trainer's own loss."""
    setup = on_gpu(setup)
    rows = setup.inference_batch_size or setup.per_device_eval_batch_size
    unread: dict[str, object] = {**(OF_TRAINING if not setup.do_train else {})}
    unread |= {"inference_batch_size": rows} if setup.do_predict else OF_INFERENCE
    if not setup.do_eval or (setup.post is not None and not setup.do_predict):
        unread |= OF_EVALUATION
    return setup._replace(**unread)  # type: ignore[arg-type]


def alike(capability: tuple[int, int], setup: TrainingSetup, architecture: Architecture) -> tuple[int, int]:
    """A compute capability whose GPUs take the same kernels in this run: GPUs that are alike share one answer.

    What reads it: attention's kernels, cuBLAS's workspace, which kernel multiplies packed weights, and how many blocks
    share a sum over a batch's tokens.
    """
    if setup.packs or capability < (7, 0) or _sums_tokens(setup):
        return capability
    if capability < AMPERE:
        return (7, 0)
    if architecture.d_kv > FLASH_GRADIENT_HEAD:
        return capability
    return (9, 0) if capability[0] in WIDE_WORKSPACE_MAJORS else AMPERE


def _sums_tokens(setup: TrainingSetup) -> bool:
    """Whether gradients are sums over so many tokens that blocks share one: of biases, norms and DoRA's lengths."""
    summed = setup.method == "full" or setup.use_dora or bool(setup.modules_to_save)
    tokens = setup.per_device_train_batch_size * max(setup.max_source_length, setup.max_target_length)
    return setup.do_train and summed and tokens >= FEWEST_SHARED


class Run(NamedTuple):
    """What the engine follows, and where."""

    setup: TrainingSetup
    architecture: Architecture
    capability: tuple[int, int]


MOST_RECORDED = 4  # logs kept: of a search's last steps, a megabyte or more each
_NEVER_FULL: dict[Run, Followed] = {}  # what runs take that never came to a limit: the same within any larger one


def written(found: Followed) -> Any:
    """As a JSON value."""
    return {name: phase._asdict() for name, phase in found.phases.items()}


def read(value: Any) -> Followed:
    """What :func:`written` wrote."""
    return Followed(
        {name: Found(**{**phase, "terms": tuple(map(tuple, phase["terms"]))}) for name, phase in value.items()}
    )


@lru_cache(maxsize=MOST_KNOWN)
def _unlimited(run: Run) -> Followed:
    return _never_full(run) or _followed(run, None, CachingAllocator)


def _never_full(run: Run) -> Followed | None:
    """What the run takes, where it is known already and never came to a limit."""
    if run not in _NEVER_FULL:
        known = answers.get("never full", run)
        if known is None:
            return None
        _remember(run, read(known))
    return _NEVER_FULL[run]


def _remember(run: Run, found: Followed) -> None:
    if len(_NEVER_FULL) >= MOST_KNOWN:
        _NEVER_FULL.clear()
    _NEVER_FULL[run] = found


def _enough(found: Followed) -> Followed:
    """What is reserved without a limit, on a GPU that holds no more than the phase of most tensors reserves."""
    enough = max(found.phases.values(), key=lambda phase: phase.allocated).reserved if found.phases else 0
    return found._replace(
        phases={name: phase._replace(reserved=min(phase.reserved, enough)) for name, phase in found.phases.items()}
    )


def _inside_held(run: Run, limit: int) -> Followed:
    """The run inside a limit; where it came to that and ends, with what training would hold if it gave nothing back."""
    found = _inside(run, limit)
    if not found.gave_back or found.reserved > limit or "train" not in found.phases:
        return found
    held = _held_by_training(run, limit if _looks_at_free(run) else None)
    return found._replace(phases={**found.phases, "train": found.phases["train"]._replace(held=held)})


def _looks_at_free(run: Run) -> bool:
    """Whether what the run asks for depends on the limit: loading looks at what is free."""
    return run.setup.spread.packed_on == "warmed"


@lru_cache(maxsize=MOST_KNOWN)
def _held_by_training(run: Run, limit: int | None) -> int:
    """Bytes that training reserves on a GPU that is never full, where nothing of what was before lies in the cache."""

    def answered() -> int:
        found = (each.peaks(EmptiedAllocator(), last="train").get("train") for each in _recorded(run, limit))
        return max((peak.reserved for peak in found if peak is not None), default=0)

    return answers.known("held by training", (run, limit), answered)


@lru_cache(maxsize=MOST_KNOWN)
def _inside(run: Run, limit: int) -> Followed:
    """The run where each phase may reserve ``limit`` bytes, and goes past them where it needs more."""
    known = _never_full(run)
    if known is not None and known.reserved <= limit:
        return known
    found = answers.get("inside", (run, limit))
    if found is None:
        return _followed(run, limit, partial(ElasticAllocator, limit))
    return read(found)._replace(gave_back=True)  # what never came to a limit is kept apart


def _followed(run: Run, limit: int | None, pool: Callable[[], CachingAllocator]) -> Followed:
    phases: dict[str, Found] = {}
    full = False
    for recording in _recorded(run, limit if _looks_at_free(run) else None):
        serving = pool()
        peaks = recording.peaks(serving)
        full = full or serving.retries > 0
        sums = recording.sums({peak.at for peak in peaks.values()})
        for name, peak in peaks.items():
            if name not in phases or peak.allocated > phases[name].allocated:
                phases[name] = found_of(recording, name, peak, sums[peak.at])
                if name == "generate":
                    use: Use = "evaluation" if "evaluate" in peaks else "inference"
                    if run.setup.post is not None:
                        use = "training"
                    phases[name] = phases[name]._replace(use=use)
    found = Followed({name: phases[name] for name in PHASES if name in phases}, gave_back=full)
    if full:
        answers.put("inside", (run, limit), written(found))
    else:
        _remember(run, found)
        answers.put("never full", run, written(found))
    return found


@lru_cache(maxsize=MOST_RECORDED)
def _recorded(run: Run, limit: int | None) -> list[Recording]:
    """What the run asks for, whatever serves it: followed once for several limits."""

    def record(architecture: Architecture, kind: Callable[[], Recording]) -> list[Recording]:
        return record_runs(run.setup, architecture, run.capability, kind=kind)

    found = recorded_deep(run.setup, run.architecture, record) if limit is None else None
    return record_runs(run.setup, run.architecture, run.capability, limit=limit) if found is None else found


def found_of(recording: Recording, name: str, peak: Peak, sums: Mapping[str, int]) -> Found:
    """A phase's peak with its ledger: what was alive then, ``sums``, largest first; rounding is a term of its own."""
    rest = peak.allocated - sum(sums.values())
    terms = tuple(sorted((*sums.items(), *([(REMAINDERS, rest)] if rest else [])), key=lambda item: -item[1]))
    return Found(peak.allocated, peak.reserved, terms, moment_of(recording, name, peak.at))


def moment_of(recording: Recording, name: str, at: int) -> str:
    """What a phase does as entry ``at`` asks for something: ``forward``, ``decoding``, …"""
    if name == "generate":
        return "decoding"
    asks = at >= 0 and recording.log[at] >= 0
    return MOMENTS.get(name) or (recording.label(at)[0] if asks else "forward")


def rows_of(found: Found, setup: TrainingSetup) -> int | None:
    """How many samples a phase that generates has at once; None of the others."""
    if found.use == "inference":
        return setup.inference_batch_size or setup.per_device_eval_batch_size
    if found.use == "training" and setup.post is not None:
        return setup.post.generated_rows
    return setup.per_device_eval_batch_size if found.use else None


def phase_found(
    name: PhaseName, found: Found, setup: TrainingSetup, context: Context, band: float, upper: float
) -> Phase:
    """One phase as a report has it, as the simulation's: low is what the tensors need, high what the allocator holds
    where nothing has to be given back.

    ``band`` is the error of allocated memory, ``upper`` by how much reserved memory may be too low.
    """
    return Phase(
        name=name,
        terms=tuple(Term(term, size) for term, size in found.terms),
        peak_allocated_bytes=found.allocated,
        peak_reserved_bytes=found.reserved,
        process_used_bytes=found.reserved + context.expected,
        low_bytes=round(found.allocated * (1 - band)) + context.low,
        high_bytes=round(max(found.reserved, found.held) * (1 + upper)) + context.high,
        moment=found.moment,
        use=found.use,
        batch=rows_of(found, setup),
    )


def beside(phases: tuple[Phase, ...], setup: TrainingSetup, arch: Architecture, memory: int) -> tuple[Phase, ...]:
    """The phases with what a server of the trainer's own takes of the same GPU, where there is one."""
    if setup.post is None or not setup.post.colocated:
        return phases
    from kb.memory.serving.budget import beside_vllm  # and what knows of servers; most runs have none

    return beside_vllm(phases, setup.post.colocated, arch, memory)


def over_at_rest(
    setup: TrainingSetup,
    architecture: Architecture,
    constants: Mapping[str, float],
    context: Context,
    memory: int,
    capability: tuple[int, int] | None,
    *,
    stepped: bool = False,
) -> bool:
    """Whether training is out of memory by what lies there before the first step alone; ``stepped``: or by that with
    the gradients and states that are there behind the second one's backward.

    False says nothing, and so it is of what the engine does not follow.
    """
    try:
        check_followed(architecture, setup)
        resting = _resting_bytes(_at_rest(setup, stepped=stepped), architecture, capability or AMPERE)
    except NotFollowedError:
        return False
    band = constants["band_simulated"]
    phases: tuple[Phase, ...] = (phase_found("train", Found(resting, resting, (), ""), setup, context, band, band),)
    phases = beside(phases, setup, architecture, memory)
    return judged(phases, memory, constants)[1].status == "oom"


def _at_rest(setup: TrainingSetup, *, stepped: bool) -> TrainingSetup:
    post = setup.post and setup.post._replace(completion=0, generated_rows=0, colocated=None)
    asked = on_gpu(setup)._replace(post=post, **{**OF_EVALUATION, **OF_STEPS})  # type: ignore[arg-type]
    return asked if stepped else asked._replace(optim="none")


@lru_cache(maxsize=64)
def _resting_bytes(setup: TrainingSetup, architecture: Architecture, capability: tuple[int, int]) -> int:
    """Bytes allocated once the model, its adapters and its reference are there, and where there is an optimizer, its
    states and the gradients: no training takes less."""
    with held():
        recording = world.begin(capability)
        recording.begin("load")
        model = model_of(setup, architecture)
        loss = loss_of(model, setup) if setup.post is not None else None
        stays = of_steps(model, setup) if setup.optim != "none" else None
        pool = CachingAllocator()
        recording.peaks(pool)
        del loss, model, stays
        return pool.allocated
