"""The JSON contract: real output against the published schema, with whole bytes and stable keys."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import report_sample as sample
from kb.core.expression import Unknown
from kb.core.finding import Edit, Fix
from kb.core.memory_report import Use
from kb.core.text import Text
from kb.report.check.json_report import fix_object, json_report
from kb.report.json_parts import plain, prediction_object, to_json
from output_schemas import answers_to
from warm_runs import run_text


def parsed(result: Any, language: str = "en") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json_report(result, sample.words(language)))
    return made


@pytest.mark.parametrize("language", ["ko", "en"])
def test_output_answers_to_the_published_schema(language: str) -> None:
    for result in (sample.check_result(), sample.without_gpu()):
        answers_to("check", parsed(result, language))


@pytest.mark.parametrize("name", ["check", "estimate", "plan", "recommend"])
def test_the_schemas_know_whatever_generation_may_be_for(name: str) -> None:
    text = Path(sample.ROOT, "rules", "schema", "output", f"{name}.json").read_text("utf-8")
    (uses,) = re.findall(r'"use": \{"enum": (\[.*?\])', text)
    assert json.loads(uses) == [use for use in get_args(Use) if use]


def test_every_key_of_the_contract_is_there() -> None:
    report = parsed(sample.check_result())
    assert list(report) == ["schema", "kb", "rules", "machine", "files", "unusable", "summary"]
    unit = report["files"][0]
    assert {"path", "section", "dialect", "setup", "prediction", "findings", "not_evaluated"} <= set(unit)
    assert unit["setup"]["model"] == "mt5-base"
    assert report["files"][1]["setup"]["model"] is None
    assert report["files"][1]["prediction"] is None
    assert list(unit["prediction"]) == ["level", "assumed", "phases", "host", "verdict"]
    assert unit["prediction"]["verdict"] == {"status": "tight", "phase": "train", "term": "activations_encoder"}
    assert set(unit["findings"][0]) == {
        "rule", "severity", "confidence", "certainty", "because", "line", "column", "end_line", "end_column", "message",
        "facts", "fix", "doc", "suppressed",
    }  # fmt: skip
    assert report["summary"] == {"error": 1, "warning": 1, "info": 1, "suppressed": 1}


def test_terms_add_up_to_the_allocated_peak() -> None:
    for phase in parsed(sample.check_result())["files"][0]["prediction"]["phases"].values():
        assert sum(term["bytes"] for term in phase["terms"]) == phase["peak_allocated_bytes"]


def test_sizes_are_whole_numbers_even_where_a_fact_is_not() -> None:
    finding = sample.FINDINGS[2]._replace(facts={"memory.host.peak": 1.5e10, "host.memory_limit": 60 * 10**9})
    unit = sample.t5_result()._replace(findings=(finding,))
    facts = parsed(sample.check_result(unit))["files"][0]["findings"][0]["facts"]
    assert facts == {"memory.host.peak": 15_000_000_000, "host.memory_limit": 60_000_000_000}
    assert all(isinstance(value, int) for value in facts.values())


def test_the_message_is_in_the_chosen_language() -> None:
    korean, english = (parsed(sample.check_result(), language) for language in ("ko", "en"))
    assert korean["files"][0]["findings"][0]["message"] == "유효 배치는 40이고, 주석의 48 값과 다릅니다."
    assert english["files"][0]["findings"][0]["message"] == "The effective batch is 40, not the 48 of the comment."
    assert korean["files"][0]["findings"][0]["doc"] == "rules/effective-batch-not-as-said/"
    assert english["files"][0]["findings"][0]["doc"] == "en/rules/effective-batch-not-as-said/"


def test_suppressed_findings_say_why() -> None:
    suppressed = parsed(sample.check_result())["files"][0]["findings"][2]["suppressed"]
    assert suppressed == {"kind": "comment", "reason": "새 서버, 한도 256GB", "until": "2027-01-31", "line": 9}


def test_a_fix_tells_each_kind_of_change() -> None:
    fix = Fix(
        safety="safe",
        title=Text("", ""),
        edits=(Edit("set", "a.b", ("q", "v")), Edit("remove", "c"), Edit("rename", "d.e", "f"),
               Edit("replace", "", "5.0e-5", sample.FP16_SPAN)),
    )  # fmt: skip
    assert fix_object(fix) == {
        "safety": "safe",
        "set": {"a.b": ["q", "v"]},
        "remove": ["c"],
        "rename": {"d.e": "f"},
        "replace": [{"line": 8, "column": 8, "end_line": 8, "end_column": 12, "text": "5.0e-5"}],
    }


def test_unknown_and_infinite_values_are_null() -> None:
    assert plain([float("inf"), float("nan"), Unknown(), 1.5, ("a",)]) == [None, None, None, 1.5, ["a"]]


def test_a_file_name_that_is_not_utf8_still_makes_valid_utf8() -> None:
    unit = sample.bart_result()._replace(unit=sample.bart_result().unit._replace(path="a\udcff.yaml"))
    text = json_report(sample.check_result(unit), sample.words("en"))
    assert json.loads(text.encode("utf-8"))["files"][0]["path"] == "a\udcff.yaml"


def test_the_same_result_makes_the_same_text() -> None:
    first, second = (json_report(sample.check_result(), sample.words("ko")) for _ in range(2))
    assert first == second
    assert "한도" in first, "Korean is readable, not escaped"


def test_a_prediction_alone_is_the_same_object() -> None:
    alone = json.loads(to_json(prediction_object(sample.PREDICTION)))
    assert alone == parsed(sample.check_result())["files"][0]["prediction"]


REAL = """\
general: {model_name: google/mt5-base}  # 한글 주석
training:
  per_device_train_batch_size: 16
  fp16: true
  learning_rate: 5e-5
