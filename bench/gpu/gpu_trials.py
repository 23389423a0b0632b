"""What bench/gpu runs: four families from a configuration, every way to train them, a dozen sizes each."""

from collections.abc import Iterator
from typing import Any, NamedTuple

MODELS: dict[str, dict[str, Any]] = {
    "t5-base": {
        "model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12,
        "num_heads": 12, "vocab_size": 32128, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
    "mt5-base": {
        "model_type": "mt5", "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 12,
        "num_heads": 12, "vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    },
    "kobart": {
        "model_type": "bart", "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072, "encoder_attention_heads": 16, "decoder_attention_heads": 16, "vocab_size": 30000,
        "max_position_embeddings": 2048,
    },
    "qwen2-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    },
}  # fmt: skip
# For the path without a GPU: the same code on a model that a CPU steps in a second.
TINY: dict[str, dict[str, Any]] = {
    "t5-tiny": {
        "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2,
        "num_heads": 4, "vocab_size": 128, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
    "qwen2-tiny": {
        "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": True,
        "max_position_embeddings": 256,
    },
}  # fmt: skip
LORA_TARGETS = {
    "t5": ["q", "v"],
    "mt5": ["q", "v"],
    "bart": ["q_proj", "v_proj"],
    "qwen2": ["q_proj", "k_proj", "v_proj", "o_proj"],
}
# batch, source tokens, target tokens
SIZES = (
    (1, 128, 32), (2, 256, 64), (4, 256, 64), (8, 256, 64), (4, 512, 128), (8, 512, 128), (16, 512, 128),
    (2, 1024, 128), (4, 1024, 200), (8, 1024, 200), (12, 1024, 200), (1, 2048, 256),
)  # fmt: skip
TINY_SIZES = ((1, 16, 8), (2, 16, 8))
PRECISIONS = ("fp32", "fp16", "bf16")
BEAMS = 4


class Trial(NamedTuple):
    """One process's work; the fields are those of a row in rules/measurements."""

    model: str
    task: str
    method: str
    precision: str
    gradient_checkpointing: bool
    batch: int
    source_length: int
    target_length: int
    beams: int = 1

    @property
    def id(self) -> str:
        return "/".join(str(value) for value in self)


def trials(*, tiny: bool = False) -> Iterator[Trial]:
    """Training in every method, precision and with and without checkpointing; evaluation and beam search by precision.

    T5 and mT5 overflow in fp16, which changes the numbers and not the memory: they run all the same. QLoRA computes in
    half, so it has no fp32. A decoder's target is part of its sequence.
    """
    sizes = TINY_SIZES if tiny else SIZES
    for model in TINY if tiny else MODELS:
        for size in sizes:
            for precision in PRECISIONS:
                for method in ("full", "lora", "qlora"):
                    if method == "qlora" and (precision == "fp32" or tiny):
                        continue
                    for checkpointing in (False, True):
                        yield Trial(model, "train", method, precision, checkpointing, *size)
                yield Trial(model, "evaluate", "full", precision, False, *size)
                yield Trial(model, "generate", "full", precision, False, *size, beams=BEAMS)
