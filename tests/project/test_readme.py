"""The README, and the pages of the guide that it leads to, say what the program does, in both languages.

Its blocks marked `sh` are run here, and those of ``PAGES`` too; there what needs a GPU, a server or a script of the
reader's own is marked `bash`.

``python tests/project/test_readme.py`` writes the console blocks and the error bands again after they have changed.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from kb.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # where this is run as a program

from rules_copy import few_rules  # noqa: E402
from yaml_file import read_yaml  # noqa: E402

READMES = {"en": ROOT / "README.md", "ko": ROOT / "README.ko.md"}
PAGES = ("check", "commands", "integrations", "measure")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
BAND = re.compile(r"±(\d+(?:\.\d+)?) %")
GAP = "⋮"
# The findings that the console block keeps of a long report, with its first and its last paragraphs.
KEPT = ("effective-batch-not-as-said", "t5-fp16-overflow", "host-memory-over-limit", "lora-some-targets-match-nothing")


def page(name: str, language: str) -> Path:
    return ROOT / "docs" / language / f"{name}.md"


def blocks(path: Path, *kinds: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(path.read_text("utf-8")) if kind in kinds]


def commands(language: str) -> list[str]:
    """Every ``kb`` command of the shell blocks, once, without its comment."""
    paths = [READMES[language], *(page(name, language) for name in PAGES)]
    lines = [line for path in paths for body in blocks(path, "sh") for line in body.splitlines()]
    found = [shlex.join(shlex.split(line, comments=True)) for line in lines if re.match(r"kb |python -m kb\.", line)]
    return list(dict.fromkeys(found))


def words_of(line: str) -> tuple[list[str], bool]:
    """A command's arguments, and whether it reads standard input; output to a file is left away."""
    words = shlex.split(line)
    if ">" in words:
        words = words[: words.index(">")]
    reads = "<" in words
    if reads:
        words = words[: words.index("<")]
    return words, reads


