"""What the closed forms of one pass need: lengths, byte widths and switches, from a setup and an architecture."""

from kb.core.model import Architecture
from kb.core.record import NamedTuple
from kb.core.setup import TrainingSetup


class Shape(NamedTuple):
    """One forward pass.

    ``weight_bytes`` is the width of weights and of the residual stream; ``frozen`` says that only adapters train, and
    ``quantized`` that the blocks' linear layers are 4-bit, computing in half and returning to the stream's width.
    """

    arch: Architecture
    batch: int
    source: int  # tokens
    target: int
    autocast: bool
    weight_bytes: int
    eager: bool
    padded: bool
    frozen: bool
    quantized: bool
    smoothing: bool
    loaded_half: bool  # buffers keep the type that the weights were loaded in
    lora_head: bool = False
    lora_cross: bool = False  # adapters wrap the keys or values of cross attention
    dora: bool = False
    lora_dropout: bool = False  # adapters drop out their inputs
    fp16: bool = False  # the softmax widens fp16 scores itself; those in bf16 are copied first
    flash_kernel: bool = True  # scaled_dot_product_attention has its flash kernel: from compute capability 8.0 on

    @property
    def compute_bytes(self) -> int:
        """Width of what matrix products save: half under autocast and for half weights."""
        return 2 if self.autocast else self.weight_bytes

    @property
    def copied(self) -> bool:
        """Whether autocast makes half copies of fp32 weights."""
        return self.autocast and self.weight_bytes == 4

    @property
    def source_tokens(self) -> int:
        return self.batch * self.source

    @property
    def target_tokens(self) -> int:
        return self.batch * self.target

    @property
    def inner(self) -> int:
        return self.arch.num_heads * self.arch.d_kv


def shape_of(
    setup: TrainingSetup,
    arch: Architecture,
    *,
    batch: int,
    source: int,
    target: int,
    lora_head: bool = False,
    lora_cross: bool = False,
    flash_kernel: bool = True,
) -> Shape:
    quantized = setup.load_in_4bit or setup.load_in_8bit or setup.method == "qlora"
    prepared = setup.prepare_for_kbit and not setup.half_tables and setup.method != "full"
    wide = setup.weights == "fp32" or (quantized and prepared)
    return Shape(
        arch=arch,
        batch=max(batch, 1),
        source=max(source, 1),
        target=max(target, 1),
        autocast=setup.autocast,
        weight_bytes=4 if wide else 2,
        # transformers has no scaled_dot_product_attention for capped scores
        eager=setup.attn_implementation == "eager" or (arch.score_cap and setup.attn_implementation == "sdpa"),
        padded=setup.padded and setup.attn_implementation != "flash",
        frozen=setup.method != "full",
        quantized=quantized,
        smoothing=setup.label_smoothing_factor > 0,
        loaded_half=setup.weights != "fp32",
        lora_head=lora_head,
        lora_cross=lora_cross,
        dora=setup.use_dora and setup.method != "full",
        lora_dropout=setup.lora_dropout > 0,
        fp16=setup.fp16,
        flash_kernel=flash_kernel,
    )
