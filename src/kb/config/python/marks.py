"""A cheap look at bytes: whether a Python file or a notebook may describe a run at all."""

import re

# The calls that describe one: `layout: python` in rules/dialects. Where none is named the file is not parsed.
_MARKS = re.compile(
    rb"(?:TrainingArguments|SFTConfig|DPOConfig|GRPOConfig|RewardConfig|KTOConfig|ORPOConfig|CPOConfig|PPOConfig"
    rb"|RLOOConfig|GKDConfig|XPOConfig|NashMDConfig|BCOConfig|PRMConfig|DictDefault|LoraConfig|BitsAndBytesConfig"
    rb"|Fast\w*Model\.from_pretrained)[ \t]*\("
)
_LAUNCH = re.compile(rb"(?:accelerate launch|torchrun|deepspeed|python3?)[^\n]{0,400}--\w")


def bears_marks(raw: bytes) -> bool:
    """Whether the bytes name a call that describes a run."""
    return _MARKS.search(raw) is not None


def starts_runs(raw: bytes) -> bool:
    """Whether the bytes of a notebook hold a command line that starts a Python run with flags."""
    return _LAUNCH.search(raw) is not None


def names_of_calls(raw: bytes) -> tuple[str, ...]:
    """The names of those calls, each once."""
    found = (match[0].rstrip(b" \t(").decode("ascii", "replace") for match in _MARKS.finditer(raw))
    return tuple(dict.fromkeys(found))
