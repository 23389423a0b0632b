"""Large blocks pass by Markdown; formulas, tables and texts of the rules come out as they are meant."""

import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from kb.core.memory_report import Phase, Term
from kb.core.text import LANGUAGES
from kb.guide.accuracy import (
    OF_THE_BENCH,
    accuracy_tables,
    bench_results,
    engine_scores,
    followed_types,
    measured_rows,
)
from kb.guide.choices import choice_of
from kb.guide.choose import chooser, ways
from kb.guide.figures import compare, drawn
from kb.guide.fits import fit_of
from kb.guide.fits_tables import by_family, fits_by_model
from kb.guide.formulas import formula
from kb.guide.library import load_library
from kb.guide.macros import SHOWN
from kb.guide.markup import coloured, held, reachable, text, wide_table
from kb.guide.original_guide import SOURCES, noted_facts, noted_settings
from kb.guide.proof import accuracy_summary
from kb.guide.runbooks import checklist, commands_table
from kb.guide.tables import source_tables
from kb.integrations.browser import choose
from kb.report.bars import HUES, SMALL, term_colours
from kb.report.recommend.choice import choice_object
from site_needs import ROOT
from yaml_file import read_yaml

LIBRARY = load_library("en")


def test_a_held_block_is_one_line_however_its_html_was_written() -> None:
    assert held("<p>\na\n</p>").count("\n") == 0


def test_what_markdown_cannot_escape_is_an_entity() -> None:
    assert text("a < b ~24") == "a &lt; b ~24"


def test_a_wide_table_can_be_reached_by_keyboard_and_has_a_name() -> None:
    made = wide_table('a "name"', ["x", "y"], [("group", [("1", "2")])])
    assert 'tabindex="0" role="region" aria-label="a &quot;name&quot;"' in made
    assert 'colspan="2"' in made


def test_models_of_one_family_stand_together_encoder_decoders_first() -> None:
    families = by_family(list(LIBRARY.catalog.models.values()))
    names = [name for name, _ in families]
    assert len(names) == len(set(names))
    assert LIBRARY.catalog.models["mt5-base"] in dict(families)["mt5"]
    assert names.index("t5") < names.index("llama") < names.index("bert")


@pytest.mark.parametrize(
    ("model", "lengths"), [("mt5-base", "1024/128"), ("llama-3.2-1b", "1024"), ("klue-bert-base", "512")]
)
def test_a_target_length_is_shown_only_where_it_means_something(model: str, lengths: str) -> None:
    catalog = LIBRARY.catalog
    row = fit_of(catalog.models[model], catalog.gpus["rtx-3090"], catalog.constants)
    assert row is not None
    assert f"<td>{lengths}</td>" in fits_by_model(LIBRARY, [row])


def test_each_type_of_model_that_the_engine_follows_is_named() -> None:
    named = set(re.findall(r"<code>([\w-]+)</code>", followed_types(LIBRARY)))
    listed = {model.architecture.model_type for model in LIBRARY.catalog.models.values()}
    assert listed - named == {"exaone"}  # whose code lies beside its weights: answered roughly


@pytest.mark.exhaustive
@pytest.mark.long
def test_every_measured_run_stands_with_its_prediction_and_error() -> None:
    shown = measured_rows(LIBRARY)
    runs = sum(
        "train" in row["phases"]
        for campaign in LIBRARY.rows("measurements").values()
        if campaign["kind"] == "gpu" and not OF_THE_BENCH & campaign["rows"][0].keys()
        for row in campaign["rows"]
    )
    assert shown.count('<th scope="row">') == runs > 0
    assert len(re.findall(r"<td>[+-][\d.e+]+ %</td>", shown)) >= runs


@pytest.mark.long
def test_campaigns_of_hundreds_of_rows_are_told_by_what_the_bench_found() -> None:
    told = accuracy_summary(LIBRARY)
    campaigns = {
        name: each for name, each in LIBRARY.rows("measurements").items() if OF_THE_BENCH & each["rows"][0].keys()
    }
    limited, generated = (campaigns.pop(name) for name in ("limits-h100-2026-11-26", "limits-generate-h200-2026-11-27"))
    assert f": {len(limited['rows'])} runs, with limits drawn" in accuracy_tables(LIBRARY)
    assert f"on an H200: {len(generated['rows'])} runs" in accuracy_tables(LIBRARY)
    assert len(campaigns) == 6
    for name, campaign in campaigns.items():
        assert str(len(campaign["rows"])) in told
        assert any(line["group"].startswith(f"{name}, ") for line in bench_results()["measured"])


def test_accuracy_shows_other_programs_beside_kb() -> None:
    shown = accuracy_tables(LIBRARY)
    assert "published runs on data of varied lengths" in shown and "openbuddy-zephyr" in shown
    assert "fitcheck-llm" in shown and "kb, roughly" in shown


