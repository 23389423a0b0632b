"""What could not be checked, in every format of a real check; and lists with nothing in them."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import report_sample as sample
from kb.commands.check import main
from kb.report.check.text import fault_line, fault_text

CONFIG = "general: {model_name: google/mt5-small}\ntraining: {per_device_train_batch_size: 1}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "good.yaml").write_text(CONFIG, "utf-8")
    (tmp_path / "bad.yaml").write_text(CONFIG + "training: [1\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(form: str, capsys: pytest.CaptureFixture[str], *paths: str, code: int = 2) -> str:
    assert main([*paths, "--gpu", "rtx-3090", "--format", form, "--lang", "en"]) == code
    return capsys.readouterr().out


def test_a_fault_is_worded_with_the_place_that_it_has() -> None:
    words = sample.words("en")
    missing, syntax, nowhere = sample.UNUSABLE
    assert fault_text(missing, words) == "없는 것.yaml does not exist. Check the path."
    assert fault_line(syntax, words).startswith("b:1.yaml:3:7: This is not YAML.")
    assert fault_line(nowhere, words).startswith("kb: none of the files")


def test_a_path_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in fault_line(sample.UNUSABLE[1]._replace(path="a\x1b[2J"), sample.words("en"))


def test_json_names_every_unusable_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(checked("json", capsys, "good.yaml", "bad.yaml", "missing.yaml"))
    assert len(report["files"]) == 1
    assert {fault["path"] for fault in report["unusable"]} == {"bad.yaml", "missing.yaml"}
    (bad,) = [fault for fault in report["unusable"] if fault["path"] == "bad.yaml"]
    assert bad["line"] >= 3


def test_sarif_is_not_successful(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = json.loads(checked("sarif", capsys, "good.yaml", "bad.yaml"))["runs"][0]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "bad.yaml"}


def test_junit_counts_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ET.fromstring(checked("junit", capsys, "good.yaml", "bad.yaml"))
    assert root.get("errors") == "1"
    assert root.find("./testsuite/testcase[@name='bad.yaml']/error") is not None


def test_github_and_gitlab_point_at_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "::error file=bad.yaml,line=" in checked("github", capsys, "bad.yaml")
    (entry,) = json.loads(checked("gitlab", capsys, "bad.yaml"))
    assert (entry["severity"], entry["location"]["path"]) == ("critical", "bad.yaml")


@pytest.mark.parametrize(("language", "ending"), [("en", "familiar: none"), ("ko", "아는 키: 없음")])
def test_no_message_ends_in_an_empty_list(
    folder: Path, capsys: pytest.CaptureFixture[str], language: str, ending: str
) -> None:
    (folder / "compose.yaml").write_text("services:\n  web:\n    image: nginx\n", "utf-8")
    assert main(["compose.yaml", "--lang", language]) == 0
    assert f"{ending}\n" in capsys.readouterr().out


def test_a_suppression_without_a_near_rule_says_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "good.yaml").write_text(CONFIG + "# kb: ignore[zzzzzz] no such rule\n# kb: ignore[] nothing\n", "utf-8")
    text = " ".join(checked("text", capsys, "good.yaml", code=0).split())
    assert "The nearest name: none" in text
    assert "Rules it names: none" in text


def test_full_lengths_are_assumed_where_memory_is_predicted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prediction = json.loads(checked("json", capsys, "good.yaml", code=0))["files"][0]["prediction"]
    assert prediction["assumed"][0] == {"name": "data.lengths", "value": "full", "reason": "full_length"}