def run(words: list[str]) -> int:
    name = words[1] if words[0] == "kb" else words[2].removeprefix("kb.")
    arguments = words[2:] if words[0] == "kb" else words[3:]
    assert name in COMMANDS
    code: int = import_module(f"kb.{name}").main(arguments)
    return code


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what the commands shown name."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "configs").mkdir()
    (tmp_path / "more").mkdir()
    for name in ("train.yaml", "configs/train.yaml"):  # one run, so that what is predicted of it is asked once
        shutil.copy(ROOT / "examples/t5-base-arguments.yaml", tmp_path / name)
    shutil.copy(ROOT / "examples/bart-large-arguments.json", tmp_path / "more/bart.json")
    shutil.copy(ROOT / "examples/summarize.sh", tmp_path / "run.sh")
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    (tmp_path / "serve.sh").write_text("vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192\n", "utf-8")
    (tmp_path / "train.log").write_text("step 12\nRuntimeError: CUDA out of memory\n", "utf-8")
    (tmp_path / "samples.jsonl").write_text('{"text": "one two three"}\n', "utf-8")
    (tmp_path / "kb-baseline.json").write_text('{"version": 1, "findings": []}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def commit(folder: Path) -> None:
    """A repository with the rules in it, for what compares them with a revision."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    for words in (("init", "-q"), ("add", "rules", "i18n"), ("commit", "-q", "-m", "rules")):
        subprocess.run(["git", *author, *words], cwd=folder, env=environ, check=True, timeout=60)


def test_every_command_of_kb_is_shown() -> None:
    assert {line.split()[1] for line in commands("en") if line.startswith("kb ")} == set(COMMANDS)


# Minutes each, and run by others: the site by its own tests, the examples of all rules by `make rules`.
ELSEWHERE = ("kb site build", "kb rules test")


# Seconds each; the tests of these commands have their smaller kin.
LONGEST = (
    "kb rules diff HEAD", "kb check configs/ 'more/*.json' run.sh", "kb recommend --model eenzeenee --gpu v100-16gb",
    "kb plan examples/mt5-summary-team.yaml", "kb recommend --model llama-3.1-8b --gpu rtx-4090 --method lora --as trl",
)  # fmt: skip
SHOWN = [
    pytest.param(line, marks=pytest.mark.exhaustive) if line.startswith(LONGEST) else line
    for line in commands("en")
    if line not in ELSEWHERE
]


@pytest.mark.parametrize("line", SHOWN)
def test_every_command_that_is_shown_runs(
    line: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, reads = words_of(line)
    if words[1] == "rules" or words[2:3] == ["kb.rules"]:
        words += ["--rules", str(few_rules(project))]
    if words[1:3] == ["rules", "diff"]:
        commit(project)
    if reads:
        raw = (project / "train.yaml").read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), "utf-8"))
    try:
        code = run([word for word in words if word != "--watch"])
    except SystemExit as stopped:  # argparse
        code = int(str(stopped.code))
    out, err = capsys.readouterr()
    assert code in (0, 1), err
    assert out.strip() or "--write-baseline" in words, "it printed nothing"


def test_the_settings_of_the_page_are_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "kb.toml").write_text("\n".join(blocks(page("check", "en"), "toml")), "utf-8")
    assert run(["kb", "check", "train.yaml", "--format", "json"]) in (0, 1), capsys.readouterr().err
    assert '"rtx-3090"' in capsys.readouterr().out


def test_the_suppression_of_the_page_suppresses(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [block for block in blocks(page("check", "en"), "yaml") if "kb: ignore" in block]
    (project / "kept.yaml").write_text("general: {model_name: google/mt5-base}\n" + snippet, "utf-8")
    run(["kb", "check", "kept.yaml", "--gpu", "rtx-3090", "--format", "json"])
    report = yaml.safe_load(capsys.readouterr().out)
    found = {finding["rule"]: finding["suppressed"] for file in report["files"] for finding in file["findings"]}
    assert found["t5-fp16-overflow"], found


@pytest.mark.parametrize("name", ["README", *PAGES])
def test_both_languages_have_the_same_blocks(name: str) -> None:
    def plain(language: str) -> list[str]:
        path = READMES[language] if name == "README" else page(name, language)
        text = "\n".join(blocks(path, "sh", "bash", "yaml", "toml"))
        return [re.sub(r"\s*#(?! kb:).*", "", line) for line in text.splitlines()]

    assert plain("en") == plain("ko")


@pytest.mark.parametrize("name", ["README", *PAGES])
def test_both_languages_have_the_same_sections_tables_and_links(name: str) -> None:
    def shape(language: str) -> tuple[int, list[int], list[str], list[str]]:
        path = READMES[language] if name == "README" else page(name, language)
        prose = BLOCK.sub("", path.read_text("utf-8"))
        links = [link for link in re.findall(r"\]\(([^)]+)\)", prose) if not link.startswith("README")]
        links = [link.replace(f"docs/{language}/", "docs/") for link in links]
        rows = [line.count("|") for line in prose.splitlines() if line.startswith("|")]
        return len(re.findall(r"^#+ ", prose, re.M)), rows, sorted(links), sorted(set(re.findall(r"`[^`]+`", prose)))

    assert shape("en") == shape("ko")


@pytest.mark.parametrize("language", READMES)
def test_every_link_leads_to_something(language: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", READMES[language].read_text("utf-8")):
        assert "://" not in link
        assert (ROOT / link).exists(), link


def test_every_option_of_kb_check_is_in_the_table() -> None:
    from kb.commands.check import NAMEABLE, build_parser

    options = {name for action in build_parser({})._actions for name in action.option_strings if name.startswith("--")}
    text = page("check", "en").read_text("utf-8")
    missing = [name for name in options - {"--help"} if f"`{name}" not in text]
    assert not missing
    assert NAMEABLE[0] in text


def test_the_readme_names_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for language in READMES:
        for target in re.findall(r"\bmake (\w+)\b", "\n".join(blocks(READMES[language], "sh"))):
            assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.parametrize("language", READMES)
def test_the_error_bands_are_those_of_the_constants(language: str) -> None:
    assert BAND.findall(READMES[language].read_text("utf-8")) == bands()


def bands() -> list[str]:
    """In percent: of the memory engine, then of rough answers in the order of the phases."""
    constants = read_yaml(ROOT / "rules/constants.yaml")["constants"]
    return [
        f"{constants[f'band_{phase}']['value'] * 100:.3g}" for phase in ("simulated", "train", "evaluate", "generate")
    ]


@pytest.mark.parametrize("language", READMES)
def test_the_console_block_is_what_the_command_prints(language: str) -> None:
    (block,) = blocks(READMES[language], "console")
    assert block == console_block(block.splitlines()[0], language), (
        "if the new output is right: python tests/project/test_readme.py"
    )


def console_block(prompt: str, language: str) -> str:
    """The command and what is shown of its output."""
    output = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n")  # a pipe, not a terminal
    columns, here = os.environ.get("COLUMNS"), os.getcwd()
    os.environ["COLUMNS"] = "80"
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(output):
            code = run([*shlex.split(prompt.removeprefix("$ ")), "--lang", language])
    finally:
        os.chdir(here)
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    assert code in (0, 1), f"{prompt}: exit {code}"
    output.seek(0)
    paragraphs = output.read().rstrip("\n").split("\n\n")
    kept: list[str] = []
    for index, paragraph in enumerate(paragraphs):
        first = paragraph.splitlines()[0]
        finding = re.match(r"\S+:\d+:\d+: ", first)
        if not finding or first.endswith(KEPT):
            kept.append(paragraph)
        elif kept[-1] != GAP:
            kept.append(GAP)
        assert index or not finding, "the report begins with a finding"
    return prompt + "\n" + "\n\n".join(kept) + "\n"


def rewrite() -> None:
    for language, path in READMES.items():
        text = path.read_text("utf-8")
        (block,) = blocks(READMES[language], "console")
        text = text.replace(block, console_block(block.splitlines()[0], language))
        values = iter(bands())
        path.write_text(BAND.sub(lambda _, values=values: f"±{next(values)} %", text), "utf-8", newline="\n")


if __name__ == "__main__":
    rewrite()