def test_the_engine_is_judged_by_the_phases_that_were_held_out() -> None:
    lines = bench_results()["engine"]["lines"]
    held_out = [line for line in lines if line["part"] == "held out"]
    single = [line for line in held_out if not line["group"].startswith("all, ")]
    phases, equal = (sum(line[key] for line in single) for key in ("rows", "equal"))
    worst = max(abs(line["allocated"]["worst"]) for line in single)
    shown = re.sub(r"<[^>]*>", "", engine_scores(LIBRARY))
    assert 0 < equal <= phases
    assert f"Of {phases} phases that were **held out" in shown and f"{equal} are equal to the byte" in shown
    assert f"differ by {100 * worst:.2g} % at most" in shown and "none of this was measured on a GPU" in shown


@pytest.mark.parametrize(
    ("model", "gpu"),
    [
        ("klue-roberta-base", "rtx-3090"),
        pytest.param("mt5-base", "rtx-3090", marks=pytest.mark.exhaustive),
        pytest.param("mt5-xl", "rtx-3090", marks=pytest.mark.exhaustive),  # of 24 layers, in every way
        pytest.param("t5-base", "a100-80gb", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.long
def test_the_first_table_says_what_the_chooser_says(model: str, gpu: str) -> None:
    said = choice_object({"model": model, "gpu": gpu}, LIBRARY.words)["ways"]
    own = next(way for way in said if way["chosen"])
    most = max((way for way in said if not way["offered"]), key=lambda way: int(way["batch"]))
    cell = re.sub(r"<[^>]*>", "", ways(LIBRARY, choice_of(model, gpu)))
    assert f"**{own['batch']}** {own['title']}" in cell and not own["rough"]
    shown = f"{'~' if most['rough'] else ''}{most['batch']} {most['title']}"
    assert (shown in cell) == (most["batch"] > own["batch"])


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.long
def test_the_chooser_begins_with_what_it_answers_when_it_is_asked(language: str) -> None:
    library = load_library(language)
    found = re.search(r'data-given="([^"]*)"', chooser(library, "t5-base", "rtx-3090"))
    assert found is not None
    asked = json.loads(choose(json.dumps({"model": "t5-base", "gpu": "rtx-3090"}), language))
    assert json.loads(unescape(found[1]))["chosen"] == asked["chosen"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_source_without_a_note_leads_to_what_cites_it(language: str) -> None:
    shown = source_tables(load_library(language))
    row = next(line for line in shown.splitlines() if 'id="s-hf-7198"' in line)
    assert "(rules/resume-argument-ignored.md)" in row
    assert not re.search(r"\|\s*\|$", shown, re.MULTILINE)


def test_a_column_that_says_nothing_is_left_out() -> None:
    shown = formula(LIBRARY, "kfold-inference-memory")
    assert "| variable | value |" in shown and "choices" not in shown


def test_lora_leaves_activations_and_takes_states() -> None:
    shown = compare(LIBRARY, "method", "mt5-base", "rtx-3090", 4)
    assert shown.count('<th scope="row">') == 5


def test_an_unknown_comparison_is_said_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="method, post, attention, gpus"):
        compare(LIBRARY, "batch", "mt5-base", "rtx-3090", 4)


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_notes_stand_beside_kb_with_reasons_and_errata() -> None:
    shown = noted_settings(LIBRARY, {"mt5-xl"}, model="mt5-xl")
    assert "<b>kb</b>" in shown and "../errata/mt5-xl-in-24gb.md" in shown


def test_steps_of_a_checklist_have_their_figures() -> None:
    assert "{" not in checklist(LIBRARY, "batch-test").replace("{:", "")


def test_a_faulty_command_of_the_notes_stands_beside_the_right_one_and_is_in_no_checklist() -> None:
    shown, rows = commands_table(LIBRARY), LIBRARY.entry("runbooks", "commands")["commands"]
    assert shown.count("<code>free -h</code>") == 1
    assert all(row["id"] not in shown.split() for row in rows)
    assert [row["id"] for row in rows if "fault" in row and text(row["fault"]["en"])[:30] not in shown] == []
    assert "memory.current" in checklist(LIBRARY, "preflight")
    assert "free -h" not in checklist(LIBRARY, "preflight")


def test_every_macro_is_documented() -> None:
    with open("CONTRIBUTING.md", encoding="utf-8") as stream:
        said = stream.read()
    assert [name for name in SHOWN if f"`{name}(" not in said] == []


def test_wide_code_can_be_scrolled_by_keyboard_and_narrow_code_is_no_stop() -> None:
    wide, narrow = "a: " + "b" * 60, "a: b"
    assert '<code tabindex="0">' in coloured(wide, "yaml") and "tabindex" not in coloured(narrow, "yaml")
    page = "".join(f"<pre><span></span><code><span>{code}</span>\n</code></pre>" for code in (wide, narrow))
    assert reachable(page).count('tabindex="0"') == 1


def test_coloured_code_says_what_the_code_says() -> None:
    code = 'training:\n  note: "<b> & co"  # 주석'
    assert unescape(re.sub(r"<[^>]*>", "", coloured(code, "yaml"))) == code + "\n"


NOTED = ("presets", "tradeoffs", "decisions", "formulas", "runtimes", "histories", "remedies", "runbooks")


def _cited(data: Any) -> Iterator[tuple[str, str, Any]]:
    """Source, lines and value of everything in a file of the rules that was read off the original guide."""
    if isinstance(data, dict):
        if data.get("source") in SOURCES and "lines" in data and "value" in data:
            yield data["source"], str(data["lines"]), data["value"]
        for name, value in data.items():
            if name not in ("also", "cites"):
                yield from _cited(value)
    elif isinstance(data, list):
        for value in data:
            yield from _cited(value)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_fact_of_the_original_guide_is_found_on_its_page(language: str) -> None:
    page = unescape(re.sub(r"</?(?:b|code)>", "", noted_facts(load_library(language))))
    rows = re.findall(r'<th scope="row">([^<]*)</th><td>(.*?)</td>', page)
    files = [path for kind in NOTED for path in (ROOT / "rules" / kind).rglob("*.yaml")]
    facts = [fact for path in files for fact in _cited(read_yaml(path))]
    assert len(facts) > 300
    missing = [
        (source, lines, value)
        for source, lines, value in facts
        if not any(at == lines and all(part in said for part in _parts(value)) for at, said in rows)
    ]
    assert missing == []


def _parts(value: Any) -> list[str]:
    each = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in each]


def test_a_term_has_one_colour_in_the_guide_and_in_the_playground() -> None:
    script = (ROOT / "docs" / "theme" / "assets" / "js" / "kb-dom.mjs").read_text("utf-8")
    listed = re.search(r"export const HUES = \{(.*?)\};", script, re.DOTALL)
    assert listed is not None
    assert {name: int(hue) for name, hue in re.findall(r"(\w+): (\d+),", listed[1])} == HUES
    style = (ROOT / "docs" / "theme" / "assets" / "css" / "kb.css").read_text("utf-8")
    assert all(f".kb-term--{hue} {{" in style for hue in (*HUES.values(), SMALL))


def test_of_two_terms_of_one_colour_the_larger_has_it() -> None:
    phase = Phase(*[0] * len(Phase._fields))._replace(  # type: ignore[arg-type]
        terms=(Term("vllm", 3), Term("loss", 2), Term("parameters", 1), Term("workspace", 1))
    )
    found = term_colours([phase])
    assert (found["vllm"], found["loss"]) == (HUES["vllm"], SMALL)
    assert (found["parameters"], found["workspace"]) == (HUES["parameters"], SMALL)


def test_every_note_of_a_source_stands_in_the_pages_language() -> None:
    for name, about in LIBRARY.catalog.sources.items():
        assert "note" not in about or set(about["note"]) == {"ko", "en"}, name
    assert "저장된 사본을 읽었습니다" in source_tables(load_library("ko"))
    assert "Stored copy of its config.json read" in source_tables(LIBRARY)


def test_a_figure_has_a_bar_for_each_count_and_refuses_what_it_does_not_know() -> None:
    shown = drawn(LIBRARY, "beams", "mt5-base", "rtx-3090", [1, 4], 16)
    sizes = [float(size) for size in re.findall(r"beams: \d · ([\d.]+) GiB", shown)]
    assert len(sizes) == 2 and sizes[0] < sizes[1]
    with pytest.raises(ValueError, match="there are: batch, precision, beams, generation"):
        drawn(LIBRARY, "dropout", "mt5-base", "rtx-3090", [1])


SCOPE = (
    '__md_scope=new URL("{}",location),__md_hash=e=>[...e].reduce(((e,_)=>(e<<5)-e+_.charCodeAt(0)),0),'
    '__md_get=(e,_=localStorage,t=__md_scope)=>JSON.parse(_.getItem(t.pathname+"."+e)),'
)


@pytest.mark.parametrize("script", ["alert(1)", '__md_scope=new URL("..",location);alert(1)', SCOPE.format("..")])
def test_a_script_that_is_none_of_the_themes_stops_the_build(script: str) -> None:
    pytest.importorskip("mkdocs")
    from mkdocs.exceptions import PluginError

    from kb.guide.hooks import with_policy

    with pytest.raises(PluginError, match="none of the theme's"):
        with_policy(f"<html><head></head><body><script>{script}</script></body></html>")
    data = with_policy("<html><head></head><script type=application/json>{}</script></html>")
    assert "script-src 'self' 'wasm-unsafe-eval';" in data
