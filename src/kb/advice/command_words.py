"""A user's command with another batch, worker count or number of steps in it. Pure; nothing is run here."""

import re
from collections.abc import Sequence

# What scripts call it, the Trainer's own name first; as a flag, or as a setting of Hydra's kind.
BATCH_NAMES = ("per_device_train_batch_size", "train_batch_size", "batch_size", "micro_batch_size", "batch")
WORKER_NAMES = ("dataloader_num_workers", "num_workers", "workers")
# What HfArgumentParser takes; only a script that names its batch so is sure to take these as well.
TRAINERS_OWN = "per_device_train_batch_size"
FEW_STEPS = ("--max_steps", "{steps}", "--save_strategy", "no")
WORKERS_FLAG = ("--dataloader_num_workers", "{workers}")
AUTO_FIND = "auto_find_batch_size"


def holds(words: Sequence[str], name: str) -> bool:
    """Whether a word has the placeholder ``{name}``."""
    return any(f"{{{name}}}" in word for word in words)


def template_in(words: Sequence[str], names: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The first of ``names`` that the command sets: its value, and the words that set it, ``{}`` for the value."""
    for name in names:
        spelt = re.compile(rf"(--?|[+~]*(?:[\w]+\.)*){name.replace('_', '[-_]')}(?:=(.*))?")
        for at, word in enumerate(words):
            match = spelt.fullmatch(word)
            if match is None:
                continue
            if match[2] is not None:
                return match[2], (f"{word.partition('=')[0]}={{}}",)
            if match[1].startswith("-") and at + 1 < len(words):
                return words[at + 1], (word, "{}")
    return None


def with_value(words: Sequence[str], template: Sequence[str], name: str, value: int) -> tuple[str, ...]:
    """The command with ``value`` put in: where its words have ``{name}``, else where the template's flag stands, else
    at its end.

    Args:
        template: words with ``{name}`` or ``{}``, such as ``("--batch", "{batch}")`` or ``("train.batch={batch}",)``.
    """
    if holds(words, name):
        return tuple(_filled(word, name, value) for word in words)
    filled = [_filled(word, name, value) for word in template]
    found = list(words)
    flag = filled[0].partition("=")[0]
    for at, word in enumerate(found):
        if word.partition("=")[0] == flag:
            end = at + (1 if "=" in word else len(filled))
            return (*found[:at], *filled, *found[end:])
    return (*found, *filled)


def with_flags(words: Sequence[str], template: Sequence[str], name: str, value: int) -> tuple[str, ...]:
    """As :func:`with_value` for a template of several flags, each put in by itself."""
    starts = [at for at, word in enumerate(template) if word.startswith("-") or "=" in word] or [0]
    found = tuple(words)
    for at, start in enumerate(starts):
        end = starts[at + 1] if at + 1 < len(starts) else len(template)
        found = with_value(found, template[start:end], name, value)
    return found


def finds_its_own(words: Sequence[str]) -> bool:
    """Whether the run shrinks its batch by itself, so that a trial would not run the batch it is to try."""
    setting = template_in(words, (AUTO_FIND,))
    if setting is not None:
        return setting[0].casefold() not in ("false", "no", "0")
    return any(word.lstrip("-").replace("-", "_") == AUTO_FIND for word in words)


def _filled(word: str, name: str, value: int) -> str:
    return word.replace(f"{{{name}}}", str(value)).replace("{}", str(value))
