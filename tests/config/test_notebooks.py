"""Jupyter notebooks as configs: cells read as Python, places in the file, fixes inside the JSON strings."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.config.files import MAX_NOTEBOOK_BYTES, ConfigError
from kb.config.notebook.cells import read_notebook
from kb.config.notebook.reader import read_cells
from kb.config.python.reader import PythonReader
from kb.config.shell.command import CommandReader
from kb.core.document import Unit
from warm_runs import run_text

CATALOG = load_catalog()
PYTHON = PythonReader(CATALOG.dialects, CATALOG.facts)
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
SETUP = '!pip install -q transformers\n%matplotlib inline\nMODEL = "google/mt5-base"\nBATCH = 8'
MODEL = "%%capture\nmodel = AutoModelForSeq2SeqLM.from_pretrained(MODEL)  # 모델"
RUN = (
    'args = Seq2SeqTrainingArguments(\n    output_dir="out",\n    per_device_train_batch_size=BATCH,\n'
    '    gradient_accumulation_steps=4,  # 유효 배치 32\n    learning_rate="1e-4",\n    fp16=True,\n)'
)
CELLS = [("markdown", '# 요약 "모델"\n'), ("code", SETUP), ("code", MODEL), ("code", RUN)]
OUTPUTS = [{"output_type": "stream", "name": "stdout", "text": ['{["\\ TrainingArguments(fp16=True)\n']}]


def notebook(cells: list[tuple[str, str]] | None = None, *, listed: bool = True, old: bool = False, **how: Any) -> str:
    """A notebook's text; ``old`` is nbformat 3, ``how`` goes to json.dumps."""
    made = []
    for kind, source in CELLS if cells is None else cells:
        name = "input" if old and kind == "code" else "source"
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {}}
        cell[name] = source.splitlines(keepends=True) if listed else source
        if kind == "code":
            cell |= {"execution_count": None, "outputs": OUTPUTS}
        made.append(cell)
    whole: dict[str, Any] = {"cells": made, "metadata": {"kernelspec": {"name": "python3"}}}
    if old:
        whole = {"metadata": {"name": ""}, "worksheets": [whole]}
    whole |= {"nbformat": 3 if old else 4, "nbformat_minor": 0}
    return json.dumps(whole, **{"indent": 1, "ensure_ascii": False, **how}) + "\n"


FORMS: dict[str, dict[str, Any]] = {
    "lines": {},
    "one string": {"listed": False},
    "nbformat 3": {"old": True},
    "minified": {"listed": False, "indent": None, "separators": (",", ":")},
    "escaped": {"ensure_ascii": True},
    "tabs": {"indent": "\t"},
}


def units(text: str) -> list[Unit]:
    return read_cells(text, "train.ipynb", PYTHON, COMMANDS)


def kb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_text("kb", "check", "--lang", "en", "--gpu", "rtx-3090", *arguments)


@pytest.mark.parametrize("form", FORMS)
def test_the_cells_are_one_program_and_a_run_is_named_after_its_cell(form: str):
    (unit,) = units(notebook(**FORMS[form]))
    assert unit.section == "cell 4"
    assert unit.settings["model.name"].value == "google/mt5-base"
    assert unit.settings["training.per_device_train_batch_size"].value == 8
    assert unit.settings["training.gradient_accumulation_steps"].comment == "유효 배치 32"


@pytest.mark.parametrize("form", FORMS)
def test_places_are_places_of_the_notebook_file(form: str):
    text = notebook(**FORMS[form])
    (unit,) = units(text)
    for name, written in (
        ("training.per_device_train_batch_size", "8"),
        ("training.fp16", "True"),
        ("training.learning_rate", '\\"1e-4\\"'),
    ):
        span = unit.settings[name].span
        assert text[span.start : span.end] == written
        line = text.split("\n")[span.line - 1]
        assert line[span.column - 1 : span.end_column - 1] == written


def test_several_runs_in_one_cell_have_their_own_names():
    text = notebook([("code", "a = TrainingArguments('a', fp16=True)\nb = TrainingArguments('b', fp16=True)\n")])
    assert [unit.section for unit in units(text)] == ["cell 1: a", "cell 1: b"]


