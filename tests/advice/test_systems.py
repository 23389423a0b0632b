"""The systems that the original guide describes or implies, S1 to S24: each by its own figures, through its real home.

docs/ko/systems.md and docs/en/systems.md say where each lives; a test here keeps the two tables true.
"""

import json
import re
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide
from effort import few
from kb.advice.batches import Ceiling, Seen, Split, seek, splits_of, tried_by_accelerate
from kb.advice.fit.decision import walk
from kb.advice.formulas import ramp, work_out
from kb.advice.watching import judge
from kb.commands import COMMANDS
from kb.config.text.mojibake import find_mojibake
from kb.core.units import GIB
from kb.machine import host
from kb.machine.gpu_csv import read_gpu_csv
from warm_runs import run_text

ROOT = Path(__file__).resolve().parents[2]
GUIDE, CATALOG = load_guide(), load_catalog(whole=True)
FORMULAS = GUIDE["formulas"]
TRAIN, EVALUATE = "training.per_device_train_batch_size", "training.per_device_eval_batch_size"
ACCUMULATION, WORKERS = "training.gradient_accumulation_steps", "training.dataloader_num_workers"
BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "48")
CONFIG = """\
general: {{model_name: csebuetnlp/mT5_multilingual_XLSum}}
tokenizer: {{encoder_max_len: 512, decoder_max_len: 64}}
training:
  eval_strategy: steps
  per_device_train_batch_size: {train}
  per_device_eval_batch_size: {evaluate}
  gradient_accumulation_steps: 2   # 유효 배치 {said} 유지
  dataloader_num_workers: {workers}
  dataloader_pin_memory: true
"""


def kb(command: str, *arguments: object, stdin: str = "", code: int = 0) -> str:
    """What ``kb COMMAND`` prints, after its exit code was looked at."""
    run = run_text("kb", command, *arguments, stdin=stdin)
    assert "Traceback" not in run.stderr
    assert run.returncode == code, run.stderr or run.stdout
    return run.stdout


def kb_json(command: str, *arguments: object, stdin: str = "", code: int = 0) -> Any:
    return json.loads(kb(command, *arguments, "--format", "json", stdin=stdin, code=code))


def config(
    folder: Path, *, train: int = 12, evaluate: int = 16, said: int = 24, workers: int = 32, **more: str
) -> Path:
    path = folder / "run.yaml"
    text = CONFIG.format(train=train, evaluate=evaluate, said=said, workers=workers)
    path.write_text(text + "".join(f"  {name}: {value}\n" for name, value in more.items()), "utf-8")
    return path


def found_in(path: Path, *arguments: object) -> dict[str, dict[str, Any]]:
    """Findings of a config by rule."""
    report = kb_json("check", path, "--fail-on", "never", *arguments)
    return {finding["rule"]: finding for file in report["files"] for finding in file["findings"]}


def causes(log: str, *arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kb_json("diagnose", "--lang", "en", *arguments, stdin=log, code=1)["causes"]
    return found


# --- S1 to S3: what to set, and what it takes -------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("gpu", "model", "settings", "effective", "inference"),
    few([("v100-16gb", "mt5-xlsum", (1, 2, 4), 4, 2), ("a100-40gb", "eenzeenee", (8, 8, 2), 16, 16)]),
)
def test_s01_settings_by_gpu(gpu: str, model: str, settings: tuple[int, ...], effective: int, inference: int) -> None:
    (row,) = kb_json("recommend", "--gpu", gpu, "--model", model)["notes"]["own"]
    assert tuple(row["settings"][name] for name in (TRAIN, EVALUATE, ACCUMULATION)) == settings
    assert (row["effective_batch"], row["settings"]["inference.batch_size"]) == (effective, inference)


@pytest.mark.exhaustive
def test_s01_t5_large_and_the_conflict_on_the_rtx_4090() -> None:
    (large,) = kb_json("recommend", "--gpu", "rtx-3090", "--model", "t5-large")["notes"]["own"]
    assert [large["settings"][name] for name in (TRAIN, EVALUATE, WORKERS)] == [12, 16, 16]
    assert large["memory"] == {"value": 18, "unit": "GB"}
    notes = kb_json("recommend", "--gpu", "rtx-4090", "--model", "eenzeenee")["notes"]
    assert [row["settings"][TRAIN] for row in notes["own"]] == [2]
    assert 24 in [row["settings"][TRAIN] for row in notes["conflicts"]]


