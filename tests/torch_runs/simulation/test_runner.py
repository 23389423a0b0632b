"""A simulation's process: every way it can end has its own name."""

import sys
from pathlib import Path

import pytest

from kb.torch_runs.simulation.entry import Limits, ask, worker_command
from kb.torch_runs.simulation.job import (
    BadModelError,
    CrashedError,
    KilledError,
    MemoryLimitError,
    OldReleaseError,
    SimulationError,
    TimedOutError,
)

MIB = 1 << 20
LIMITS = Limits(seconds=30, memory_bytes=512 * MIB)


def run(folder: Path, script: str, limits: Limits = LIMITS, request: str = "{}") -> dict[str, object]:
    path = folder / "script.py"
    path.write_text("import json, os, sys, time\npath = sys.argv[-1]\n" + script, encoding="utf-8")
    return ask([sys.executable, str(path)], request, limits).content


def test_the_answer_is_what_the_process_wrote(tmp_path: Path) -> None:
    script = "json.dump({'read': json.load(sys.stdin)}, open(path, 'w'))"
    assert run(tmp_path, script, request='{"한": 1}') == {"read": {"한": 1}}


def test_what_libraries_print_does_not_spoil_the_answer(tmp_path: Path) -> None:
    script = "print('hello'); print('warning', file=sys.stderr); json.dump({'ok': 1}, open(path, 'w'))"
    assert run(tmp_path, script) == {"ok": 1}


def test_a_fault_that_the_process_names_is_raised_here(tmp_path: Path) -> None:
    script = "json.dump({'fault': 'bad_model', 'values': {'reason': 'no vocab_size'}}, open(path, 'w'))"
    with pytest.raises(BadModelError) as caught:
        run(tmp_path, script)
    assert caught.value.values == {"reason": "no vocab_size"}
    assert caught.value.key == "simulation.bad_model"


def test_a_crash_gives_the_last_line_of_its_error(tmp_path: Path) -> None:
    with pytest.raises(CrashedError, match="ZeroDivisionError: division by zero"):
        run(tmp_path, "1 / 0")


def test_a_silent_exit_is_a_crash_as_well(tmp_path: Path) -> None:
    with pytest.raises(CrashedError, match="exit 3"):
        run(tmp_path, "os._exit(3)")


def test_an_answer_cut_off_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(CrashedError):
        run(tmp_path, "open(path, 'w').write('{\"ok\": '); os._exit(1)")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to be killed by")
def test_a_killed_process_is_told_from_a_crash(tmp_path: Path) -> None:
    with pytest.raises(KilledError) as caught:
        run(tmp_path, "import signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert caught.value.values == {"signal": "SIGKILL"}


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    marker = tmp_path / "late"
    script = f"time.sleep(3); open({str(marker)!r}, 'w')"
    with pytest.raises(TimedOutError):
        run(tmp_path, script, Limits(seconds=0.5))
    assert not marker.exists()


def test_a_process_that_swells_is_ended(tmp_path: Path) -> None:
    with pytest.raises(MemoryLimitError) as caught:
        run(tmp_path, f"held = b'x' * {400 * MIB}; time.sleep(20)", Limits(seconds=30, memory_bytes=200 * MIB))
    assert caught.value.values == {"limit_bytes": 200 * MIB}


def test_every_way_to_end_is_a_simulation_error() -> None:
    for kind in (BadModelError, CrashedError, KilledError, MemoryLimitError, TimedOutError):
        assert issubclass(kind, SimulationError)
        assert issubclass(kind, ValueError)


def test_a_transformers_that_is_too_old_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.45.2")
    with pytest.raises(OldReleaseError) as raised:
        worker_command()
    assert raised.value.values == {"package": "transformers", "found": "4.45.2", "first": "4.46"}
