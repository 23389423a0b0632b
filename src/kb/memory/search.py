"""The largest batch that fits, the largest part of an optimizer step's samples that does, and the workers that fit in
host memory. What a run takes grows with each in nearly straight pieces, so that few predictions answer.
"""

from collections.abc import Callable, Mapping
from math import floor, isqrt

from kb.core.hardware import Gpu
from kb.core.memory_report import Phase
from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup
from kb.core.typed import Any, Literal
from kb.memory import answers, engine
from kb.memory.host import host_ledger, loads_of
from kb.memory.prediction import is_followed, phases_read, predict
from kb.memory.process import Context, Peak, context_of, phase_of

BatchField = Literal["per_device_train_batch_size", "per_device_eval_batch_size", "inference_batch_size"]
LARGEST_BATCH = 4096
MOST_WORKERS = 256
ENDLESS = 1 << 60  # bytes of a GPU that is never full
GROWING = ("activations", "encoder_output", "gathered", "inputs", "kv_cache", "logits", "loss", "temporaries")
FIRST_STRIDE = 8  # from the lowest number to the second, for the slope: the allocator's rounding weighs little in it
PATIENCE = 8  # steps along a line before bisection takes over
GRAIN = 32  # batches are found to this part of themselves
BACK = 16  # the first step down from a guess that is too much is this part of it
_PHASES = {
    "per_device_train_batch_size": ("train",),
    "per_device_eval_batch_size": ("evaluate", "generate"),
    "inference_batch_size": ("generate",),
}
# Terms that grow with the batch whatever the loss is made of: of a fused one a head has chunks.
ACTIVATIONS = "activations_encoder", "activations_decoder", "encoder_output"
STATES = "parameters", "gradients", "optimizer", "adapters", "reference_model"  # terms that no batch changes
UNEVEN = 0.02  # by how much what grows may miss a line: blocks are rounded, and small ones come and go


def largest_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    field: BatchField,
    limit_bytes: int,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    compute_capability: tuple[int, int] | None = None,
    most: int = LARGEST_BATCH,
    first: int | None = None,
    grain: int = GRAIN,
    rough: bool = False,
) -> int:
    """The largest value of ``field``, up to ``most``, whose phases stay within ``limit_bytes``; 0 where not even 1.
    What the memory engine answers is known to a ``grain`` of itself: the error band is wider than a 32nd.

    The upper end of the process's band is compared. Only the phases that the field governs count: a training batch is
    not held back by evaluation. ``first`` is asked about first: the answer of a like question, by default where the
    line through the setup's own value meets the limit. ``rough``: as of :func:`predict`.
    """
    where: dict[str, Any] = {"constants": constants, "gpu": gpu, "compute_capability": compute_capability}
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    if rough or not is_followed(setup, architecture, capability) or _is_beside_vllm(setup):
        used = use_by_batch(setup, architecture, field, **where, gpu_memory_bytes=ENDLESS, rough=rough)
        return largest_within(used, limit_bytes, 1, most, first=first)
    looked = _Followed(_only(setup, field), architecture, field, limit_bytes, **where)
    own = first or _own(setup, field)
    slope = looked.slope(own)
    first = first or looked.met(own, slope)
    return largest_within(looked.used, limit_bytes, 1, most, slope=slope, first=first, grain=grain)


def _own(setup: TrainingSetup, field: BatchField) -> int:
    """The setup's own value: its run is known as a rule."""
    return max(getattr(setup, field) or setup.per_device_eval_batch_size, 1)