def test_s02_training_memory_on_the_gpu() -> None:
    nothing = {"batch_size": 0, "sequence_length": 0, "hidden_size": 0}
    claimed = work_out(FORMULAS["guide-gpu-memory"], {"parameters": 3.7e9, **nothing}, use="claimed")
    assert [claimed[name] / 1e9 for name in ("model", "optimizer", "gradients", "total")] == pytest.approx(
        [14.8, 22.2, 14.8, 51.8]
    )
    states = [work_out(FORMULAS["full-training-states"], {"parameters": size})["total"] for size in (3.7e9, 1.2e9)]
    assert states == pytest.approx([59.2e9, 19.2e9])
    assert claimed["total"] > CATALOG.gpus["rtx-3090"].memory_total
    assert states[1] > CATALOG.gpus["v100-16gb"].memory_total
    assert "51.8 GB" in kb("rules", "explain", "guide-gpu-memory", "--lang", "en")


def test_s03_memory_of_the_host() -> None:
    ledger = FORMULAS["history-host-memory"]
    at_32, at_16 = (work_out(ledger, {"workers": workers}, use="claimed") for workers in (32, 16))
    assert (at_32["total"], at_32["excess"], at_16["total"], at_16["excess"]) == (89, 29, 57, 0)
    assert at_16["total"] / 60 == pytest.approx(0.95) and at_16["total"] > 0.8 * 60 == 48
    lower = {"base": 15, "workers": 16, "per_worker": 1.5, "model_size": 0, "overhead_share": 0}
    assert work_out(FORMULAS["guide-host-memory"], lower)["total"] == 39


# --- S4 to S7: what is wrong, and what to do --------------------------------------------------------------------------


def test_s04_remedies_from_an_error_text(tmp_path: Path) -> None:
    path = config(tmp_path, train=16)
    (gpu, *_) = causes("RuntimeError: CUDA out of memory", "--config", path, "--gpu", "rtx-3090")
    steps = [name for remedy in gpu["remedies"] for name in remedy["set"]]
    wanted = [TRAIN, ACCUMULATION, "training.gradient_checkpointing", "training.bf16", "data.max_source_length"]
    assert (gpu["cause"], gpu["resource"]) == ("gpu-oom", "gpu")
    assert [name for name in dict.fromkeys(steps) if name in wanted] == wanted
    assert "training.fp16" not in steps, "mT5 overflows in fp16"
    values = {name: value for remedy in gpu["remedies"] for name, value in remedy["set"].items()}
    assert (values[TRAIN], values[ACCUMULATION], values["data.max_source_length"]) == (8, 4, 256)


@pytest.mark.parametrize(
    ("log", "resource", "first"),
    [
        ("DataLoader worker (pid 12) is killed by signal 9", "host", WORKERS),
        ("unable to create new native thread", "threads", WORKERS),
        ("Killed", "host", WORKERS),
    ],
)
def test_s04_which_resource_ran_short(log: str, resource: str, first: str, tmp_path: Path) -> None:
    (cause, *_) = causes(log, "--config", config(tmp_path), "--gpu", "rtx-3090")
    assert cause["resource"] == resource
    changes = [remedy["set"] for remedy in cause["remedies"] if remedy["set"]]
    assert list(changes[0]) == [first] and changes[0][first] == 16
    halves = next(row for row in GUIDE["runbooks"]["faq"]["questions"] if row["id"] == "worker-killed")
    assert halves["steps"] == {WORKERS: [32, 16, 8]}


def test_s04_a_broken_pipe_drops_the_short_run() -> None:
    (cause, *_) = causes("BrokenPipeError: [Errno 32] Broken pipe")
    assert cause["cause"] == "broken-pipe"
    assert any("run without it" in remedy["step"] and "--one-epoch" in remedy["step"] for remedy in cause["remedies"])


def test_s05_staged_reduction() -> None:
    path = ROOT / "tests" / "data" / "check" / "summary_run.yaml"
    (plan,) = kb_json("plan", path, *BOX)["plans"]
    first = plan["host"]["steps"][0]
    assert first["set"] == {WORKERS: {"before": 32, "after": 16}}
    peaks = [round(first[side]["expected_bytes"] / 1e9) for side in ("before", "after")]
    assert peaks[1] == 41 and peaks[0] - peaks[1] == 37
    assert plan["gpu"]["steps"][0]["name"] == "eval_batch"
    text = " ".join(kb("plan", path, *BOX, "--lang", "en").split())
    assert "Smaller training or evaluation batches would not free host memory." in text
    order = [option["id"] for option in GUIDE["tradeoffs"]["reduction-order"]["options"]]
    assert order[:4] == ["workers", "eval-batch", "train-batch", "accumulation"]


