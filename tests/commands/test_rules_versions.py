"""Versions of entries against git's history, in real repositories: no lock, and so nothing that two branches share."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb import rules
from kb.commands.rules.versions import compare_versions
from kb.integrations.git_files import GitError
from kb.knowledge import KnowledgeError
from kb.knowledge.compile import Files, compile_files, read_rules_folder
from kb.knowledge.locations import named
from kb.knowledge.problems import Problem
from kb.knowledge.schema import KINDS

ROOT = Path(__file__).parents[2]
CARD, BASE_CARD = "hardware/rtx-5070.yaml", "hardware/rtx-4090.yaml"


def git(folder: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    author = ("-c", "user.name=Someone", "-c", "user.email=someone@example.com", "-c", "commit.gpgSign=false")
    command = ["git", *author, *arguments]
    run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return run.stdout.strip()


def record(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The rules' folder of a repository whose one commit holds a GPU, a model, a rule and what they refer to."""
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    rules_folder = tmp_path / "rules"
    kept = (BASE_CARD, "models/t5-base.yaml", "checks/precision/t5-fp16-overflow.yaml")
    for name in (*kept, "vocabulary.yaml", "constants.yaml", "sources.yaml"):
        (rules_folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "rules" / name, rules_folder / name)
    shutil.copytree(ROOT / "rules" / "schema", rules_folder / "schema")
    shutil.copy(ROOT / ".gitignore", tmp_path)  # what kb keeps of compiling is no part of a repository
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    record(tmp_path, "rules")
    yield rules_folder


def edit(path: Path, pattern: str, to: str) -> None:
    text, count = re.subn(pattern, to, path.read_text("utf-8"), count=1)
    assert count == 1
    path.write_text(text, "utf-8")


def said(folder: Path, base: str | None = None) -> list[str]:
    return [str(problem) for problem in compare_versions(named(str(folder)), base=base).problems]


def new_card(folder: Path, name: str, memory: str) -> None:
    text = (folder / BASE_CARD).read_text("utf-8").replace("4090", name).partition("claims:")[0]
    text = text.replace("24564", memory).replace("value: 24,", "value: 12,").partition("cuda_memory:")
    rest = text[2].partition("compute_capability:")
    text_now = f"{text[0]}compute_capability:{rest[2]}"
    cited = sorted(set(re.findall(r"source: ([\w-]+)", text_now)))
    (folder / f"hardware/rtx-{name}.yaml").write_text(f"{text_now}sources: [{', '.join(cited)}]\n", "utf-8")


def test_two_branches_that_add_neighbours_merge_and_are_valid(repository: Path) -> None:
    for name, memory in (("5070", "12227"), ("5080", "12300")):
        git(repository, "switch", "--quiet", "--create", f"add-{name}", "main")
        new_card(repository, name, memory)
        assert said(repository) == []
        record(repository, name)
    git(repository, "merge", "--quiet", "--no-edit", "add-5070")  # refuses where there is a conflict
    git(repository, "switch", "--quiet", "main")
    git(repository, "merge", "--quiet", "--no-edit", "add-5080")
    found = {located.data["id"] for located in read_rules_folder(named(str(repository)))["hardware"]}
    assert found == {"rtx-4090", "rtx-5070", "rtx-5080"}
    assert said(repository) == []


def add_to_lists(folder: Path, name: str) -> None:
    """A source in the list and one in a file of its own, and a fact, all at the same places."""
    line = f"{name}: {{title: {name}, kind: issue}}\n"
    with (folder / "sources.yaml").open("a", encoding="utf-8") as stream:
        stream.write(f"  {line}")
    (folder / "sources").mkdir(exist_ok=True)
    (folder / f"sources/own-{name}.yaml").write_text(f"version: 1\nsources:\n  own-{line}", "utf-8")
    fact = f"  data.{name}_rows: {{type: integer, given: true, unit: rows, ko: 행, en: rows}}"
    edit(folder / "vocabulary.yaml", r"(?m)^(  run\.trains: .*)$", rf"\1\n{fact}")


def faults_of_sources(files: Files) -> list[Problem]:
    nothing_else: dict[str, list[str]] = {kind: [] for kind in KINDS}
    return [problem for problem in compile_files(files, nothing_else)[1] if "sources" in problem.path]


def test_two_branches_that_add_to_the_same_list_merge_and_are_valid(repository: Path) -> None:
    shutil.copy(ROOT / ".gitattributes", repository.parent)
    record(repository.parent, "attributes")
    for name in ("first", "second"):
        git(repository, "switch", "--quiet", "--create", f"add-{name}", "main")
        add_to_lists(repository, name)
        record(repository.parent, name)
    git(repository, "merge", "--quiet", "--no-edit", "add-first")  # refuses where there is a conflict
    files = read_rules_folder(named(str(repository)))
    (listed,) = files["sources.yaml"]
    assert {"first", "second"} <= listed.data["sources"].keys()
    assert {name for located in files["sources"] for name in located.data["sources"]} == {"own-first", "own-second"}
    assert {"data.first_rows", "data.second_rows"} <= files["vocabulary.yaml"][0].data["facts"].keys()
    assert faults_of_sources(files) == [] and said(repository) == []


