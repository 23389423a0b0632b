"""A config as read: settings by canonical name with their places and comments, and what the reader stumbled on."""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from kb.core.expression import is_unknown
from kb.core.facts import FactType
from kb.core.finding import Edit, Fix, Span
from kb.core.record import NamedTuple
from kb.core.typed import Any, Literal

NO_SUCH_RUN = "kb has no memory model of such a run"  # why a setting is unknown that the file gives plainly
KIND_OPEN = "of what kind the adapter is, is not known"  # what a group says of its adapters is not understood
AT_RUN = "known only when the command runs"
SEVERAL_WAYS = "started in several ways"  # why one is unknown that the project's scripts give, each another value
REWRITTEN = "its program gives it another value"
# Why a command's program is not modelled.
RUN_ELSEWHERE = ("run by another engine", "perhaps run by another engine", "loads no model")

# Why the number of processes is unknown: it is that of the machine's GPUs, or nothing says it.
EVERY_GPU, NOT_COUNTED = "one for each GPU of the machine", "nothing says how many"

_OF_SEVERAL = ("gpu", "node", "노드", "100", "200", "launch", "torchrun", "nproc", "num_processes", "deepspeed", "srun")


@cache  # compiled when a comment is first met
def _several() -> tuple[re.Pattern[str], re.Pattern[str]]:
    number, card = r"(?:[2-9]|[1-9]\d{1,3})", r"(?:gpus?|nodes?|노드|[avhb][12]00s?|gh200|l40s?|[34]090)\b"
    # what follows the number may be how many there are of each: `2 nodes`, `8xA100`, `GPU 4개`, `x8 GPUs`
    counted = (
        rf"(?<![\w.]){number}\s*(?:[x×*]\s*)?(?:nvidia\s+)?{card}|(?:gpu|노드)\s*[x×*:=]?\s*{number}\s*(?:개|장|대)"
    )
    crossed = rf"[x×*]\s*{number}\s*{card}|{card}\s*[x×*]\s*{number}(?!\w)"
    started = (
        r"\btorchrun\b|\baccelerate\s+launch|\btorch\.distributed\.|\bsrun\s|\bdeepspeed\s+--?\w|\bFORCE_TORCHRUN="
    )
    one = r"(?:nproc_per_node|num_processes|num_gpus)[= ]1(?!\d)"
    return re.compile(f"{counted}|{crossed}|{started}", re.I), re.compile(one)


def speaks_of_several_gpus(comment: str) -> bool:
    """Whether a comment says that there are several GPUs or nodes, or how several processes are started."""
    lowered = comment.casefold()
    if not any(word in lowered for word in _OF_SEVERAL):
        return False
    several, one = _several()
    return several.search(comment) is not None and one.search(comment) is None


def speaks_of_one_gpu(comments: str) -> bool:
    """Whether comments say that a run has one GPU, and nothing of several: ``# Config for single device LoRA``."""
    lowered = comments.casefold().replace("-", " ").replace("_", " ")
    one = any(word in lowered for word in ("single device", "single gpu", "단일 gpu"))
    own = any(word in lowered for word in ("config", "recipe", "설정", "실행"))
    others = ("multi", "distributed", "nproc", "several", "gpus", "다중", "not", "n't", "instead", "without", "debug")
    return one and own and not any(word in lowered for word in others)


def names_one_gpu(path: str) -> bool:
    """Whether a file's name says that its run has one GPU: ``7B_lora_single_device.yaml``."""
    name = path.rpartition("/")[2].casefold().replace("-", "_")
    return "single_device" in name or "single_gpu" in name


Reader = Literal["library", "script", "record"]
"""Who reads a config: the library whose names it has, a program of the project's own, or nobody: what a run had."""


class Setting(NamedTuple):
    """One setting: its value, where the value and its key stand, and the key's path in the file.

    ``inherited`` is true where the value comes from another section of the same file. A value that only a run, or the
    program that fills in the file, can tell is :class:`kb.core.expression.Unknown`.
    """

    value: Any
    span: Span
    key_span: Span
    path: tuple[str | int, ...]
    comment: str = ""  # the comment on the same line, without '#'
    inherited: bool = False
    alias: bool = False  # the value is a YAML alias, ``*name``: what it says is written elsewhere
    joined: str = ""  # the file that says it, where that is another one, which this config names
    own_name: bool = False  # the key is one that programs of their own have, no name of the format's
    declared: bool = False  # the key is none of the class of arguments: a class of the project, or a trainer, has it
    by_default: bool = False  # a program's own default: a command line, a caller or the environment may say otherwise

    @property
    def bare(self) -> bool:
        """Whether this is a flag alone, ``--fp16``, without a value to show or to replace."""
        return self.span == self.key_span


class Event(NamedTuple):
    """Something in the text itself: a YAML trap, a duplicate key, mojibake. Rules name its kind with ``on:``."""

    kind: str
    span: Span
    values: Mapping[str, Any] = {}
    edits: tuple[Edit, ...] = ()
    related: tuple[tuple[str, Span], ...] = ()


