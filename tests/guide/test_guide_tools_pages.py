"""Pages of tools: commands from their parsers, Python from its code, formats from rules, remedies with an answer."""

import re
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from effort import few
from kb.commands import COMMANDS
from kb.core.expression import FUNCTIONS
from kb.core.grammar import SIGNS
from kb.guide import pages
from kb.guide.choose import constant
from kb.guide.library import UnknownIdError, load_library
from kb.guide.markup import code
from kb.guide.pages import remedy_page
from kb.guide.reference import EXAMPLES, api_reference, command_reference, described, grammar_tables
from kb.guide.search_words import other_names, phrases
from kb.guide.tables import dialect_table, remedy_table

KO, EN = load_library("ko"), load_library("en")


@cache
def remedy_pages(language: str) -> dict[str, str]:
    """The page of every remedy, which several tests read."""
    library = load_library(language)
    return {name: remedy_page(library, entry) for name, entry in library.rows("remedies").items()}


def test_every_command_stands_with_its_options_in_both_languages() -> None:
    korean, english = command_reference(KO), command_reference(EN)
    for name in COMMANDS:
        heading = f"## kb {name} {{ #{name} }}"
        assert heading in korean and heading in english
    assert "--host-memory SIZE" in english and "환경" not in english


def test_a_class_is_shown_as_it_is_called() -> None:
    shown = api_reference(EN, "integrations/trainer/callback.py", "KbCallback")
    assert "class KbCallback(" in shown and "lang: str | None = None" in shown and "self" not in shown
    assert "**Arguments**" in shown and "- `diagnosis`: " in shown


def test_a_name_that_a_module_does_not_define_is_said_with_those_it_does() -> None:
    with pytest.raises(UnknownIdError, match=r"no 'Callback'; there are: .*KbCallback"):
        api_reference(EN, "integrations/trainer/callback.py", "Callback")
    with pytest.raises(UnknownIdError, match=r"there is no src/kb/nowhere\.py"):
        api_reference(EN, "nowhere.py", "anything")


def test_a_docstring_becomes_paragraphs_code_and_lists() -> None:
    text = """Does ``it``, as :class:`kb.core.units.Size` says.

    ::

        it(
            1)

    Args:
        first: a thing
            over two lines.
        second: another.

    Raises:
        ValueError: it is not.
    """
    assert list(described("en", text)) == [
        "Does `it`, as `Size` says.",
        "```python\nit(\n    1)\n```",
        "**Arguments**",
        "- `first`: a thing over two lines.\n- `second`: another.",
        "**Raises**",
        "- `ValueError`: it is not.",
    ]


def test_every_format_is_listed_and_its_marks_are_no_markup() -> None:
    shown = dialect_table(EN)
    for name in EN.catalog.dialects:
        assert f"<code>{name}</code>" in shown
    assert "*" not in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("fsdp_config.*", "fsdp_config.&#42;"),
        ("a._b_", "a.&#95;b&#95;"),
        ("$A", "&#36;A"),
        ("<b>", "&lt;b&gt;"),
        ("a | b", "a &#124; b"),
    ],
)
def test_nothing_in_inline_code_is_markup(value: str, shown: str) -> None:
    assert code(value) == f"<code>{shown}</code>"


def test_symptoms_stand_below_what_ran_short() -> None:
    shown = remedy_table(KO)
    assert shown.index("{ #gpu }") < shown.index("gpu-oom.md") < shown.index("{ #host }")
    assert [name for name in KO.rows("remedies") if f"({name}.md)" not in shown] == []


def test_the_causes_that_many_look_for_come_before_those_of_one_program() -> None:
    shown = re.findall(r"\(([\w-]+)\.md\)", remedy_table(EN).partition("{ #gpu }")[2].partition("{ #host }")[0])
    assert shown[0] == "gpu-oom"
    assert max(map(shown.index, ("gpu-oom-fragmentation", "gpu-oom-other-process"))) < shown.index("serving-oom")


def test_a_share_of_the_constants_is_said_in_per_cent() -> None:
    assert ">80%<" in constant(EN, "host_target_share")


@pytest.mark.parametrize("library", [KO, EN], ids=["ko", "en"])
@pytest.mark.long
def test_a_remedy_shows_what_the_command_answers_to_a_real_log(library) -> None:  # type: ignore[no-untyped-def]
    shown = remedy_page(library, library.entry("remedies", "gpu-oom"))
    assert "per_device_train_batch_size: 16 → 8, gradient_accumulation_steps: 2 → 4" in shown
    assert "kb diagnose train.log --config examples/mt5-summary-team.yaml" in shown


