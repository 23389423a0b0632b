"""The lengths that are taken where neither a config nor an option says one. Pure."""

from collections.abc import Mapping
from typing import Literal

from kb.core.model import Architecture, Model

PADDING_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}

LengthReason = Literal["longest_of_model", "usual_length"]


def assumed_source_length(model: Model | None, constants: Mapping[str, float]) -> tuple[int, LengthReason]:
    """Input tokens, and why so many: a model's longest input, to which tokenizers cut.

    Of decoder-only models no more than the usual length: their positions reach far beyond what a run is packed to
    (131,072 tokens of Llama 3.1, where TRL cuts to 1,024).
    """
    usual = int(constants["assumed_source_length"])
    longest = (model and (model.max_length or longest_input(model))) or None
    if model is None or longest is None or (model.architecture.family == "decoder" and longest > usual):
        return usual, "usual_length"
    return longest, "longest_of_model"


def longest_input(model: Model) -> int | None:
    """Tokens for which learned positions exist; None where positions are computed.

    RoBERTa and its kin keep the first two of their positions for padding: 514 are for 512 tokens.
    """
    positions, kept = model.architecture.max_positions, PADDING_POSITIONS.get(model.architecture.model_type, 0)
    return positions - kept if positions is not None and positions > kept else positions


def reads_target(architecture: Architecture | None) -> bool:
    """Whether targets are a row of tokens of their own: models of one stack have input and target in one row."""
    return architecture is None or architecture.family in ("t5", "bart")