class _Followed:
    """What the memory engine finds of a run by its batch, inside of ``limit_bytes``: PyTorch gives cached blocks back
    before it fails, so a batch fits where the run does not run out, and what is alive is what grows evenly with it.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        architecture: Architecture,
        field: BatchField,
        limit_bytes: int,
        *,
        constants: Mapping[str, float],
        gpu: Gpu | None,
        compute_capability: tuple[int, int] | None,
    ) -> None:
        self._setup, self._architecture, self._field = setup, architecture, field
        self._limit, self._constants = limit_bytes, constants
        self._capability = compute_capability or (gpu.compute_capability if gpu else None)
        self._context = context_of(constants, self._capability, gpu)

    def used(self, batch: int) -> int | None:
        """Bytes of what is alive; None where that is within the limit and the run runs out all the same."""
        phases = self._phases(batch)
        alive = _most_used(self._governed(phases), alive=True)
        # training that runs out is not evaluation's, and each is looked at by itself
        judged = self._governed(phases) if self._field == "per_device_eval_batch_size" else phases
        if any(phase.high_bytes > self._limit for phase in judged):
            return alive if alive > self._limit else None
        return min(alive, self._limit)

    def slope(self, batch: int) -> float:
        """Bytes for each one more, of what is known of the run with a batch: a guess that saves a step."""
        return max((_growing_bytes(phase) for phase in self._governed(self._phases(batch))), default=0) / batch

    def met(self, batch: int, slope: float) -> int:
        """Where the line through a batch meets the limit."""
        used = _most_used(self._governed(self._phases(batch)), alive=True)
        return batch + floor((self._limit - used) / slope) if slope > 0 else batch

    def _governed(self, phases: tuple[Phase, ...]) -> list[Phase]:
        return [phase for phase in phases if phase.name in _PHASES[self._field]]

    def _phases(self, batch: int) -> tuple[Phase, ...]:
        setup = self._setup._replace(**{self._field: batch})  # type: ignore[arg-type]

        def answered() -> tuple[Phase, ...]:
            return engine.phases_inside(
                setup,
                self._architecture,
                self._constants,
                self._context,
                self._capability,
                lambda upper: int((self._limit - self._context.high) / (1 + upper)),
            )

        asked = (setup, self._architecture, self._constants, (self._context, self._limit, self._capability))
        return answers.known("phases inside", asked, answered, tuple, phases_read)


def use_by_batch(
    setup: TrainingSetup,
    architecture: Architecture,
    field: BatchField,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    rough: bool = False,
) -> Callable[[int], int]:
    """What :func:`largest_batch` compares with a limit: bytes of the phases that ``field`` governs, by its value."""
    setup, asked = _only(setup, field), setup
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    if not _is_beside_vllm(setup) and (rough or not is_followed(setup, architecture, capability)):
        context = context_of(constants, capability, gpu)
        if setup.do_train:  # one look at the run answers of its training and of its evaluation
            setup = setup._replace(do_eval=asked.do_eval)
        phases = engine.phases_by_batch(setup, architecture, constants, context, capability)
        return lambda batch: _most_used([phase for phase in phases(batch) if phase.name in _PHASES[field]])

    def used(batch: int) -> int:
        report = predict(
            setup._replace(**{field: batch}),  # type: ignore[arg-type]
            architecture,
            constants=constants,
            gpu=gpu,
            gpu_memory_bytes=None if gpu_memory_bytes == ENDLESS and _is_beside_vllm(setup) else gpu_memory_bytes,
            compute_capability=compute_capability,
            rough=rough,
        )
        return _most_used([phase for phase in report.phases if phase.name in _PHASES[field]])

    return used


def _is_beside_vllm(setup: TrainingSetup) -> bool:
    """Whether vLLM takes a share of the GPU's bytes beside the run, so that these always count."""
    return setup.post is not None and setup.post.colocated is not None


def _pairs_samples(setup: TrainingSetup) -> bool:
    """Whether each sample of a batch is compared with every other one, so that bytes do not grow as a line does."""
    return setup.post is not None and setup.post.kind == "embedding"


def _most_used(phases: list[Phase], *, alive: bool = False) -> int:
    """The most that a phase takes, with its band; with ``alive`` no more than a GPU that is full makes of it: the share
    of what is reserved that is allocated."""
    return max((_alive(phase) if alive else phase.high_bytes for phase in phases), default=0)


def _alive(phase: Phase) -> int:
    return phase.high_bytes * phase.peak_allocated_bytes // max(phase.peak_reserved_bytes, 1)


def _growing_bytes(phase: Phase) -> int:
    """Bytes of what grows with the batch: a first slope, no more than a guess that saves a step."""
    return sum(term.bytes for term in phase.terms if term.name.startswith(GROWING))


