"""Why a watched command ended."""

import pytest

from catalog_sample import load_guide
from kb.advice.diagnosis import Diagnosis, diagnose, exit_cause
from kb.knowledge import load_words
from kb.report.monitor.text import exit_text
from kb.report.terminal import Style
from kb.report.words import Words

REMEDIES = load_guide()["remedies"]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def of_output(*lines: str) -> Diagnosis:
    return diagnose(enumerate(lines, 1), REMEDIES)


@pytest.mark.parametrize(
    ("code", "kills", "kind", "shown", "signal"),
    [
        (0, 0, "normal", 0, None),
        (0, 2, "normal", 0, None),
        (3, 0, "code", 3, None),
        (-9, 0, "signal", 137, 9),
        (-9, 1, "oom_kill", 137, 9),
        (137, 1, "oom_kill", 137, 9),  # a shell script whose program was killed
        (-11, 1, "signal", 139, 11),
        (1, 1, "code", 1, None),  # a worker was killed, and the loader raised
        (255, 0, "code", 255, None),
    ],
)
def test_codes_signals_and_the_kernels_kills_are_told_apart(
    code: int, kills: int, kind: str, shown: int, signal: int | None
) -> None:
    cause = exit_cause(code, kills, None)
    assert (cause.kind, cause.code, cause.signal, cause.oom_kills) == (kind, shown, signal, kills)


def test_the_output_gives_the_cause_of_a_run_that_failed_only() -> None:
    output = of_output("Traceback (most recent call last):", OOM)
    found = exit_cause(1, 0, output)
    assert found.cause is not None
    assert found.cause.id.startswith("gpu-oom")
    assert exit_cause(0, 0, output).cause is None


def test_what_was_asked_for_is_no_fault() -> None:
    assert exit_cause(-15, 0, None, asked=True).kind == "asked"


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "The kernel killed the command for the memory limit"),
        ("ko", "커널이 메모리 한도 때문에 명령을 끝냈습니다"),
    ],
)
def test_the_kernels_kill_is_worded(language: str, said: str) -> None:
    text = exit_text(exit_cause(-9, 1, None), Words(language, load_words(language), {}), Style(width=200))
    assert said in text
    assert "SIGKILL" in text
