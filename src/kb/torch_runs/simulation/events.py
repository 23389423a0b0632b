"""What the allocator's model did, event by event: the one record that timeline, ledger and snapshot are made from."""

from typing import Literal, NamedTuple

Action = Literal["alloc", "free", "segment_alloc", "segment_free"]


class Event(NamedTuple):
    """One act of the allocator. Sizes in bytes; addresses are the model's own.

    ``size`` is the block's, or the segment's, after rounding; ``requested`` what the tensor holds. ``op`` is the
    operator that made the tensor, ``module`` the path of the module whose forward ran, ``phase`` the tracer's.
    """

    action: Action
    address: int
    size: int
    op: str = ""
    module: str = ""
    phase: str = ""
    requested: int = 0
