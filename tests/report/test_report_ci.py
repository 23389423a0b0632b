"""GitHub annotations, GitLab code quality and JUnit, as their readers parse them."""

import json
import re
import xml.etree.ElementTree as ET

import report_sample as sample
from kb.core.finding import Finding, Span
from kb.core.text import Text
from kb.report.ci_formats import github_report, gitlab_report, junit_report

COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def odd_finding(message: str) -> Finding:
    return Finding(rule="odd", severity="warning", confidence="low", message=Text(message, message),
                   span=Span(1, 1, 3, 2))  # fmt: skip


def unescaped(text: str) -> str:
    """As the Actions runner reads a property."""
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_github_command_for_each_finding_that_counts() -> None:
    lines = github_report(sample.check_result(), sample.words("en")).splitlines()
    assert len(lines) == 3
    match = COMMAND.fullmatch(lines[1])
    assert match is not None
    assert match[1] == "error"
    properties = dict(part.split("=", 1) for part in match[2].split(","))
    assert {name: unescaped(value) for name, value in properties.items()} == {
        "file": sample.PATH,
        "line": "8", "endLine": "8", "col": "8", "endColumn": "12", "title": "kb: t5-fp16-overflow",
    }  # fmt: skip


def test_github_message_cannot_break_out_of_its_line() -> None:
    unit = sample.t5_result()._replace(findings=(odd_finding("50%\r\n::error::forged, a:b"),))
    unit = unit._replace(unit=unit.unit._replace(path="a,b:c%.yaml"))
    report = github_report(sample.check_result(unit), sample.words("en"))
    assert report.count("\n") == 1
    match = COMMAND.fullmatch(report.rstrip("\n"))
    assert match is not None
    assert unescaped(match[3]) == "50%\\r\\n::error::forged, a:b"
    properties = dict(part.split("=", 1) for part in match[2].split(","))
    assert unescaped(properties["file"]) == "a,b:c%.yaml"
    assert "col" not in properties, "columns only where the finding lies on one line"


def test_gitlab_entries_have_what_gitlab_needs() -> None:
    entries = json.loads(gitlab_report(sample.check_result(), sample.words("ko")))
    assert [entry["severity"] for entry in entries] == ["minor", "major", "info"]
    assert len({entry["fingerprint"] for entry in entries}) == 3
    assert entries[1]["location"] == {"path": sample.PATH, "lines": {"begin": 8, "end": 8}}
    assert entries[1]["check_name"] == "t5-fp16-overflow"


def test_gitlab_report_of_nothing_is_an_empty_array() -> None:
    assert json.loads(gitlab_report(sample.check_result(sample.bart_result()), sample.words("en"))) == []


def test_junit_has_a_case_for_each_unit_and_fails_at_the_threshold() -> None:
    for threshold, failed_lines, output_lines in (("error", 1, 2), ("warning", 2, 1), ("info", 3, 0)):
        text = junit_report(sample.check_result(), sample.words("en"), fail_on=threshold)  # type: ignore[arg-type]
        root = ET.fromstring(text)
        cases = root.findall("./testsuite/testcase")
        assert [case.get("name") for case in cases] == [f"{sample.PATH} [t5]", f"{sample.PATH} [bart]"]
        assert root.get("failures") == "1"
        failure = cases[0].find("failure")
        assert failure is not None
        assert len((failure.text or "").splitlines()) == failed_lines
        assert len((cases[0].findtext("system-out") or "").splitlines()) == output_lines
        assert cases[1].find("failure") is None


def test_junit_is_xml_whatever_a_config_holds() -> None:
    hostile = odd_finding("\x00\x1b[31m <&\"'> ]]> \ud800 \uffff 한글 🔥")
    unit = sample.t5_result()._replace(findings=(hostile,))
    unit = unit._replace(unit=unit.unit._replace(path='a"<&\x08.yaml'))
    text = junit_report(sample.check_result(unit), sample.words("en"), fail_on="info")
    root = ET.fromstring(text.encode("utf-8"))
    failure = root.find("./testsuite/testcase/failure")
    assert failure is not None
    assert "\\u0000\\u001b[31m <&\"'> ]]> \\ud800 \\uffff 한글 🔥" in (failure.text or "")


FAULTY = sample.check_result(sample.bart_result())._replace(unusable=sample.UNUSABLE)


def test_github_says_what_could_not_be_checked() -> None:
    lines = github_report(FAULTY, sample.words("en")).splitlines()
    assert lines[0].startswith("::error file=없는 것.yaml,title=kb::")
    assert lines[1].startswith("::error file=b%3A1.yaml,line=3,col=7,title=kb::")
    assert lines[2].startswith("::error title=kb::")


def test_gitlab_says_what_could_not_be_checked() -> None:
    entries = json.loads(gitlab_report(FAULTY, sample.words("en")))
    assert [entry["severity"] for entry in entries] == ["critical"] * 3
    assert [entry["location"] for entry in entries] == [
        {"path": "없는 것.yaml", "lines": {"begin": 1}},
        {"path": "b:1.yaml", "lines": {"begin": 3}},
        {"path": ".", "lines": {"begin": 1}},
    ]
    assert len({entry["fingerprint"] for entry in entries}) == 3


def test_junit_has_a_case_in_error_for_what_could_not_be_checked() -> None:
    root = ET.fromstring(junit_report(FAULTY, sample.words("en")))
    for element in (root, root.find("testsuite")):
        assert element is not None
        assert (element.get("tests"), element.get("failures"), element.get("errors")) == ("4", "0", "3")
    errors = root.findall("./testsuite/testcase/error")
    assert len(errors) == 3
    assert (errors[1].text or "").startswith("b:1.yaml:3:7: ")