@pytest.mark.parametrize(
    "magic",
    [
        "%load_ext x",
        "!pip install a",
        "!nvidia-smi",
        "?print",
        "print?",
        "files = !ls",
        "t = %timeit -o f()",
        "%cd x",
        "if True:\n    !pip install a\n    %cd x",
        "!pip install a \\\n  b \\\n  c",
        "pip install a",
        "await load()",
    ],
)
def test_magics_are_tolerated(magic: str):
    text = notebook([("code", f"{magic}\nargs = TrainingArguments('o', per_device_train_batch_size=8)\n")])
    (unit,) = units(text)
    assert unit.settings["training.per_device_train_batch_size"].value == 8


def test_cells_of_other_languages_are_no_python():
    text = notebook(
        [("code", "%%html\n<b>TrainingArguments(</b>"), ("code", "args = TrainingArguments('o', fp16=True)")]
    )
    assert [unit.section for unit in units(text)] == ["cell 2"]


@pytest.mark.parametrize("lead", ["!", "%%bash\n", "if True:\n    !"])
def test_commands_in_cells_are_read_as_the_shell_reads_them(lead: str):
    command = (
        "accelerate launch --num_processes 2 train.py --model_name_or_path google/mt5-small \\\n"
        "  --per_device_train_batch_size 4 --bf16 --do_train --output_dir x"
    )
    text = notebook([("code", "import os\n"), ("code", lead + command)])
    (unit,) = units(text)
    assert unit.section == "cell 2"
    assert unit.launcher == "accelerate"
    setting = unit.settings["training.per_device_train_batch_size"]
    assert setting.value == 4
    assert text[setting.span.start : setting.span.end] == "4"


def test_a_broken_cell_matters_only_where_it_seems_to_describe_a_run(tmp_path: Path):
    good = ("code", "args = TrainingArguments('o', fp16=True)")
    assert len(units(notebook([("code", "for ( in"), good]))) == 1
    broken = notebook([good, ("code", "x = 1\nargs = TrainingArguments('o',\n  fp16==)\n")])
    with pytest.raises(ConfigError) as raised:
        units(broken)
    assert raised.value.key == "config.cell-syntax"
    assert (raised.value.values["cell"], raised.value.values["row"]) == (2, 3)
    path = tmp_path / "a.ipynb"
    path.write_text(broken, encoding="utf-8")
    shown = kb(str(path))
    assert shown.returncode == 2
    assert f"{path}:{raised.value.line}:{raised.value.column}:" in shown.stderr
    assert "cell 2, line 3" in shown.stderr
    assert "fp16==)" in broken.split("\n")[(raised.value.line or 0) - 1]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[]", "config.not-notebook"),
        ("{}", "config.not-notebook"),
        ('{"cells": 3}', "config.json-value"),
        ('{"cells": [', "config.json-ends-early"),
        ('{"cells": [{"cell_type": "code", "source": ["x = 1\n"]}]}', "config.json-string"),
        ('{"cells": [], "a": {"b": [}}', "config.json-comma"),
        ('{"cells": []} x', "config.json-after-end"),
        ('{"cells": [],}', "config.json-trailing-comma"),
        ('{"cells": [], "a": ' + "[" * 5000, "config.too-deep"),
        ('{"cells": [{"cell_type": "code", "source": "' + "x" * (1 << 20) + 'y"}]}', "config.too-large"),
    ],
)
def test_what_is_no_notebook_is_said(text: str, key: str):
    with pytest.raises(ConfigError) as raised:
        read_notebook(text)
    assert raised.value.key == key