@pytest.mark.parametrize(("train", "said", "effective"), few([(20, 80, 40), (16, 48, 32), (12, 48, 24)]))
def test_s06_the_effective_batch_against_its_comment(train: int, said: int, effective: int, tmp_path: Path) -> None:
    finding = found_in(config(tmp_path, train=train, said=said), *BOX)["effective-batch-not-as-said"]
    assert f"The effective batch is {effective} " in finding["message"] and str(said) in finding["message"]


def test_s06_accumulation_that_holds_the_effective_batch() -> None:
    assert splits_of(24, Ceiling(8, 8)).exact[0] == Split(8, 3)
    splits = splits_of(40, Ceiling(12, 12))
    assert 40 % 12 and splits.exact[:2] == (Split(10, 4), Split(8, 5))


@pytest.mark.exhaustive
def test_s07_the_linter(tmp_path: Path) -> None:
    both = found_in(config(tmp_path, fp16="true", bf16="true"), *BOX[2:], "--gpu", "v100-16gb", "--notes")
    assert both["fp16-and-bf16-both"]["severity"] == "error"
    assert {"bf16-silently-emulated", "t5-fp16-overflow", "host-memory-over-limit"} <= both.keys()
    assert "a third of the 48 cores" in both["workers-over-a-third-of-cores"]["message"]
    assert "60.0 GB" in both["pin-memory-when-host-binds"]["message"]
    assert work_out(FORMULAS["eval-batch-ratio"], {"train_batch": 12})["largest"] < 16
    assert "eval-batch-over-train-ratio" in CATALOG.rules
    script = tmp_path / "run.sh"
    script.write_text("python sum.py \\\n  --model_name google/mt5-base \\\n  --batch_size 16 \\   # best\n  --fp16\n")
    assert found_in(script)["comment-after-backslash"]["line"] == 3


# --- S8 to S10: trying and watching -----------------------------------------------------------------------------------


def test_s08_the_smoke_procedure() -> None:
    told = " ".join(kb("rules", "explain", "commands", "--lang", "en").split())
    assert told.count("--max_steps 10") == 2 and "--save_strategy no" in told
    rungs = list(ramp(FORMULAS["batch-ramp"], 19))
    assert [rung.batch for rung in rungs] == [4, 5, 6, 7, 9, 12, 15, 19]
    assert round(rungs[3].exact, 1) == 7.8
    baseline = next(row for row in GUIDE["runbooks"]["batch-test"]["steps"] if row["id"] == "baseline")
    assert baseline["set"] == {TRAIN: 4, WORKERS: 4}


def test_s09_the_automatic_batch_finder() -> None:
    trying = seek(16, most=16)
    batch, tried = next(trying), []
    try:
        while True:
            tried.append(batch)
            batch = trying.send(Seen(batch, batch <= 12))
    except StopIteration as ended:
        assert ended.value.largest == 12
    assert tried[:3] == [16, 8, 12]
    assert splits_of(16, Ceiling(12, 12)).exact[0] == Split(8, 2)
    assert [tried_by_accelerate(16, 12, version)[-1] for version in ((1, 8, 1), (1, 9, 0))] == [8, 12]
    assert "1.9.0" in kb("rules", "explain", "auto-find-batch-size-effective-batch", "--lang", "en")


def test_s10_readings_against_targets() -> None:
    saved = (
        "memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"
        "18739 MiB, 24576 MiB, 100 %\n22528 MiB, 24576 MiB, 100 %\n14336 MiB, 24576 MiB, 100 %\n"
    )
    samples = [row.sample for row in read_gpu_csv(saved)]
    judged = [{row.threshold: row for row in judge(sample, FORMULAS["targets"])} for sample in samples]
    target = "gpu-memory-training"
    assert (round(judged[0][target].value), judged[0][target].label) == (76, "ok")
    assert (judged[1]["gpu-memory-danger"].label, judged[1][target].label) == ("danger", "above")
    assert (judged[2]["gpu-memory-safe"].label, judged[2][target].label) == ("safe", "below")
    assert (judged[0]["gpu-utilisation"].value, judged[0]["gpu-utilisation"].label) == (100, "ok")
    for used, label, percent in ((40, "ok", 67), (50, "above", 83)):
        sample = samples[0]._replace(host_used=used * 10**9, host_limit=60 * 10**9)
        row = next(row for row in judge(sample, FORMULAS["targets"]) if row.threshold == "host-memory")
        assert (round(row.value), row.label) == (percent, label)


