"""A trial that is a command of the user: its words, and how a batch is put into them."""

import os
import re
import shlex
import shutil
from collections.abc import Sequence

from kb.commands.probe.built_in import Place
from kb.commands.probe.request import ProbeRequest
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.torch_runs.probe.trial import Limits, Trial

# What scripts call it, the Trainer's own name first; as a flag, or as a setting of Hydra's kind.
BATCH_NAMES = ("per_device_train_batch_size", "train_batch_size", "batch_size", "micro_batch_size", "batch")
WORKER_NAMES = ("dataloader_num_workers", "num_workers", "workers")
# What HfArgumentParser takes; only a script that names its batch so is sure to take these as well.
TRAINERS_OWN = "per_device_train_batch_size"
FEW_STEPS = ("--max_steps", "{steps}", "--save_strategy", "no")
WORKERS_FLAG = ("--dataloader_num_workers", "{workers}")
AUTO_FIND = "auto_find_batch_size"
STEPS = 10


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


class OwnCommand(NamedTuple):
    """A command to be tried. ``batch`` is the one it has, None where it names none.

    ``varied`` is what a trial changes, ``batch`` or ``workers``; ``template`` the words that set it.
    """

    request: ProbeRequest
    place: Place
    words: tuple[str, ...]
    varied: str
    template: tuple[str, ...]
    batch: int | None

    def trial(self, number: int) -> Trial:
        """One trial with ``number`` put in."""
        request, place = self.request, self.place
        words = with_flags(self.words, self.template, self.varied, number) if self.template else self.words
        setup = {"per_device_train_batch_size" if self.varied == "batch" else "dataloader_num_workers": number}
        return Trial(
            kind=request.kind,  # type: ignore[arg-type]
            backend=place.backend,  # type: ignore[arg-type]
            setup=setup,
            model=None,
            phases=("train",),
            command=words,
            device=place.device,
            limits=Limits(request.seconds, request.host_bytes),
        )


def own_command(request: ProbeRequest, place: Place) -> OwnCommand:
    """Prepare the command.

    Raises:
        UserError: it cannot be started, looks for a batch itself, or nothing says where to put the batch.
    """
    words = request.command
    check_startable(words[0])
    if finds_its_own(words):
        raise UserError("probe.finds_its_own")
    workers = request.kind == "host"
    names, varied = (WORKER_NAMES, "workers") if workers else (BATCH_NAMES, "batch")
    found = template_in(words, names)
    trainer = template_in(words, (TRAINERS_OWN,)) is not None
    given = request.workers_flag if workers else request.batch_flag
    template = _template(words, given, varied, found, WORKERS_FLAG if workers and trainer else ())
    batch = _number(template_in(words, BATCH_NAMES))
    if not template and not holds(words, varied) and not (request.kind == "smoke" and request.run.batch is None):
        key = "probe.no_workers_flag" if workers else "probe.no_batch_flag"
        raise UserError(key, command=shlex.join(words)[:300], place=f"{{{varied}}}")
    few: tuple[str, ...] = FEW_STEPS if trainer else ()
    if request.steps_flag is not None:
        few = tuple(_split("--steps-flag", request.steps_flag))
    words = with_flags(words, few, "steps", request.steps or STEPS) if few else words
    return OwnCommand(request, place, words, varied, template or (f"{{{varied}}}",) * holds(words, varied), batch)


def _template(
    words: tuple[str, ...],
    given: str | None,
    varied: str,
    found: tuple[str, tuple[str, ...]] | None,
    otherwise: tuple[str, ...],
) -> tuple[str, ...]:
    if given is not None:
        template = tuple(_split(f"--{varied}-flag", given))
        if not holds(template, varied):
            raise UserError("probe.template_without_place", option=f"--{varied}-flag", place=f"{{{varied}}}")
        return template
    return found[1] if found is not None else otherwise


def _split(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError("probe.bad_template", option=option, value=text[:100], reason=str(error)) from None


def _number(found: tuple[str, tuple[str, ...]] | None) -> int | None:
    return int(found[0]) if found is not None and found[0].isdecimal() and int(found[0]) > 0 else None


def check_startable(program: str) -> None:
    """Raises UserError: there is no such program, or it cannot be run."""
    if shutil.which(program) is None:
        key = "probe.not_executable" if os.path.exists(program) else "probe.no_such_program"
        raise UserError(key, program=program[:200])
