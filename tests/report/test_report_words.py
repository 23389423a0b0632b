"""i18n: the same keys and placeholders in both languages, a text for every name in use, the words of the glossary."""

import errno
import os
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

import report_sample as sample
from catalog_sample import load_catalog, shallow
from effort import EXHAUSTIVE
from every_row import for_every
from kb.core.finding import SEVERITIES, Finding, Span
from kb.core.memory_report import MemoryReport
from kb.core.setup import TrainingSetup
from kb.core.text import Text, fill, placeholders_in
from kb.memory import predict
from kb.report.check.panel import need_of
from kb.report.rules.entry import figure
from kb.report.terminal import Style
from kb.report.words import Words
from kb.session.cli import said
from yaml_file import read_yaml

SOURCES = os.path.join(sample.ROOT, "src", "kb")
KOREAN, ENGLISH = (sample.words(language).messages for language in ("ko", "en"))


def source_text() -> str:
    """Every line of our own Python."""
    parts = []
    for folder, _, names in os.walk(SOURCES):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as stream:
                    parts.append(stream.read())
    return "\n".join(parts)


def test_both_languages_have_the_same_keys_in_the_same_order() -> None:
    assert list(KOREAN) == list(ENGLISH)


def test_both_languages_have_the_same_placeholders() -> None:
    for key in KOREAN:
        korean, english = (
            {(name, form) for name, form, _ in placeholders_in(text)} for text in (KOREAN[key], ENGLISH[key])
        )
        assert korean == english, key


def test_texts_are_whole_and_in_their_language() -> None:
    for key in KOREAN:
        for text in (KOREAN[key], ENGLISH[key]):
            assert isinstance(text, str), f"{key}: quote it, YAML read something else"
            end = " " if key.endswith(" ") else ""  # argparse's own words before a list
            assert text == text.strip() + end != end, key
            assert text.count("{") == text.count("}") == len([*placeholders_in(text)]), (
                f"{key}: a placeholder that is none"
            )
        assert not re.search("[가-힣]", ENGLISH[key]), key


def test_no_korean_particle_depends_on_a_value() -> None:
    assert [key for key, text in KOREAN.items() if sample.PARTICLE.search(text)] == []


def test_what_the_system_says_is_told_in_the_readers_language() -> None:
    reasons = {key.removeprefix("os."): text for key, text in KOREAN.items() if key.startswith("os.")}
    usual = (errno.EACCES, errno.ENOENT, errno.EISDIR, errno.ENOSPC)  # other systems word some of the rest otherwise
    assert {os.strerror(number) for number in usual} <= reasons.keys()
    for reason, told in reasons.items():
        values = {"path": "train.yaml", "reason": reason}
        assert f"이유: {told}" in said(KOREAN, "config.unreadable", **values) and reason in told
    assert "이유: no such thing" in said(KOREAN, "config.unreadable", path="a", reason="no such thing")


def test_korean_counters_stand_at_the_number_and_what_is_counted_apart() -> None:
    words = Words("ko", KOREAN, {})
    shown = [figure(2, unit, words, Style()) for unit in ("samples", "images", "samples/s", "workers", "parameters")]
    assert shown == ["2개", "2장", "2개/초", "2 워커", "2 파라미터"]


def test_every_counted_noun_has_both_numbers() -> None:
    stems = {key.rpartition(".")[0] for key in KOREAN if key.endswith((".one", ".many"))}
    assert {f"{stem}.{number}" for stem in stems for number in ("one", "many")} <= set(KOREAN)


