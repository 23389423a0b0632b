"""`kb rules diff REV`: entries, missing version bumps, and what a change of the rules makes of recommendations."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warm_runs
from catalog_sample import load_catalog, load_guide, shallow, shallow_catalog
from effort import few
from kb.advice import rule_diff
from kb.advice.rule_diff import Edition, Flips, Recommended, entries_of, flips_of, readable_by_this_code
from kb.core.units import GIB
from kb.integrations.git_files import GitError, resolve
from kb.knowledge import load_words
from kb.report.rules.diff import MOST_ROWS, rule_diff_markdown
from kb.report.words import Words
from output_schemas import answers_to
from rules_copy import few_rules
from warm_runs import run_text
from yaml_file import read_yaml

ROOT = Path(__file__).parents[2]
ENVIRON = {
    **{name: value for name, value in warm_runs.ENVIRON.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
NOW = Edition(
    load_catalog(), load_guide(), {"checks/t5-fp16-overflow": (1, "a", "a"), "models/mt5-base": (2, "b", "b")}
)
FEW = 4  # models that a test asks about beside two of the notes, of all sizes and families
# Of what the memory engine follows only the shallow ones: a deep one alone takes longer than all others.
DEEP = {n for n, m in NOW.catalog.models.items() if m.architecture.engine and m.architecture.decoder_layers > 12}
SPREAD = sorted(NOW.catalog.models.keys() - DEEP)[:: len(NOW.catalog.models) // FEW]
NOTED = {"mt5-base", *(preset["model"] for preset in NOW.guide["presets"].values())}
# Of two layers, as what differs does not depend on a model's depth.
SMALL = NOW._replace(
    catalog=NOW.catalog._replace(
        models={name: shallow(NOW.catalog.models[name]) for name in sorted({*SPREAD, "mt5-xlsum", "mt5-base"})}
    )
)

SHALLOW = NOW._replace(catalog=shallow_catalog())
FP16 = Path("checks", "precision", "t5-fp16-overflow.yaml")
VERSION = load_catalog().rules["t5-fp16-overflow"].version


def git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(
        ["git", *arguments], cwd=folder, env=ENVIRON, capture_output=True, text=True, timeout=60, check=True
    )
    return run.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose one commit holds some of the shipped rules."""
    few_rules(tmp_path, models=SMALL.catalog.models.keys() | NOTED)
    (tmp_path / ".gitignore").write_text(".bundle/\n", "utf-8")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "user.email", "someone@example.com")
    git(tmp_path, "config", "user.name", "Someone")
    record(tmp_path, "rules")
    return tmp_path


def record(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "-c", "commit.gpgSign=false", "commit", "--quiet", "--message", message)


def diff(folder: Path, *arguments: str, code: int = 0) -> str:
    run = run_text("kb.rules", "diff", *arguments, "--rules", folder / "rules", environ=ENVIRON, cwd=folder)
    assert "Traceback" not in run.stderr
    assert run.returncode == code, run.stderr + run.stdout[:2000]
    return run.stderr if code == 2 else run.stdout


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), "utf-8")


# --- as its users run it ----------------------------------------------------------------------------------------------


def test_rules_that_did_not_change_have_nothing_to_say(repository: Path) -> None:
    assert "No rule, figure, recommendation or verdict differs." in diff(repository, "HEAD", "--lang", "en")


def test_a_change_without_a_higher_version_is_a_finding(repository: Path) -> None:
    edit(repository / "rules" / FP16, "severity: error", "severity: warning")
    data = json.loads(diff(repository, "HEAD", "--format", "json", code=1))
    answers_to("rules-diff", data)
    assert data["version_bump_missing"] == [{"entry": "checks/t5-fp16-overflow", "before": VERSION, "after": VERSION}]
    assert data["changed"] == []
    assert data["compared"]["asked"] == 0


