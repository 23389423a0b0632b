"""The text report in both languages, as recorded in tests/data/report; record anew with KB_RECORD=1."""

import os
import re
from pathlib import Path

import pytest

import report_sample as sample
from catalog_sample import load_catalog
from command_runs import run_kb
from kb.advice.question import Question
from kb.core.finding import Finding, Fix, NotEvaluated, Span
from kb.core.result import CheckResult
from kb.core.setup import Assumption
from kb.core.text import Text
from kb.report.check.panel import assumed_lines, gpu_table, not_evaluated_lines, short_name
from kb.report.check.text import statistics_report, summary_line, text_report
from kb.report.terminal import Style, columns
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

RECORDED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "report")
LANGUAGES = ("ko", "en")


def same_as_recorded(name: str, text: str) -> None:
    path = os.path.join(RECORDED, name)
    if os.environ.get("KB_RECORD"):
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
    with open(path, encoding="utf-8") as stream:
        assert text == stream.read()


def panel_of(text: str) -> list[str]:
    """The lines of the first fit panel."""
    lines = text.split("\n")
    start = next(index for index, line in enumerate(lines) if line.startswith("  GPU"))
    return lines[start : lines.index("", start)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_report_with_a_gpu(language: str) -> None:
    same_as_recorded(f"gpu.{language}.txt", text_report(sample.check_result(), sample.words(language), Style()))


@pytest.mark.parametrize("language", LANGUAGES)
def test_report_without_a_gpu_shows_where_it_fits(language: str) -> None:
    same_as_recorded(f"no-gpu.{language}.txt", text_report(sample.without_gpu(), sample.words(language), Style()))


@pytest.mark.parametrize("language", LANGUAGES)
def test_report_on_a_plain_terminal_is_ascii_outside_quotes_and_texts(language: str) -> None:
    text = text_report(sample.check_result(), sample.words(language), Style(unicode=False))
    assert not re.search("[█▓▒░╌│─→·…–]", text)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_line_fits_the_width(language: str, width: int) -> None:
    for result in (sample.check_result(), sample.without_gpu()):
        text = text_report(result, sample.words(language), Style(width=width))
        too_wide = [line for line in text.split("\n") if columns(line) > width]
        # the place of a finding stays whole, so that an editor can open it
        assert [line for line in too_wide if not line.startswith(sample.PATH)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_panel_takes_at_most_twenty_lines(language: str) -> None:
    for result in (sample.check_result(), sample.without_gpu()):
        assert len(panel_of(text_report(result, sample.words(language), Style()))) <= 20


def test_english_report_has_no_korean_outside_the_path_and_quoted_lines() -> None:
    text = text_report(sample.check_result(), sample.words("en"), Style()).replace(sample.PATH, "")
    assert not re.search("[가-힣]", re.sub(r".*[|│#].*", "", text))


def test_color_adds_only_escape_sequences() -> None:
    words = sample.words("ko")
    for result in (sample.check_result(), sample.without_gpu()):
        plain, colored = (text_report(result, words, Style(color=color)) for color in (False, True))
        assert "\x1b[" in colored
        assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_suppressed_findings_are_counted_and_not_shown() -> None:
    text = text_report(sample.check_result(), sample.words("en"), Style())
    assert "host-memory-over-limit" not in text
    assert "(1 suppressed)" in text


def test_summary_of_a_clean_check() -> None:
    result = sample.check_result(sample.bart_result())
    assert summary_line(result, sample.words("en")) == "1 file: nothing found."
    assert summary_line(result, sample.words("ko")) == "파일 1개: 문제 없음."


def test_an_empty_result_is_said_and_not_a_fault() -> None:
    empty = CheckResult(machine=sample.MACHINE, units=(), sources_text={}, version="0", rules_version="0")
    assert text_report(empty, sample.words("en"), Style()) == "0 files: nothing found.\n"


def test_a_finding_outside_the_text_has_no_quoted_line() -> None:
    finding = Finding(rule="empty", severity="info", confidence="high", message=Text("비었습니다.", "It is empty."),
                      span=Span(1, 1, 1, 1))  # fmt: skip
    unit = sample.bart_result()._replace(findings=(finding,))
    text = text_report(sample.check_result(unit)._replace(sources_text={}), sample.words("en"), Style())
    assert f"{sample.PATH}:1:1: note empty\n  It is empty.\n" in text


def test_hostile_paths_and_values_cannot_write_to_the_terminal() -> None:
    unit = sample.t5_result()
    unit = unit._replace(unit=unit.unit._replace(path="a\x1b[2Jb.yaml", section="s\x07"))
    message = Text("{raw}", "{raw}")
    finding = sample.FINDINGS[3]._replace(message=message, facts={"raw": "x\x1b]0;t\x07"})
    unit = unit._replace(findings=(finding,))
    assert "\x1b" not in text_report(sample.check_result(unit), sample.words("en"), Style())


@pytest.mark.parametrize("language", LANGUAGES)
def test_statistics_count_each_rule(language: str) -> None:
    text = statistics_report(sample.check_result(), sample.words(language), Style(), sample.RULES)
    same_as_recorded(f"statistics.{language}.txt", text)


def test_every_catalogued_gpu_has_the_name_people_say_and_no_other_has_it() -> None:
    gpus = load_catalog().gpus
    names = {name: short_name(gpu) for name, gpu in gpus.items()}
    assert (names["rtx-4090"], names["v100-16gb"], names["rtx-3060-12gb"]) == ("RTX 4090", "V100 16GB", "RTX 3060 12GB")
    assert names["h100-80gb"] == "H100 80GB"
    assert len(set(names.values())) == len(names)
    assert max(map(len, names.values())) <= 19


def test_gpus_are_tabled_by_memory_with_a_row_for_each_verdict() -> None:
    unit = sample.without_gpu().units[0]
    assert gpu_table(unit.gpu_fits, sample.words("en"), Style()) == [
        "    on known GPUs:",
        "      15–16 GiB  out of memory  T4, V100 16GB",
        "         24 GiB  tight          RTX 3090",
        "         80 GiB  fits           A100 80GB",
    ]


def waiting(*fixes: Fix) -> CheckResult:
    finding = sample.WAITING._replace(fixes=fixes) if fixes else sample.WAITING
    return sample.check_result(sample.t5_result()._replace(findings=(finding,)))


def test_a_fix_whose_condition_is_not_known_is_offered_with_it_and_not_counted() -> None:
    text = " ".join(text_report(waiting(), sample.words("en"), Style(width=200), panel=False).split())
    assert "fix (safe): Train in bf16." in text
    assert text.endswith("1 more with --unsafe-fixes. 1 safely once this is known: GPU (--gpu ID).")
    assert "fixable with --fix" not in text


def test_an_unsafe_fix_that_waits_is_not_counted_at_all() -> None:
    fix = sample.WAITING.fixes[0]._replace(safety="unsafe")
    assert summary_line(waiting(fix), sample.words("en")) == "1 file: 1 error."


def test_statistics_mark_no_rule_whose_fixes_all_wait() -> None:
    words = sample.words("en")
    assert " + " in statistics_report(waiting(), words, Style(), sample.RULES)
    alone = waiting(sample.WAITING.fixes[0])
    assert " + " not in statistics_report(alone, words, Style(), sample.RULES)


def test_a_huge_batch_is_grouped_on_both_sides_of_its_product() -> None:
    setup = sample.t5_result().setup
    assert setup is not None
    huge = setup._replace(per_device_train_batch_size=10**12, gradient_accumulation_steps=3)
    text = text_report(
        sample.check_result(sample.t5_result()._replace(setup=huge)), sample.words("en"), Style(width=120)
    )
    assert "effective batch 3,000,000,000,000 = 1,000,000,000,000 × 3" in text


def test_the_host_is_in_one_unit_in_facts_and_panel() -> None:
    finding = sample.FINDINGS[2]._replace(message=Text("", "Too much."), suppressed=None)
    unit = sample.t5_result()._replace(findings=(finding,))
    text = text_report(sample.check_result(unit), sample.words("en"), Style())
    assert "limit 60.0 GB (55.9 GiB)" in text


def test_rules_that_need_several_things_are_said_to() -> None:
    words, style = sample.words("en"), Style(width=200)
    one = NotEvaluated(rule="a", needs=("versions.transformers",))
    two = NotEvaluated(rule="b", needs=("versions.transformers", "host.shm"))
    assert "several" not in not_evaluated_lines([one], words, style)[0]
    assert not_evaluated_lines([one, two], words, style)[0].endswith("size of /dev/shm: 1 (some need several)")


@pytest.mark.parametrize(
    ("language", "said"), [("en", "every input at full length"), ("ko", "모든 입력을 최대 길이로 계산")]
)
def test_full_lengths_are_listed_as_assumed(language: str, said: str) -> None:
    assumed = (Assumption("data.lengths", "full", "full_length"), *sample.PREDICTION.assumed)
    lines = assumed_lines(assumed, sample.words(language), Style())
    assert f" {said} · " in lines[0]


def test_that_peft_stops_without_targets_is_listed_first() -> None:
    """A run that is said to fit, and does not start as it is written."""
    stops = Assumption("lora.target_modules", ["q_proj", "v_proj"], "no_default_targets")
    lines = assumed_lines((*sample.PREDICTION.assumed, stops), sample.words("en"), Style())
    assert lines[0].startswith("  Assumed: target_modules=[q_proj, v_proj]")


def test_a_change_that_changes_nothing_is_not_shown_beside_one_that_does(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "python train.py --model_name_or_path meta-llama/Llama-3.2-3B --torch_dtype bfloat16 --bf16 True --do_train "
        "--learning_rate 5e-6 --per_device_train_batch_size 1 --output_dir out --num_train_epochs 1\n",
        "utf-8",
    )
    said = run_kb(path, "--gpu", "a100-80gb", "--lang", "en", "--no-cache", module="kb.check").stdout
    assert "bfloat16 → float32" in said and "rue → true" not in said


@pytest.mark.parametrize("fold", [True, False])
def test_sections_of_a_file_that_say_the_same_are_told_once(tmp_path: Path, fold: bool) -> None:
    path = tmp_path / "bench.sh"
    path.write_text(
        "".join(f"python own.py --model_name org/none --adapter_mode --seed {n}\n" for n in range(6)), "utf-8"
    )
    checker = file_checker(load_catalog(), Project(), Question.of(gpu="t4"))
    result = run([Input(path=str(path))], checker).result(checker)
    told = text_report(result, sample.words("en"), Style(), fold=fold)
    assert len(result.units) == 6 and "6 sections" in told
    assert told.count("\u2500\u2500 ") == (1 if fold else 6)
    assert ("likewise: own.py:2, own.py:3, own.py:4, and 2 more" in told) == fold
