"""A smoke run: the command that trains a few steps and saves nothing, and the batches to try it with. Pure.

The procedure is rules/runbooks/batch-test, its command stands in rules/runbooks/commands, its steps up in
rules/formulas/batch-ramp.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kb.advice.formulas import work_out

SMOKE_RUN = "smoke-train"


class Rung(NamedTuple):
    """One batch of the ramp: what is run, and the unrounded value that the next one grows from."""

    batch: int
    exact: float


def smoke_command(runbook: Mapping[str, Any], config: str | None = None, section: str | None = None) -> tuple[str, ...]:
    """The words of the smoke run; nothing is run here.

    Args:
        runbook: ``load_guide()["runbooks"]["commands"]``. Its corrected command is taken: the note's own still saves.
        config: a config file instead of the note's.
        section: a section of it instead of the note's.
    """
    row = next(row for row in runbook["commands"] if row["id"] == SMOKE_RUN)
    words: list[str] = row.get("instead", row["command"]).replace("\\\n", " ").split()
    for flag, value in (("--config", config), ("--config-section", section)):
        if value is not None:
            words[words.index(flag) + 1] = value
    return tuple(words)


def ramp(formula: Mapping[str, Any], most: int) -> Iterator[Rung]:
    """Batches to try one after another while there is room: the file's start, then a quarter more each time.

    Args:
        formula: ``load_guide()["formulas"]["batch-ramp"]``.
        most: where to stop; a larger batch is not run.
    """
    exact = float(formula["variables"]["batch"]["value"])
    batch = int(exact)
    while batch <= most:
        yield Rung(batch, exact)
        found = work_out(formula, {"batch": exact})
        exact, batch = found["next"], found["run"]