@pytest.mark.exhaustive
def test_a_change_of_rules_and_of_a_gpu_in_both_languages(repository: Path) -> None:
    rule = repository / "rules" / FP16
    edit(rule, f"version: {VERSION}", f"version: {VERSION + 1}")
    edit(rule, "severity: error", "severity: warning")
    shutil.copy(rule, rule.with_name("another-overflow.yaml"))
    edit(rule.with_name("another-overflow.yaml"), "id: t5-fp16-overflow", "id: another-overflow")
    gpu = repository / "rules" / "hardware" / "t4.yaml"
    text = gpu.read_text("utf-8")
    version = int(re.search(r"^version: (\d+)$", text, re.MULTILINE)[1])  # type: ignore[index]
    text = text.replace(f"version: {version}", f"version: {version + 1}", 1)
    half = "memory_total:\n  - {value: 7680, unit: MiB, status: measured, source: modal-client-2797}\n"
    text = re.sub(r"memory_total:\n(?:  .*\n)+", half, text)
    gpu.write_text(re.sub(r"cuda_memory:\n(?:  .*\n)+", "", text), "utf-8")
    english = diff(repository, "HEAD", "--lang", "en")
    assert f"| `checks/another-overflow` | {VERSION + 1} | warning |" in english
    assert f"| `checks/t5-fp16-overflow` | {VERSION} → {VERSION + 1} | error → warning |" in english
    assert f"| `hardware/t4` | {version} → {version + 1} |" in english
    assert re.search(r"\| `mt5-base` \| `t4` \| .+ \| .+ \|", english)
    assert not re.search("[가-힣]", english)
    korean = diff(repository, "HEAD", "--lang", "ko")
    assert "오류 → 경고" in korean and "달라지는 추천" in korean


@pytest.mark.parametrize(
    ("before", "after", "said"),
    few(
        [
            ("severity: error", "severity: fatal", "fatal"),
            ("id: t5-fp16-overflow", "id: t5-fp16-overflow\nid: twice", "twice"),
        ]
    ),
)
def test_a_revision_whose_rules_are_broken_is_said(repository: Path, before: str, after: str, said: str) -> None:
    edit(repository / "rules" / FP16, before, after)
    record(repository, "broken")
    git(repository, "checkout", "--quiet", "HEAD~1", "--", "rules")
    stderr = diff(repository, "HEAD", "--lang", "en", code=2)
    assert "HEAD" in stderr and said in stderr and str(Path("rules") / FP16) in stderr


def test_a_revision_with_another_schema_is_said(repository: Path) -> None:
    shutil.rmtree(repository / "rules" / "schema")
    (repository / "rules" / "schema").mkdir()
    (repository / "rules" / "schema" / "rule.json").write_text("{}", "utf-8")
    record(repository, "another schema")
    git(repository, "checkout", "--quiet", "HEAD~1", "--", "rules")
    assert "schema" in diff(repository, "HEAD", "--lang", "en", code=2)


def test_a_revision_without_rules_or_that_is_none_is_said(repository: Path) -> None:
    git(repository, "rm", "--quiet", "-r", "--cached", "rules")
    git(repository, "-c", "commit.gpgSign=false", "commit", "--quiet", "--message", "no rules")
    assert "no folder rules" in diff(repository, "HEAD", "--lang", "en", code=2)
    assert "no revision v9" in diff(repository, "v9", "--lang", "en", code=2)
    with pytest.raises(GitError) as fault:
        resolve(str(repository), "--git-dir=elsewhere")
    assert fault.value.key == "git.unknown_revision"


# --- the pure parts ---------------------------------------------------------------------------------------------------


def test_entries_are_sorted_by_what_happened_to_them() -> None:
    before = NOW._replace(
        entries={
            "a/same": (1, "x", "x"),
            "a/worded": (1, "x", "x"),
            "a/raised": (1, "x", "x"),
            "a/forgotten": (2, "x", "x"),
            "a/lower": (3, "x", "x"),
            "a/gone": (1, "x", "x"),
        }
    )
    after = NOW._replace(
        entries={
            "a/worded": (1, "x", "y"),
            "a/same": (1, "x", "x"),
            "a/raised": (2, "y", "y"),
            "a/forgotten": (2, "y", "y"),
            "a/lower": (2, "y", "y"),
            "a/new": (1, "x", "x"),
        }
    )
    entries = entries_of(before, after)
    assert [change.name for change in entries.added] == ["a/new"]
    assert [change.name for change in entries.changed] == ["a/raised"]
    assert [change.name for change in entries.removed] == ["a/gone"]
    assert [change.name for change in entries.reworded] == ["a/worded"]
    assert [change.name for change in entries.unbumped] == ["a/forgotten", "a/lower"]
    assert entries_of(NOW, NOW).none


