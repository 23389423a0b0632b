"""`kb probe serve`: a real process that prints what servers print, compared with the prediction, and stopped."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.commands.probe import main
from kb.commands.probe.serve import start
from output_schemas import answers_to

# As releases 0.8 to 0.11 print it, with the figures of a server that others published.
VLLM = """INFO 05-11 09:41:06 [api_server.py:1043] vLLM API server version 0.8.5.post1
(EngineCore_DP0 pid=212) INFO 10-06 12:00:09 [gpu_model_runner.py:2370] Model loading took 14.9889 GiB and 5.31 seconds
INFO [gpu_worker.py:298] Available KV cache memory: 3.81 GiB
INFO [kv_cache_utils.py:1087] GPU KV cache size: 31,232 tokens
INFO [kv_cache_utils.py:1091] Maximum concurrency for 20,000 tokens per request: 1.56x
INFO [gpu_model_runner.py:3480] Graph capturing finished in 18 secs, took 0.52 GiB
INFO:     Application startup complete.
"""
REFUSED = """INFO [gpu_worker.py:298] Available KV cache memory: -0.52 GiB
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
"""
COMMAND = ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", "20000")


def stand_in(folder: Path, log: str, then: str) -> None:
    """A program named vllm that prints ``log``, and then does as ``then`` says."""
    path = folder / "vllm"
    (folder / "log").write_text(log)
    path.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\ncat {folder}/log\n{then}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def probed(capsys: pytest.CaptureFixture[str], *arguments: str, command: tuple[str, ...] = COMMAND) -> tuple[int, str]:
    code = main(["serve", "--gpu", "rtx-3090", "--lang", "en", *arguments, "--", *command])
    said = capsys.readouterr()
    return code, said.out or said.err


def gone(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_a_server_that_comes_up_is_compared_and_stopped(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(programs, VLLM, "exec sleep 60")
    code, said = probed(capsys, "--format", "json")
    found: dict[str, Any] = json.loads(said)
    answers_to("probe-serve", found)
    assert (code, found["ready"]) == (0, True)
    assert found["figures"]["kv_tokens"]["printed"] == 31_232
    assert found["figures"]["weights"]["printed"] == pytest.approx(14.9889 * 2**30)
    assert found["figures"]["weights"]["predicted"] == pytest.approx(14.99 * 2**30, rel=0.001)
    assert gone(programs)


def test_the_defaults_are_those_of_the_release_that_is_printed(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(programs, VLLM, "exec sleep 60")
    old = json.loads(probed(capsys, "--format", "json")[1])["figures"]["kv_cache"]["predicted"]
    stand_in(programs, VLLM.replace("0.8.5.post1", "0.33.0"), "exec sleep 60")
    new = json.loads(probed(capsys, "--format", "json")[1])["figures"]["kv_cache"]["predicted"]
    assert new != old  # 0.92 of the GPU in place of 0.90, and CUDA graphs within it


def test_a_server_that_refuses_to_start_is_explained(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(programs, REFUSED, "exit 1")
    code, said = probed(capsys)
    assert code == 1
    assert "did not come up" in said
    assert re.search(r"Remedy serving-\S+: kb rules explain", said)


def test_one_that_hangs_is_killed_with_what_it_started(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(programs, "loading\n", "sleep 60 & wait")
    code, said = probed(capsys, "--time-limit", "1")
    assert code == 1
    assert "none of the lines" in said
    assert gone(programs)


@pytest.mark.parametrize(
    ("command", "words"),
    [((), "nothing after --"), (("python", "train.py"), "starts no server"), (("sglang", "serve", "x"), "sglang")],
)
def test_what_is_no_server_or_not_there_is_said(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], words: str
) -> None:
    code, said = probed(capsys, command=command)
    assert (code, words in said) == (2, True), said


def test_without_a_command_one_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--lang", "ko"]) == 2
    assert "vllm serve" in capsys.readouterr().err


def test_a_model_that_kb_does_not_know_is_started_all_the_same(
    programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(programs, VLLM, "exec sleep 60")
    code, said = probed(capsys, command=("vllm", "serve", "nobody/nothing"))
    assert code == 0
    assert "Not predicted" in said
    assert "31,232" in said


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "llama.cpp"])
def test_each_pattern_finds_the_number_of_its_example(engine: str) -> None:
    log = load_catalog().serving()[engine]["log"]
    for row in log:
        match = re.search(row["match"], row["example"])
        assert match is not None, row
        assert row["unit"] == "switch" or float(match[1].replace(",", "").replace(".", "")) > 0
    measured = start(["printf", "%s\\n", *(row["example"] for row in log)], log, 10)
    assert measured.ready
    assert set(measured.measured) == {row["measures"] for row in log} - {"ready", "release"}
