"""The memory model's answer: a ledger of terms in bytes for each phase, and a verdict. Every level makes one."""

from kb.core.record import NamedTuple
from kb.core.setup import Assumption
from kb.core.typed import Literal, get_args
from kb.core.units import GIB, tenths

Level = Literal["rough", "engine", "simulated", "measured"]
Status = Literal["fits", "tight", "likely_oom", "oom", "unknown"]
STATUSES: tuple[Status, ...] = ("fits", "tight", "likely_oom", "oom")  # the best first
OVER: tuple[Status, ...] = ("likely_oom", "oom")
PhaseName = Literal["load", "train", "evaluate", "generate", "save"]
Use = Literal["", "evaluation", "inference", "training", "vllm"]  # of generation: what for; empty of other phases
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)  # in the order in which they run
WORKING: tuple[PhaseName, ...] = ("train", "evaluate", "generate")  # those that a batch decides


class Term(NamedTuple):
    """One entry of a ledger; ``name`` is a key of i18n under ``term.``."""

    name: str
    bytes: int


class Phase(NamedTuple):
    """One phase's peak. The terms add up to ``peak_allocated_bytes``.

    Reserved is what PyTorch's allocator holds; used is reserved plus the CUDA context and libraries.
    ``low`` and ``high`` bound the process's use by the level's error band. Of generation ``use`` says what for, with
    which ``batch``: in evaluation, in inference, in training (answers of a reinforcement trainer), or by vLLM that a
    trainer keeps on the same GPU; where a run has several, that which needs most.
    """

    name: PhaseName
    terms: tuple[Term, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    process_used_bytes: int
    low_bytes: int
    high_bytes: int
    moment: str = ""  # where the peak lies: a key of i18n under `moment.`
    status: Status = "unknown"  # against the GPU that the report was made for
    use: Use = ""
    batch: int | None = None


def phase_status(phase: Phase, memory: int, usable: int) -> Status:
    """One phase against a card's memory, of which a process gets ``usable``, somewhat less than the driver reports.

    ``oom`` only where even the low end is over the whole; ``likely_oom`` where the expected value is over what a
    process gets, ``tight`` where only the high end is. Sizes count as reports show them, in tenths of a GiB, both ends
    rounded outward: no sentence says "at least 24.0 of 24.0".
    """
    room = tenths(usable)
    if phase.low_bytes * 10 // GIB > tenths(memory):
        return "oom"
    if tenths(phase.process_used_bytes) > room:
        return "likely_oom"
    return "tight" if -(-phase.high_bytes * 10 // GIB) > room else "fits"


class HostLedger(NamedTuple):
    """Host memory: ``measured`` adds up to ``low_bytes``, what was measured, without the dataset and CUDA's libraries;
    ``terms`` add up to ``peak_bytes``, the upper end, with what was published of these.

    ``claimed_low_bytes`` to ``claimed_high_bytes`` is the original guide's rule of thumb, which decides nothing.
    """

    terms: tuple[Term, ...]
    low_bytes: int
    peak_bytes: int
    limit_bytes: int | None
    measured: tuple[Term, ...] = ()
    claimed_low_bytes: int = 0
    claimed_high_bytes: int = 0

    @property
    def status(self) -> Status:
        """``oom`` where what was measured is over the limit, ``tight`` where only the upper end is: a larger limit
        never makes it worse.
        """
        if self.limit_bytes is None:
            return "unknown"
        if self.low_bytes > self.limit_bytes:
            return "oom"
        return "tight" if self.peak_bytes > self.limit_bytes else "fits"


class Verdict(NamedTuple):
    """``oom``: even the low end is over the limit. ``likely_oom``: the expected value is over what a process gets.
    ``tight``: only the high end is. ``phase`` and ``term`` decide it.
    """

    status: Status
    phase: str | None = None
    term: str | None = None


# Reasons of assumptions that may only raise a figure: what the run cannot do without is not known then.
WITHOUT_LOW_END = frozenset((
    "adapters_as_usual", "bucket_of_gradients", "checkpoints_on_gpu", "compiled_as_eager", "fsdp2_as_fsdp1",
    "optimizer_as_adamw", "packed_whole", "unsloth_layers", "whole_logits",
))  # fmt: skip


class TakenByLengths(NamedTuple):
    """Training with batches padded to their longest sample, of lengths as the data has them: bytes of the allocator.

    ``needed`` are the tensors of the longest batch, what the run cannot do without. ``fixed`` is what the allocator
    holds where every batch is that long; ``varied`` with the data's lengths, which it gives back before a run fails;
    ``expandable`` so too, with expandable segments.
    """

    needed: int
    fixed: int
    varied: int
    expandable: int


class MemoryReport(NamedTuple):
    level: Level
    assumed: tuple[Assumption, ...]
    phases: tuple[Phase, ...]
    host: HostLedger
    verdict: Verdict
    lengths: TakenByLengths | None = None  # where the project says how long its data is

    @property
    def has_low_end(self) -> bool:
        """Whether the low ends of its phases are what the run takes at least."""
        return not any(each.reason in WITHOUT_LOW_END for each in self.assumed)

    def phase(self, name: str) -> Phase | None:
        return next((phase for phase in self.phases if phase.name == name), None)
