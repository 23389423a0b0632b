"""The playground in Chromium: kb's own Python, the command line's answers, and nothing that it cannot bear."""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from catalog_sample import load_catalog
from effort import EXHAUSTIVE, few
from kb.core.text import LANGUAGES
from site_browser import DESKTOP, PHONE, Browser
from site_needs import ROOT

CHECK = ".kb-buttons button"
# both sides are told which libraries there are: a browser has none
LIBRARIES = {"transformers": "5.0.0", "torch": "2.9.0", "peft": "0.18.0", "accelerate": "1.12.0", "trl": "0.25.0"}
BATCH = 10
# a config on no GPU and on one whose memory is predicted, a command, code, a script, a server
OF_EACH_KIND = {
    "4bit-default-is-fp4", "checkpointing-would-save", "accelerate-conflicting-launch-modes",
    "adafactor-argument-removed", "comment-after-backslash", "serving-awq-not-supported",
}  # fmt: skip
_OPENS = re.compile(r'href="\.\./\.\./playground/#([^"]+)"')  # of a rule's page
BAD = "general: {model_name: google/mt5-base}\ntraining: {fp16: true, per_device_train_batch_size: 64}\n"
_WRITE = """
const { EditorView } = await import(new URL("assets/vendor/editor.mjs", given[0]).href);
const view = EditorView.findFromDOM(document.querySelector(".cm-editor"));
view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: given[1] } });
"""
_READ = """
const { EditorView } = await import(new URL("assets/vendor/editor.mjs", given[0]).href);
return EditorView.findFromDOM(document.querySelector(".cm-editor")).state.doc.toString();
"""
# a start of Python takes seconds: the page's own is kept where it is first asked
_KEEP_ENGINE = """
const { Engine } = await import(new URL("assets/js/kb-engine.mjs", given[0]).href);
const call = Engine.prototype.call;
Engine.prototype.call = function (...asked) { window.engine = this; return call.apply(this, asked); };
"""
_CHECK_ALL = """
const { Engine } = await import(new URL("assets/js/kb-engine.mjs", given[0]).href);
window.engine ||= new Engine();
const answers = [];
for (const [text, asked] of given[1])
  answers.push(await window.engine.call("check", text, JSON.stringify(asked), "en"));
return answers.map(({ report, fault }) => fault ? { fault } : {
  unusable: report.unusable.map(({ line, column, message }) => [line, column, message]),
  findings: report.files.flatMap(({ section, findings }) => findings.map(
    ({ rule, line, column, severity, message }) => [section, rule, line, column, severity, message])),
});
"""
# one process for all; only what the command line needs is on its path, and no library beside it
_COMMAND_LINE = """
import contextlib, io, json, sys
sys.path[:0] = json.loads(sys.argv[1])
from kb.check import main
answers = []
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        main(arguments)
    answers.append(output.getvalue())
print(json.dumps(answers))
"""
Answer = dict[str, Any]


class Example(NamedTuple):
    name: str
    text: str
    asked: dict[str, Any]


@pytest.fixture
def fresh(browser: Browser) -> Browser:
    """The page as it opens."""
    browser.visit("playground/")
    browser.wait(f"document.querySelector('{CHECK}')")
    browser.await_answer(_KEEP_ENGINE, browser.server.address)
    return browser


@pytest.fixture
def playground(request: pytest.FixtureRequest, browser: Browser) -> Browser:
    """The page with Python running: a start takes seconds, so tests share it, and leave its pickers as they were."""
    if not browser.ask("return window.kbShared"):
        request.getfixturevalue("fresh")
        browser.ask("window.kbShared = true")
    browser.forget()
    return browser


def write(browser: Browser, text: str) -> None:
    browser.await_answer(_WRITE, browser.server.address, text)


def read(browser: Browser) -> str:
    text: str = browser.await_answer(_READ, browser.server.address)
    return text


def check(browser: Browser) -> Answer:
    """Press the button; the answer as the page got it."""
    browser.ask(f"window.kbAnswer = null; document.querySelector('{CHECK}').click()")
    answer: Answer = browser.wait("window.kbAnswer")
    return answer


