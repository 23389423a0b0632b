"""rules/runbooks: commands that run as written, procedures, checklists, targets and answers, and what they refer to."""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide
from kb.core.text import placeholders_in
from kb.core.units import GIB
from kb.machine.detect import detect
from report_sample import PARTICLE

GUIDE = load_guide()
RUNBOOKS: dict[str, Any] = dict(GUIDE["runbooks"])
COMMANDS = {row["id"]: row for row in RUNBOOKS["commands"]["commands"]}
QUESTIONS = {row["id"]: row for row in RUNBOOKS["faq"]["questions"]}
BASH = [
    (name, text)
    for name, row in COMMANDS.items()
    for text in (row["command"], row.get("instead"))
    if text and row.get("language", "bash") == "bash"
]


def steps(runbook: str) -> dict[str, Any]:
    return {row["id"]: row for row in RUNBOOKS[runbook]["steps"]}


def words_of(command: str) -> list[str]:
    """The words of a command; what stands in quotes is split as well."""
    return [word for text in shlex.split(command.replace("\\\n", " ")) for word in shlex.split(text)]


def texts_with_figures(data: Any) -> Iterator[tuple[set[str], set[str]]]:
    """(placeholders, figures) of every mapping that has texts of its own."""
    if isinstance(data, dict):
        own = [value for value in data.values() if isinstance(value, dict) and value.keys() == {"ko", "en"}]
        yield (
            {name for text in own for name, _, _ in placeholders_in(text["ko"] + text["en"])},
            set(data.get("figures", {})),
        )
        for value in data.values():
            yield from texts_with_figures(value)
    elif isinstance(data, list):
        for value in data:
            yield from texts_with_figures(value)


@pytest.mark.parametrize(("name", "command"), BASH)
def test_system_s20_bash_can_read_every_command(name: str, command: str) -> None:
    run = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(("name", "command"), BASH)
def test_system_s20_nothing_stands_behind_a_line_continuation(name: str, command: str) -> None:
    for line in command.splitlines():
        assert not re.search(r"\\[ \t]+(#|$)", line), line
    assert not command.endswith("\\")


@pytest.mark.parametrize("name", [name for name, row in COMMANDS.items() if "flags" in row])
def test_system_s20_flags_are_the_commands_own(name: str) -> None:
    row = COMMANDS[name]
    if row.get("language") == "python":
        call = ast.parse(row["command"], mode="eval").body
        assert isinstance(call, ast.Call)
        assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == row["flags"]
        return
    found: dict[str, Any] = {}
    words = words_of(row["command"])
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            option, _, value = word.partition("=")
            found[option] = value or (True if after.startswith("-") else int(after) if after.isdecimal() else after)
    assert found == row["flags"]


def test_system_s20_the_full_pipeline_asks_for_five_samples() -> None:
    row = COMMANDS["kfold-full"]
    assert row["flags"]["--solar_n_samples"] == 5 and row["flags"]["--solar_use_voting"] is True
    assert "--solar_n_samples 5" in row["command"]
    assert (row["takes"]["low"], row["takes"]["high"]) == (101, 135)


def test_a_faulty_command_says_why_and_a_remedy_differs_from_it() -> None:
    faulty = {name for name, row in COMMANDS.items() if "fault" in row}
    assert faulty >= {"host-memory", "worker-processes", "training-speed", "smoke-train", "kfold-ordinary"}
    for row in COMMANDS.values():
        if "instead" in row:
            assert row["instead"] != row["command"] and "fault" in row


def test_the_speed_of_a_slow_run_is_found_by_what_to_run_instead() -> None:
    log = "  1%| 32/3120 [01:44<2:46:40,  3.24s/it]\r 1%| 33/3120 [01:47<2:46:40,  3.24s/it]\r"
    noted, instead = (COMMANDS["training-speed"][key].partition("|")[2] for key in ("command", "instead"))
    found = [
        subprocess.run(["bash", "-c", pipe], input=log, capture_output=True, text=True, timeout=30, check=False).stdout
        for pipe in (noted, instead)
    ]
    assert found[0] == ""
    assert found[1].count("3.24s/it") == 2


def test_system_s8_ten_steps_from_a_small_batch() -> None:
    found = RUNBOOKS["batch-test"]["steps"]
    assert len(found) == 10
    assert found[2]["set"] == {"training.per_device_train_batch_size": 4, "training.dataloader_num_workers": 4}
    assert steps("batch-test")["by-a-quarter"]["figures"]["growth"]["value"] == 25
    assert steps("batch-test")["optimum"]["figures"]["utilisation"]["value"] == 90
    assert steps("batch-test")["smoke-run"]["uses"] == ["smoke-train"]


def test_system_s8_the_smoke_run_does_not_save() -> None:
    row = COMMANDS["smoke-train"]
    start = "uv run python code/trainer.py --config config.yaml --config-section eenzeenee --max_steps 10"
    assert " ".join(words_of(row["command"])) == f"{start} --save_steps 1000"
    assert " ".join(words_of(row["instead"])) == f"{start} --save_strategy no"


