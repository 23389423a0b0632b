"""Why a watched command ended: its exit code, a signal, the kernel's memory killer, or what its output says. Pure."""

from typing import Literal

from kb.advice.diagnosis import Cause, Diagnosis
from kb.core.record import NamedTuple

Kind = Literal["normal", "code", "signal", "oom_kill", "asked"]
KILLED = 9
SIGNAL_BASE = 128  # what a shell adds to the number of a signal


class ExitCause(NamedTuple):
    """``code`` is what a shell would give; ``signal`` its number, if one ended the command or a program that it ran."""

    kind: Kind
    code: int
    signal: int | None = None
    oom_kills: int = 0
    cause: Cause | None = None


def exit_cause(code: int, oom_kills: int, diagnosis: Diagnosis | None, asked: bool = False) -> ExitCause:
    """What ended the command.

    Args:
        code: as Python gives it: the exit code, or less than 0 for a signal.
        oom_kills: processes that the kernel killed in the run's control group while it ran.
        diagnosis: of the output; a cause counts only where the run did not end well.
        asked: the user sent the signal.
    """
    number = -code if code < 0 else code - SIGNAL_BASE if SIGNAL_BASE < code <= SIGNAL_BASE + 64 else None
    shown = SIGNAL_BASE + number if number is not None else code
    if code == 0:
        return ExitCause("normal", 0, oom_kills=oom_kills)
    known = [cause for cause in (diagnosis.causes if diagnosis else ()) if cause.confidence != "low"]
    cause = known[0] if known else None
    if asked:
        return ExitCause("asked", shown, number, oom_kills, cause)
    if number == KILLED and oom_kills:
        return ExitCause("oom_kill", shown, number, oom_kills, cause)
    return ExitCause("signal" if number is not None else "code", shown, number, oom_kills, cause)
