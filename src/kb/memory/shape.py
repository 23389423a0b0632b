"""What the closed forms of one pass need: lengths, byte widths and switches, from a setup and an architecture."""

from dataclasses import dataclass

from kb.core.model import Architecture
from kb.core.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One forward pass. ``weight_bytes`` is the width of weights and of the residual stream, ``compute_bytes`` that of
    what matrix products save: 2 under autocast and for half weights, else 4."""

    arch: Architecture
    batch: int
    source: int  # tokens
    target: int
    autocast: bool
    weight_bytes: int
    eager: bool
    padded: bool

    @property
    def compute_bytes(self) -> int:
        return 2 if self.autocast else self.weight_bytes

    @property
    def source_tokens(self) -> int:
        return self.batch * self.source

    @property
    def target_tokens(self) -> int:
        return self.batch * self.target

    @property
    def inner(self) -> int:
        return self.arch.num_heads * self.arch.d_kv


def shape_of(setup: TrainingSetup, arch: Architecture, *, batch: int, source: int, target: int) -> Shape:
    return Shape(
        arch=arch,
        batch=max(batch, 1),
        source=max(source, 1),
        target=max(target, 1),
        autocast=setup.autocast,
        weight_bytes=4 if setup.weights == "fp32" else 2,
        eager=setup.attn_implementation == "eager",
        padded=setup.padded and setup.attn_implementation != "flash",
    )