# --- S11 to S15: inference, time, throughput --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu_memory", "solar", "concurrent", "tokens", "batch"),
    [
        (24, True, False, 120, 16),
        (24, False, True, 120, 8),
        (24, False, False, 120, 16),
        (24, False, False, 80, 32),
        (24, False, False, 90, 32),
        (12, True, False, 120, None),
    ],
)
def test_s11_the_inference_decision_tree(
    gpu_memory: int, solar: bool, concurrent: bool, tokens: int, batch: int | None
) -> None:
    given = {"gpu_memory_gb": gpu_memory, "solar_api": solar, "concurrent": concurrent, "max_new_tokens": tokens}
    leaf = walk(GUIDE["decisions"]["inference-batch"], given).leaf
    assert leaf is not None
    if batch is None:  # 12 GB: not the 16 of the API
        assert (leaf.low, leaf.high) == (4, 8) and leaf.use is not None and leaf.use <= 8
        return
    assert leaf.value == batch
    assert leaf.caution is (batch == 32)
    assert [flag.lines for flag in leaf.flags] == (["130"] if tokens == 90 else [])


@pytest.mark.exhaustive
def test_s11_the_path_is_printed() -> None:
    answers = ("--set", "solar_api=yes", "--set", "concurrent=no")
    text = kb("recommend", "--model", "kobart", "--gpu", "rtx-4090", "--task", "inference", *answers, "--lang", "en")
    assert "Is a rate-limited API (Solar) used? → yes" in text


def test_s12_inference_memory() -> None:
    given = {"batch": 16, "new_tokens": 120, "beams": 5, "folds": 5}
    claimed = work_out(FORMULAS["kfold-inference-memory"], given, use="claimed")
    assert claimed == pytest.approx({"per_sample": 30, "per_fold": 1.98, "total": 9.9})
    fitted = [work_out(FORMULAS["kfold-inference-memory-fit"], {"batch": batch})["total"] for batch in (8, 16, 32, 64)]
    assert [round(total, 1) for total in fitted] == [8.6, 13.1, 22.3, 40.6] and fitted[-1] > 24
    at_64 = work_out(FORMULAS["kfold-inference-memory"], {**given, "batch": 64}, use="claimed")["total"]
    assert round(at_64, 1) == 17.1
    measured = {
        row["settings"]["inference.batch_size"]["value"]: row for row in GUIDE["presets"]["rtx-4090-kobart"]["rows"]
    }
    assert (measured[16]["memory"]["value"], measured[64]["outcome"]) == (14, "oom")
    assert FORMULAS["kfold-inference-memory"]["erratum"] == "kfold-memory-without-input"


def test_s13_run_time_and_the_bottleneck() -> None:
    totals = {}
    for pipeline in ("kfold-only", "kfold-hf", "full"):
        arguments = ("kfold-summarization", "--pipeline", pipeline, "--batch", 16, "--baseline", 8)
        data = kb_json("runtime", *arguments)
        totals[pipeline] = tuple(data["runs"][-1]["total_minutes"].values())
    assert totals == {"kfold-only": (7, 9), "kfold-hf": (11, 15), "full": (101, 135)}
    assert data["runs"][-1]["bottleneck"]["stage"] == "solar-api"
    assert round(data["runs"][-1]["bottleneck"]["share"], 2) == 0.89
    assert round(data["comparison"]["speed_up"]["middle"], 2) == 1.04
    wide = kb_json("runtime", "kfold-summarization", "--batch", 32, "--baseline", 8)
    assert tuple(wide["runs"][-1]["total_minutes"].values()) == (98, 131)
    assert round(wide["comparison"]["speed_up"]["middle"], 2) == 1.07
    assert "1.06" in kb("runtime", "kfold-summarization", "--batch", 32, "--baseline", 8, "--lang", "en")


def test_s14_processes_that_share_a_gpu() -> None:
    formula = FORMULAS["concurrent-processes"]
    assert work_out(formula, {"processes": 3, "per_process": 8}, use="claimed")["needed"] == 24
    assert work_out(formula, {"per_process": 8, "danger": 22}) == {"most": 2}
    assert formula["erratum"] == "three-processes-fill-the-card"


