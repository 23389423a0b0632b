"""Whatever a config, its name or a log holds: no output obeys it, hides it, links from it or pings anyone by it."""

import contextlib
import io
import json
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from effort import EXHAUSTIVE, examples
from kb.commands import check, estimate, plan
from kb.integrations import browser
from kb.report.json_parts import to_json
from kb.report.markdown import escaped
from kb.report.values import is_hidden, printable

pytestmark = pytest.mark.long

HOSTILE = "\x9b31m\u202egnp\u200b\u2066\xad\u3164\ufe0f\U000e0041\x1b]0;\x07\x85\ufeff"
PIECES = st.sampled_from(
    [*HOSTILE, "\n", "\r", "\t", "값", "`", "|", "<b>", "::error::", "@user", "#1", " ", "a", "👩‍🚀"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=8).map("".join)
FORMATS = ("text", "json", "sarif", "github", "gitlab", "junit", "markdown")
COMMANDS = {"plan": plan.main, "estimate": estimate.main}
ALL = (*FORMATS, *COMMANDS)
MACHINE = ["--gpu", "t4", "--host-memory", "16GB", "--cpus", "4", "--transformers", "4.57"]


def hidden_in(text: str) -> list[str]:
    return [ascii(line) for line in text.split("\n") if any(map(is_hidden, line)) and printable(line) != line]


def output_of(main: Any, *arguments: str) -> tuple[str, str]:
    """What a command writes, as bytes that are UTF-8, to standard output and to standard error."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        assert main(arguments) in (0, 1, 2)
        for stream in streams:
            stream.flush()
    out, err = (stream.buffer.getvalue().decode("utf-8") for stream in streams)  # type: ignore[attr-defined]
    return out, err


def config_with(text: str) -> str:
    training = {"fp16": True, "optim": text, f"per_device_train_batchsize{text}": 3, "eval_strategy": text}
    return yaml.safe_dump(
        {
            "general": {"model_name": "google/mt5-base", "name": text},
            "training": training,
            "qlora": {"target_modules": [text], "use_qlora": True},
        },
        allow_unicode=True,
    )


@settings(
    max_examples=examples(2, 25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(TEXTS, st.sampled_from(("ko", "en")), st.sampled_from(ALL).map(lambda one: (one,)))
@example(HOSTILE, "en", ALL if EXHAUSTIVE else ALL[::2])
@example(HOSTILE, "ko", ALL if EXHAUSTIVE else ALL[1::2])
def test_no_output_holds_a_hidden_character(tmp_path: Path, text: str, lang: str, outputs: tuple[str, ...]) -> None:
    name = text.replace("/", "").encode("utf-8", "replace").decode()[:60] + ".yaml"
    path, gone = tmp_path / name, tmp_path / f"gone{name}"
    path.write_text(config_with(text), "utf-8")
    (tmp_path / f"bad{name}").write_text(f"a: [1  # {printable(text)}\nb: {{", "utf-8")
    inputs = [str(path), str(tmp_path / f"bad{name}"), str(gone)]
    for form in outputs:
        if command := COMMANDS.get(form):
            out, err = output_of(command, str(path), "--gpu", "t4", "--lang", lang)
            assert hidden_in(out) == [] and hidden_in(err) == []
            continue
        out, err = output_of(check.main, *inputs, "--format", form, "--lang", lang, *MACHINE)
        assert hidden_in(out) == [] and hidden_in(err) == []
        if form == "junit":
            ET.fromstring(out)
        if form in ("json", "sarif", "gitlab"):
            data = json.loads(out)
            assert form != "json" or data["files"][0]["path"] == str(path), "a program reads the name as it is"
        if form == "github":
            assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in out.splitlines())


@given(TEXTS)
@example("👩‍🚀 ❤️ 값")
def test_what_is_written_out_stays_readable(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown and "\n" not in shown
    assert json.loads(to_json({"a": text})) == {"a": text}


def test_the_playground_gets_texts_that_a_page_may_show() -> None:
    answer = json.loads(browser.check(config_with(HOSTILE), json.dumps({"gpu": "t4"}), "en"))

    def walk(data: Any) -> None:
        for each in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
            walk(each)
        assert not isinstance(data, str) or printable(data) == data

    walk(answer)


# --- Markdown -----------------------------------------------------------------------------------------------------

LINKS = [
    "#1", "owner/repo#3", "@user", "a@b.io", "GH-12", "gh-12", "https://x.io/a", "www.x.io", "ftp://x", "user@0a1b2c3d",
    "!7", "$4", "%8", "&3", "^2", "~9", ":tada:", "0a1b2c3d4e", "$x^2$", "mailto:a@b",
]  # fmt: skip


@pytest.mark.parametrize("link", LINKS)
def test_a_word_that_would_be_a_link_is_code(link: str) -> None:
    shown = escaped(f"see {link} there")
    assert shown == f"see `{link}` there"


@given(
    st.lists(
        st.sampled_from([*LINKS, "plain", "|", "`", "<img src=x>", "[a](b)", "**", "# h", "1.", "-", "&lt;", "~~"])
    )
)
def test_nothing_in_escaped_text_is_markup(words: list[str]) -> None:
    shown = escaped(" ".join(words))
    outside = re.sub(r"(?<!\\)(`+) ?.*? ?\1(?!`)", "", shown)  # code spans apart
    assert not re.search(r"(?<!\\)[|<>*_\[\]~&]", outside)
    assert not re.search(r"@|#\d|://", outside)
    assert not re.match(r"#|-|\+|\d+\.\s", outside)


def test_a_pull_requests_comment_links_and_pings_nobody(tmp_path: Path) -> None:
    bait = "@octocat owner/repo#3 GH-1 https://x.io | <img src=x> `"
    path = tmp_path / "a.yaml"
    path.write_text(config_with(bait), "utf-8")
    out, _ = output_of(check.main, str(path), "--format", "markdown", "--lang", "en", *MACHINE)
    assert "octocat" in out
    inside = False
    for line in out.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            outside = re.sub(r"(?<!\\)(`+).*?\1(?!`)", "", line)
            assert not re.search(r"@octocat|repo#3|GH-1|https:|(?<!\\)<img", outside), line


def test_a_path_is_no_command_to_the_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("::stop-commands::x.yaml").write_text("general: {model_name: google/mt5-base}\ntraining: {fp16: true}\n")
    Path("::bad.yaml").write_text("a: [\n")
    names = sorted(os.listdir())
    out, err = output_of(check.main, *names, *MACHINE)
    assert not any(line.startswith("::") for line in (out + err).splitlines())
