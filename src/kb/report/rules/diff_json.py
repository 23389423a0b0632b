"""A change of the rules as JSON, schema 1: ``rules/schema/output/rules-diff.json`` says it in full."""

from typing import Any

from kb.advice.rule_diff import Entries, EntryChange
from kb.advice.rule_flips import Flips, Recommended
from kb.report.check.json_report import plain

Object = dict[str, Any]


def rule_diff_object(revision: str, commit: str, entries: Entries, flips: Flips) -> Object:
    return {
        "revision": revision,
        "commit": commit,
        "added": [_change(change) for change in entries.added],
        "changed": [_change(change) for change in entries.changed],
        "removed": [_change(change) for change in entries.removed],
        "version_bump_missing": [_change(change) for change in entries.unbumped],
        "constants": [
            {"name": row.name, "before": plain(row.before), "after": plain(row.after)} for row in entries.constants
        ],
        "facts_added": list(entries.facts_added),
        "facts_removed": list(entries.facts_removed),
        "errata": list(entries.errata),
        "schemas": list(entries.schemas),
        "recommendations": [
            {
                "model": flip.model,
                "gpu": flip.gpu,
                "before": _recommended(flip.before),
                "after": _recommended(flip.after),
            }
            for flip in flips.recommendations
        ],
        "verdicts": [flip._asdict() for flip in flips.verdicts],
        "findings": [flip._asdict() for flip in flips.findings],
        "compared": {"pairs": flips.pairs, "asked": flips.asked, "preset_rows": flips.preset_rows},
    }


def _change(change: EntryChange) -> Object:
    return {"entry": change.name, "before": change.before, "after": change.after}


def _recommended(recommended: Recommended | None) -> Object | None:
    return None if recommended is None else recommended._asdict()