def largest_within(
    used: Callable[[int], int | None],
    limit_bytes: int,
    lowest: int,
    highest: int,
    slope: float = 0.0,
    first: int | None = None,
    grain: int | None = None,
) -> int:
    """The largest whole number in a range whose ``used`` bytes stay within the limit; one below ``lowest`` where none.

    It fits, and one more does not: that holds too where ``used`` falls now and then, as memory taken from a cache does.
    With a ``grain``, that part of it more is expected not to, where that is more than one.
    Four numbers are asked about as a rule, since each may cost a run of the memory engine: the lowest, one for the
    slope, the one where the line meets the limit, and its neighbour.

    Args:
        used: the bytes; None where no more is known than that they are too many.
        slope: bytes for each one more, of what is known of the line before the first step.
        first: the number to ask about first: one whose answer is likely, or that is likely known.
    """
    low, high = _Number(lowest - 1), _Number(highest + 1)
    guess, before, steps, measured = min(max(first or lowest, lowest), highest), None, 0, False
    while high.number - low.number > 1:
        last, steps = _Number(guess, used(guess), asked=True), steps + 1
        fits = last.bytes is not None and last.bytes <= limit_bytes
        low, high = (last, high) if fits else (low, last)
        if last.bytes is not None:
            if before is not None and before.bytes is not None:
                between = (last.bytes - before.bytes) / (last.number - before.number)
                slope, measured = (between, True) if between > 0 else (slope, measured)
            before = last
        guess = min(max(_next(low, high, last, limit_bytes, slope, steps), low.number + 1), high.number - 1)
        if grain and low.asked and (high.asked or measured) and guess - low.number <= low.number // grain:
            break
    return low.number


class _Number(NamedTuple):
    """A number and the bytes that it takes; None where it was not asked about, or where all that is known is that they
    are too many."""

    number: int
    bytes: int | None = None
    asked: bool = False