def test_figures_facts_schemas_and_errata_are_compared_too() -> None:
    constants = {**NOW.catalog.constants, "reserved_mean": 1.5}
    facts = {name: fact for name, fact in NOW.catalog.facts.items() if name != "training.fp16"}
    errata = {"errata": [{"id": "made-up", "claim": {"source": "guide-memory", "lines": "1"}}]}
    before = Edition(
        NOW.catalog._replace(constants=constants, facts=facts), {"errata": errata}, NOW.entries, {"check.json": "x"}
    )
    entries = entries_of(before, NOW._replace(guide={}))
    assert [(row.name, row.before) for row in entries.constants] == [("reserved_mean", 1.5)]
    assert (entries.facts_added, entries.facts_removed) == (("training.fp16",), ())
    assert (entries.schemas, entries.errata) == (("check.json",), ("made-up",))


def test_a_changed_figure_stands_in_the_first_five_lines_before_any_prose() -> None:
    def card(bandwidth: int, note: str) -> dict[str, Any]:
        return {"id": "t4", "memory_bandwidth": {"value": bandwidth, "unit": "GB/s", "note": note}}

    before = NOW._replace(entries={"hardware/t4": (1, "a", "a")}, contents={"hardware/t4": card(320, "Old.")})
    after = NOW._replace(entries={"hardware/t4": (2, "b", "b")}, contents={"hardware/t4": card(300, "New.")})
    entries, flips = entries_of(before, after), Flips((), (), (), 0, 0, 0, 0)
    text = rule_diff_markdown("main", "0" * 40, entries, flips, before, after, Words("en", load_words("en"), {}))
    lines = text.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "320 → **300** GB/s" in line]
    assert at < 5
    assert "Old. → **New.**" in lines[at + 1]


def test_a_new_gpu_and_a_new_model_are_shown_with_what_fits() -> None:
    gpus = {name: NOW.catalog.gpus[name] for name in ("t4", "rtx-3090")}
    models = {name: NOW.catalog.models[name] for name in ("t5-base", "mt5-base")}
    after = NOW._replace(catalog=NOW.catalog._replace(gpus=gpus, models=models), guide={})
    only = {"gpus": {"t4": gpus["t4"]}, "models": {"t5-base": models["t5-base"]}}
    before = after._replace(catalog=after.catalog._replace(**only))
    fits = flips_of(before, after).fits
    assert {(fit.model, fit.gpu) for fit in fits} == {
        ("t5-base", "rtx-3090"),
        ("mt5-base", "rtx-3090"),
        ("mt5-base", "t4"),
    }
    assert all(fit.recommended is not None and fit.recommended.batch >= 1 for fit in fits)
    assert flips_of(after, after).fits == ()


def test_rules_older_than_a_fact_can_still_be_asked() -> None:
    facts = {name: fact for name, fact in NOW.catalog.facts.items() if name != "training.bf16"}
    before = NOW._replace(catalog=NOW.catalog._replace(facts=facts))
    assert "training.bf16" in readable_by_this_code(before, NOW).catalog.facts
    assert flips_of(before, NOW).findings == ()


def test_nothing_is_compared_where_nothing_can_differ() -> None:
    flips = flips_of(NOW, NOW)
    assert (flips.asked, flips.recommendations, flips.verdicts, flips.findings) == (0, (), (), ())
    assert flips.pairs == len(NOW.catalog.models) * len(NOW.catalog.gpus)
    assert flips.preset_rows > 0


@pytest.mark.exhaustive
def test_a_smaller_gpu_flips_recommendations_and_verdicts() -> None:
    gpus = dict(NOW.catalog.gpus)
    gpus["rtx-3090"] = gpus["rtx-3090"]._replace(memory_total=8 * GIB)
    after = SMALL._replace(catalog=SMALL.catalog._replace(gpus=gpus))
    flips = flips_of(SMALL, after)
    assert flips.asked == len(SMALL.catalog.models)
    assert {flip.gpu for flip in flips.recommendations} == {"rtx-3090"}
    flip = next(flip for flip in flips.recommendations if flip.model == "mt5-xlsum")
    assert flip.before is not None
    assert flip.after is None or flip.after.eval_batch < flip.before.eval_batch
    assert any(flip.after == "oom" and flip.before != "oom" for flip in flips.verdicts)


