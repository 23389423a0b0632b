"""The Fix page's box, the filters over long tables and the forms of the Contribute page, by keyboard."""

import json
import subprocess
import sys
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from effort import EXHAUSTIVE, few
from kb.core.text import LANGUAGES
from kb.guide.library import load_library, say
from site_browser import PHONE, Browser
from site_html import EDITED
from site_needs import ROOT

LOG = """Traceback (most recent call last):
  File "/work/train.py", line 41, in <module>
    trainer.train()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.00 GiB is free.
"""  # noqa: E501
RULE = {
    "id": "batch-over-a-hundred", "area": "batch", "when": "training.per_device_train_batch_size > 100",
    "title_ko": "배치가 백을 넘음", "title_en": "A batch over a hundred", "message_ko": "배치가 큽니다.",
    "message_en": "The batch is large.", "why_ko": "까닭을 적습니다.", "why_en": "A reason.",
    "fires": "training: {per_device_train_batch_size: 128}", "silent": "training: {per_device_train_batch_size: 8}",
    "source": "https://example.org/batches", "source_title": "On batches",
}  # fmt: skip
CONFIG = "general: {model_name: google/mt5-base}\ntraining: {per_device_train_batch_size: 16, bf16: true}\n"
_LINKS = "[...document.querySelectorAll('.kb-fix-result ul a')].map((one) => new URL(one.href).pathname)"
_ROWS = "[...document.querySelectorAll('article tbody tr')].filter((row) => row.offsetParent).map((row) => row.cells[0].innerText)"  # noqa: E501
_SET = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))"
_HIDING = """[...document.querySelectorAll('.kb-wide, .md-typeset__table')]
  .filter((one) => one.scrollHeight > one.clientHeight + 1).length"""


def home(language: str) -> str:
    return "" if language == "ko" else "en/"


def diagnosed(language: str) -> dict[str, Any]:
    """The first cause as the command line has it."""
    command = [sys.executable, "-m", "kb", "diagnose", "--format", "json", "--lang", language]
    run = subprocess.run(command, input=LOG, cwd=ROOT / "src", capture_output=True, text=True, check=False, timeout=120)
    cause: dict[str, Any] = json.loads(run.stdout)["causes"][0]
    return cause