def _next(low: _Number, high: _Number, last: _Number, limit_bytes: int, slope: float, steps: int) -> int:
    """Where the line meets the limit: that of the last two numbers, which follows a curve, or where it leaves what is
    known, the one between a number that fits and one that does not.
    """
    known = low if last.bytes is None else last
    reach = None
    if slope > 0 and known.bytes is not None:
        reach = known.number + floor((limit_bytes - known.bytes) / slope)
    if not high.asked:
        beyond = low.number * FIRST_STRIDE if reach is None else reach
        return max(beyond, 2 * low.number) if steps > PATIENCE else beyond
    middle = (low.number + high.number) // 2
    if steps > PATIENCE:
        return middle  # no line: a staircase takes little longer than bisection
    if reach is not None and low.number <= reach < high.number:
        return reach if high.bytes is not None else min(reach, middle)  # a line that has misled once
    if high.bytes is None and not low.asked:  # a first guess is seldom far off
        return high.number - (max(high.number // BACK, 1) << (steps - 1))
    if low.bytes is None or high.bytes is None:
        return middle
    share = (limit_bytes - low.bytes) / (high.bytes - low.bytes)
    return low.number + int(share * (high.number - low.number))


def divisors_of(whole: int) -> list[int]:
    """The divisors of a number, the smallest first."""
    small = [number for number in range(1, isqrt(whole) + 1) if whole % number == 0]
    return sorted({*small, *(whole // number for number in small)})


def largest_dividing(used: Callable[[int], int], limit_bytes: int, whole: int, first: int) -> int:
    """The largest divisor of ``whole`` whose ``used`` bytes, which never fall, stay within the limit; 0 where none.

    Args:
        first: the divisor to ask about first, one whose answer is likely known: then its neighbour, then by halves.
    """
    divisors = divisors_of(whole)
    low, high, at = 0, len(divisors), divisors.index(first)  # so many fit; from `high` on none does
    asked = 0
    while low < high:
        fits, asked = used(divisors[at]) <= limit_bytes, asked + 1
        if fits:
            low = at + 1
        else:
            high = at
        at = at + (1 if fits else -1) if asked == 1 else (low + high) // 2
    return divisors[low - 1] if low else 0


def _only(setup: TrainingSetup, field: str) -> TrainingSetup:
    """The setup with other phases off, so that they cost no time; training stays on where it holds memory."""
    if field == "per_device_train_batch_size":
        return setup.training_alone
    if field == "inference_batch_size":
        return setup._replace(do_train=False, do_eval=False, do_predict=True)
    return setup._replace(do_eval=True, do_predict=False)


def workers_that_fit(
    setup: TrainingSetup,
    architecture: Architecture,
    limit_bytes: int,
    *,
    constants: Mapping[str, float],
    most: int | None = None,
) -> int:
    """The most DataLoader workers whose host memory, at its upper end, stays within ``limit_bytes``.

    Args:
        most: never more than these; None sets no bound but the memory.
    """
    loads = loads_of(setup, architecture)

    def used(workers: int) -> int:
        changed = setup._replace(dataloader_num_workers=workers)
        return host_ledger(changed, loads, constants=constants, limit_bytes=None).peak_bytes

    return max(largest_within(used, limit_bytes, 0, MOST_WORKERS if most is None else most), 0)


def largest_share(
    setup: TrainingSetup,
    architecture: Architecture,
    limit_bytes: int,
    *,
    constants: Mapping[str, float],
    gpu: Gpu | None = None,
    gpu_memory_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
    rough: bool = False,
    own: Phase | None = None,
) -> int:
    """The largest training batch that stays within ``limit_bytes`` and divides what a process takes for one optimizer
    step; 0 where not even 1 does.

    Args:
        own: training with the setup's own batch, where that is predicted already.
    """
    where: dict[str, Any] = {"constants": constants, "gpu": gpu, "compute_capability": compute_capability}
    where["gpu_memory_bytes"] = gpu_memory_bytes
    first = setup.per_device_train_batch_size
    whole = first * setup.gradient_accumulation_steps
    capability = compute_capability or (gpu.compute_capability if gpu else None)
    followed = not rough and is_followed(setup, architecture, capability)
    if not followed or _is_beside_vllm(setup) or _pairs_samples(setup):
        used = use_by_batch(setup, architecture, "per_device_train_batch_size", **where, rough=rough)
        known_use = own.high_bytes if own is not None and followed else None
        return largest_dividing(
            lambda batch: known_use if batch == first and known_use is not None else used(batch),
            limit_bytes,
            whole,
            first,
        )
    training = setup.training_alone
    known = ByBatch(training, constants, context_of(constants, capability, gpu), limit_bytes)
    divisors = divisors_of(whole)
    low, high, at = 0, len(divisors), divisors.index(first)  # so many fit; from `high` on none does
    while low < high:
        batch = divisors[at]
        found = own if batch == first else None
        if found is None:
            asked = training._replace(per_device_train_batch_size=batch)
            found = predict(asked, architecture, **where).phase("train")
        assert found is not None
        known.phases[batch] = found
        low, high = (at + 1, high) if found.high_bytes <= limit_bytes else (low, at)
        while low < high and known.surely_over(divisors[high - 1]):
            high -= 1
        while low < high and known.surely_fits(divisors[low]):
            low += 1
        at = max((each for each in range(low, high) if known.likely_fits(divisors[each])), default=low)
    return divisors[low - 1] if low else 0


class ByBatch:
    """What a few predictions of training, ``phases`` by their batch, say of any other batch.

    At each moment the bytes lie on a line through the batch. So no batch takes less than the moment of another's peak
    would, by what grows there, and a larger one no more than if all but the weights had grown.
    """

    def __init__(
        self, setup: TrainingSetup, constants: Mapping[str, float], context: Context, limit_bytes: int
    ) -> None:
        self.phases: dict[int, Phase] = {}
        self._limit, self._constants, self._context = limit_bytes, constants, context
        self._holes = {"checkpointing": setup.gradient_checkpointing, "eager": setup.attn_implementation == "eager"}
        tiled = setup.fused_loss or setup.post is not None  # the head, whose bytes need not grow
        self._surely_grows = ACTIVATIONS if tiled else (*ACTIVATIONS, "activations_head")

    def surely_over(self, batch: int) -> bool:
        """Whether the tensors of a moment alone are too much."""
        room = self._limit - self._context.high
        for of, phase in self.phases.items():
            may_grow = tuple({term.name for term in phase.terms} - {*STATES})
            least = _at(phase, self._surely_grows if batch > of else may_grow, batch / of)
            if least * (1 - UNEVEN) > room:
                return True
        return False

    def surely_fits(self, batch: int) -> bool:
        """Whether a rough answer's band about the most that there can be is within the limit."""
        for of, phase in self.phases.items():
            weights = sum(term.bytes for term in phase.terms if term.name == "parameters")
            most = weights + round((phase.peak_allocated_bytes - weights) * batch / of)
            peak = Peak(phase.moment, (), most)
            if of <= batch and self._high(peak) <= self._limit:
                return True
        return False

    def _high(self, peak: Peak) -> int:
        return phase_of("train", peak, self._constants, self._context, **self._holes).high_bytes

    def likely_fits(self, batch: int) -> bool:
        """Whether it fits by the line of the nearest batch that is known."""
        of = min(self.phases, key=lambda known: max(known / batch, batch / known))
        return _at(self.phases[of], GROWING, batch / of) * (1 + UNEVEN) + self._context.high <= self._limit


def _at(phase: Phase, growing: tuple[str, ...], times: float) -> float:
    """Bytes at the moment of a phase's peak with a batch so many times as large."""
    grown = sum(term.bytes for term in phase.terms if term.name.startswith(growing))
    return phase.peak_allocated_bytes + grown * (times - 1)
