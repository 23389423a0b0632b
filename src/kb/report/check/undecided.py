"""What a check took for granted, and what it could not decide: compact lines that say what would settle it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from kb.core.finding import NotEvaluated
from kb.core.setup import Assumption
from kb.report.check.changes import as_written
from kb.report.style import Style
from kb.report.width import joined, unbroken, wrap
from kb.report.words import Words

# What a missing fact stands for, by the first prefix that matches; each is a key of i18n under `need.`.
_NEEDS = (
    ("versions.transformers", "transformers"),
    ("versions.", "versions"),
    ("model.checkpoint_dtype", "facts"),
    ("training.deepspeed", "file"),
    ("deepspeed.config_file", "file"),
    ("training.fsdp_config", "file"),
    ("training.accelerator_config", "file"),
    ("launch.", "facts"),
    ("gpu.memory_free", "gpu_now"),
    ("gpu.other_processes", "gpu_now"),
    ("gpu.", "gpu"),
    ("host.shm", "shm"),
    ("host.cpus", "cpus"),
    ("host.", "host_memory"),
    ("model.", "model"),
    ("lora.unmatched", "model"),
    ("lora.matched", "model"),
    ("lora.known", "model"),
    ("memory.", "prediction"),
    ("fit.", "prediction"),
    ("saving.", "prediction"),
    ("data.max_", "settings"),
    ("data.", "facts"),
    ("tokenizer.", "facts"),
    ("script.", "facts"),
    ("checkpoint.", "facts"),
    ("installed.", "facts"),
    ("environment.", "facts"),
)
_ORDER = (
    "transformers",
    "versions",
    "gpu",
    "gpu_now",
    "host_memory",
    "cpus",
    "shm",
    "model",
    "prediction",
    "file",
    "facts",
    "settings",
)
MAX_ASSUMED_LINES = 2
_SAYS_ALL = ("full_length",)  # reasons that need no name and value beside them


def need_of(fact: str) -> str:
    """What must be known for ``fact`` to be: ``gpu``, ``model``, …; ``settings`` is what the config does not say."""
    return next((need for prefix, need in _NEEDS if fact.startswith(prefix)), "settings")


def not_evaluated_line(count: int, words: Words, style: Style) -> list[str]:
    """How many rules wait for something, on one line."""
    if not count:
        return []
    text = words.count("report.undecided", count)
    return [style.paint(line, "dim") for line in wrap(text, style.width, "  ", "    ")]


def not_evaluated_lines(undecided: Sequence[NotEvaluated], words: Words, style: Style) -> list[str]:
    """How many rules wait, and for what; a rule that needs two things counts for both."""
    if not undecided:
        return []
    waiting = Counter(need for rule in undecided for need in {need_of(fact) for fact in rule.needs})
    parts = [
        words("report.need_count", need=words(f"need.{need}"), n=waiting[need]) for need in _ORDER if waiting[need]
    ]
    text = f"{words.count('report.not_evaluated', len(undecided))} {joined(parts, style.dot)}"
    if waiting.total() > len(undecided):
        text += f" {unbroken(words('report.several_needs'))}"
    return [style.paint(line, "dim") for line in wrap(text, style.width, "  ", "    ")]


def assumed_lines(
    assumed: Sequence[Assumption], words: Words, style: Style, most: int = MAX_ASSUMED_LINES
) -> list[str]:
    """The values taken for what the config does not say, by whose default they are; at most so many lines."""
    by_reason: dict[str, list[str]] = {}
    for assumption in assumed:
        value = f"{assumption.name.rpartition('.')[2]}={as_written(assumption.value)}"
        by_reason.setdefault(assumption.reason, []).append(unbroken(value))
    total = len(assumed)
    for kept in range(total, 0, -1):
        lines = wrap(_assumed_text(by_reason, kept, total, words, style), style.width, "  ", "    ")
        if len(lines) <= most:
            return [style.paint(line, "dim") for line in lines]
    return []


def _assumed_text(by_reason: Mapping[str, list[str]], kept: int, total: int, words: Words, style: Style) -> str:
    """The first ``kept`` values, grouped: ``optim=adamw_torch (library default)``; then how many are left out."""
    groups, left = [], kept
    for reason, values in by_reason.items():
        if shown := values[:left]:
            why = unbroken(words.named("assumption", reason))
            groups.append(why if reason in _SAYS_ALL else f"{', '.join(shown)} ({why})")
        left -= len(shown)
    if kept < total:
        groups.append(words("report.and_more", n=total - kept))
    return f"{words('report.assumed')} {style.dot.join(groups)}"