KEY = "key."
"""What the name of a key begins with that is as the format itself writes it: ``key.sample_packing``."""


def nth_call(key: str, number: int) -> str:
    """The key of an argument, ``DPOTrainer.beta``, of a program's first or a later call."""
    return key if number == 1 else f"{key}@{number}"


class Unit(NamedTuple):
    """One thing to check: a file, a section of it, or one document of several.

    ``dialect`` is None where none was recognised; ``known_keys`` then says which keys looked familiar.
    """

    path: str
    section: str | None
    dialect: str | None
    settings: Mapping[str, Setting]
    span: Span
    events: tuple[Event, ...] = ()
    known_keys: tuple[str, ...] = ()
    nulls: Mapping[str, Span] = {}  # settings that the config names and gives no value
    left_open: tuple[str, ...] = ()  # settings that the config leaves to what runs it: ``auto``
    unknown_keys: tuple[str, ...] = ()  # keys in groups of settings that no setting has, by canonical group
    joined: tuple[str, ...] = ()  # settings that name a file whose settings are here too
    unread: tuple[str, ...] = ()  # settings that name a file which cannot be read
    package: tuple[str, ...] = ()  # where the file's content stands in the config that it is a part of
    part_of: str = ""  # the primary config that composes this file with others
    hidden: tuple[str, ...] = ()  # prefixes of settings that code may fill in which cannot be told: ``**arguments``
    maybe: tuple[str, ...] = ()  # of a command, those of the hidden that a branch of the script says: ``$MORE``
    reader: Reader = "library"
    script: str | None = None  # of a command: the file name of the program, empty where there is none
    program: str = ""  # of a command: the program that it starts, as it is written
    folder: str = ""  # of a command: that it is run in, from the one its script is started in; * where it is not known
    typical: bool = False  # where a program of its own reads it: its names are as those of a library's arguments
    launcher: str | None = None  # of a command: what starts the script (python, torchrun, accelerate, deepspeed)
    read_by: str = ""  # of a config that a program of the project reads in its own way: where that lies
    keys: Mapping[str, Setting] = {}  # everything that it says, by its path as the format itself writes it
    sets_up_nothing: bool = False  # of a program whose imports and calls of trainers alone are known

    def as_written(self, name: str) -> Any:
        """A setting's value as it stands in the config; None where it says none."""
        held = self.settings.get(name)
        return None if held is None else held.value

    def setting(self, name: str) -> Setting | None:
        """A setting by its canonical name, or a key of the format itself by ``key.`` and its path."""
        return self.keys.get(name[len(KEY) :]) if name.startswith(KEY) else self.settings.get(name)

    def bars(self, fix: Fix) -> bool:
        """Whether the fix would write over an alias or a value that something else fills in, or into another file: no
        fix does.
        """
        if self.read_by:  # its keys are the program's own
            return True
        known = [(edit.op, each) for edit in fix.edits if (each := self.setting(edit.name)) is not None]
        written = [each for op, each in known if op == "set"]
        if any(each.joined for _, each in known):
            return True
        return any((each.alias or is_unknown(each.value)) and not each.inherited for each in written)


# ``유효 배치 48 유지``, ``효과적 배치 크기 = 4``, ``effective batch size: 32``. Found by words: to compile a pattern
# with Korean letters takes a hundredth of a short check.
_EFFECTIVE = ("유효", "효과적", "실효", "실질", "effective")
_BATCHES, _SIZES = ("배치", "batch"), ("크기", "사이즈", "size")
_PARTICLES, _SIGNS = ("는", "은", "를", "을"), ("=", ":", "≈")
_DIGITS = "0123456789"
_OTHER_NUMBERS = ("gb", "gib", "%", "×", "x", "*")  # a size, a share or a product is another number than the batch


def _said(comment: str) -> int | None:
    """The first effective batch that a comment names."""
    text = comment.lower()
    ends = sorted(
        at + len(word) for word in _BATCHES for at in _places(word, text) if text[:at].rstrip().endswith(_EFFECTIVE)
    )
    for end in ends:
        rest = text[end:].lstrip()
        for words in (_SIZES, _PARTICLES, _SIGNS):
            rest = next((rest.removeprefix(word) for word in words if rest.startswith(word)), rest).lstrip()
        behind = rest.lstrip(_DIGITS)
        number = rest.removesuffix(behind)[:6]
        behind = behind.lstrip()
        aside = behind.partition(")")[2] if behind.startswith("(") else behind.lstrip(_DIGITS + ".")
        if number and not aside.lstrip().startswith(_OTHER_NUMBERS):
            return int(number)
    return None


def _places(word: str, text: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def said_effective_batch(unit: Unit) -> int | None:
    """The effective batch size that a comment beside the batch settings claims; not of one that speaks of 4 nodes."""
    for name in ("training.gradient_accumulation_steps", "training.per_device_train_batch_size"):
        setting = unit.settings.get(name)
        comment = setting.comment if setting and setting.comment and not setting.inherited else ""
        said = _said(comment)
        if said is not None:
            return None if speaks_of_several_gpus(comment) else said
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
