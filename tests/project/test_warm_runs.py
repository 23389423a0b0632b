"""Warm processes do what cold ones do, and leave nothing behind: not in each other, not in their parent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_runs
from warm_runs import ENVIRON, run_module, run_text

DATA = Path(__file__).parents[1] / "data" / "check"
BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "48")
# What a program can see of how it was started, and of what ran before it in the same process.
SEEN = """
import json, os, random, signal, sys, tempfile
print(json.dumps({
    "cwd": os.getcwd(), "argv": sys.argv, "path": sys.path, "environ": dict(os.environ), "main": __name__,
    "interrupt": str(signal.getsignal(signal.SIGINT)), "terminal": [each.isatty() for each in (sys.stdin, sys.stdout)],
    "coding": [(each.encoding, each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)],
    "stdin": sys.stdin.read(), "files": len(os.listdir("/dev/fd")),
    "mark": os.environ.pop("MARK", None),
}))
os.chdir("/"); sys.path.clear(); os.environ["LEFT"] = "behind"; signal.signal(signal.SIGINT, signal.SIG_IGN)
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork: every process is cold there")


def cold(module: str, *arguments: object, cwd: Path, stdin: bytes = b"", **environ: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    run = subprocess.run(
        command, input=stdin, cwd=cwd, env={**ENVIRON, **environ}, capture_output=True, timeout=60, check=False
    )
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def warm(module: str, *arguments: object, cwd: Path, stdin: bytes = b"", **environ: str) -> tuple[int, str, str]:
    run = run_module(module, arguments, environ={**ENVIRON, **environ}, cwd=cwd, stdin=stdin)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


@pytest.mark.parametrize(
    "command",
    [
        ("kb.check", DATA / "two_models.yaml", *BOX, "--format", "json"),
        ("kb.check", "-", *BOX, "--no-cache"),  # what the engine found is kept for a warm one all the same
        ("kb.estimate", "--model", "t5-base", "--gpu", "t4", "--batch", 4, "--lang", "ko"),
        ("kb", "recommend", "--model", "kobart", "--gpu", "t4"),
        ("kb.rules", "explain", "t5-fp16-overflow", "--lang", "en"),
        ("kb.plan", "--help"),
        ("kb", "--no-such-thing"),
        ("kb.no_such_module",),
    ],
    ids=lambda command: "-".join(map(str, command[:1])),
)
def test_a_warm_process_says_what_a_cold_one_says(command: tuple[object, ...], tmp_path: Path) -> None:
    module, *arguments = command
    given = b"model_name_or_path: google/mt5-base\nfp16: true\nper_device_train_batch_size: 8\n"
    code, out, err = cold(str(module), *arguments, cwd=tmp_path, stdin=given)
    assert warm(str(module), *arguments, cwd=tmp_path, stdin=given)[:2] == (code, out)
    assert bool(err) == bool(warm(str(module), *arguments, cwd=tmp_path, stdin=given)[2])


@needs_fork
def test_what_a_program_sees_is_the_same_and_nothing_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN, "utf-8")
    expected = json.loads(cold("seen", "a", "b c", cwd=tmp_path, stdin="한".encode(), MARK="1")[1])
    for _ in range(2):
        found = json.loads(warm("seen", "a", "b c", cwd=tmp_path, stdin="한".encode(), MARK="1")[1])
        assert found == expected
    assert "MARK" not in json.loads(warm("seen", cwd=tmp_path)[1])["environ"]


@needs_fork
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("1 / 0", 1),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("raise SystemExit('said')", 1),
        ("import atexit; atexit.register(print, 'at the end')", 0),
    ],
)
def test_however_a_program_ends_its_parent_stays(program: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(program, "utf-8")
    before = warm_runs._parent().process.pid
    expected = cold("ends", cwd=tmp_path)
    found = warm("ends", cwd=tmp_path)
    assert found[0] == expected[0] == code
    assert found[1] == expected[1]
    assert found[2].splitlines()[-1:] == expected[2].splitlines()[-1:]
    assert warm_runs._parent().process.pid == before


@needs_fork
def test_random_numbers_are_not_those_of_the_process_before(tmp_path: Path) -> None:
    (tmp_path / "dice.py").write_text("import random; print(random.random())", "utf-8")
    assert warm("dice", cwd=tmp_path)[1] != warm("dice", cwd=tmp_path)[1]


@pytest.mark.exhaustive
@needs_fork
def test_one_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(
        "import os, time; open('id', 'w').write(str(os.getpid())); time.sleep(60)", "utf-8"
    )
    with pytest.raises(TimeoutError):
        run_text("long", cwd=tmp_path, timeout=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text("utf-8")), 0)
    assert run_text("kb", "--version").stdout.startswith("kb ")


def test_what_python_reads_at_its_start_is_given_to_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "flags.py").write_text("import sys; print(sys.flags.utf8_mode, sys.stdout.encoding)", "utf-8")
    for name, value in {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}.items():
        assert warm("flags", cwd=tmp_path, **{name: value}) == cold("flags", cwd=tmp_path, **{name: value})
