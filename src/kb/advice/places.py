"""Where a fact stands in a file, and what a comment beside it claims."""

import re
from collections.abc import Mapping
from functools import cache

from kb.core.document import Unit, speaks_of_several_gpus
from kb.core.facts import FactType
from kb.core.finding import Span


@cache  # compiled when a comment is first met: it takes a millisecond
def _said() -> re.Pattern[str]:
    """``유효 배치 48 유지``, ``효과적 배치 크기 = 4``, ``effective batch size: 32``."""
    name = r"(?:유효|효과적|실효|실질|effective)\s*(?:배치|batch)(?:\s*(?:크기|사이즈|size))?"
    # a size, a share or a product is another number than the batch
    number = r"(\d{1,6})(?!\s*(?:\([^)]*\)|[\d.]*)\s*(?:gb|gib|%|×|x|\*))"
    return re.compile(rf"{name}\s*(?:는|은|를|을)?\s*[=:≈]?\s*{number}", re.IGNORECASE)


def said_effective_batch(unit: Unit) -> int | None:
    """The effective batch size that a comment beside the batch settings claims; not of one that speaks of 4 nodes."""
    for name in ("training.gradient_accumulation_steps", "training.per_device_train_batch_size"):
        setting = unit.settings.get(name)
        match = setting and setting.comment and not setting.inherited and _said().search(setting.comment)
        if match and setting:
            return None if speaks_of_several_gpus(setting.comment) else int(match[1])
    return None


def locate(unit: Unit, facts: Mapping[str, FactType], name: str) -> Span | None:
    """Where the setting behind a fact stands: its own place, or the first place of its ``at``."""
    setting = unit.settings.get(name)
    if setting is not None:
        return setting.span
    if name in unit.nulls:
        return unit.nulls[name]
    fact = facts.get(name)
    for other in fact.at if fact else ():
        if other in unit.settings:
            return unit.settings[other].span
    return None
