"""Versions of entries against git's history: no lock is kept, since git holds what each entry said before."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from kb.advice.rule_diff import Edition
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.integrations.git_files import GitError, contents_at, export, git, resolve
from kb.knowledge import KnowledgeError, load_catalog, load_guide
from kb.knowledge.compile import Files
from kb.knowledge.locations import Location, named
from kb.knowledge.meaning import Entry, entries, entry
from kb.knowledge.problems import Problem
from kb.knowledge.readings import lend
from kb.knowledge.schema import FOLDERS
from kb.knowledge.source import read_source

MAIN = ("origin/HEAD", "origin/main", "main", "master")


class Compared(NamedTuple):
    """What is wrong with the versions of a folder of rules; ``base`` is the commit that they were held against.

    Without one, ``reason`` says why.
    """

    problems: list[Problem]
    base: str | None = None
    reason: GitError | None = None


def compare_versions(
    location: Location, files: Files | None = None, *, base: str | None = None, only: str | None = None
) -> Compared:
    """Entries whose meaning changed since ``base`` and whose version did not, and entries of a release that are gone.

    Args:
        files: what was read; None reads the folder.
        base: a revision; None is where this branch left the main one.
        only: the file that alone was read, by its path; entries that are gone are then not looked for.

    Raises:
        GitError: ``base`` is named and is no revision.
    """
    folder = os.path.abspath(location.rules)
    try:
        commit = resolve(folder, base) if base is not None else merge_base(folder)
        changed = _changed(folder, commit)
        before = _entries_at(folder, commit, changed)
    except GitError as error:
        if base is not None:
            raise
        return Compared([], reason=error)
    now = entries(location, files)
    problems = [
        problem
        for name, one in now.items()
        if name in before and (problem := _version_problem(name, one, before[name], commit)) is not None
    ]
    if only is None:
        problems += _gone(folder, set(before) - set(now), changed)
    return Compared(problems, commit)


def merge_base(folder: str) -> str:
    """The commit at which this branch left the main one; on the main one itself, HEAD.

    Raises:
        GitError: no git, no repository, no commit, or no common history (a shallow clone).
    """
    target = os.environ.get("GITHUB_BASE_REF")
    names = (f"origin/{target}",) if target else MAIN
    for name in names:
        try:
            tip = resolve(folder, name)
        except GitError as error:
            if error.key != "git.unknown_revision":
                raise
            continue
        return git(folder, ["merge-base", tip, "HEAD"], revision=name, path=folder).decode().strip()
    return resolve(folder, "HEAD")


def _changed(folder: str, commit: str) -> list[str]:
    """Files of versioned entries that are not as they were at ``commit``, gone ones too, by their names here."""
    listed = git(folder, ["diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--", "."], path=folder)
    names = [name for name in listed.decode("utf-8", "replace").split("\0") if name.endswith(".yaml")]
    return [name for name in names if name.partition("/")[0] in FOLDERS]


def _entries_at(folder: str, commit: str, names: list[str]) -> dict[str, Entry]:
    """The entries of those files as they were; what this kb cannot read of another time has no version to compare."""
    found = {}
    for name, content in contents_at(folder, commit, names).items():
        try:
            located = read_source(name, content.decode("utf-8"))
            found[f"{name.partition('/')[0]}/{located.data['id']}"] = entry(located)
        except (KnowledgeError, UnicodeDecodeError, LookupError, TypeError):
            continue
    return found


def _version_problem(name: str, now: Entry, before: Entry, commit: str) -> Problem | None:
    if now.version < before.version:
        return now.located.problem(
            ("version",),
            f"version {now.version} is lower than the {before.version} of {commit[:9]}; "
            f"write `version: {before.version + 1}`",
            f"version {now.version} 값이 {commit[:9]} 커밋의 {before.version}보다 낮습니다. "
            f"`version: {before.version + 1}` 값을 적으십시오",
        )
    if now.version == before.version and now.meaning != before.meaning:
        return now.located.problem(
            ("version",),
            f"what it means changed since {commit[:9]} and version {now.version} did not; "
            f"write `version: {now.version + 1}`",
            f"{commit[:9]} 커밋 뒤로 뜻이 바뀌었는데 version 값은 {now.version} 그대로입니다. "
            f"`version: {now.version + 1}` 값을 적으십시오",
        )
    return None


def _gone(folder: str, names: set[str], changed: list[str]) -> list[Problem]:
    """Of the entries that are not here any more, those that the last release carried: somebody may name them."""
    if not names:
        return []
    try:
        tag = git(folder, ["describe", "--tags", "--abbrev=0"], path=folder).decode().strip()
    except GitError:
        return []  # nothing was released yet
    return [
        Problem(
            os.path.join(folder, name.partition("/")[0]),
            1,
            1,
            f"{name} is gone and {tag} had it; keep it with `deprecated:` and `replaced_by:`",
            f"{tag} 릴리스에 있던 {name} 항목이 없습니다. `deprecated:`와 `replaced_by:`를 적어 남겨 두십시오",
        )
        for name in sorted(names & _entries_at(folder, tag, changed).keys())
    ]


def edition_at(location: Location) -> Edition:
    """The rules of a folder.

    Raises:
        KnowledgeError: the folder has faults.
    """
    found = entries(location)
    return Edition(
        catalog=load_catalog(location.rules),
        guide=load_guide(location.rules),
        entries={name: (one.version, one.meaning, one.whole) for name, one in found.items()},
        contents={name: one.located.data for name, one in found.items()},
        schemas=_schemas(os.path.join(location.rules, "schema")),
    )


@contextmanager
def edition_before(location: Location, revision: str) -> Iterator[tuple[Edition, str]]:
    """The rules of the same folder at ``revision``, and the commit's full hash.

    Raises:
        GitError: no git, no repository, no such revision.
        UserError: the revision has no rules, or rules that this kb cannot read.
    """
    rules = os.path.abspath(location.rules)
    folder, name = os.path.split(rules)
    commit = resolve(folder, revision)
    with tempfile.TemporaryDirectory(prefix="kb-rules-") as temporary:
        export(folder, commit, [name, "i18n"], temporary)
        old = os.path.join(temporary, name)
        if not os.path.isdir(old):
            raise UserError("rules.diff_no_rules", revision=revision, folder=name)
        lend(location, named(old))
        yield _read(old, revision, temporary), commit


def _read(rules: str, revision: str, temporary: str) -> Edition:
    """Rules of another time may lack what this code counts on, in ways that only reading them shows."""
    try:
        return edition_at(named(rules))
    except KnowledgeError as error:
        first = str(error.problems[0]).replace(temporary + os.sep, "")
        raise UserError("rules.diff_broken", revision=revision, count=len(error.problems), first=first) from None
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}".replace(temporary + os.sep, "")
        raise UserError("rules.diff_other_schema", revision=revision, reason=reason) from None


def _schemas(folder: str) -> dict[str, str]:
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), "rb") as stream:
                found[name] = hashlib.sha256(stream.read()).hexdigest()
    return found