def predictions() -> Iterator[MemoryReport]:
    """The memory model's reports over methods, precisions, optimizers and phases."""
    read = read_yaml(os.path.join(sample.ROOT, "rules", "constants.yaml"))
    constants = {name: entry["value"] for name, entry in read["constants"].items()}
    arch = shallow(sample.MODEL).architecture  # what has a name does not depend on the number of layers
    bart = arch._replace(family="bart", model_type="bart", gated=False, tied=True, max_positions=1024, biases=True)
    base = TrainingSetup(do_eval=True, dataloader_num_workers=4, load_in_4bit=False)
    ways = list(product(("full", "lora", "qlora"), (False, True), (False, True), (arch, bart)))
    for method, bf16, generate, family in ways if EXHAUSTIVE else ways[::5]:
        for more in (
            {},
            {"gradient_checkpointing": True, "gradient_accumulation_steps": 4},
            {"per_device_eval_batch_size": 64, "max_source_length": 2048, "world_size": 2},
            {"do_train": False, "do_predict": True, "inference_batch_size": 32, "inference_num_beams": 5},
            {"optim": "adamw_torch", "attn_implementation": "eager", "offload_optimizer": True, "zero_stage": 2},
        ):
            setup = base._replace(method=method, bf16=bf16, predict_with_generate=generate, **more)  # type: ignore[arg-type]
            yield predict(setup, family, constants=constants)


@pytest.mark.long
def test_every_term_moment_and_assumption_of_the_memory_model_has_a_name() -> None:
    used: set[str] = set()
    for report in predictions():
        used |= {f"assumption.{assumption.reason}" for assumption in report.assumed}
        used |= {f"term.{term.name}" for term in report.host.terms}
        for phase in report.phases:
            used |= {f"phase.{phase.name}", f"moment.{phase.moment}", *(f"term.{term.name}" for term in phase.terms)}
    assert len(used) > 20
    assert used - set(KOREAN) == set()


def test_every_text_that_the_reports_ask_for_exists() -> None:
    text = source_text()
    keys = set(re.findall(r"""["']((?:report|explain|note|need|value)\.[a-z_]+)["']""", text))
    counted = set(re.findall(r"""count\(\s*["']([a-z]+\.[a-z_]+)["']""", text))
    assert keys - counted <= set(KOREAN)
    assert {f"{key}.{number}" for key in counted for number in ("one", "many")} <= set(KOREAN)
    assert {f"severity.{severity}" for severity in SEVERITIES} <= set(KOREAN)


def test_every_fact_of_the_vocabulary_has_a_need_with_a_text() -> None:
    vocabulary = read_yaml(os.path.join(sample.ROOT, "rules", "vocabulary.yaml"))
    facts = vocabulary["facts"]
    assert {f"need.{need_of(name)}" for name in facts} <= set(KOREAN)
    assert {f"unit.{fact['unit']}" for fact in facts.values() if "unit" in fact} <= set(KOREAN)


def glossary() -> dict[str, dict[str, object]]:
    terms: dict[str, dict[str, object]] = read_yaml(os.path.join(sample.ROOT, "i18n", "glossary.yaml"))["terms"]
    return terms


@pytest.mark.long
@for_every(glossary())
def test_texts_keep_to_the_glossary(entry: dict[str, Any]) -> None:
    allowed = [entry["ko"], *entry.get("also_ko", [])]
    word = re.compile(rf"(?<![\w-]){re.escape(str(entry['en']))}(?![\w-]|\.\w)", re.IGNORECASE)  # not optimizer.step()
    for key in KOREAN:
        if word.search(fill(ENGLISH[key], lambda name, form: "")):
            assert any(str(one) in KOREAN[key] for one in allowed), f"{key}: {ENGLISH[key]} / {KOREAN[key]}"
        assert not any(str(one) in KOREAN[key] for one in entry.get("not_ko", [])), key  # type: ignore[attr-defined]
        english = ENGLISH[key].casefold()
        assert not any(str(one) in english for one in entry.get("not_en", [])), key  # type: ignore[attr-defined]


def test_a_sentence_about_what_has_no_value_is_left_out() -> None:
    words = Words("en", ENGLISH, load_catalog().facts)
    message = Text(
        "", "With {training.dataloader_num_workers} workers it is too much. {fit.workers} workers stay within it."
    )
    finding = Finding(rule="r", severity="error", confidence="high", message=message, span=Span(1, 1, 1, 1))
    facts = {"training.dataloader_num_workers": 8, "fit.workers": None}
    assert words.message(finding._replace(facts=facts)) == "With 8 workers it is too much."
    assert "2 workers stay" in words.message(finding._replace(facts={**facts, "fit.workers": 2}))