@pytest.mark.exhaustive
def test_a_rule_that_is_new_flips_findings_on_the_notes_rows() -> None:
    fired = {
        flip.rule for flip in flips_of(SHALLOW._replace(catalog=SHALLOW.catalog._replace(rules={})), SHALLOW).findings
    }
    assert fired
    rule = sorted(fired)[0]
    rules = {name: each for name, each in SHALLOW.catalog.rules.items() if name != rule}
    flips = flips_of(SHALLOW._replace(catalog=SHALLOW.catalog._replace(rules=rules)), SHALLOW)
    assert {flip.rule for flip in flips.findings} == {rule}
    assert all(flip.before is None and flip.after == NOW.catalog.rules[rule].severity for flip in flips.findings)


@pytest.fixture(scope="module")
def smaller() -> tuple[Edition, Flips]:
    """The rules with a GPU of less memory; what differs there stands for as many GPUs as make a long table."""
    gpu = NOW.catalog.gpus["rtx-3090"]
    gpus = {**NOW.catalog.gpus, "rtx-3090": gpu._replace(memory_total=gpu.memory_total * 3 // 4)}
    after = SMALL._replace(catalog=SMALL.catalog._replace(gpus=gpus))
    flips = flips_of(SMALL, after)
    rows = [flip._replace(gpu=gpu) for gpu in sorted(gpus) for flip in flips.recommendations]
    return after, flips._replace(recommendations=tuple(rows))


def _training(found: Recommended | None) -> Recommended | None:
    return found and found._replace(eval_batch=0, inference_batch=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_the_markdown_holds_tables_that_end(smaller: tuple[Edition, Flips], language: str) -> None:
    after, flips = smaller
    assert len(flips.recommendations) > MOST_ROWS
    words = Words(language, load_words(language), NOW.catalog.facts)
    text = rule_diff_markdown("main", "0" * 40, entries_of(SMALL, after), flips, SMALL, after, words)
    assert len(text) < 65_536
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert tables
    for table in tables:
        assert len(table) <= MOST_ROWS + 2
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    folded = [flip for flip in flips.recommendations if _training(flip.before) == _training(flip.after)]
    assert folded  # only evaluation or inference differ: counted, not listed
    assert words("rules.diff_folded", n=len(folded)) in text
    assert f"{len(flips.recommendations) - len(folded) - MOST_ROWS}" in text


def test_the_workflow_posts_with_no_more_rights_than_it_needs() -> None:
    workflow: Any = read_yaml(ROOT / ".github" / "workflows" / "rule-preview.yml")
    assert workflow["permissions"] == {}
    assert set(workflow[True]) == {"pull_request"}  # YAML 1.1 reads the key `on` as true
    jobs = workflow["jobs"]
    assert jobs["preview"]["permissions"] == {"contents": "read"}
    assert jobs["comment"]["permissions"] == {"pull-requests": "write"}
    # the job that may write runs nothing of the pull request
    assert not any("checkout" in step.get("uses", "") for step in jobs["comment"]["steps"])
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert any("kb.rules diff" in script for script in scripts)
    assert not any("${{" in script for script in scripts)


@pytest.mark.exhaustive
def test_where_all_pairs_may_differ_a_sample_is_asked_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 8
    monkeypatch.setattr(rule_diff, "MOST_PAIRS", most)
    constants = NOW.catalog.constants | {"band_train": NOW.catalog.constants["band_train"] * 2}
    after = SMALL._replace(catalog=SMALL.catalog._replace(constants=constants))
    flips = flips_of(SMALL, after)
    assert flips.differing == flips.pairs
    assert most <= flips.asked < flips.pairs / 10
    assert flips.recommendations
    words = Words("en", load_words("en"), NOW.catalog.facts)
    text = rule_diff_markdown("main", "0" * 40, entries_of(SMALL, after), flips, SMALL, after, words)
    assert f"{flips.asked} of them, a sample" in text
