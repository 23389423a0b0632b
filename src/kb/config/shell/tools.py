"""Programs that train from a config file: what they are called, and which of their words is the file.

``axolotl train x.yaml``, ``trl sft --config x.yaml``, ``llamafactory-cli train x.yaml``, ``tune run … --config x.yaml``
(their documentation); a script of one's own takes ``--config x.yaml``, or the file alone (HfArgumentParser).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from kb.config.shell.expand import Argument

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
CONFIG_FLAGS = ("config", "config_file", "config_path")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=(?!=)")


class Tool(NamedTuple):
    """``dialect`` is that of its flags. ``subcommands``: those that start a run; empty where there are none."""

    dialect: str
    subcommands: frozenset[str]
    flagged: bool = False  # the file is named by --config, not by its place
    overrides: bool = False  # settings are given as name=value


# Trainers of TRL: its program's subcommands, and others in the names of its scripts (`dpo.py`, `run_dpo.py`).
_TRL = frozenset(("sft", "dpo", "grpo", "kto", "reward", "rloo", "cpo", "orpo", "ppo"))
_SCRIPTS = {name: name for name in (*_TRL, "gkd", "xpo", "bco", "prm", "nash_md", "online_dpo")} | {
    "reward_modeling": "reward",
    "dpo_online": "online_dpo",
}
TOOLS = {
    "axolotl": Tool("axolotl", frozenset(("train", "evaluate", "inference", "finetune"))),
    "trl": Tool("trl", _TRL, flagged=True),
    "llamafactory-cli": Tool("llamafactory", frozenset(("train", "chat", "api", "export", "eval")), overrides=True),
    "lmf": Tool("llamafactory", frozenset(("train", "chat", "api", "export", "eval")), overrides=True),
    "tune": Tool("torchtune", frozenset(("run",)), flagged=True, overrides=True),
}
# Modules that are the same programs: `accelerate launch -m axolotl.cli.train x.yaml`.
MODULES = {
    "axolotl.cli.train": Tool("axolotl", frozenset()),
    "axolotl.cli.inference": Tool("axolotl", frozenset()),
    "axolotl.cli.evaluate": Tool("axolotl", frozenset()),
    "llamafactory.cli": TOOLS["llamafactory-cli"],
    "llamafactory.launcher": Tool("llamafactory", frozenset(), overrides=True),
}


# Example scripts of transformers, which hand their flags to its argument classes; those without a Trainer do not.
_EXAMPLES = re.compile(
    r"run_(?:glue|xnli|clm|mlm|plm|fim|summarization|translation|qa|seq2seq_qa|ner|swag|classification|mae|mim|clip"
    r"|image_classification|audio_classification|semantic_segmentation|object_detection|instance_segmentation"
    r"|speech_recognition_(?:ctc|seq2seq)(?:_adapter)?)(_no_trainer)?\.py\Z"
)


def is_example(script: str) -> bool | None:
    """Whether a script, by its name, hands its flags to the library's argument classes; None where it does not say."""
    match = _EXAMPLES.match(script)
    if match is not None:
        return match[1] is None
    return False if script.endswith("_no_trainer.py") else None


def trainer_of(script: str) -> str | None:
    """The trainer that ``trl dpo`` or a script's name says."""
    if script.startswith(("trl ", "trl.scripts.")):
        return _SCRIPTS.get(script[4:].removeprefix("scripts."))
    if not script.endswith(".py"):
        return None
    name = script.removesuffix(".py").removeprefix("run_").removeprefix("train_")
    return _SCRIPTS.get(name.removesuffix("_vlm").removesuffix("_tldr"))


def is_config(argument: Argument) -> bool:
    """Whether the argument looks like a config file; of an unknown one nothing is said."""
    return argument.text is not None and argument.text.endswith(CONFIG_SUFFIXES)


def overrides_of(arguments: Sequence[Argument], text: str) -> list[tuple[str, Argument, Argument]]:
    """Name, its place and the value of each ``name=value``."""
    found = []
    for argument in arguments:
        match = _OVERRIDE.match(argument.text or "")
        if match is None or argument.text is None:
            continue
        middle = text.find("=", argument.start, argument.end)
        if middle < 0:
            continue
        name, _, value = argument.text.partition("=")
        key = Argument(name, argument.start, middle, argument.shared, argument.from_variable)
        found.append((name, key, Argument(value, middle + 1, argument.end, argument.shared, argument.from_variable)))
    return found
