"""A project's own rules, GPUs, models and texts, laid over kb's by `knowledge` of its kb.toml or by a package."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kb
from effort import few
from kb import check, doctor, rules
from kb.session import knowledge

pytestmark = pytest.mark.long

CARD = """\
id: acme-card
name: ACME Card 20GB
memory_total: [{value: 20480, unit: MiB}]
compute_capability: {value: "8.9"}
"""
MODEL = """\
id: acme-1b
name: acme/secret-1b
architecture: {model_type: llama, hidden_size: 2048, intermediate_size: 5632, num_hidden_layers: 22,
  num_attention_heads: 32, num_key_value_heads: 4, vocab_size: 32000, max_position_embeddings: 2048,
  tie_word_embeddings: false}
"""
RULE = """\
id: acme-batch-over-queue
severity: error
confidence: high
area: batch
when: training.per_device_train_batch_size > 4 and gpu.id == "acme-card"
at: [training.per_device_train_batch_size]
title: {en: batch over the queue's limit}
message: {en: "{training.per_device_train_batch_size} samples on a GPU; our queue takes 4"}
why: {en: The queue kills larger runs.}
examples:
- {expect: fires, gpu: acme-card, config: "per_device_train_batch_size: 8\\noutput_dir: o\\nfp16: true\\n"}
- {expect: silent, gpu: acme-card, config: "per_device_train_batch_size: 2\\noutput_dir: o\\nfp16: true\\n"}
"""
CONFIG = "model_name_or_path: acme/secret-1b\nper_device_train_batch_size: 8\nbf16: true\noutput_dir: o\n"
CHECKED = "team/checks/batch/acme-batch-over-queue.yaml"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with a team's folder, in which the test works."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    knowledge.installed.cache_clear()
    root = tmp_path / "project"
    write(root, "kb.toml", 'knowledge = ["team"]\n')
    write(root, "train.yaml", CONFIG)
    write(root, "team/hardware/acme-card.yaml", CARD)
    write(root, "team/models/acme-1b.yaml", MODEL)
    write(root, CHECKED, RULE)
    monkeypatch.chdir(root)
    yield root
    knowledge.installed.cache_clear()


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


def checked(capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert check.main(["train.yaml", "--gpu", "acme-card", "--format", "json", *options]) in (0, 1)
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What is said in Korean, then in English, where nothing can be checked."""
    told = ""
    for language in ("ko", "en"):
        assert check.main(["train.yaml", "--gpu", "rtx-3090", "--lang", language, *options]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        told += captured.err
    return told


def test_a_private_gpu_model_and_rule_are_used(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = checked(capsys)
    (file,) = report["files"]
    assert "acme-batch-over-queue" in {finding["rule"] for finding in file["findings"]}
    assert report["machine"]["gpus"][0]["memory_total_bytes"] == 20480 << 20
    assert file["prediction"] is not None


def test_in_ci_the_private_rule_is_a_result_with_its_description(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["train.yaml", "--gpu", "acme-card", "--format", "sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert "acme-batch-over-queue" in {result["ruleId"] for result in run["results"]}
    described = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}["acme-batch-over-queue"]
    assert CHECKED in json.dumps(described)


def test_the_editor_shows_the_private_rule_and_reads_it_again_when_it_changes(project: Path) -> None:
    pytest.importorskip("pygls")
    from lsprotocol import types

    from kb.integrations.editor.answers import Answers, Positions
    from kb.integrations.editor.session import Session

    session = Session("en", {"gpu": "acme-card"})
    path = str(project / "train.yaml")
    found = session.check(CONFIG, path)
    answers = Answers(session, found, f"file://{path}", Positions(CONFIG, types.PositionEncodingKind.Utf16))
    assert "our queue takes 4" in " ".join(diagnostic.message for diagnostic in answers.diagnostics())
    hover = answers.hover(types.Position(line=1, character=30))
    assert hover is not None
    assert "The queue kills larger runs." in str(hover.contents)
    assert session.decides(str(project / CHECKED))
    write(project, CHECKED, RULE.replace("> 4", "> 40"))
    assert "acme-batch-over-queue" not in {finding.rule for _, finding in session.check(CONFIG, path).findings()}


SITE = "https://kb.example/guide"
WITH_FAULTS = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 8\nfp16: true\noutput_dir: o\n"


def pages(language: str, path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str | None]]:
    """The page of each rule that fires: in JSON, in SARIF, in the editor."""
    from lsprotocol import types

    from kb.integrations.editor.answers import Answers, Positions
    from kb.integrations.editor.session import Session

    found: dict[str, list[str | None]] = {}
    arguments = [str(path), "--gpu", "acme-card", "--lang", language]
    assert check.main([*arguments, "--format", "json"]) == 1
    for finding in json.loads(capsys.readouterr().out)["files"][0]["findings"]:
        found[finding["rule"]] = [finding.get("doc_url")]
    assert check.main([*arguments, "--format", "sarif"]) == 1
    for rule in json.loads(capsys.readouterr().out)["runs"][0]["tool"]["driver"]["rules"]:
        found[rule["id"]].append(rule.get("helpUri"))
    session = Session(language, {"gpu": "acme-card"})
    read = session.check(path.read_text("utf-8"), str(path))
    answers = Answers(session, read, "file:///c", Positions(WITH_FAULTS, types.PositionEncodingKind.Utf16))
    for each in answers.diagnostics():
        assert each.code_description is not None
        found.setdefault(str(each.code), []).append(each.code_description.href)
    return found


@pytest.mark.exhaustive
def test_a_finding_names_its_page_where_the_site_is_known_and_has_one(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygls")
    write(project, "train.yaml", WITH_FAULTS)
    monkeypatch.setenv("KB_SITE_URL", SITE)
    for language, below in (("ko", "rules"), ("en", "en/rules")):
        found = pages(language, project / "train.yaml", capsys)
        assert found["t5-fp16-overflow"] == [f"{SITE}/{below}/t5-fp16-overflow/"] * 3
        own = found["acme-batch-over-queue"]
        assert own[:2] == [None, None] and str(own[2]).endswith(CHECKED), "of a team's rule the site has no page"
    monkeypatch.setenv("KB_SITE_URL", "")
    without = pages("en", project / "train.yaml", capsys)["t5-fp16-overflow"]
    assert without[:2] == [None, None] and str(without[2]).startswith("file://"), "no address is made up"


def test_what_changes_in_an_overlay_changes_the_version_by_which_results_are_kept(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = checked(capsys)["rules"]
    assert checked(capsys)["rules"] == first
    write(project, CHECKED, RULE.replace("severity: error", "severity: warning"))
    second = checked(capsys)["rules"]
    assert second != first
    write(project, "kb.toml", "")
    assert check.main(["train.yaml", "--gpu", "none", "--format", "json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["rules"] == first.partition("+")[0]


def test_an_overlay_passes_its_own_examples_and_is_shown_like_ours(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rules.main(["validate", "--lang", "en"]) == 0
    assert rules.main(["test", "acme-batch-over-queue", "--lang", "en"]) == 0
    assert rules.main(["show", "acme-card", "--lang", "en"]) == 0
    assert rules.main(["explain", "acme-card", "acme-1b", "--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert "3 entries laid over kb's rules" in said
    assert "2 examples run, 0 failed" in said
    assert CARD in said
    assert "(claimed, team/hardware/acme-card.yaml)" in said


def test_a_broken_rule_is_named_and_the_shipped_rules_run_without_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, CHECKED, RULE.replace("training.per_device_train_batch_size > 4", "training.batch_sise > 4"))
    told = refused(capsys)
    assert f"{project / CHECKED}:5:7: when: " in told
    assert "--skip-broken-overlays 옵션으로 빼십시오" in told
    assert "leave it out with --skip-broken-overlays" in told
    write(project, "train.yaml", "model_name_or_path: t5-base\nfp16: true\noutput_dir: o\n")
    options = ["train.yaml", "--gpu", "acme-card", "--lang", "en", "--skip-broken-overlays"]
    assert check.main(options) == 1  # the team's GPU is still known
    captured = capsys.readouterr()
    assert "t5-fp16-overflow" in captured.out and "ACME Card" in captured.out
    assert "of team these files are left out" in captured.err
    assert CHECKED in captured.err


def test_what_rests_on_a_file_that_is_left_out_is_left_out_too(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "team/hardware/acme-card.yaml", "id: [\n")  # the team's rule asks for this GPU
    write(project, "train.yaml", "model_name_or_path: t5-base\nfp16: true\noutput_dir: o\n")
    assert check.main(["train.yaml", "--gpu", "rtx-3090", "--lang", "en", "--skip-broken-overlays"]) == 1
    captured = capsys.readouterr()
    assert "t5-fp16-overflow" in captured.out
    rule = CHECKED.removeprefix("team/")
    assert f"left out (--skip-broken-overlays): {rule}, hardware/acme-card.yaml" in captured.err


def test_a_newer_overlay_is_left_out_as_a_whole(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "team/knowledge.yaml", "format: 99\n")
    write(project, "train.yaml", "model_name_or_path: t5-base\nfp16: true\noutput_dir: o\n")
    assert check.main(["train.yaml", "--gpu", "rtx-3090", "--lang", "en", "--skip-broken-overlays"]) == 1
    assert "team is left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "korean", "english"),
    few(
        [
            (
                "team/hardware/rtx-4090.yaml",
                CARD.replace("acme-card", "rtx-4090"),
                "'rtx-4090' 이름은 kb에 이미 있습니다",
                "take another id, or write `replaces: rtx-4090`",
            ),
            (
                "team/hardware/acme-other.yaml",
                CARD.replace("acme-card", "acme-other"),
                "'ACME Card 20GB' 이름은 이미 acme-card",
                "'ACME Card 20GB' already means acme-card",
            ),
            (
                "team/hardware/acme-big.yaml",
                CARD.replace("acme-card", "acme-big").replace("Card", "Big") + "replaces: rtx-9999\n",
                "같은 id의 항목만",
                "an entry replaces one of its own id",
            ),
            (
                "team/hardware/acme-big.yaml",
                CARD.replace("acme-card", "acme-big").replace("Card", "Big") + "replaces: acme-big\n",
                "바꿀 'acme-big' 항목이 없습니다",
                "there is no 'acme-big' to replace",
            ),
            (
                "team/knowledge.yaml",
                "format: 99\n",
                "99번 형식은 이 kb보다 새것입니다",
                "format 99 is newer than this kb, which reads format 1; upgrade kb",
            ),
            ("team/hardwares/x.yaml", CARD, "'hardware' 아닙니까?", "did you mean 'hardware'?"),
            ("team/models/x.yml", MODEL, "이름을 .yaml로", "name it .yaml"),
            ("team/hardware/bad.yaml", "id: [\n", "YAML", "not YAML"),
            ("team/i18n/en.yaml", "report.findingz: x\n", "문장이 없습니다", "kb has no text 'report.findingz'"),
            ("kb.toml", 'knowledge = ["tema"]\n', "폴더가 없습니다", "there is no folder"),
            ("kb.toml", 'knowledge = ["pkg:acme-none"]\n', "설치되어 있지 않습니다", "pip install acme-none"),
            ("kb.toml", "knowledge = [1]\n", "문자열 배열", "must be an array of strings"),
        ],
        4,
    ),
)
def test_what_cannot_be_laid_over_is_said_in_both_languages(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, korean: str, english: str
) -> None:
    write(project, name, text)
    told = refused(capsys)
    assert korean in told
    assert english in told
    assert str(project / name).partition("/x.yaml")[0] in told


def test_every_unknown_key_of_an_entry_is_named_at_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "team/hardware/acme-card.yaml", CARD + "memory_bandwith: 1\ntdpp: 2\n")
    told = refused(capsys)
    assert "'memory_bandwith' is not known; did you mean 'memory_bandwidth'?" in told
    assert "'tdpp' is not known; did you mean 'tdp'?" in told


@pytest.mark.exhaustive
def test_a_link_out_of_an_overlay_is_not_followed(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = write(tmp_path, "outside/acme-far.yaml", CARD.replace("acme-card", "acme-far"))
    (project / "team/hardware/acme-far.yaml").symlink_to(outside)
    told = refused(capsys)
    assert f"{project / 'team/hardware/acme-far.yaml'}:1:1: is a link that leads to {outside}" in told
    assert "링크는 따라가지 않습니다" in told
    (project / "team/hardware/acme-far.yaml").unlink()
    # a folder that is mounted by links of its own, as Kubernetes does with a ConfigMap, is read
    write(project, "team/hardware/.data/acme-near.yaml", CARD.replace("acme-card", "acme-near").replace("Card", "Near"))
    (project / "team/hardware/acme-near.yaml").symlink_to(".data/acme-near.yaml")
    assert check.main(["train.yaml", "--gpu", "acme-near", "--format", "json"]) in (0, 1)


def test_an_entry_is_replaced_where_it_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = CARD.replace("acme-card", "rtx-4090").replace("ACME Card 20GB", "RTX 4090 of ours")
    write(project, "team/hardware/rtx-4090.yaml", f"{ours}aliases: [RTX 4090]\nreplaces: rtx-4090\n")
    assert check.main(["train.yaml", "--gpu", "rtx 4090", "--format", "json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["machine"]["gpus"][0]["memory_total_bytes"] == 20480 << 20


def test_a_later_overlay_lies_over_an_earlier_one(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "kb.toml", 'knowledge = ["team", "mine"]\n')
    write(project, "mine/hardware/acme-card.yaml", CARD.replace("20480", "24576"))
    assert f"already in {project / 'team/hardware/acme-card.yaml'}" in refused(capsys)
    write(project, "mine/hardware/acme-card.yaml", CARD.replace("20480", "24576") + "replaces: acme-card\n")
    assert checked(capsys)["machine"]["gpus"][0]["memory_total_bytes"] == 24576 << 20


def test_a_text_of_kb_in_a_teams_words(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "team/i18n/en.yaml", 'report.explain_hint: "Ask in #gpu, or: kb rules explain {rule}"\n')
    assert check.main(["train.yaml", "--gpu", "acme-card", "--lang", "en"]) == 1
    assert "Ask in #gpu" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["kb.toml", "entry point"])
def test_an_installed_package_lays_its_rules_over(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    site = tmp_path / "site"
    write(site, "acme_kb_rules/__init__.py", "raise SystemExit('the code of a package of rules is not run')\n")
    write(site, "acme_kb_rules/hardware/acme-packaged.yaml", CARD.replace("acme-card", "acme-packaged"))
    write(project, "kb.toml", 'knowledge = ["pkg:acme-kb-rules"]\n' if how == "kb.toml" else "")
    if how == "entry point":
        declared = "[console_scripts]\nx = y:z\n[kb.knowledge]\nacme = acme_kb_rules\n"
        write(site, "acme_kb_rules-1.0.dist-info/entry_points.txt", declared)
    monkeypatch.syspath_prepend(str(site))
    knowledge.installed.cache_clear()
    assert check.main(["train.yaml", "--gpu", "acme-packaged", "--format", "json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["machine"]["gpus"][0]["memory_total_bytes"] == 20480 << 20
    assert doctor.main(["--lang", "en"]) == 0
    assert "acme_kb_rules): 1 entry" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_broken_condition_is_told_in_the_readers_language(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, CHECKED, RULE.replace("training.per_device_train_batch_size > 4", "training.batch_sise > 4 GB"))
    told = refused(capsys).splitlines()
    place = f"{project / CHECKED}:5:7: when: "
    assert any(line.startswith(place + "1번째 글자: 'training.batch_sise': 없는 사실입니다.") for line in told)
    assert any(line.startswith(place + "column 1: unknown fact 'training.batch_sise'") for line in told)
    write(project, CHECKED, RULE.replace("training.per_device_train_batch_size > 4", "gpu.id > 4"))
    assert "'>': 자료형이 다른 값을 비교합니다: 문자열, 수" in refused(capsys)
    options = ["train.yaml", "--gpu", "acme-card", "--lang", "ko", "--skip-broken-overlays"]
    assert check.main(options) == 0
    assert '\n  gpu.id > 4 and gpu.id == "acme-card"\n' in capsys.readouterr().err, "the lines of a fault stay lines"


def test_a_name_that_is_taken_is_told_once_at_its_place(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = CARD.replace("acme-card", "acme-b").replace("ACME Card 20GB", "RTX 4090")
    write(project, "team/hardware/acme-b.yaml", other)
    path = project / "team/hardware/acme-b.yaml"
    told = refused(capsys)
    assert told.count("rtx-4090") == 2  # in each language
    assert f"{path}:2:7: 'RTX 4090' already means rtx-4090; take another name" in told


@pytest.mark.exhaustive
def test_the_python_api_takes_what_the_working_folder_lays_over(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_name_or_path": "acme/secret-1b", "per_device_train_batch_size": 8, "output_dir": "o"}
    assert kb.predict(config, "acme-card").verdict.status == "oom"
    assert [row["model"] for row in kb.predict_many([config], "acme-card")] == ["acme/secret-1b"]
    assert kb.recommend("acme-1b", "acme-card").training is not None
    found = {finding.rule for _, finding in kb.findings(kb.lint(config, "acme-card"))}
    assert "acme-batch-over-queue" in found
    write(project, CHECKED, RULE.replace("> 4", "> 40"))
    found = {finding.rule for _, finding in kb.findings(kb.lint(config, "acme-card"))}
    assert "acme-batch-over-queue" not in found, "it is read again when it changes"
    monkeypatch.chdir(project.parent)
    with pytest.raises(kb.UserError, match="acme-card"):
        kb.predict(config, "acme-card")
    by_file = kb.lint(project / "train.yaml", "acme-card", model="acme-1b")
    assert by_file.units[0].prediction is not None, "a file's own project knows the model that is named"


@pytest.mark.exhaustive
def test_the_editor_speaks_in_a_teams_words(project: Path) -> None:
    pytest.importorskip("pygls")
    from kb.integrations.editor.session import Session

    write(project, "team/i18n/en.yaml", "count.clean: all is well at ACME\n")
    session = Session("en", {"gpu": "acme-card"})
    assert session.words_of(str(project / "train.yaml"))("count.clean") == "all is well at ACME"
    assert session.words("count.clean") != "all is well at ACME"
    write(project, "team/i18n/en.yaml", "count.cleanz: x\n")
    assert session.words_of(str(project / "train.yaml"))("count.clean") == session.words("count.clean")


def test_a_rule_is_begun_in_an_overlay(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["new", "acme-long-input", "--area", "batch", "--into", "team", "--lang", "en"]
    assert rules.main(begin) == 0
    path = project / "team/checks/batch/acme-long-input.yaml"
    capsys.readouterr()
    assert rules.main(["validate", "--lang", "en"]) == 1
    assert f"{path}:9:" in (said := capsys.readouterr().err) and "still the template's text" in said
    text = path.read_text("utf-8")
    for old in (
        "결함의 이름",
        "the fault's name",
        "…",
        "왜 문제인지 한 문단으로 씁니다.",
        "One paragraph on why it matters.",
    ):
        text = text.replace(old, "long inputs" if old != "…" else "is long")
    path.write_text(text, "utf-8")
    assert rules.main(["validate", "--lang", "en"]) == 0
    assert rules.main(["test", "acme-long-input", "--lang", "en"]) == 0
    assert rules.main(begin) == 2, "it is there"


def test_doctor_says_what_is_laid_over_and_what_is_wrong_with_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.main(["--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["knowledge"]
    assert row == {"name": "team", "folder": str(project / "team"), "entries": 3, "faults": []}
    write(project, "team/hardware/acme-card.yaml", CARD.replace("MiB", "MB"))
    assert doctor.main(["--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert "has faults, is left out here, and stops kb check" in said
    assert "acme-card.yaml:3:" in said
    write(project, "kb.toml", 'knowledge = ["team", "pkg:acme-none", "tema"]\n')
    assert doctor.main(["--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert "acme-none: is not there, which stops kb check" in said
    assert "pip install acme-none" in said and "there is no folder" in said