def examples() -> Iterator[Example]:
    """The first example of each rule, which fires; ``kb rules test`` runs them all.

    Without ``--exhaustive`` one of each kind of text, on a GPU that is named and on none.
    """
    for rule in load_catalog(whole=True).rules.values():
        if not EXHAUSTIVE and rule.id not in OF_EACH_KIND:
            continue
        for number, example in enumerate(rule.examples[:1]):
            if "base64" in example:
                continue
            asked = {name: example[name] for name in ("gpu", "gpus", "cpus") if name in example}
            asked |= {name: str(example[name]) for name in ("host_memory", "cpus") if name in example}
            known = {**LIBRARIES, **{name: v for name, v in example.get("versions", {}).items() if name in LIBRARIES}}
            asked["versions"] = " ".join(f"{name}=={version}" for name, version in known.items())
            asked["kind"] = example.get("dialect", "config")
            yield Example(f"{rule.id}-{number}", example["config"], asked)


def from_browser(browser: Browser, given: Sequence[Example]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for start in range(0, len(given), BATCH):
        batch = given[start : start + BATCH]
        rows = [(example.text, example.asked) for example in batch]
        found = browser.await_answer(_CHECK_ALL, browser.server.address, rows)
        answers |= {example.name: answer for example, answer in zip(batch, found, strict=True)}
    return answers


def from_command_line(folder: Path, given: Sequence[Example]) -> dict[str, Answer]:
    """``kb check --format json``, a run for each machine that examples ask for."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in given:
        single = example.name if example.asked["kind"] == "command" else ""
        groups[json.dumps(example.asked, sort_keys=True) + single].append(example)
    runs = [_arguments(folder, group) for group in groups.values()]
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _COMMAND_LINE, json.dumps(_path(folder))],
        input=json.dumps(runs), capture_output=True, text=True, cwd=folder, check=True, timeout=600,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    answers: dict[str, Answer] = {example.name: {"unusable": [], "findings": []} for example in given}
    for group, output in zip(groups.values(), json.loads(run.stdout), strict=True):
        _sort_in(answers, group, json.loads(output))
    return answers


def _path(folder: Path) -> list[str]:
    """``sys.path`` of the command line: kb, and links to the few packages that it needs."""
    packages = folder / "packages"
    packages.mkdir()
    for name in ("yaml", "_yaml", "pathspec"):
        spec = find_spec(name)
        if spec and spec.submodule_search_locations:
            (packages / name).symlink_to(next(iter(spec.submodule_search_locations)))
    return [str(ROOT / "src"), str(packages)]


def _arguments(folder: Path, group: Sequence[Example]) -> list[str]:
    asked = group[0].asked
    options = ["--format", "json", "--notes", "--lang", "en", "--gpu", asked.get("gpu", "none")]
    for name in ("gpus", "host_memory", "cpus"):
        options += [f"--{name.replace('_', '-')}", str(asked[name])] if name in asked else []
    for library in asked["versions"].split():
        options += [f"--{library.partition('==')[0]}", library.partition("==")[2]]
    if asked["kind"] == "command":
        return [*options, "--command", group[0].text]
    return [*options, *(_written(folder, example) for example in group)]


def _written(folder: Path, example: Example) -> str:
    """The file that holds an example, in a project of its own: no example is another's program."""
    try:
        json.loads(example.text)
        ending = "json" if example.text.lstrip().startswith("{") else "yaml"
    except ValueError:
        ending = "yaml"
    ending = {"shell": "sh", "python": "py"}.get(example.asked["kind"], ending)
    path = folder / example.name / f"config.{ending}"  # as the page names it
    (path.parent / ".git").mkdir(parents=True)
    path.write_bytes(example.text.encode())
    return str(path.relative_to(folder))


def _sort_in(answers: Mapping[str, Answer], group: Sequence[Example], report: Mapping[str, Any]) -> None:
    def answer(path: str) -> Answer:
        return answers[group[0].name if path == "--command" else Path(path).parts[0]]

    for broken in report["unusable"]:
        answer(broken["path"])["unusable"].append([broken["line"], broken["column"], broken["message"]])
    for unit in report["files"]:
        answer(unit["path"])["findings"] += [
            [unit["section"], *(row[name] for name in ("rule", "line", "column", "severity", "message"))]
            for row in unit["findings"]
        ]


def test_nothing_is_loaded_before_the_reader_asks(fresh: Browser) -> None:
    names = "performance.getEntriesByType('resource').map((one) => one.name)"
    loaded = f"{names}.filter((name) => /pyodide|kb\\.zip/.test(name))"
    assert fresh.ask(f"return {loaded}") == []
    check(fresh)
    assert fresh.complaints() == []
    assert fresh.strangers() == []
    assert fresh.server.missing == []
    fresh.ask("window.kbShared = true")  # the tests below go on with it


def test_every_example_of_the_rules_gets_the_command_lines_answer(playground: Browser, tmp_path: Path) -> None:
    given = sorted(examples(), key=lambda example: json.dumps(example.asked, sort_keys=True))  # a machine is made once
    assert len(given) >= (300 if EXHAUSTIVE else len(OF_EACH_KIND))
    with ThreadPoolExecutor(1) as beside:
        command_line = beside.submit(from_command_line, tmp_path, given)
        there, here = from_browser(playground, given), command_line.result()
    different = {name: (answer, here[name]) for name, answer in there.items() if answer != here[name]}
    assert different == {}, (
        f"{len(different)} of {len(given)}: {json.dumps(dict(list(different.items())[:3]), indent=1)}"
    )
    assert sum(len(answer["findings"]) for answer in here.values()) > 0.9 * len(given)


@pytest.mark.exhaustive
def test_every_example_that_opens_there_shows_its_rule(playground: Browser, site: Path) -> None:
    """The link on a rule's page leads to that rule's finding."""
    given = []
    for page in sorted(site.glob("en/rules/*/index.html")):
        if link := _OPENS.search(page.read_text("utf-8")):
            asked: dict[str, Any] = dict(parse_qsl(unescape(link[1]), keep_blank_values=True))
            text = asked.pop("config")
            asked |= {"gpus": int(asked["gpus"])} if "gpus" in asked else {}
            given.append(Example(page.parent.name, text, asked))
    assert len(given) > (200 if EXHAUSTIVE else 10)  # a preview opens one of each area
    found = from_browser(playground, sorted(given, key=lambda example: json.dumps(example.asked, sort_keys=True)))
    silent = [name for name, answer in found.items() if name not in {row[1] for row in answer.get("findings", [])}]
    assert silent == []


def test_findings_are_underlined_where_they_are(playground: Browser) -> None:
    write(playground, BAD)
    answer = check(playground)
    playground.wait("document.querySelector('.cm-lintRange')")
    marked = playground.ask("return [...document.querySelectorAll('.cm-lintRange')].map((one) => one.textContent)")
    rows = [row for unit in answer["report"]["files"] for row in unit["findings"]]
    lines = BAD.splitlines()
    assert set(marked) == {lines[row["line"] - 1][row["column"] - 1 : row["end_column"] - 1] for row in rows}


def test_a_fix_changes_the_text_and_the_finding_goes(playground: Browser) -> None:
    write(playground, BAD)
    check(playground)
    finding = "document.querySelector('[data-rule=t5-fp16-overflow]')"
    playground.wait(finding)
    playground.ask(f"{finding}.querySelector('.kb-fix').click()")
    playground.wait(f"!{finding}")
    assert "fp16: true" not in read(playground).replace("bf16: true", "")


@pytest.mark.exhaustive
def test_once_all_safe_fixes_are_in_the_next_step_that_saves_memory_is_said_and_stays(playground: Browser) -> None:
    write(
        playground, "model_name_or_path: google/mt5-large\nper_device_train_batch_size: 16\nfp16: true\noutput_dir: o\n"
    )
    check(playground)
    playground.ask("window.kbAnswer = null; document.querySelectorAll('.kb-buttons button')[1].click()")
    playground.wait("window.kbAnswer")
    notice = "[...document.querySelectorAll('#kb-playground .kb-notice')].map((one) => one.innerText).join()"
    said = playground.wait(notice)
    assert "GiB" in said and "gradient_checkpointing" in said and "learning_rate" not in said and "null" not in said
    time.sleep(2)  # what is typed is checked a moment later; what was written by a fix is not checked again
    assert playground.ask(f"return {notice}") == said


HOSTILE = {
    "deep nesting": "a: " + "[" * 100_000,
    "deep flow maps": "{a: " * 5_000,
    "alias bomb": "a0: &a0 [x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)),
    "merge bomb": "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60)),
    "one line of 1 MiB": "training: {note: " + "x" * 2**20 + "}\n",
    "many lines of 1 MiB": "# memory\n" * (2**20 // 9),
    "many keys": "".join(f"key_{n}: {n}\n" for n in range(60_000)),
    "tag": "a: !!python/object/apply:os.system [ls]\n",
    "null bytes": "a: \x00\ntraining: {fp16: true}\n",
    "nothing": "",
    "a digit of a million places": "training: {learning_rate: " + "9" * 1_000_000 + "}\n",
}


@pytest.mark.parametrize("name", few(HOSTILE, 3))
def test_hostile_yaml_neither_hangs_the_page_nor_stops_the_engine(playground: Browser, name: str) -> None:
    write(playground, HOSTILE[name])
    playground.ask("window.beats = 0; setInterval(() => { window.beats += 1 }, 10)")
    answer = check(playground)
    assert playground.ask("return window.beats") > 0
    assert "fault" in answer or "report" in answer
    assert playground.driver.find_element("css selector", ".kb-findings").text != ""
    write(playground, BAD)
    assert check(playground)["report"]["files"]
    assert playground.complaints() == []


MARKUP = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
INJECTED = [
    f"general: {{model_name: '{MARKUP}'}}\ntraining: {{'{MARKUP}': 1, per_device_train_batchsize: 8, a: '{MARKUP}'}}\n",
    f"'{MARKUP}':\n  training: {{fp16: true, bf16: true}}\n  model_name: google/mt5-base\n",
    f"training: {{fp16: true, bf16: true}} # kb: ignore[{MARKUP}] {MARKUP}\n",
    f"a: [{MARKUP}\n  b: {{{{ 7 * 7 }}}}\n",
]


@pytest.mark.parametrize("text", few(INJECTED))
def test_markup_in_a_config_stays_text(playground: Browser, text: str) -> None:
    write(playground, text)
    check(playground)
    playground.wait("document.querySelector('.kb-findings').innerText")
    inside = "document.querySelectorAll('.kb-findings img, .kb-findings script, .kb-editor img, .kb-editor script')"
    assert playground.ask(f"return {inside}.length") == 0
    assert playground.ask("return window.pwned") is None
    assert playground.complaints() == []


def test_what_cannot_be_asked_for_is_said(playground: Browser) -> None:
    from selenium.webdriver import Keys

    playground.driver.find_element("id", "kb-host").clear()
    playground.driver.find_element("id", "kb-host").send_keys("plenty")
    answer = check(playground)
    assert "plenty" in answer["fault"]
    assert "plenty" in playground.wait("document.querySelector('.kb-findings .kb-notice').innerText")
    playground.driver.find_element("id", "kb-host").send_keys(Keys.BACKSPACE * len("plenty"))


def test_results_fit_a_phone(playground: Browser) -> None:
    playground.resize(PHONE)
    write(playground, BAD)
    check(playground)
    playground.wait("document.querySelector('.kb-finding')")
    assert playground.ask("return document.documentElement.scrollWidth") <= PHONE[0]
    playground.resize(DESKTOP)


@pytest.mark.exhaustive
def test_a_shared_link_opens_the_same_state(playground: Browser) -> None:
    from selenium.webdriver.support.ui import Select

    write(playground, BAD + "# 메모 + & = % #\n")
    Select(playground.driver.find_element("id", "kb-gpu")).select_by_value("t4")
    playground.driver.find_element("id", "kb-host").clear()
    playground.driver.find_element("id", "kb-host").send_keys("32GB")
    first = check(playground)
    playground.driver.find_elements("css selector", ".kb-buttons button")[2].click()
    link = playground.driver.current_url
    state = dict(parse_qsl(urlsplit(link).fragment))
    assert (state["gpu"], state["host_memory"]) == ("t4", "32GB")
    playground.visit(link.removeprefix(playground.server.address))
    again = playground.wait("window.kbAnswer")
    assert again["report"] == first["report"]
    assert read(playground) == BAD + "# 메모 + & = % #\n"
    # the same state in the other language: what is asked is all that an answer comes from
    playground.visit("en/" + link.removeprefix(playground.server.address))
    playground.wait(f"document.querySelector('{CHECK}') && document.getElementById('kb-gpu')?.value === 't4'")
    assert playground.ask("return document.getElementById('kb-host').value") == "32GB"
    playground.wait("document.querySelector('.cm-editor')")
    assert read(playground) == BAD + "# 메모 + & = % #\n"


@pytest.mark.exhaustive
def test_playground_works_by_keyboard_alone(fresh: Browser) -> None:
    from selenium.webdriver import Keys

    def step_to(selector: str) -> None:
        for _ in range(60):
            if fresh.ask("return document.activeElement.matches(arguments[0])", selector):
                return
            fresh.press(Keys.TAB)
        raise AssertionError(f"Tab does not reach {selector}")

    write(fresh, "")
    step_to("#kb-gpu")
    fresh.press(Keys.ARROW_DOWN)
    step_to(".cm-content")
    fresh.press("general: {model_name: google/mt5-base}", Keys.ENTER, "training: {fp16: true, bf16: true}")
    step_to(CHECK)
    fresh.press(Keys.ENTER)
    fresh.wait("document.querySelector('.kb-finding .kb-fix')")
    step_to(".kb-finding .kb-place")
    fresh.press(Keys.ENTER)
    fresh.wait("document.activeElement.matches('.cm-content')")
    step_to(".kb-finding .kb-fix")
    before, shown = read(fresh), fresh.ask("return document.querySelector('.cm-content').innerText")
    fresh.press(Keys.ENTER)
    fresh.wait("document.querySelector('.cm-content').innerText !== arguments[0]", shown)
    assert read(fresh) != before


TRAINS = "general: {model_name: google-t5/t5-small}\ntraining: {do_train: true, bf16: true}\n"


@pytest.mark.parametrize("width", few(pytest.param(width) for width in (PHONE, DESKTOP)))
def test_the_run_over_time_tells_what_is_alive_by_keyboard_and_by_pointer(
    playground: Browser, width: tuple[int, int]
) -> None:
    from selenium.webdriver import ActionChains, Keys

    playground.resize(width)
    write(playground, TRAINS)
    check(playground)
    # a result that comes late puts another one, closed, in its place
    opened = "[...document.querySelectorAll('.kb-over-time')].forEach((each) => { each.open = true; })"
    playground.wait(f"({opened}, document.querySelectorAll('.kb-timeline tbody tr').length >= 5)")
    said = f"({opened}, document.querySelector('.kb-timeline caption')?.textContent)"
    before = playground.wait(said)
    playground.driver.find_element("css selector", ".kb-timeline input").send_keys(Keys.HOME)
    playground.wait("document.querySelector('.kb-timeline input').value === '0'")
    first = playground.wait(said)
    assert first != before
    plot = playground.driver.find_element("css selector", ".kb-timeline-plot svg")
    ActionChains(playground.driver).move_to_element(plot).perform()
    assert playground.wait(said) != first
    assert playground.ask("return document.documentElement.scrollWidth") <= width[0]
    playground.ask("document.querySelector('.kb-over-time').open = false")
    playground.resize(DESKTOP)


# --- these leave the page, with the Python that the tests above share ---


def test_markup_in_a_link_stays_text(browser: Browser) -> None:
    from urllib.parse import urlencode

    browser.visit(
        "playground/#" + urlencode({"config": INJECTED[0], "gpu": MARKUP, "host_memory": MARKUP, "kind": MARKUP})
    )
    browser.wait("window.kbAnswer")
    assert browser.ask("return window.pwned") is None
    assert browser.ask("return document.querySelectorAll('article img, article script').length") == 0


@pytest.mark.parametrize("language", few(LANGUAGES))
def test_a_rules_page_opens_its_example_there(browser: Browser, site: Path, language: str) -> None:
    below = "" if language == "ko" else "en/"
    pages = (page for page in sorted(site.glob("en/rules/*/index.html")) if _OPENS.search(page.read_text("utf-8")))
    rule = next(pages).parent.name
    browser.visit(f"{below}rules/{rule}/")
    browser.driver.find_element("css selector", "a.md-button[href*='playground']").click()
    answer = browser.wait("window.kbAnswer")
    assert rule in {row["rule"] for unit in answer["report"]["files"] for row in unit["findings"]}
    finding = f"""document.querySelector('[data-rule="{rule}"]')"""
    assert browser.wait(finding)
    link = browser.ask(f"return {finding}.querySelector('a').href")
    assert link == f"{browser.server.address}{below}rules/{rule}/"


def test_without_webassembly_the_playground_says_so(browser: Browser) -> None:
    for path, words in (("playground/", "WebAssembly가 없어"), ("en/playground/", "no WebAssembly")):
        browser.visit(path, before="delete window.WebAssembly")
        assert words in browser.wait("document.querySelector('#kb-playground .kb-notice')?.innerText")
        assert browser.complaints() == []
