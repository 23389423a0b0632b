"""The options that commands share, each declared once, and the question that they make."""

import argparse
from collections.abc import Callable, Sequence

from kb.advice.question import ATTENTIONS, METHODS, PRECISIONS, TASKS, NamedMachine, Question, RunSettings
from kb.core.record import NamedTuple
from kb.core.text import LANGUAGES, UserError
from kb.core.typed import Any
from kb.core.units import read_size
from kb.session import cli

LARGEST_NUMBER = 1_000_000
MACHINE = ("gpu", "gpus", "host_memory", "cpus")


class Option(NamedTuple):
    """An option of the command line.

    ``name`` is the option without its dashes, where the field has another name. Without a ``unit`` and without
    ``choices`` it takes no value. ``whole``: its value is a whole number.
    """

    field: str
    unit: str | None = None
    name: str = ""
    choices: Sequence[Any] = ()
    whole: bool = False

    @property
    def flag(self) -> str:
        return f"--{(self.name or self.field).replace('_', '-')}"

    @property
    def word(self) -> str:
        """Its part of the name of its help text."""
        return (self.name or self.field).replace("-", "_")


_OPTIONS = {
    option.field: option
    for option in (
        Option("section", "NAME"),
        Option("dialect", "ID"),
        Option("model", "ID"),
        Option("model_config", "FILE"),
        Option("task", choices=TASKS),
        Option("method", choices=METHODS),
        Option("precision", choices=PRECISIONS),
        Option("optimizer", "NAME"),
        Option("batch", "N", whole=True),
        Option("source_length", "TOKENS", "seq-in", whole=True),
        Option("target_length", "TOKENS", "seq-out", whole=True),
        Option("accumulation", "N", whole=True),
        Option("gradient_checkpointing"),
        Option("reentrant"),
        Option("attention", choices=tuple(ATTENTIONS)),
        Option("lora_rank", "N", whole=True),
        Option("lora_targets", "A,B"),
        Option("double_quant"),
        Option("eval_batch", "N", whole=True),
        Option("beams", "N", whole=True),
        Option("generation_length", "TOKENS", "gen-length", whole=True),
        Option("effective_batch", "N", whole=True),
        Option("gpu", "ID"),
        Option("gpus", "N", whole=True),
        Option("zero_stage", "0…3", "zero", choices=range(4), whole=True),
        Option("fsdp"),
        Option("host_memory", "SIZE"),
        Option("cpus", "N"),
        Option("lang", choices=LANGUAGES),
        Option("color", choices=("auto", "always", "never")),
        Option("rules", "DIR"),
        Option("skip_broken_overlays"),
    )
}
# What a training run is described by without a config, in the order of the help.
RUN = tuple(name for name in RunSettings._fields if name not in ("model", "task", "zero_stage", "fsdp"))
_FIELDS = frozenset((*Question._fields, *RunSettings._fields, *NamedMachine._fields))


def flag_of(field: str) -> str:
    """The option that gives a field of the question; of an option that commands do not share, its own name."""
    return _OPTIONS[field].flag if field in _OPTIONS else f"--{field.replace('_', '-')}"


def size_of(options: argparse.Namespace, field: str) -> int | None:
    """The bytes that an option says; None where it is not given. Raises UserError: it is no size."""
    value = getattr(options, field)
    return None if value is None else read_size(flag_of(field), value)


class Options:
    """A command's parser while it is made. A text of the command's own comes before the one that commands share."""

    def __init__(self, words: cli.Words, command: str, **places: str) -> None:
        self.words, self.command, self._places = words, command, places
        self.parser = cli.Parser(
            words=words,
            prog=f"kb {command}",
            description=self.say("about"),
            epilog=self.say("examples") if f"cli.{command}.examples" in words else None,
        )

    def say(self, key: str) -> str:
        """The help text of an option, or the title of a group."""
        own = f"cli.{self.command}.{key}"
        return cli.said(self.words, own if own in self.words else f"cli.option.{key}", **self._places)

    def group(self, name: str) -> Any:
        return self.parser.add_argument_group(self.say(f"group_{name}"))

    def add(self, group: Any, *fields: str, **changed: Any) -> None:
        """Shared options, in this order; ``changed`` are arguments of argparse that differ for this command."""
        for field in fields:
            option = _OPTIONS[field]
            settings: dict[str, Any] = {"dest": field, "help": self.say(option.word)}
            if option.unit is None and not option.choices:
                settings["action"] = "store_true"
            if option.choices:
                settings["choices"] = option.choices
            if option.unit is not None:
                settings["metavar"] = option.unit
            if option.whole:
                settings["type"] = cli.number(self.words)
            group.add_argument(option.flag, **settings | changed)

    def output(self, group: Any = None, *, color: bool = True, rules: bool = True) -> None:
        """How the result is shown: the format (text where nobody says), language, colour and the rules' folder."""
        group = self.group("output") if group is None else group
        group.add_argument("--format", choices=("text", "json"), default="text", help=self.say("format"))
        self.add(group, "lang")
        if color:
            self.add(group, "color", default="auto")
        if rules:
            self.add(group, "rules", "skip_broken_overlays")


def question_of(options: argparse.Namespace, optimizer: Callable[[str | None], str | None] | None = None) -> Question:
    """What parsed shared options ask.

    Args:
        optimizer: gives an optimizer's name as the Trainer has it; for commands that have that option.

    Raises:
        UserError: a number under 1 or absurdly large, or an optimizer that does not exist.
    """
    given = {name: value for name, value in vars(options).items() if name in _FIELDS}
    values = {name: value for name, value in given.items() if value is not None and value is not False}
    check_numbers(
        {
            option.flag: values.get(name)
            for name, option in _OPTIONS.items()
            if option.whole and not option.choices and name != "gpus"  # the machine says of its own what is wrong
        }
    )
    if optimizer is not None:
        values["optimizer"] = optimizer(values.get("optimizer"))
    if targets := values.pop("lora_targets", None):
        values["lora_targets"] = tuple(name.strip() for name in targets.split(",") if name.strip()) or None
    return Question.of(**values)


def check_numbers(values: dict[str, Any]) -> None:
    """Raises: UserError: an option's number is under 1 or absurdly large."""
    for option, value in values.items():
        if value is not None and not 1 <= value <= LARGEST_NUMBER:
            raise UserError("recommend.bad_number", option=option, value=str(value), most=LARGEST_NUMBER)
