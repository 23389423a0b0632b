"""``kb doctor``, ``kb completion`` and ``kb manual``, by the programs that read what they write."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kb.commands import COMMANDS
from kb.commands.completion import whole_parser
from kb.commands.doctor import main as doctor
from kb.commands.manual import manual_page
from kb.knowledge import load_words
from output_schemas import answers_to
from packages import call, missing

BASH = """\
source "$1"
COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2)); COMP_LINE="${*:2}"; COMP_POINT=${#COMP_LINE}
_shtab_kb kb "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed")
    assert found
    return found


@pytest.fixture(scope="module")
def scripts(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        script = call([installed / "kb", "completion", shell, "--lang", "en"], folder)
        (folder / f"kb.{shell}").write_text(script, "utf-8")
    return folder


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["kb", "est"], ["estimate"]),
        (["kb", "check", "--gpu", "a10g"], ["a10g"]),
        (["kb", "check", "--unsafe"], ["--unsafe-fixes"]),
        (["kb", "check", "--explain", "t5-fp16-o"], ["t5-fp16-overflow"]),
        (["kb", "rules", "valid"], ["validate"]),
    ],
)
def test_bash_and_fish_complete_commands_options_and_ids(
    scripts: Path, typed: Sequence[str], offered: Sequence[str]
) -> None:
    said = call([program("bash"), "--norc", "-c", BASH, "bash", scripts / "kb.bash", *typed], scripts)
    assert said.split() == offered
    ask = f"source {scripts / 'kb.fish'}; complete -C '{' '.join(typed)}'"
    said = call([program("fish"), "--no-config", "-c", ask], scripts, env={"HOME": str(scripts)})
    assert [line.split("\t")[0] for line in said.splitlines()] == offered


def test_zsh_reads_its_script(scripts: Path) -> None:
    call([program("zsh"), "-f", "-n", scripts / "kb.zsh"], scripts)
    assert (scripts / "kb.zsh").read_text("utf-8").startswith("#compdef kb")


@pytest.mark.parametrize("language", ["ko", "en"])
def test_the_manual_page_names_every_command_and_option(language: str) -> None:
    words = load_words(language)
    page = manual_page(words).replace(r"\-", "-")
    for name in COMMANDS:
        assert f'.SS "kb {name}"' in page
    for option in ("--host-memory", "--unsafe-fixes", "--skip-unknown", "--simulate"):
        assert rf"\fB{option}\fR" in page
    assert re.findall(r"^\.S[HS]", page, re.M)
    assert not re.search(r"\b(cli|manual)\.[a-z_]+\.", page), "a text is missing"


@pytest.mark.parametrize("language", ["ko", "en"])
def test_groff_sets_the_manual_page_without_a_warning(language: str, tmp_path: Path) -> None:
    groff = program("groff")
    page = tmp_path / "kb.1"
    page.write_text(manual_page(load_words(language)), "utf-8")
    run = subprocess.run([groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-z", str(page)], capture_output=True, text=True,
                         timeout=60, check=True)  # fmt: skip
    # Lines that Korean words without hyphenation leave ragged are no fault of the page.
    assert [line for line in run.stderr.splitlines() if "break" not in line and "adjust" not in line] == []


def test_the_wheel_carries_the_manual_page_in_both_languages(installed: Path, tmp_path: Path) -> None:
    shared = installed.parent / "share" / "man"
    assert "COMMANDS" in (shared / "man1" / "kb.1").read_text("utf-8")
    assert "명령" in (shared / "ko" / "man1" / "kb.1").read_text("utf-8")


def test_the_whole_parser_has_every_command() -> None:
    words = load_words("en")
    help_text = whole_parser(words).format_help()
    assert all(re.search(rf"^\s+{name}\s", help_text, re.M) for name in COMMANDS)


def test_doctor_as_json_follows_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    answers_to("doctor", said)
    assert {package["name"]: package["version"] for package in said["packages"]}["jsonschema"]


def test_doctor_in_an_empty_environment_says_what_is_missing_and_what_it_costs(installed: Path, tmp_path: Path) -> None:
    said = " ".join(call([installed / "kb", "doctor", "--lang", "en"], tmp_path).split())
    assert "Without torch, transformers, accelerate, peft, bitsandbytes: no kb estimate --simulate" in said
    assert "pip install 'gpu-memory-kb[torch]'" in said
    said = call([installed / "kb", "doctor", "--lang", "ko"], tmp_path)
    assert "설치되지 않음" in said


def test_doctor_says_that_its_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    doctor(["--lang", "en"])
    assert "cannot be written" in " ".join(capsys.readouterr().out.split())
    assert doctor(["--format", "json"]) == 0
    cache = json.loads(capsys.readouterr().out)["cache"]
    assert cache == {"folder": os.path.join(tmp_path, "file", "kb"), "writable": False}


def test_version_names_the_rules_too(installed: Path, tmp_path: Path) -> None:
    assert re.fullmatch(r"kb \S+ \(rules \S+ from .+\)\n", call([installed / "kb", "--version"], tmp_path))