@pytest.mark.parametrize("language", few(LANGUAGES))
def test_a_pasted_log_names_the_cause_of_kb_diagnose(browser: Browser, language: str) -> None:
    from selenium.webdriver import Keys

    browser.visit(f"{home(language)}trouble/")
    browser.wait("document.getElementById('kb-fix-log')").click()
    browser.press("bus error")  # words alone: likely causes at once, and nothing is loaded for them
    browser.wait(f"{_LINKS}.some((path) => path.endsWith('/trouble/shared-memory-full/'))")
    assert not browser.ask(
        "return performance.getEntriesByType('resource').some((one) => one.name.includes('pyodide'))"
    )
    browser.ask("document.getElementById('kb-fix-log').value = arguments[0]", LOG)
    browser.press(Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait("window.kbDiagnosed")
    found, wanted = browser.ask("return window.kbDiagnosed.causes[0]"), diagnosed(language)
    assert found["id"] == wanted["cause"]
    assert len(found["steps"]) == len(wanted["remedies"]) > 2
    for shown, row in zip(found["steps"], wanted["remedies"], strict=True):
        assert shown["text"].endswith(row["step"].partition(" `")[0])
    link = "document.querySelector('.kb-cause .kb-answer-line a').pathname"
    assert browser.ask(f"return {link}").endswith(f"{home(language)}trouble/{wanted['cause']}/")
    if EXHAUSTIVE:  # the page predicts for seconds
        browser.ask("window.kbDiagnosed = null")
        browser.ask(_SET, browser.driver.find_element("id", "kb-fix-config"), CONFIG)
        browser.wait("document.querySelector('.kb-changes')?.innerText.includes('16 → 8')")
    browser.resize(PHONE)
    assert browser.ask("return document.documentElement.scrollWidth") <= PHONE[0]
    assert browser.complaints() == [] and browser.strangers() == []


@pytest.mark.parametrize("language", few(LANGUAGES))
def test_rules_are_filtered_by_words_area_library_and_severity(browser: Browser, language: str) -> None:
    library = load_library(language)
    browser.visit(f"{home(language)}rules/")
    browser.wait("document.querySelector('.kb-filter input')").click()
    assert len(browser.ask(f"return {_ROWS}")) == len(library.catalog.rules)
    browser.press("fp16 t5")
    browser.wait(f"{_ROWS}.length < 9")
    shown = browser.ask(f"return {_ROWS}")
    assert "t5-fp16-overflow" in shown
    browser.ask("document.querySelector('.kb-filter input').value = ''")
    area_box, library_box, severity_box = browser.ask("return [...document.querySelectorAll('.kb-filter select')]")
    browser.ask(_SET, library_box, "vllm")
    served = browser.ask(f"return {_ROWS}")
    assert 10 < len(served) < len(library.catalog.rules) / 2
    browser.ask(_SET, library_box, "")
    browser.ask(_SET, severity_box, library.words.named("severity", "error"))
    wanted = {rule.id for rule in library.catalog.rules.values() if rule.severity == "error"}
    assert set(browser.ask(f"return {_ROWS}")) == wanted
    browser.ask(_SET, area_box, say(language, "area.precision"))
    wanted = {
        rule.id for rule in library.catalog.rules.values() if rule.severity == "error" and rule.area == "precision"
    }
    assert set(browser.ask(f"return {_ROWS}")) == wanted
    assert (
        browser.ask("return [...document.querySelectorAll('article h2')].filter((one) => one.offsetParent).length") == 2
    )


@pytest.mark.parametrize(("path", "typed", "left"), few([
    ("gpus/", "4090", 2), ("en/models/", "kobart", 8), ("errata/", "T5", 40), ("en/commands/", "diagnose", 8),
    ("en/models/kobart/", "4090", 2), ("trouble/", "nccl", 12),
    ("en/gpus/rtx-3090/", "mt5", 12),  # a preview has a row for few models
], 2))  # fmt: skip
def test_long_tables_are_filtered_and_hide_nothing(browser: Browser, path: str, typed: str, left: int) -> None:
    browser.visit(path)
    browser.wait("document.querySelector('.kb-filter input')").click()
    assert browser.ask(f"return {_HIDING}") == 0
    before = browser.ask("return document.querySelector('.kb-filter .kb-status').innerText")
    browser.press(typed)
    told = "document.querySelector('.kb-filter .kb-status').innerText"
    after = browser.wait(f"{told} !== '{before}' && {told}")
    counts = sorted(int(part) for part in after.replace("개", " ").split() if part.isdigit())
    assert 0 < counts[0] <= left < counts[-1]


@pytest.mark.exhaustive
def test_a_gpu_is_added_by_form_with_faults_at_their_fields(browser: Browser) -> None:
    from selenium.webdriver import Keys

    browser.visit("en/contribute/")
    field = {name: f"kb-entry-hardware-{name}" for name in ("paste", "sold", "id", "aliases")}
    browser.wait(f"document.getElementById('{field['paste']}')").click()
    browser.press("NVIDIA L400, 23034 MiB, 8.9")
    sold = browser.driver.find_element("id", field["sold"])
    sold.send_keys("99", Keys.ENTER)
    answer = browser.wait("window.kbEntry")
    assert [problem["field"] for problem in answer["problems"]] == ["sold"]
    said = browser.driver.find_element("id", sold.get_attribute("aria-describedby"))
    assert "99 GB cannot be" in said.text
    assert not browser.driver.find_elements("css selector", ".kb-entry a.md-button")
    browser.ask("window.kbEntry = null")
    sold.send_keys(Keys.BACKSPACE, Keys.BACKSPACE, "24", Keys.ENTER)
    answer = browser.wait("window.kbEntry")
    assert answer["problems"] == []
    link = browser.wait("document.querySelector('.kb-entry a.md-button')?.href")
    parts = urlsplit(link)
    assert link.startswith(EDITED.replace("/edit/main/", "/new/main?"))
    assert dict(parse_qsl(parts.query)) == {"filename": "rules/hardware/l400.yaml", "value": answer["text"]}
    browser.resize(PHONE)
    assert browser.ask("return document.documentElement.scrollWidth") <= PHONE[0]
    assert browser.complaints() == [] and browser.strangers() == []


def test_a_rule_is_added_by_form_its_examples_run_and_its_source_beside_it(browser: Browser) -> None:
    """The same form as in the test of the engine, in the browser's own Python."""
    browser.visit("contribute/")
    browser.wait("document.getElementById('kb-entry-checks-when')")
    fill = "for (const [name, value] of Object.entries(arguments[0])) document.getElementById(`kb-entry-checks-${name}`).value = value"  # noqa: E501
    browser.ask(fill, {**RULE, "fires": RULE["silent"]})
    press = "document.getElementById('kb-entry-checks-id').form.requestSubmit()"
    browser.ask(press)
    answer = browser.wait("window.kbEntry")
    assert [problem["field"] for problem in answer["problems"]] == ["fires"]
    browser.ask("window.kbEntry = null")
    browser.ask(fill, RULE)
    browser.ask(press)
    answer = browser.wait("window.kbEntry")
    assert answer["problems"] == []
    links = browser.wait("[...document.querySelectorAll('.kb-entry a.md-button')].map((one) => one.href)")
    files = [dict(parse_qsl(urlsplit(link).query)) for link in links]
    assert files == [{"filename": one["path"], "value": one["text"]} for one in (answer, *answer["beside"])]
    assert len(files) == 2
    assert browser.complaints() == [] and browser.strangers() == []
