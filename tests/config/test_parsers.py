"""Which flags a program takes: every one of them, or nothing is said."""

import pytest

from kb.config.python.parsers import flags_taken

PLAIN = """
import argparse
parser = argparse.ArgumentParser(description=__doc__)
group = parser.add_argument_group("data")
parser.add_argument("--lr", "--learning-rate", type=float, default=1e-4)
parser.add_argument("-b", "--batch_size", type=int)
group.add_argument("--data")
args = parser.parse_args()
"""
CLASSES = """
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Data:
    path: str = "a"
@dataclass
class Run(Data):
    bf16: bool = True
parser = HfArgumentParser(Run)
run = parser.parse_args_into_dataclasses()[0]
"""


def named(text: str, imported: str = "") -> set[str] | None:
    taken = flags_taken(text, imported)
    return None if taken is None else {each for each in taken if not each.startswith("no_")}


def test_the_flags_of_a_parser_that_is_told_each_by_name():
    assert named(PLAIN) == {"help", "lr", "learning_rate", "batch_size", "data"}
    inside = PLAIN.replace("\n", "\n    ").replace("    import argparse", "import argparse\ndef main():", 1)
    assert named(inside) == named(PLAIN)


def test_the_fields_of_the_projects_own_classes_and_of_their_bases():
    assert named(CLASSES) == {"help", "path", "bf16"}
    assert "no_bf16" in (flags_taken(CLASSES) or ())


LIBRARY = {
    "TrainingArguments": {"package": "transformers", "names": ["output_dir"]},
    "SFTConfig": {"package": "trl", "base": "TrainingArguments", "names": ["packing"]},
}


@pytest.mark.parametrize(
    ("brought", "given"),
    [
        ("from trl import SFTConfig\n", "(Run, SFTConfig)"),
        ("from trl import SFTConfig as Config\n", "[Run, Config]"),
        ("import trl\n", "(Run, trl.SFTConfig)"),
        ("from trl import SFTConfig\nclass Own(SFTConfig):\n    x: int = 1\n", "(Run, Own)"),
    ],
)
def test_a_librarys_class_takes_every_name_of_any_release(brought: str, given: str):
    text = brought + CLASSES.replace("HfArgumentParser(Run)", f"HfArgumentParser({given})")
    taken = flags_taken(text, "", LIBRARY)
    assert taken is not None and taken >= {"packing", "output_dir", "bf16"} and "warmup" not in taken
    assert flags_taken(text, "") is None
    assert flags_taken(text.replace("trl", "other"), "", LIBRARY) is None
    assert flags_taken("import unsloth\n" + text, "", LIBRARY) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parse_args()", "parse_known_args()[0]"),
        ("parse_args()", "parse_args(['--lr', '1'])"),
        ("args = parser", "add_flags(parser)\nargs = parser"),
        ("args = parser", "parser = add_flags(parser)\nargs = parser"),
        ("args = parser", "for name in NAMES:\n    parser.add_argument(f'--{name}')\nargs = parser"),
        ("args = parser", "parser.add_argument('--x', **KINDS)\nargs = parser"),
        ("description=__doc__", "parents=[common]"),
        ("description=__doc__", "fromfile_prefix_chars='@'"),
        ("import argparse\n", "import argparse\nimport sys\nsys.argv = sys.argv[1:]\n"),
        ("import argparse\nparser = argparse.", "from jsonargparse import ArgumentParser\nparser = "),
        ("import argparse\n", "import argparse\nfrom absl import flags\n"),
        ("args = parser", "other = argparse.ArgumentParser()\nargs = parser"),
        ('group.add_argument("--data")', "add_data(group)"),
        ("args = parser", "add = parser.add_argument\nadd('--x')\nargs = parser"),
        ("args = parser", "parser.add_argument('rest', nargs=argparse.REMAINDER)\nargs = parser"),
        ("args = parser", "parser.add_argument('rest', nargs='...')\nargs = parser"),
    ],
)
def test_nothing_is_said_where_the_parser_may_take_more(old: str, new: str):
    assert old in PLAIN and flags_taken(PLAIN.replace(old, new)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("parse_args_into_dataclasses()", "parse_args_into_dataclasses(return_remaining_strings=True)"),
        ("HfArgumentParser(Run)", "HfArgumentParser((Run, TrainingArguments))"),
        ("class Run(Data)", "class Run(TrainingArguments)"),
        ('path: str = "a"', 'path: str = field(default="a", metadata={"aliases": ["--p"]})'),
        ("HfArgumentParser", "TrlParser"),
        ("run = parser", "parser.add_argument('--x')\nrun = parser"),
        ("run = parser", "deepspeed.add_config_arguments(parser)\nrun = parser"),
    ],
)
def test_nothing_is_said_of_classes_that_are_not_all_here(old: str, new: str):
    assert old in CLASSES and flags_taken(CLASSES.replace(old, new)) is None


def test_a_parser_in_an_imported_module_may_be_the_one():
    assert flags_taken(PLAIN, "import argparse\nparser = argparse.ArgumentParser()\n") is None
    assert flags_taken("from flags import parse\nargs = parse()\n", PLAIN) is None
