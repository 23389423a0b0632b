"""In a room that tests the engine nothing counts that was found for other tests: in this process, and in its commands.

Else a fault of the engine would stay hidden behind what the engine answered before it.
"""

from pathlib import Path

import pytest

from checkout_kept import FOUND
from kb.memory import answers
from warm_runs import run_text

# As a command does: it keeps what the engine finds where it is told to, and asks.
ASKS = """
from kb.knowledge.locations import cache_folder
from kb.memory import answers
from kb.session.cache import Predictions

answers.keep_in(Predictions(cache_folder()))
print(answers.known("a run", (), lambda: "followed"))
"""


def asked(folder: Path) -> tuple[str, str]:
    """Where the answer comes from: here, and in a warm command."""
    (folder / "asks.py").write_text(ASKS, "utf-8")
    done = run_text("asks", cwd=folder)
    assert done.returncode == 0, done.stderr
    return answers.known("a run", (), lambda: "followed"), done.stdout.strip()


def test_a_room_that_tests_the_engine_follows_its_runs_anew_though_commands_are_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FOUND.put("a run ()", "found for another test")
    assert asked(tmp_path) == ("followed", "followed")
    monkeypatch.setattr(answers._Kept, "store", FOUND)  # as in every other room
    assert asked(tmp_path) == ("found for another test",) * 2
