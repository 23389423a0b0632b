"""The rules as they are, and as they were at a revision, read for a comparison."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from kb.advice.rule_diff import Edition
from kb.core.text import UserError
from kb.integrations.git_files import export, resolve
from kb.knowledge import KnowledgeError, load_catalog, load_guide
from kb.knowledge.locations import Location, named
from kb.knowledge.meaning import entries
from kb.knowledge.readings import lend


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