def test_system_s8_the_procedure_starts_where_the_ramp_does() -> None:
    ramp = GUIDE["formulas"]["batch-ramp"]["variables"]
    figures = steps("batch-test")["baseline"]["figures"]
    assert (figures["batch"]["value"], figures["workers"]["value"]) == (
        ramp["batch"]["value"],
        ramp["workers"]["value"],
    )
    assert steps("batch-test")["by-a-quarter"]["figures"]["growth"]["value"] == ramp["step"]["value"] * 100


def test_system_s10_targets_to_hold_readings_against() -> None:
    known = {row["id"]: row for row in GUIDE["formulas"]["targets"]["thresholds"]}
    assert set(RUNBOOKS["monitoring"]["targets"]) <= known.keys()
    metrics = {known[name]["metric"] for name in RUNBOOKS["monitoring"]["targets"]}
    assert metrics >= {"gpu_utilisation", "gpu_memory_share", "gpu_memory_used", "host_memory_share", "step_time_ratio"}


def test_system_s19_four_checks_and_the_containers_own_limit() -> None:
    assert list(steps("preflight")) == ["gpu-memory", "host-memory", "workers", "container-limit"]
    assert [COMMANDS[row["uses"][0]]["command"] for row in RUNBOOKS["preflight"]["steps"][:3]] == [
        "nvidia-smi",
        "free -h",
        "ps aux | grep python",
    ]
    assert "/sys/fs/cgroup/memory.max" in COMMANDS["container-limit"]["command"]
    assert "/sys/fs/cgroup/memory.max" in COMMANDS["host-memory"]["instead"]


def test_system_s19_a_limit_of_60_gb_is_read_and_not_the_hosts_251(tmp_path: Any) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(
        f"MemTotal: {251 * GIB // 1024} kB\nMemAvailable: {200 * GIB // 1024} kB\n"
    )
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/\n")
    mount = "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mount)
    folder = tmp_path / "sys" / "fs" / "cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{60 * 10**9}\n")
    (folder / "memory.current").write_text(f"{40 * 10**9}\n")
    assert detect({}, gpu="none", root=str(tmp_path)).host_memory_bytes == 60 * 10**9


def test_system_s18_quality_has_one_answer_for_inference_and_another_for_training() -> None:
    inference, training = QUESTIONS["does-batch-change-quality"], QUESTIONS["does-batch-change-training"]
    assert (inference["scope"], training["scope"]) == ("inference", "training")
    assert "not equal to the bit" in inference["correction"]["en"] and "비트까지" in inference["correction"]["ko"]
    assert len(inference["correction_sources"]) >= 2


def test_system_s18_the_notes_questions_are_answered() -> None:
    best, time = QUESTIONS["which-batch-is-best"], QUESTIONS["how-run-time-differs"]
    assert best["figures"]["best"]["value"] == 16
    assert [(row["low"], row["high"]) for row in list(time["figures"].values())[:3]] == [(10, 12), (7, 9), (5, 7)]
    assert QUESTIONS["cuda-out-of-memory"]["steps"] == {"training.per_device_train_batch_size": [16, 12, 8, 6]}
    assert QUESTIONS["worker-killed"]["steps"] == {"training.dataloader_num_workers": [32, 16, 8]}
    assert QUESTIONS["broken-pipe"]["uses"] == ["train-one-epoch", "train-whole"]


def test_every_note_based_answer_says_where_it_is_from() -> None:
    for row in QUESTIONS.values():
        assert row["source"] and row["status"] == "claimed"
        assert row["question"]["en"].endswith("?") and re.search(r"[?.]$", row["answer"]["ko"])


@pytest.mark.parametrize("name", RUNBOOKS)
def test_every_number_that_a_text_names_stands_beside_it(name: str) -> None:
    for named, figures in texts_with_figures(RUNBOOKS[name]):
        assert named <= figures


@pytest.mark.parametrize("name", RUNBOOKS)
def test_what_a_runbook_refers_to_exists(name: str) -> None:
    catalog, row = load_catalog(), RUNBOOKS[name]
    entries = [*row.get("steps", ()), *row.get("questions", ())]
    for entry in entries:
        assert set(entry.get("uses", ())) <= COMMANDS.keys(), entry["id"]
        settings = entry.get("set", {}).keys() | (entry["steps"].keys() if "steps" in entry else set())
        assert settings <= catalog.facts.keys(), entry["id"]
    for reference in [*row.get("see", ()), *(name for entry in entries for name in entry.get("see", ()))]:
        kind, _, target = reference.partition("/")
        assert target in (catalog.rules if kind == "checks" else GUIDE[kind]), reference


@pytest.mark.parametrize("kind", ["decisions", "runbooks", "histories", "runtimes"])
def test_no_korean_particle_depends_on_a_value(kind: str) -> None:
    assert [text for text in korean(GUIDE[kind]) if PARTICLE.search(text)] == []


def korean(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "ko":
                yield value
            yield from korean(value)
    elif isinstance(data, list):
        for value in data:
            yield from korean(value)


def test_environment_variables_say_what_they_really_do() -> None:
    found = {row["name"]: row for row in RUNBOOKS["environment"]["variables_to_set"]}
    assert found["PYTORCH_CUDA_ALLOC_CONF"]["value"] == "expandable_segments:True"
    assert found["PYTORCH_CUDA_ALLOC_CONF"]["newer_name"] == "PYTORCH_ALLOC_CONF"
    assert "fault" in found["CUDA_LAUNCH_BLOCKING"]