def test_s15_training_time_and_throughput() -> None:
    text = kb("runtime", "--steps", 3120, "--sec-per-step", 3.24, "--batch", 24, "--lang", "en")
    assert all(figure in text for figure in ("2h48m28s", "7.41", "74,880"))
    rates = [work_out(FORMULAS["training-throughput"], {"per_device": train}) for train in (20, 12)]
    assert [round(rate["samples_per_second"], 2) for rate in rates] == [5.33, 3.2]


# --- S16 to S21: what is known ----------------------------------------------------------------------------------------


def test_s16_the_history_of_a_config() -> None:
    data = kb_json("history", "mt5-qlora", *BOX)
    rows = {row["setting"]: (row["values"], round(row["change"] * 100)) for row in data["matrix"] if row["change"]}
    assert rows[TRAIN] == ([20, 16, 12], -40) and rows[EVALUATE] == ([48, 32, 16], -67)
    assert rows[WORKERS] == ([32, 16, 16], -50) and rows["batch.effective"] == ([40, 32, 24], -40)
    assert [version["when"][-5:] for version in data["versions"]] == ["06:00", "06:25", "06:33"]
    assert [version["commit"] for version in data["versions"]] == [None, "743d281", "58f3c99"]
    last = data["versions"][-1]
    assert (last["measured"]["gpu_said"], last["measured"]["host_said"]) == ("18.3 GB", "~40 GB")
    assert (last["claimed"]["gpu"], last["claimed"]["mixed"]) == ("~18 GB", "39 GB")
    assert "06:50" in kb("history", "mt5-qlora", *BOX, "--lang", "en")


def test_s17_trade_offs() -> None:
    options = {option["id"]: option for option in GUIDE["tradeoffs"]["training-batch-size"]["options"]}
    assert [word["en"] for word in options["batch-8-16"]["aspects"].values()] == ["fast", "high", "best"]
    assert "5 to 7" in " ".join(kb("rules", "explain", "training-batch-size", "--lang", "en").split())


def test_s18_questions_and_answers() -> None:
    text = " ".join(kb("rules", "explain", "faq", "--lang", "en").split())
    assert "Does a larger batch give better results at inference? answer: No." in text
    assert "the same in expectation, but results are not equal to the bit" in text
    assert "In training the effective batch bears on convergence" in text


def test_s19_the_checklist_and_the_containers_own_limit() -> None:
    assert len(GUIDE["runbooks"]["preflight"]["steps"]) == 4
    text = kb("rules", "explain", "preflight", "--lang", "ko")
    assert all(f"steps.{row['id']}" in text for row in GUIDE["runbooks"]["preflight"]["steps"])
    root = str(ROOT / "tests" / "data" / "cgroup" / "kubernetes-v2-nested")
    memory = host.host_memory(root, host.mounts(root))
    assert memory.limit_bytes == 60 * 10**9
    total = re.search(r"MemTotal: +(\d+) kB", Path(root, "proc", "meminfo").read_text("utf-8"))
    assert total is not None and int(total[1]) * 1024 // GIB == 251


def test_s20_commands_and_their_flags() -> None:
    rows = GUIDE["runbooks"]["commands"]["commands"]
    full = next(row for row in rows if row["id"] == "kfold-full")
    assert full["flags"]["--solar_n_samples"] == 5 and "--solar_n_samples 5" in full["command"]
    for row in rows:
        for text in (row["command"], row.get("instead", "")):
            assert not re.search(r"\\[ \t]+#", text)
            if row.get("language", "bash") == "bash":
                subprocess.run(["bash", "-n", "-c", text], check=True, timeout=30)
    assert full["command"].splitlines()[0] in kb("rules", "explain", "commands", "--lang", "en")


def test_s21_speed_from_a_log() -> None:
    log = "  1%| | 32/3120 [01:44<2:46:40,  3.24s/it]\n"
    text = kb("runtime", "--log", "-", "--lang", "en", stdin=log)
    assert "3.24" in text and "0.309" in text
    slow = kb_json("runtime", "--log", "-", "--baseline-sec-per-step", 2, stdin=log, code=1)
    assert 3.24 / 2 > 1.5 and "alert" in json.dumps(slow)
    kb("runtime", "--log", "-", "--baseline-sec-per-step", 3, stdin=log)


# --- S22 to S24: text, languages, errata ------------------------------------------------------------------------------