def test_a_line_that_two_branches_change_is_a_fault_once_they_are_merged(repository: Path) -> None:
    shutil.copy(ROOT / ".gitattributes", repository.parent)
    record(repository.parent, "attributes")
    for name in ("one", "two"):
        git(repository, "switch", "--quiet", "--create", name, "main")
        edit(repository / "sources.yaml", r"(?m)^(  schedulefree-1.4.1: \{title: ).*?(,)", rf"\1{name}\2")
        record(repository.parent, name)
    git(repository, "merge", "--quiet", "--no-edit", "one")
    with pytest.raises(KnowledgeError, match=r"sources\.yaml:\d+:3: .*schedulefree"):
        read_rules_folder(named(str(repository)))


def test_a_source_is_described_once(repository: Path) -> None:
    add_to_lists(repository, "first")
    text = (repository / "sources/own-first.yaml").read_text("utf-8")
    (repository / "sources/again.yaml").write_text(text, "utf-8")
    (problem,) = faults_of_sources(read_rules_folder(named(str(repository))))
    assert problem.path.endswith("own-first.yaml") and "again.yaml too" in problem.message


def test_a_changed_meaning_needs_a_higher_version_and_the_message_says_which(repository: Path) -> None:
    git(repository, "switch", "--quiet", "--create", "bandwidth")
    edit(repository / BASE_CARD, "value: 1008,", "value: 1009,")
    (problem,) = compare_versions(named(str(repository))).problems
    assert problem.path.endswith(BASE_CARD)
    assert problem.line == 3  # where `version` stands
    assert "write `version: 3`" in problem.message
    assert "`version: 3` 값을 적으십시오" in problem.korean
    record(repository, "bandwidth")
    assert len(said(repository)) == 1  # and committing it changes nothing
    edit(repository / BASE_CARD, "version: 2", "version: 3")
    assert said(repository) == []
    edit(repository / BASE_CARD, "version: 3", "version: 1")
    assert "version 1 is lower than the 2 of" in said(repository)[0]


def test_a_wording_a_note_and_a_comment_need_no_version(repository: Path) -> None:
    check = repository / "checks/precision/t5-fp16-overflow.yaml"
    edit(check, r"title: \{ko: [^,]+,", "title: {ko: 다른 제목,") if "title: {" in check.read_text("utf-8") else edit(
        check, r"(title:\s+ko: ).*", r"\1다른 제목"
    )
    edit(repository / BASE_CARD, "note: Dense", "note: It is dense")
    edit(repository / "models/t5-base.yaml", "^", "# said aloud\n")
    assert said(repository) == []
    edit(check, "severity: error", "severity: warning")
    assert len(said(repository)) == 1


def test_an_entry_of_a_release_may_not_vanish(repository: Path) -> None:
    (repository / BASE_CARD).unlink()
    assert said(repository) == []  # no release has carried it
    git(repository, "tag", "-m", "v1", "v1")
    assert "hardware/rtx-4090 is gone and v1 had it" in said(repository)[0]


def test_without_history_nothing_is_compared_and_the_command_says_why(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(repository.parent / ".git")
    compared = compare_versions(named(str(repository)))
    assert (compared.problems, compared.base) == ([], None)
    assert isinstance(compared.reason, GitError)
    assert rules.main(["lock", "--rules", str(repository), "--lang", "en"]) == 2
    assert "versions cannot be compared" in capsys.readouterr().err


def test_the_old_command_goes_on_working_and_takes_a_revision(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rules.main(["lock", "--rewrite", "--rules", str(repository), "--lang", "en"]) == 0
    assert "no lock is kept" in capsys.readouterr().out
    edit(repository / BASE_CARD, "value: 1008,", "value: 1009,")
    record(repository, "on main itself")
    assert rules.main(["lock", "--rules", str(repository), "--lang", "ko"]) == 0
    assert rules.main(["lock", "--base", "HEAD~1", "--rules", str(repository), "--lang", "ko"]) == 1
    assert "뜻이 바뀌었는데" in capsys.readouterr().err
    assert rules.main(["lock", "--base", "no-such", "--rules", str(repository), "--lang", "en"]) == 2


def test_the_shipped_entries_have_the_versions_that_their_history_asks_for() -> None:
    assert [str(problem) for problem in compare_versions(named(str(ROOT / "rules"))).problems] == []
