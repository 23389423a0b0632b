"""SARIF 2.1.0 against the official schema, and what code scanning reads out of it."""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft4Validator

import report_sample as sample
from kb.core.document import Unit
from kb.core.finding import Finding, Fix, Span
from kb.core.result import CheckResult
from kb.report.ci_formats import relative_path, sarif_report, uri
from kb.report.words import RulePages

SCHEMA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "sarif", "sarif-2.1.0-rtm.5.json"
)


def replacements(unit: Unit, finding: Finding, fix: Fix) -> Sequence[tuple[Span, str]] | None:
    """What config's fixer would say: the value's span and the new scalar."""
    edits = [
        (edit.span or unit.settings[edit.name].span, str(edit.value).lower())
        for edit in fix.edits
        if edit.op in ("set", "replace") and (edit.span or edit.name in unit.settings)
    ]
    return edits or None


def log(result: CheckResult | None = None, language: str = "en") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        sarif_report(
            result or sample.check_result(),
            sample.words(language),
            sample.RULES,
            replacements=replacements,
            base="/projects",
        )
    )
    return made


@pytest.fixture(scope="module")
def validator() -> Draft4Validator:
    with open(SCHEMA, encoding="utf-8") as stream:
        return Draft4Validator(json.load(stream))


@pytest.mark.long
@pytest.mark.parametrize("language", ["ko", "en"])
def test_log_answers_to_the_official_schema(language: str, validator: Draft4Validator) -> None:
    empty = sample.check_result()._replace(units=())
    for result in (sample.check_result(), sample.without_gpu(), empty):
        assert [error.message for error in validator.iter_errors(log(result, language))] == []


def test_rules_and_results_refer_to_each_other() -> None:
    run = log()["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    fp16 = next(rule for rule in rules if rule["id"] == "t5-fp16-overflow")
    assert fp16["defaultConfiguration"] == {"level": "error"}
    assert "pretrained in bf16" in fp16["help"]["markdown"]
    assert "kb rules explain t5-fp16-overflow" in fp16["help"]["text"]
    assert "helpUri" not in fp16, "no page is promised where no site is known"


def test_a_rule_has_its_page_where_the_site_is_known(validator: Draft4Validator) -> None:
    words = sample.words("en")
    words.pages = RulePages("https://kb.example/guide/", {"effective-batch-not-as-said"})
    made = json.loads(sarif_report(sample.check_result(), words, sample.RULES, base="/projects"))
    assert [error.message for error in validator.iter_errors(made)] == []
    uris = {rule["id"]: rule.get("helpUri") for rule in made["runs"][0]["tool"]["driver"]["rules"]}
    assert uris["t5-fp16-overflow"] == "https://kb.example/guide/en/rules/t5-fp16-overflow/"
    assert uris["effective-batch-not-as-said"] is None, "the site has no page of a team's own rule"


def test_columns_count_characters_and_say_so() -> None:
    run = log()["runs"][0]
    assert run["columnKind"] == "unicodeCodePoints"
    region = run["results"][1]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 8, "startColumn": 8, "endLine": 8, "endColumn": 12}


def test_a_suppressed_finding_is_there_and_marked() -> None:
    results = log()["runs"][0]["results"]
    assert results[2]["suppressions"] == [{"kind": "inSource", "justification": "새 서버, 한도 256GB"}]
    assert all(result["suppressions"] == [] for result in results if result is not results[2])


def test_fixes_hold_the_replacement_of_the_scalar() -> None:
    fixes = log()["runs"][0]["results"][1]["fixes"]
    change = fixes[0]["artifactChanges"][0]["replacements"]
    assert change == [
        {
            "deletedRegion": {"startLine": 8, "startColumn": 8, "endLine": 8, "endColumn": 12},
            "insertedContent": {"text": "false"},
        }
    ]
    assert len(fixes) == 1, "a fix without known text edits is left out"


def test_fingerprints_survive_lines_above_and_differ_between_findings() -> None:
    def prints(result: CheckResult) -> list[str]:
        return [found["partialFingerprints"]["kbFinding/v1"] for found in log(result)["runs"][0]["results"]]

    def moved(span: Span) -> Span:
        return span._replace(line=span.line + 2, end_line=span.end_line + 2)

    unit = sample.t5_result()
    later = unit._replace(findings=tuple(found._replace(span=moved(found.span)) for found in unit.findings))
    below = sample.check_result(later)._replace(sources_text={sample.PATH: "# a\n# b\n" + sample.CONFIG})
    first = prints(sample.check_result(unit))
    assert first == prints(below)
    assert len(set(first)) == len(first)


def test_two_alike_findings_have_two_fingerprints() -> None:
    unit = sample.t5_result()._replace(findings=(sample.FINDINGS[1], sample.FINDINGS[1]))
    results = log(sample.check_result(unit))["runs"][0]["results"]
    assert results[0]["partialFingerprints"] != results[1]["partialFingerprints"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("configs/실험 1.yaml", "configs/%EC%8B%A4%ED%97%98%201.yaml"),
        ("./a.yaml", "a.yaml"),
        ("/projects/main/a.yaml", "main/a.yaml"),
        ("/elsewhere/a b.yaml", "file:///elsewhere/a%20b.yaml"),
        ("../a.yaml", "../a.yaml"),
        ("c:odd.yaml", "c%3Aodd.yaml"),
        ("50%#?.yaml", "50%25%23%3F.yaml"),
        ("-", "stdin"),
        ("a\udcff.yaml", "a%FF.yaml"),
    ],
)
def test_paths_become_relative_uris(path: str, expected: str) -> None:
    assert uri(path, "/projects") == expected


def test_relative_path_keeps_names_as_they_are() -> None:
    assert relative_path("/projects/main/실험 1.yaml", "/projects") == "main/실험 1.yaml"


def test_a_run_that_could_not_read_everything_was_not_successful(validator: Draft4Validator) -> None:
    made = log(sample.check_result()._replace(unusable=sample.UNUSABLE))
    assert [error.message for error in validator.iter_errors(made)] == []
    (invocation,) = made["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    first, second, third = invocation["toolExecutionNotifications"]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "%EC%97%86%EB%8A%94%20%EA%B2%83.yaml"}
    }
    assert second["locations"][0]["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 7}
    assert "locations" not in third
    assert log()["runs"][0]["invocations"] == [{"executionSuccessful": True}]


def test_a_fix_that_waits_says_for_what(validator: Draft4Validator) -> None:
    made = log(sample.check_result(sample.t5_result()._replace(findings=(sample.WAITING,))))
    assert [error.message for error in validator.iter_errors(made)] == []
    (fix,) = made["runs"][0]["results"][0]["fixes"]
    assert fix["description"]["text"] == "if compute capability is at least 8.0: Train in bf16."
    assert fix["properties"] == {"safety": "safe", "if": 'gpu.compute_capability >= "8.0"'}
