"""Trials of the user's own command: its words with a batch, a worker count and few steps put in."""

import os
import shlex
import shutil
from typing import TYPE_CHECKING, NamedTuple

from kb.advice.command_words import (
    BATCH_NAMES,
    FEW_STEPS,
    TRAINERS_OWN,
    WORKER_NAMES,
    WORKERS_FLAG,
    finds_its_own,
    holds,
    template_in,
    with_flags,
)
from kb.commands.probe.asked import Asked
from kb.commands.probe.place import Place
from kb.core.errors import UserError

if TYPE_CHECKING:
    from kb.torch_runs.probe.trial import Trial

SMALLEST = 1
STEPS = 10


class OwnCommand(NamedTuple):
    """A command to be tried. ``batch`` is the one it has, None where it names none.

    ``varied`` is what a trial changes, ``batch`` or ``workers``; ``template`` the words that set it.
    """

    asked: Asked
    place: Place
    words: tuple[str, ...]
    varied: str
    template: tuple[str, ...]
    batch: int | None

    def trial(self, number: int) -> "Trial":
        """One trial with ``number`` put in."""
        from kb.torch_runs.probe.trial import Limits, Trial

        asked, place = self.asked, self.place
        words = with_flags(self.words, self.template, self.varied, number) if self.template else self.words
        setup = {"per_device_train_batch_size" if self.varied == "batch" else "dataloader_num_workers": number}
        return Trial(
            kind=asked.kind,  # type: ignore[arg-type]
            backend=place.backend,  # type: ignore[arg-type]
            setup=setup,
            model=None,
            phases=("train",),
            command=words,
            device=place.device,
            limits=Limits(asked.seconds, asked.host_bytes),
        )


def own_command(asked: Asked, place: Place) -> OwnCommand:
    """Prepare the command.

    Raises:
        UserError: it cannot be started, looks for a batch itself, or nothing says where to put the batch.
    """
    words = asked.command
    _check_startable(words[0])
    if finds_its_own(words):
        raise UserError("probe.finds_its_own")
    workers = asked.kind == "host"
    names, varied = (WORKER_NAMES, "workers") if workers else (BATCH_NAMES, "batch")
    found = template_in(words, names)
    trainer = template_in(words, (TRAINERS_OWN,)) is not None
    given = asked.workers_flag if workers else asked.batch_flag
    template = _template(words, given, varied, found, WORKERS_FLAG if workers and trainer else ())
    batch = _number(template_in(words, BATCH_NAMES))
    if not template and not holds(words, varied) and not (asked.kind == "smoke" and asked.flags.batch is None):
        key = "probe.no_workers_flag" if workers else "probe.no_batch_flag"
        raise UserError(key, command=shlex.join(words)[:300], place=f"{{{varied}}}")
    few: tuple[str, ...] = FEW_STEPS if trainer else ()
    if asked.steps_flag is not None:
        few = tuple(_split("--steps-flag", asked.steps_flag))
    words = with_flags(words, few, "steps", asked.steps or STEPS) if few else words
    return OwnCommand(asked, place, words, varied, template or (f"{{{varied}}}",) * holds(words, varied), batch)


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


def _check_startable(program: str) -> None:
    if shutil.which(program) is None:
        key = "probe.not_executable" if os.path.exists(program) else "probe.no_such_program"
        raise UserError(key, program=program[:200])
