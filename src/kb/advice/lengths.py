"""The lengths that are taken where neither a config nor an option says one. Pure."""

from collections.abc import Mapping
from typing import Literal

from kb.core.model import Architecture, Model

PADDING_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}

LengthReason = Literal["longest_of_model", "longest_of_tokenizer", "usual_length", "script_default"]
# Lengths that the example scripts of transformers have by default where their models allow more (4.57 to 5.23).
OF_SCRIPTS = {"run_glue": 128, "run_xnli": 128, "run_qa": 384, "run_qa_beam_search": 384}


def assumed_source_length(
    model: Model | None, constants: Mapping[str, float], tokenizer: int | None = None, script: str | None = None
) -> tuple[int, LengthReason]:
    """Input tokens, and why so many: what the tokenizer or the script cuts to, else a model's longest input.

    Args:
        tokenizer: the ``model_max_length`` that the run gives its tokenizer.
        script: the file name of the program.

    Of decoder-only models no more than the usual length: their positions reach far beyond what a run is packed to
    (131,072 tokens of Llama 3.1, where TRL cuts to 1,024).
    """
    usual = int(constants["assumed_source_length"])
    if tokenizer is not None:
        return tokenizer, "longest_of_tokenizer"
    default = OF_SCRIPTS.get((script or "").removesuffix(".py").removesuffix("_no_trainer"))
    if default is not None:
        return default, "script_default"
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
