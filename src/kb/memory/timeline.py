"""A run over time, as one draws it: what is allocated, role by role, what the allocator holds, and who holds most."""

from collections.abc import Iterable, Iterator, Sequence

from kb.core.record import NamedTuple

ROLES = ("weights", "optimizer", "gradients", "activations", "logits", "workspace")
_ROLE_OF = {
    "parameters": "weights", "adapters": "weights", "quantization": "weights", "reference_model": "weights",
    "autocast_copies": "weights", "gathered_parameters": "weights", "optimizer": "optimizer", "gradients": "gradients",
    "gradients_held": "gradients", "buckets": "gradients", "inputs": "activations",
    "activations_encoder": "activations", "activations_decoder": "activations",
    "encoder_output": "activations", "kv_cache_self": "activations",
    "kv_cache_cross": "activations", "activations_head": "logits", "loss": "logits", "logits": "logits",
    "gathered": "logits",
}  # fmt: skip


def role_of(term: str) -> int:
    """The number in :data:`ROLES` of a ledger's term; what is no tensor of the model's is workspace."""
    return ROLES.index(_ROLE_OF.get(term, "workspace"))


class Point(NamedTuple):
    """After event ``event`` of the run; bytes. ``roles`` are those of :data:`ROLES`: together what is allocated."""

    event: int
    allocated_bytes: int
    reserved_bytes: int
    roles: tuple[int, ...]


class Span(NamedTuple):
    """Events ``start`` to ``end`` (without it) of one phase."""

    phase: str
    start: int
    end: int


class Timeline(NamedTuple):
    """A run thinned out for drawing: every peak is still there. There is no clock: events are the axis."""

    points: tuple[Point, ...]
    spans: tuple[Span, ...]
    events: int


class TopTensor(NamedTuple):
    """Tensors of one kind that are alive at a peak.

    ``number`` tensors of ``size_bytes`` each, made by ``op`` in ``module`` during ``phase``; ``term`` is the ledger's
    entry that they count for. Layers of one kind are one entry: their numbers are ``*`` in ``module``.
    """

    size_bytes: int
    number: int
    term: str
    module: str
    op: str
    phase: str


class Moment(NamedTuple):
    """After event ``event``: what is allocated, and the largest kinds of tensor that are alive."""

    event: int
    allocated_bytes: int
    alive: tuple[TopTensor, ...]


def moments_of(points: Sequence[Point], most: int) -> tuple[int, ...]:
    """At most about ``most`` events to look at: the highest of every stretch of a run, given all its points."""
    stretch = max(1, -(-len(points) // most)) if most else 1
    starts = range(0, len(points), stretch) if most else ()
    return tuple(max(points[at : at + stretch], key=lambda point: point.allocated_bytes).event for at in starts)


def thinned(points: Iterable[Point], events: int, most: int = 1500) -> tuple[Point, ...]:
    """At most about ``most`` of ``events`` points: the highest and the last of every stretch."""
    stretch = max(1, -(-2 * events // most))
    kept: list[Point] = []
    highest = last = Point(0, 0, 0, ())
    for point in points:
        if point.event % stretch == 0 and point.event:
            kept += [highest, last] if highest.event < last.event else [last]
            highest = point
        elif point.allocated_bytes >= highest.allocated_bytes:
            highest = point
        last = point
    if events:
        kept += [highest, last] if highest.event < last.event else [last]
    return tuple(kept)


def spans_of(phases: Sequence[str]) -> Iterator[Span]:
    """The stays of a run in its phases, given the phase of every event."""
    start = 0
    for number in range(1, len(phases) + 1):
        if number == len(phases) or phases[number] != phases[start]:
            yield Span(phases[start], start, number)
            start = number


def top_tensors(alive: Iterable[TopTensor], most: int = 12) -> tuple[TopTensor, ...]:
    """The kinds of tensor that take most memory together, largest first; of tensors alive, each given as one."""
    found: dict[TopTensor, int] = {}
    for tensor in alive:
        kind = tensor._replace(module=".".join("*" if part.isdigit() else part for part in tensor.module.split(".")))
        found[kind] = found.get(kind, 0) + 1
    ordered = sorted(found.items(), key=lambda item: (-item[0].size_bytes * item[1], item[0]))
    return tuple(kind._replace(number=number) for kind, number in ordered[:most])
