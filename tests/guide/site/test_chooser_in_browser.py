"""The small chooser of the first page: the setting that ``kb recommend`` gives, by the same engine, on click."""

import json
import subprocess
import sys
from typing import Any

import pytest
from selenium.webdriver.support.ui import Select

from site_browser import PHONE, Browser
from site_needs import ROOT

BUTTON = "#kb-choose .kb-buttons button"


def recommended(model: str, gpu: str) -> dict[str, Any]:
    """The config of ``kb recommend``."""
    command = [sys.executable, "-m", "kb", "recommend", "--model", model, "--gpu", gpu, "--format", "json"]
    run = subprocess.run(command, cwd=ROOT / "src", capture_output=True, text=True, check=False, timeout=120)
    config: dict[str, Any] = json.loads(run.stdout)["config"]
    return config


def test_chooser_says_what_the_command_line_recommends(browser: Browser) -> None:
    browser.visit("")
    browser.wait(f"document.querySelector('{BUTTON}')")
    names = "performance.getEntriesByType('resource').map((one) => one.name)"
    assert browser.ask(f"return {names}.filter((name) => /pyodide|kb\\.zip/.test(name))") == []
    browser.ask(f"document.querySelector('{BUTTON}').click()")
    first = browser.wait("window.kbChosen")
    for name, value in (("model", "kobart"), ("gpu", "t4")):  # each choice has its answer, soon or late
        browser.ask("window.kbChosen = null")
        Select(browser.driver.find_element("id", f"kb-choose-{name}")).select_by_value(value)
        second = browser.wait("window.kbChosen && window.kbChosen.way && window.kbChosen")
    for chosen, asked in ((first, ("mt5-base", "rtx-3090")), (second, ("kobart", "t4"))):
        config = recommended(*asked)
        assert chosen["batch"] == config["training.per_device_train_batch_size"]
        assert chosen["accumulation"] == config["training.gradient_accumulation_steps"]
        assert chosen["evaluation"] == config["training.per_device_eval_batch_size"]
        assert chosen["inference"] == config["inference.batch_size"]
    assert browser.complaints() == []
    assert browser.strangers() == []
    browser.resize(PHONE)
    assert browser.ask("return document.documentElement.scrollWidth") <= PHONE[0]


@pytest.mark.parametrize(("path", "words"), [("", "WebAssembly"), ("en/", "WebAssembly")])
def test_without_webassembly_the_first_page_keeps_its_table_and_says_so(
    browser: Browser, path: str, words: str
) -> None:
    browser.visit(path, before="delete window.WebAssembly")
    assert words in browser.wait("document.querySelector('#kb-choose .kb-notice')?.innerText")
    assert browser.ask("return document.querySelectorAll('article table tbody tr').length") > 4
    assert browser.complaints() == []
