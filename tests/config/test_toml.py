"""TOML as a config: what it says, where it stands, and torchtitan's runs in it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.config.dialect.dialects import CompiledDialect
from kb.config.discovery import discover
from kb.config.files import ConfigError
from kb.config.fixing.changes import CannotEditError, splice
from kb.config.fixing.tree_edits import Editor
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader, read_shell
from kb.config.text.parsing import parse
from kb.core.expression import is_unknown

CATALOG = load_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
TITAN = """\
# a preset
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1  # per GPU
seq_len = 8_192
steps = 1000

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1

[activation_checkpoint]
mode = "full"
"""


@pytest.mark.parametrize(
    "text",
    [
        TITAN,
        "a.b.'c d' = 1\na.\"e\\t\" = [1, [2, 3,], {x = 'y', z.w = 2}] # [[\n",
        'a = """\none " two \\"""\n"""\nb = \'\'\'\nraw \\ """ \'\'\'\nc = "#"\n',
        "[[a]]\nb = 1\n[a.c]\nd = 2\n[[a]]\nb = 1979-05-27 07:32:00\n[e.f]\ng=0xff\n[e]\nh=1e-5\n",
        "a = [\n  1, # one\n  2,\n]\r\nb = {}\nc=inf\nd=true\n",
        '"" = 1\n"a.b" = ""\nc = """"q""""\n',
    ],
)
def test_what_it_says_is_what_tomllib_reads(text: str) -> None:
    (document,) = parse(text, "a.toml").documents
    assert document is not None and document.plain() == tomllib.loads(text)


def value(text: str, name: str) -> Any:
    (unit,) = READER.read(text, "a.toml")
    setting = unit.settings.get(name)
    return "unsaid" if setting is None else None if is_unknown(setting.value) else setting.value


def test_a_job_of_torchtitan_and_where_it_says_what() -> None:
    (unit,) = READER.read(TITAN, "llama3_8b.toml")
    length = unit.settings["data.max_source_length"]
    assert (unit.dialect, unit.events, length.value) == ("torchtitan", (), 8192)
    assert TITAN[length.span.start : length.span.end] == "8_192" and (length.span.line, length.span.column) == (11, 11)
    assert unit.settings["training.per_device_train_batch_size"].comment == "per GPU"
    assert value(TITAN, "lora.enabled") is False and value(TITAN, "training.gradient_checkpointing") is True
    assert value(TITAN, "run.not_modelled") == "torchtitan"


@pytest.mark.parametrize(
    ("shard", "tensor", "gpus"), [("-1", "1", "unsaid"), ("8", "1", 8), ("8", "2", None), ("-1", "8", None)]
)
def test_the_gpus_of_a_job_are_the_product_of_its_degrees(shard: str, tensor: str, gpus: object) -> None:
    text = TITAN.replace("degree = -1", f"degree = {shard}").replace(
        "parallel_degree = 1", f"parallel_degree = {tensor}"
    )
    assert value(text, "launch.num_processes") == gpus


def test_a_slip_and_a_name_that_is_gone_are_told() -> None:
    text = TITAN.replace("seq_len", "seq_lenn").replace("steps =", "compile = true\nsteps =")
    (unit,) = READER.read(text, "a.toml")
    told = {event.kind: event.values["key"] for event in unit.events}
    assert told == {"unknown-key": "seq_lenn", "dated-argument": "compile"}


def test_flags_are_laid_over_the_file() -> None:
    commands = CommandReader(CATALOG.dialects, CATALOG.facts)
    text = "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file ./a.toml --training.seq_len 4096\n"
    (unit,) = read_shell(text, "run.sh", commands)
    said = {name: setting.value for name, setting in unit.settings.items()}
    assert (unit.dialect, said["launch.run_config"], said["launch.num_processes"]) == ("torchtitan", "./a.toml", 8)
    assert said["data.max_source_length"] == 4096


@pytest.mark.parametrize("text", ["a = 1\nb = = 2\n", "[a]\n[a]\n", "a = 1\na = 2\n"])
def test_what_is_no_toml_is_told_at_its_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.toml")
    assert (caught.value.key, caught.value.line) == ("config.toml-syntax", 2) and caught.value.column


def test_depth_and_number_of_values_are_bounded() -> None:
    with pytest.raises(ConfigError, match=r"too-deep|toml-syntax"):
        parse("a = " + "[" * 200 + "]" * 200, "a.toml")
    with pytest.raises(ConfigError, match="too-many-values"):
        parse("a = [" + "1," * 30_000 + "]", "a.toml")


def test_values_are_set_put_in_and_taken_out() -> None:
    parsed = parse(TITAN, "a.toml")
    (root,) = parsed.documents
    assert root is not None
    editor = Editor(parsed.source, root)
    tables = {key.value: node for key, node in root.value}
    training = tables["training"]
    splices = editor.set_value(training.value[0][1], 4) + editor.insert(training, 2, "max_norm", 1.0)
    splices += editor.remove(training, 1) + editor.rename(tables["model"].value[1][0], "size")
    after = tomllib.loads(splice(TITAN, splices)[0])
    assert after["training"] == {"local_batch_size": 4, "steps": 1000, "max_norm": 1.0}
    assert after["model"] == {"name": "llama3", "size": "8B"}
    with pytest.raises(CannotEditError):  # behind a table it would be that table's
        editor.insert(root, 4, "top", 1)


def test_of_a_folder_only_tables_of_a_run_are_read(tmp_path: Path) -> None:
    for name, text in (("pyproject.toml", '[project]\nname = "a"\n'), ("run.toml", TITAN)):
        (tmp_path / name).write_text(text)
    assert [Path(found.path).name for found in discover([str(tmp_path)]).files] == ["run.toml"]


def test_every_default_and_key_is_of_the_vocabulary() -> None:
    compiled = CompiledDialect(CATALOG.dialects["torchtitan"], CATALOG.facts)
    assert compiled.last_release("training.compile") == "0.1.0" and not compiled.last_release("training.dtype")