@pytest.mark.exhaustive
def test_a_notebook_of_50_megabytes_of_outputs_is_read_and_a_larger_one_is_refused_with_its_limit(tmp_path: Path):
    image = {"output_type": "display_data", "data": {"image/png": "A" * (50 << 20)}, "metadata": {}}
    text = notebook().replace(json.dumps(OUTPUTS[0]["text"], ensure_ascii=False), '["x"]')
    large = text.replace('"outputs": [', '"outputs": [' + json.dumps(image) + ",", 1)
    (unit,) = units(large)
    span = unit.settings["training.fp16"].span
    assert large[span.start : span.end] == "True"
    path = tmp_path / "large.ipynb"
    path.write_bytes(b"{" + b" " * MAX_NOTEBOOK_BYTES)
    shown = kb(str(path))
    assert shown.returncode == 2
    assert f"{MAX_NOTEBOOK_BYTES:,}" in shown.stderr


def test_the_report_shows_the_line_of_the_cell(tmp_path: Path):
    path = tmp_path / "train.ipynb"
    text = notebook(indent=None)
    path.write_text(text, encoding="utf-8")
    shown = kb(str(path), "--select", "quoted-number").stdout
    column = text.index('\\"1e-4\\"') + 1
    assert f"{path}:1:{column}: cell 4, line 5: error quoted-number" in shown
    assert '    5 |     learning_rate="1e-4",' in shown
    report = json.loads(kb(str(path), "--format", "json").stdout)
    assert report["files"][0]["section"] == "cell 4"


@pytest.mark.parametrize("form", FORMS)
def test_fix_changes_the_string_and_not_a_byte_else(form: str, tmp_path: Path):
    path = tmp_path / "train.ipynb"
    text = notebook(**FORMS[form])
    path.write_text(text, encoding="utf-8")
    kb(str(path), "--fix", "--select", "quoted-number")
    assert path.read_text(encoding="utf-8") == text.replace('\\"1e-4\\"', "1.0e-4")


@pytest.mark.parametrize("form", FORMS)
def test_a_new_keyword_is_a_new_line_as_the_notebook_writes_lines(form: str, tmp_path: Path):
    path = tmp_path / "train.ipynb"
    text = notebook(**FORMS[form])
    path.write_text(text, encoding="utf-8")
    kb(str(path), "--fix", "--select", "t5-fp16-overflow")
    mended = RUN.replace("    fp16=True,\n", "    fp16=False,\n    bf16=True,\n")
    assert path.read_text(encoding="utf-8") == notebook([*CELLS[:3], ("code", mended)], **FORMS[form])


def test_comments_in_cells_set_findings_aside(tmp_path: Path):
    path = tmp_path / "train.ipynb"
    comment = "  # kb: ignore[quoted-number] the trainer casts it\n"
    for form in FORMS.values():
        text = notebook([*CELLS[:3], ("code", RUN.replace('"1e-4",\n', '"1e-4",' + comment))], **form)
        path.write_text(text, encoding="utf-8")
        assert "0 errors" not in kb(str(path), "--select", "quoted-number").stdout
        assert kb(str(path), "--select", "quoted-number").returncode == 0


def test_an_unused_comment_in_a_cell_is_told_at_its_place_and_taken_away(tmp_path: Path):
    path = tmp_path / "train.ipynb"
    text = notebook([("code", "args = TrainingArguments('o', fp16=True)  # kb: ignore[quoted-number] no more\n")])
    path.write_text(text, encoding="utf-8")
    kb(str(path), "--fix", "--unsafe-fixes", "--select", "suppression-unused,quoted-number")
    assert path.read_text(encoding="utf-8") == text.replace("  # kb: ignore[quoted-number] no more", "")


def test_commands_in_cells_are_not_written_over(tmp_path: Path):
    path = tmp_path / "train.ipynb"
    text = notebook(
        [("code", "!python train.py --model_name_or_path google/mt5-base --fp16 --do_train --output_dir o")]
    )
    path.write_text(text, encoding="utf-8")
    assert "t5-fp16-overflow" in kb(str(path), "--fix").stdout
    assert path.read_text(encoding="utf-8") == text


def test_a_notebook_without_a_literal_call_is_said_when_named(tmp_path: Path):
    path = tmp_path / "a.ipynb"
    path.write_text(notebook([("code", "print(1)")]), encoding="utf-8")
    shown = kb(str(path))
    assert shown.returncode == 2 and "no cell" in shown.stderr
