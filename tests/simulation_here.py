"""A simulation in this process, for tests that are not about the simulator's own: torch is imported once for all."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kb.torch_runs.simulation import entry
from kb.torch_runs.simulation.entry import Answer, Limits
from kb.torch_runs.simulation.job import BY_NAME
from kb.torch_runs.simulation.worker import answer


def _ask(command: Sequence[str], request: str, limits: Limits) -> Answer:
    start = time.monotonic()
    content = answer(request)
    if "fault" in content:
        raise BY_NAME[content["fault"]](**content["values"])
    return Answer(content, time.monotonic() - start, 0)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Whatever is simulated inside is what the simulator's process would answer, asked here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "ask", _ask)
        yield