@pytest.mark.long
def test_every_remedy_that_a_log_can_show_has_its_answer() -> None:
    seen = {
        name
        for name, entry in EN.rows("remedies").items()
        if any(one["expect"] == "found" for one in entry.get("examples", ()))
    }
    assert {name for name, page in remedy_pages("en").items() if "{ #example }" in page} == seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("language", few(["ko", "en"]))
@pytest.mark.long
def test_the_example_of_the_python_page_runs_as_it_stands(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open(f"docs/{language}/api.md", encoding="utf-8") as stream:
        source = stream.read().partition("```python\n")[2].partition("```")[0]
    exec(compile(source, "api.md", "exec"), {})
    said = capsys.readouterr().out
    assert "t5-fp16-overflow error" in said and "oom" in said


def test_the_grammars_page_has_every_sign_function_and_unit_with_its_value() -> None:
    korean, english = grammar_tables(KO), grammar_tables(EN)
    for each in SIGNS:
        assert any(f" {each} " in f" {example} " for example in EXAMPLES), each
    assert all(any(f"{name}(" in example for example in EXAMPLES) for name in FUNCTIONS)
    for shown in (korean, english):
        assert "1,073,741,824" in shown and "1,000,000,000" in shown
        assert "write its unit, as in 24 GB or 24 GiB" in shown
        assert "<code>false and ?</code> | <code>false</code>" in shown
    assert "## Sizes { #sizes }" in english and "## 크기 { #sizes }" in korean


@pytest.mark.parametrize("language", ["ko", "en"])
@pytest.mark.long
def test_a_remedys_conditions_stand_in_words(language: str) -> None:
    library = load_library(language)
    seen = 0
    for entry in library.rows("remedies").values():
        for said in re.findall(r'<span class="kb-when">(.*?)</span>', remedy_pages(language)[entry["id"]]):
            seen += 1
            assert not re.search(r"[=<>\"\[\]]|\bnot in\b|\b(?:training|gpu|fit|host)\.", unescape(said)), said
            for name, row in entry.get("variables", {}).items():  # what is read in the log has a name of its own
                assert not re.search(rf"\b{name}\b", said.replace(row[language], "")), said
    assert seen > 50


@pytest.mark.long
@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_remedys_values_stand_in_words(language: str) -> None:
    library, worked_out = load_library(language), 0
    half = {"ko": "절반, 1 이상", "en": "half of it, at least 1"}[language]
    for entry in library.rows("remedies").values():
        page = remedy_pages(language)[entry["id"]].partition("{ #steps }")[2].partition("\n## ")[0]
        assert not re.search(r" // |\bmax\(|: (?:training|data|fit|serving)\.|: …", page), entry["id"]
        worked_out += sum("compute" in str(step.get("set")) for step in entry["steps"])
    assert worked_out > 20
    assert f"per_device_eval_batch_size</code>: {half}" in remedy_pages(language)["gpu-oom"]


def test_names_of_several_words_are_known_to_the_search() -> None:
    assert phrases(["OOM", "GPU  utilization low", "gpu utilization low", "a " * 9]) == ["gpu utilization low"]
    names = other_names("trouble", load_library("en").entry("remedies", "serving-length-over-cache"), "en")
    assert "vllm" in names and "stored in KV cache" in names  # the program, and what its log says


def test_a_page_that_a_build_leaves_out_is_written_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of some pages takes nothing away from one of all, beside it or before it."""
    names = ("gpus/a.md", "gpus/b.md")
    made = [(name, pages.Page(name, "rules/hardware/a.yaml", lambda: "whole", [])) for name in names]
    monkeypatch.setattr(pages, "generated_pages", lambda *asked: iter(made))
    monkeypatch.setattr(pages, "all_fits", lambda *asked: None)
    monkeypatch.setattr(pages, "rules_that_open", lambda *asked: frozenset())
    docs = tmp_path / "docs"

    def whole() -> list[bool]:
        return [(docs / "en" / name).read_text("utf-8").endswith("whole") for name in names]

    monkeypatch.setenv("KB_SITE_LEFT_OUT", "/gpus/a.md\n")
    assert pages.write_pages(str(docs), "en") == 2
    assert whole() == [False, True]
    monkeypatch.setenv("KB_SITE_LEFT_OUT", "")
    assert pages.write_pages(str(docs), "en") == 1
    monkeypatch.setenv("KB_SITE_LEFT_OUT", "/gpus/a.md\n/gpus/b.md\n")
    assert pages.write_pages(str(docs), "en") == 0
    assert whole() == [True, True]
