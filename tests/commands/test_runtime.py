"""`kb runtime`: stages and the bottleneck, what a batch buys, training by steps, the speed in a log (S13, S15, S21)."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_guide
from kb.advice.runtime import (
    Minutes,
    RunTime,
    Stage,
    TrainingTime,
    compare,
    differing_claims,
    erratum_at,
    known_batches,
    pipeline_of,
    run_time,
    with_samples,
)
from kb.advice.speed_log import MAX_BARS, MAX_READINGS, pace, read_speed
from kb.config.log import pieces
from kb.core.text import Text, UserError
from output_schemas import answers_to
from warm_runs import run_module

ROOT = Path(__file__).parents[2]
ROW = load_guide()["runtimes"]["kfold-summarization"]
NOTE = "guide-batch-inference"


def runtime(*arguments: object, stdin: bytes = b"", code: int = 0) -> str:
    run = run_module("kb.runtime", arguments, stdin=stdin)
    assert b"Traceback" not in run.stderr
    assert run.returncode == code, run.stderr.decode()
    return (run.stderr if code == 2 else run.stdout).decode()


def runtime_json(*arguments: object, stdin: bytes = b"", code: int = 0) -> Any:
    data = json.loads(runtime(*arguments, "--format", "json", stdin=stdin, code=code))
    answers_to("runtime", data)
    return data


def noted(batch: int, wanted: str | None = None) -> RunTime:
    return run_time(pipeline_of(ROW, wanted, ()).stages, batch)


def tqdm(done: int, of: int, speed: str, *, elapsed: str = "00:10", name: str = "") -> str:
    return f"\r{name}{done * 100 // of:3d}%|████      | {done}/{of} [{elapsed}<1:00:00, {speed}]"


def speeds(text: str) -> Any:
    return read_speed(pieces(io.BytesIO(text.encode())))


# --- S13: stages, the whole, the bottleneck ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "batch", "low", "high"),
    [
        ("kfold-only", 8, 10, 12),
        ("kfold-only", 16, 7, 9),
        ("kfold-only", 32, 5, 7),
        ("kfold-hf", 8, 16, 20),
        ("kfold-hf", 16, 11, 15),
        ("kfold-hf", 32, 8, 11),
        ("full", 8, 106, 140),
        ("full", 16, 101, 135),
        ("full", 32, 98, 131),
    ],
)
def test_stages_add_up_to_the_notes_totals(pipeline: str, batch: int, low: int, high: int) -> None:
    assert noted(batch, pipeline).total == Minutes(low, high)


@pytest.mark.parametrize(("batch", "share"), [(8, 0.854), (16, 0.890), (32, 0.917)])
def test_the_api_holds_the_pipeline_up(batch: int, share: float) -> None:
    bottleneck = noted(batch).bottleneck
    assert bottleneck.stage.name == "solar-api"
    assert bottleneck.share == pytest.approx(share, abs=0.0005)


def test_a_batch_change_buys_no_more_than_its_stages_share() -> None:
    bought = compare(noted(8), noted(16))
    assert bought.whole.middle == pytest.approx(123 / 118)
    assert (bought.whole.low, bought.whole.high) == (pytest.approx(106 / 101), pytest.approx(140 / 135))
    assert bought.batched is not None and bought.batched.middle == pytest.approx(18 / 13)
    assert bought.batched_share == pytest.approx(18 / 123)
    # Amdahl: the parts of the baseline's time, each over its own speed-up
    amdahl = 1 / ((1 - bought.batched_share) + bought.batched_share / bought.batched.middle)
    assert bought.whole.middle == pytest.approx(amdahl)
    assert bought.ceiling == pytest.approx(123 / 105)


def test_the_notes_figure_for_batch_32_is_contradicted_by_its_own_times() -> None:
    pipeline = pipeline_of(ROW, "full", ())
    assert differing_claims(pipeline, compare(noted(8), noted(16))) == []
    ((claim, computed),) = differing_claims(pipeline, compare(noted(8), noted(32)))
    assert (claim.relative_speed, claim.source, claim.lines) == (1.06, NOTE, "185")
    assert round(computed, 2) == 1.07


def test_an_erratum_is_found_by_the_lines_it_is_about() -> None:
    errata = [
        {"id": "one", "claim": {"source": NOTE, "lines": "185"}},
        {"id": "two", "claim": {"source": NOTE, "lines": "40-46"}},
    ]
    assert erratum_at(errata, NOTE, "185") == "one"
    assert erratum_at(errata, NOTE, "46") == "two"
    assert erratum_at(errata, NOTE, "47") is None
    assert erratum_at(errata, "guide-memory", "185") is None


def test_the_pipeline_of_the_notes_in_both_languages() -> None:
    english = runtime("kfold-summarization", "--batch", 16, "--baseline", 8, "--lang", "en")
    assert all(figure in english for figure in ("101–135", "89.0%", "1.04×", "2,495 calls", "20.8–27.7"))
    korean = runtime("kfold-summarization", "--batch", 32, "--lang", "ko")
    assert all(figure in korean for figure in ("98–131", "1.07", "1.06", "guide-batch-inference:185", "병목"))


def test_json_says_what_the_text_says() -> None:
    data = runtime_json("kfold-summarization", "--batch", 16, "--baseline", 8)
    run = data["runs"][-1]
    assert run["total_minutes"] == {"low": 101, "high": 135}
    assert run["bottleneck"] == {"stage": "solar-api", "share": 0.889831}
    assert data["comparison"]["speed_up"]["middle"] == pytest.approx(1.0424, abs=1e-4)
    assert data["claims_differing"] == []


def test_without_a_batch_every_batch_is_shown() -> None:
    data = runtime_json("kfold-summarization")
    assert [run["batch"] for run in data["runs"]] == [8, 16, 32]
    assert data["comparison"] is None


def test_fewer_calls_shorten_a_rate_limited_stage() -> None:
    stages = with_samples(pipeline_of(ROW, None, ()).stages, 3)
    assert run_time(stages, 16).total == Minutes(11 + 54, 15 + 72)
    assert stages[-1].calls is not None and stages[-1].calls.total == 1497


def test_own_times_replace_the_notes() -> None:
    data = runtime_json("kfold-summarization", "--batch", 16, "--baseline", 8, "--stage", "solar-api=0.5")
    assert data["runs"][-1]["total_minutes"] == {"low": 11.5, "high": 15.5}
    assert data["comparison"]["speed_up"]["middle"] > 1.3
    data = runtime_json(
        "kfold-summarization", "--batch", 12, "--stage", "kfold@12=8..10", "--stage", "hf-correction@12=5..7"
    )
    assert data["runs"][-1]["total_minutes"] == {"low": 103, "high": 137}


def test_a_pipeline_of_ones_own() -> None:
    own = ("--stage", "decode@8=20..24", "--stage", "decode@16=14..18", "--stage", "api=90..120")
    data = runtime_json(*own, "--batch", 16, "--baseline", 8)
    assert data["id"] is None
    assert data["runs"][-1]["total_minutes"] == {"low": 104, "high": 138}
    assert [run["batch"] for run in runtime_json(*own)["runs"]] == [8, 16]


def test_a_stage_that_vanishes_has_no_ratio() -> None:
    data = runtime_json("--stage", "a@8=5", "--stage", "a@16=0", "--stage", "b=5", "--batch", 16, "--baseline", 8)
    assert data["comparison"]["stages"][0]["speed_up"]["middle"] is None
    assert data["comparison"]["speed_up"]["middle"] == pytest.approx(2)


def test_a_batch_that_changes_no_stage_buys_nothing() -> None:
    stages = [Stage("api", Text("", ""), fixed=Minutes(5, 6))]
    bought = compare(run_time(stages, 8), run_time(stages, 16))
    assert (bought.whole.middle, bought.batched, bought.batched_share, bought.ceiling) == (1, None, 0, 1)
    assert known_batches(stages) == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kfold-summarisation",), "kfold-summarization"),
        (("kfold-summarization", "--batch", 12), "kfold@12=MIN..MAX"),
        (("kfold-summarization", "--batch", 16, "--pipeline", "half"), "kfold-only"),
        (("kfold-summarization", "--batch", 16, "--stage", "kfol=3"), "kfold"),
        (("kfold-summarization", "--batch", 16, "--stage", "kfold=9..3"), "kfold=9..3"),
        (("kfold-summarization", "--batch", 0), "--batch"),
        (("kfold-summarization", "--pipeline", "kfold-hf", "--n-samples", 3), "--n-samples"),
        (("--stage", "a=0", "--batch", 1), "above 0"),
        (("--steps", 5), "--sec-per-step"),
        (("--steps", 5, "--sec-per-step", 1, "--steps-per-minute", 1), "--sec-per-step"),
        (("--sec-per-step", "nan"), "--sec-per-step"),
        (("kfold-summarization", "--sec-per-step", 1), "one thing"),
        (("--log", "/nowhere/train.log"), "/nowhere/train.log"),
    ],
)
def test_what_cannot_be_answered_is_said(arguments: tuple[object, ...], said: str) -> None:
    assert said in runtime(*arguments, "--lang", "en", code=2)


def test_no_time_is_made_up_between_two_batches() -> None:
    with pytest.raises(UserError) as fault:
        noted(12)
    assert fault.value.values["known"] == "8, 16, 32"


def test_known_run_times_are_listed() -> None:
    listed = {row["id"]: row["batches"] for row in runtime_json()["runtimes"]}
    assert listed["kfold-summarization"] == [8, 16, 32]
    assert "mt5-qlora-training" in runtime("--lang", "ko")


# --- S15: training by steps -------------------------------------------------------------------------------------------


def test_training_by_steps() -> None:
    text = runtime("--steps", 3120, "--sec-per-step", 3.24, "--batch", 24, "--lang", "en")
    assert all(figure in text for figure in ("2h48m28s", "7.41 samples/s", "74,880"))
    assert "2시간 48분 28초" in runtime("--steps", 3120, "--sec-per-step", 3.24, "--lang", "ko")


@pytest.mark.parametrize(("batch", "rate"), [(40, 5.33), (24, 3.20)])
def test_throughput_at_eight_steps_a_minute(batch: int, rate: float) -> None:
    data = runtime_json("--steps-per-minute", 8, "--batch", batch)
    assert data["samples_per_second"] == pytest.approx(rate, abs=0.005)
    assert (data["total_seconds"], data["samples"]) == (None, None)


def test_training_time_leaves_open_what_was_not_given() -> None:
    time = TrainingTime(seconds_per_step=7.5)
    assert time.steps_per_minute == 8
    assert (time.total_seconds, time.samples_per_second, time.samples) == (None, None, None)


def test_the_notes_training_run_beside_what_it_expected() -> None:
    data = runtime_json("mt5-qlora-training")
    assert (data["batch"], data["samples"], data["claimed_minutes"]) == (24, 74880, 165)
    assert "+2.1%" in runtime("mt5-qlora-training", "--lang", "en")


# --- S21: the speed in a log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "seconds"),
    [
        ("3.24s/it", 3.24),
        ("0.31it/s", 1 / 0.31),
        (" 1.02it/s", 1 / 1.02),
        ("2.50kit/s", 0.0004),
        ("3.24s/it, loss=0.3", 3.24),
    ],
)
def test_a_bars_speed_either_way_round(speed: str, seconds: float) -> None:
    (bar,) = speeds(tqdm(312, 3120, speed)).bars
    assert bar.latest == pytest.approx(seconds)
    assert (bar.last.done, bar.last.of) == (312, 3120)


def test_seconds_a_step_are_read_as_steps_a_second() -> None:
    data = runtime_json("--log", "-", stdin=tqdm(12, 3120, "3.24s/it").encode())
    (bar,) = data["bars"]
    assert (bar["seconds_per_step"], round(bar["steps_per_second"], 3)) == (3.24, 0.309)
    assert bar["remaining_seconds"] == pytest.approx((3120 - 12) * 3.24)


def test_carriage_returns_and_colours_hide_nothing() -> None:
    text = "".join(f"\x1b[32m{tqdm(step, 100, '2.00s/it')}\x1b[0m" for step in range(1, 11))
    (bar,) = speeds(text).bars
    assert bar.count_all == 10
    assert speeds("\r  0%|          | 0/100 [00:00<?, ?it/s]").bars == ()


def test_the_longest_bar_is_the_training() -> None:
    lines = [tqdm(step, 32, "5.00it/s", elapsed=f"00:{step:02d}", name="eval: ") + "\n" for step in range(1, 33)]
    lines += [tqdm(step, 3120, "3.24s/it", elapsed=f"{step // 60}:{step % 60:02d}:00") + "\n" for step in range(60, 70)]
    log = speeds("".join(lines))
    assert [bar.last.of for bar in log.bars] == [3120, 32]
    assert log.bars[1].name == "eval"


def test_slower_than_one_and_a_half_times_the_baseline_is_an_alert(tmp_path: Path) -> None:
    text = "".join(tqdm(step, 100, "2.00s/it" if step < 60 else "3.10s/it") + "\n" for step in range(1, 101))
    path = tmp_path / "train.log"
    path.write_text(text, "utf-8")
    data = runtime_json("--log", path, code=1)
    held = data["bars"][0]["pace"]
    assert (held["baseline_seconds_per_step"], held["ratio"], held["alert"]) == (2.0, 1.55, True)
    assert (held["slow_readings"], held["first_slow_line"]) == (41, 60)
    assert "SLOW" in runtime("--log", path, "--lang", "en", code=1)
    assert "느려짐" in runtime("--log", path, "--lang", "ko", code=1)


def test_a_named_baseline_decides() -> None:
    line = tqdm(12, 3120, "3.24s/it").encode()
    assert runtime_json("--log", "-", "--baseline-sec-per-step", 2.1, stdin=line, code=1)["alert"]
    assert not runtime_json("--log", "-", "--baseline-sec-per-step", 2.2, stdin=line)["alert"]


def test_few_readings_give_no_baseline() -> None:
    (bar,) = speeds(tqdm(1, 9, "3.24s/it")).bars
    assert pace(bar) is None
    assert "--baseline-sec-per-step" in runtime("--log", "-", "--lang", "en", stdin=tqdm(1, 9, "3.24s/it").encode())


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_in_another_encoding_is_read(encoding: str) -> None:
    stream = io.BytesIO(("시작\n" + tqdm(312, 3120, "3.24s/it")).encode(encoding))
    (bar,) = read_speed(pieces(stream)).bars
    assert (bar.latest, bar.last.line) == (3.24, 2)


def test_line_numbers_count_line_feeds_only() -> None:
    found = list(pieces(io.BytesIO(b"one\r\ntwo\rthree\n\nfive")))
    assert found == [(1, "one"), (2, "two"), (2, "three"), (4, "five")]


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 16])
def test_pieces_do_not_depend_on_how_the_file_is_cut(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb.config.log.CHUNK", size)
    assert list(pieces(io.BytesIO("가나\r\n다\r라\n".encode()))) == [(1, "가나"), (2, "다"), (2, "라")]


def test_a_log_without_a_speed_is_refused() -> None:
    said = runtime("--log", "-", "--lang", "en", stdin=b"loss 1.2\nno bar here\n", code=2)
    assert "2 lines" in said and "disable_tqdm" in said


def test_the_trainers_own_summary_is_kept() -> None:
    summary = "{'train_runtime': 10108.8, 'train_samples_per_second': 7.41, 'train_steps_per_second': 0.309}\n"
    assert speeds(summary + tqdm(1, 9, "3.24s/it")).summary == {
        "train_runtime": 10108.8,
        "train_samples_per_second": 7.41,
        "train_steps_per_second": 0.309,
    }


def test_memory_stays_bounded_however_long_the_log_is() -> None:
    def long_log() -> Any:
        for step in range(1, 60_000):
            yield step, tqdm(step, 60_000, "3.24s/it")
        for bar in range(200):
            yield 60_000 + bar, tqdm(1, 1000 + bar, "1.00it/s")

    log = read_speed(long_log())
    assert len(log.bars) == MAX_BARS
    assert log.bars[0].count_all == 59_999
    assert len(log.bars[0].readings) <= MAX_READINGS + 1
    assert log.bars[0].last.done == 59_999