"""


@pytest.mark.parametrize("machine", [["--gpu", "rtx-3090", "--host-memory", "60GB"], ["--gpu", "none"]])
def test_what_a_real_check_prints_answers_to_the_schema(machine: list[str], tmp_path: Path) -> None:
    path = tmp_path / "실험.yaml"
    path.write_text(REAL, encoding="utf-8")
    run = run_text("kb.check", path, "--format", "json", "--lang", "ko", *machine)
    assert run.returncode == 1, run.stderr
    report = json.loads(run.stdout)
    answers_to("check", report)
    assert {"t5-fp16-overflow"} <= {finding["rule"] for finding in report["files"][0]["findings"]}
    assert ("gpu_fits" in report["files"][0]) == (machine[1] == "none")


def test_the_fix_is_one_that_may_be_applied_and_the_others_are_offered() -> None:
    unit = sample.t5_result()._replace(findings=(sample.WAITING,))
    report = parsed(sample.check_result(unit))
    finding = report["files"][0]["findings"][0]
    assert finding["fix"] == {"safety": "unsafe", "set": {}, "remove": ["training.fp16"]}
    assert finding["offered"] == [
        {
            "safety": "safe",
            "set": {"training.fp16": False, "training.bf16": True},
            "if": 'gpu.compute_capability >= "8.0"',
            "needs": ["gpu.compute_capability"],
        }
    ]
    answers_to("check", report)
    alone = sample.WAITING._replace(fixes=sample.WAITING.fixes[:1])
    assert parsed(sample.check_result(unit._replace(findings=(alone,))))["files"][0]["findings"][0]["fix"] is None


def test_a_safe_fix_comes_before_an_unsafe_one() -> None:
    finding = sample.FINDINGS[1]._replace(fixes=tuple(reversed(sample.FINDINGS[1].fixes)))
    unit = sample.t5_result()._replace(findings=(finding,))
    assert parsed(sample.check_result(unit))["files"][0]["findings"][0]["fix"]["safety"] == "safe"


def test_inputs_that_could_not_be_checked_are_listed() -> None:
    report = parsed(sample.check_result()._replace(unusable=sample.UNUSABLE))
    answers_to("check", report)
    places = [(fault["path"], fault["line"], fault["column"]) for fault in report["unusable"]]
    assert places == [("없는 것.yaml", None, None), ("b:1.yaml", 3, 7), ("", None, None)]
    assert all(fault["message"] and "config." not in fault["message"] for fault in report["unusable"])
