"""`kb rules show` and `explain`: any id under rules/, in both languages; figures with their sources."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from catalog_sample import load_catalog, load_guide
from config_sample import ROOT
from effort import EXHAUSTIVE, few
from kb.advice.formulas import work_out
from kb.commands.rules import explain_entry, find_entry, main
from kb.core.text import UserError
from kb.knowledge import load_words
from kb.knowledge.entries import Entry, entries_of, written
from kb.knowledge.locations import named, shipped
from kb.report.terminal import Style
from kb.report.words import Words
from rules_copy import few_rules
from yaml_file import LOADER

pytestmark = pytest.mark.long

CATALOG, GUIDE = load_catalog(whole=True), load_guide()
ENTRIES = entries_of(shipped())
EACH = {name: entry for name, entry in ENTRIES.items() if "/" in name}
KINDS = sorted({entry.kind for entry in EACH.values()})
WORDS = {language: Words(language, load_words(language), CATALOG.facts) for language in ("ko", "en")}


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def kb(*arguments: object) -> Ran:
    """``kb rules`` in this process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([*map(str, arguments)])
    return Ran(code, out.getvalue(), err.getvalue())


def explained(name: str, language: str = "en") -> str:
    return explain_entry(find_entry(name, ENTRIES), shipped(), CATALOG, GUIDE, WORDS[language], Style())


def test_every_kind_of_entry_is_found() -> None:
    assert set(KINDS) >= {"checks", "decisions", "errata", "formulas", "hardware", "histories", "models", "presets"}
    assert {entry.id for entry in EACH.values() if entry.kind == "checks"} == set(CATALOG.rules)
    assert {entry.id for entry in EACH.values() if entry.kind == "errata"} == {
        row["id"] for row in GUIDE["errata"]["errata"]
    }


@pytest.mark.parametrize("kind", few(KINDS, 6))
def test_every_entry_can_be_shown_and_explained_in_both_languages(kind: str) -> None:
    entries = [entry for entry in EACH.values() if entry.kind == kind]
    for entry in entries if EXHAUSTIVE else entries[:: len(entries) // 8 + 1]:
        assert entry.id in written(shipped(), entry)
        if kind == "dialects":
            continue
        english, korean = (explained(f"{kind}/{entry.id}", language) for language in ("en", "ko"))
        assert english.startswith(entry.id) and korean.startswith(entry.id)
        for text in (english, korean):
            assert not re.search(
                r"\b(explain|entry_kind|erratum_verdict|term_use|threshold_state|status|unit)\.[a-z]", text
            ), "a text is missing"
        assert re.search("[가-힣]", korean)


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_no_figure_of_an_erratum_has_moved(language: str) -> None:
    """The words for a figure that comes out otherwise are never needed in what is shipped."""
    lead = WORDS[language].messages["explain.recomputed_differs"].rpartition("{stored}")[0].rpartition("}")[2]
    for row in GUIDE["errata"]["errata"]:
        assert lead not in explained(f"errata/{row['id']}", language), row["id"]


def test_an_erratum_says_claim_finding_verdict_and_use() -> None:
    english = explained("effective-batch-comment-80")
    assert english.index("wrong") < english.index("80 samples") < english.index("40 samples, computed just now")
    assert "The claim (history-mt5-qlora:14)" in english
    assert "accumulation = 2 steps (history-mt5-qlora:14)" in english
    korean = explained("effective-batch-comment-80", "ko")
    assert "원래 가이드의 주장 (history-mt5-qlora:14)" in korean and "지금 다시 계산한 값" in korean


def test_a_figure_that_moved_is_shown_with_the_one_that_was_stored(tmp_path: Path) -> None:
    path = few_rules(tmp_path) / "errata.yaml"
    text = path.read_text("utf-8")
    start = text.index("- id: effective-batch-comment-80")
    changed = text[start:].replace("value: 40, unit: samples", "value: 41, unit: samples", 1)
    assert changed != text[start:]
    path.write_text(text[:start] + changed, "utf-8")
    run = kb("explain", "effective-batch-comment-80", "--rules", tmp_path / "rules", "--lang", "en")
    assert "40 samples, computed just now; the erratum has 41 samples" in " ".join(run.stdout.split())


def test_a_formula_shows_both_kinds_of_terms_and_works_its_examples_out() -> None:
    text = " ".join(explained("guide-host-memory").split())
    assert "overhead = subtotal * overhead_share / (1 - overhead_share) [GB] (guide-memory:27)" in text
    assert "overhead = subtotal * overhead_share [GB]" in text
    assert text.index("The original guide's terms") < text.index("Terms to use instead")
    total = work_out(GUIDE["formulas"]["guide-host-memory"], {"workers": 16, "model_size": 0, "overhead_share": 0.2})
    assert f"total = {total['total']:g} GB" in text
    assert "host-overhead-of-total (" in text


def test_thresholds_say_their_range_and_their_line() -> None:
    text = " ".join(explained("targets").split())
    assert "gpu-memory-training: 70–85% (target, training) (guide-memory:130)" in text
    assert "gpu-memory-danger: >= 22 GB (danger, inference) (guide-batch-inference:417)" in text


def test_figures_stand_in_the_sentences_that_name_them() -> None:
    text = " ".join(explained("faq").split())
    assert "The folds take 10–12 min with batch 8" in text
    assert "{" not in text
    assert "16 → 12 → 8 → 6" in " ".join(explained("gpu-oom").split())


def test_an_erratum_is_shown_as_it_is_written() -> None:
    for entry in EACH.values():
        if entry.kind == "errata":
            (row,) = yaml.load(written(shipped(), entry), LOADER)
            assert row["id"] == entry.id and {"claim", "finding", "verdict", "use"} <= row.keys()


def test_a_file_is_shown_as_it_is_written() -> None:
    path = ROOT / "rules" / "formulas" / "targets.yaml"
    assert kb("show", "targets").stdout == kb("show", "formulas/targets").stdout == path.read_text("utf-8")


def test_a_kind_lists_its_entries() -> None:
    assert kb("show", "decisions").stdout.split() == ["inference-batch"]
    assert "effective-batch-comment-80" in kb("show", "errata").stdout.split()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("effective-batch-coment-80", "effective-batch-comment-80"),
        ("formulas/target", "formulas/targets"),
        ("rtx-3091", "rtx-309"),
        ("qqqqqqqqqq", "kb rules show"),
    ],
)
def test_an_unknown_id_names_the_nearest_of_all(name: str, said: str) -> None:
    for action in ("show", "explain"):
        run = kb(action, name, "--lang", "en")
        assert run.returncode == 2 and run.stdout == ""
        assert name in run.stderr and said in run.stderr


def test_an_id_of_two_kinds_is_told_apart_by_its_kind(tmp_path: Path) -> None:
    for kind in ("formulas", "tradeoffs"):
        (tmp_path / "rules" / kind).mkdir(parents=True)
        (tmp_path / "rules" / kind / "same.yaml").write_text(f"id: same\nkind: {kind}\n", "utf-8")
    found: dict[str, Any] = entries_of(named(str(tmp_path / "rules")))
    assert found["same"] == found["formulas/same"] == Entry("formulas", "same", "formulas/same.yaml")
    assert found["tradeoffs/same"].kind == "tradeoffs"
    with pytest.raises(UserError, match="no_entry"):
        find_entry("errata/same", found)