def test_s22_damaged_text_is_named_counted_and_not_guessed_at(tmp_path: Path) -> None:
    # as many of each byte as the damaged note lost: the ones that windows-1254 lacks, and soft hyphens
    lost = {"적": 40, "이": 23, "장": 21, "델": 15, "감": 13, "도": 8, "쎄": 2, "항": 2}
    whole = "# 🚀 " + " ".join(character * times for character, times in lost.items()) + "\na: 1\n"
    damaged = whole.encode().decode("cp1254", errors="ignore").replace("\u00ad", "")
    path = tmp_path / "damaged.yaml"
    path.write_text(damaged, "utf-8")
    finding = found_in(path)["mojibake"]
    assert "windows-1254" in finding["message"] and "124 characters beyond repair" in finding["message"]
    assert not finding.get("fix")
    event = find_mojibake(damaged)
    assert event is not None and (event.values["lost"], event.values["lossless"]) == (sum(lost.values()), False)
    kb("check", path, "--select", "mojibake", code=1)
    path.write_text(whole, "utf-8")
    assert "mojibake" not in found_in(path)


def texts_of(data: Any) -> Iterator[dict[str, str]]:
    if isinstance(data, dict):
        if data.keys() >= {"ko", "en"}:
            yield data
        for value in data.values():
            yield from texts_of(value)
    elif isinstance(data, list):
        for value in data:
            yield from texts_of(value)


def test_s23_both_languages_say_the_same() -> None:
    for rule in CATALOG.rules.values():
        for text in (rule.title, rule.message, rule.why):
            assert text.ko.strip() and text.en.strip(), rule.id
            assert unicodedata.is_normalized("NFC", text.ko), rule.id
        assert not set(re.findall(r"\{[^}]*\}", rule.message.ko)) ^ set(re.findall(r"\{[^}]*\}", rule.message.en)), (
            rule.id
        )
    for entry in GUIDE["errata"]["errata"]:
        for text in texts_of(entry):
            numbers = [sorted(re.findall(r"\d+(?:\.\d+)?", text[language])) for language in ("ko", "en")]
            assert numbers[0] == numbers[1], text


def test_s24_where_a_figure_comes_from() -> None:
    text = kb("rules", "explain", "effective-batch-comment-80", "--lang", "en")
    for part in ("wrong", "history-mt5-qlora:14", "80 samples", "40 samples, computed just now", "For 80 set"):
        assert part in text
    assert "effective-batch-comment-80" in kb("rules", "explain", "mt5-qlora", "--lang", "en")


# --- the tables in docs/ ----------------------------------------------------------------------------------------------


def rows_of(language: str) -> list[list[str]]:
    text = (ROOT / "docs" / language / "systems.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| S\d+ \|", line)]
    assert all(len(row) == 4 for row in rows)
    return rows


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_tables_of_both_languages_name_the_same_homes_and_tests() -> None:
    korean, english = rows_of("ko"), rows_of("en")
    assert [row[0] for row in english] == [f"S{number}" for number in range(1, 25)]
    assert [(row[0], code(row[2]), code(row[3])) for row in korean] == [
        (row[0], code(row[2]), code(row[3])) for row in english
    ]
    assert all(re.search("[가-힣]", row[1]) for row in korean)
    assert not any(re.search("[가-힣]", " ".join(row)) for row in english)


@pytest.mark.parametrize("row", rows_of("en"), ids=lambda row: row[0])
def test_every_home_and_every_test_that_the_table_names_exists(row: list[str]) -> None:
    number, _, home, tests = row
    assert code(home) and code(tests)
    for name in code(home):
        if name.startswith("kb "):
            command, *rest = name.split()[1:]
            assert command in COMMANDS, name
            assert not rest or rest[0] in kb(command, "--help", "--lang", "en"), name
        else:
            assert (ROOT / name).exists(), name
    own = [name for name in globals() if name.startswith(f"test_s{int(number[1:]):02d}_")]
    assert own, f"{number} has no test of its own"
    for name in code(tests):
        assert name in own if name.startswith("test_") else (ROOT / name).is_file(), name


def test_every_system_has_a_test_named_after_it() -> None:
    numbers = {int(match[1]) for name in globals() if (match := re.match(r"test_s(\d\d)_", name))}
    assert numbers == set(range(1, 25))


def test_the_texts_of_the_tables_hold_no_figures_that_could_go_stale() -> None:
    for language in ("ko", "en"):
        prose = re.sub(r"`[^`]*`", "", (ROOT / "docs" / language / "systems.md").read_text("utf-8"))
        assert not re.findall(r"\d+(?:\.\d+)? ?(?:GB|GiB|MB|%|분|samples)", prose)
