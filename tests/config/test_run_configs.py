"""Command lines that name the config of their run: ``axolotl train x.yaml`` is checked with what x.yaml says."""

import subprocess
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.config.reader import RUN_CONFIG, ConfigReader, Joiner
from kb.config.shell.command import CommandReader
from kb.core.document import Unit
from kb.core.finding import Edit, Fix
from kb.core.text import Text
from warm_runs import run_text

CATALOG = load_catalog()
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
CONFIGS = ConfigReader(CATALOG.dialects, CATALOG.facts)
AXOLOTL = (
    "base_model: NousResearch/Llama-3.2-1B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
    "sequence_len: 2048\nadapter: lora\nlora_r: 16\n"
)
FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 2\n"
TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 1024\nper_device_train_batch_size: 2\n"
TUNE = (
    "model: {_component_: torchtune.models.llama3_2.llama3_2_1b}\nbatch_size: 2\n"
    "tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}\n"
)
FILES = {"ax.yaml": AXOLOTL, "lf.yaml": FACTORY, "sft.yaml": TRL, "tune.yaml": TUNE, "data.yaml": "rows: 3\n"}
BATCH = "training.per_device_train_batch_size"


def joined(command: str, files: dict[str, str] | None = None) -> Unit:
    unit = COMMANDS.read(command)
    assert unit is not None
    known = FILES if files is None else files
    return Joiner(CONFIGS, CATALOG.dialects, lambda path, named: known.get(named)).join(unit)


@pytest.mark.parametrize(
    ("command", "dialect"),
    [
        ("axolotl train ax.yaml", "axolotl"),
        ("accelerate launch -m axolotl.cli.train ax.yaml", "axolotl"),
        ("python -m axolotl.cli.train ax.yaml", "axolotl"),
        ("llamafactory-cli train lf.yaml", "llamafactory"),
        ("FORCE_TORCHRUN=1 llamafactory-cli train lf.yaml", "llamafactory"),
        ("trl sft --config sft.yaml", "trl"),
        ("uv run trl sft --config sft.yaml", "trl"),
        ("tune run lora_finetune_single_device --config tune.yaml", "torchtune"),
        ("accelerate launch train.py --config sft.yaml", "hf"),
        ("python train.py sft.yaml", "hf"),
    ],
)
def test_a_command_says_what_its_config_says(command: str, dialect: str):
    unit = joined(command)
    assert unit.dialect == dialect
    assert RUN_CONFIG in unit.joined
    setting = unit.settings[BATCH]
    assert setting.value == 2
    assert command[setting.span.start : setting.span.end] == setting.joined


@pytest.mark.parametrize(
    "command",
    [
        "axolotl train ax.yaml --micro-batch-size 4",
        "llamafactory-cli train lf.yaml per_device_train_batch_size=4",
        "trl sft --config sft.yaml --per_device_train_batch_size 4",
        "tune run lora_finetune_single_device --config tune.yaml batch_size=4",
    ],
)
def test_what_the_command_says_itself_wins(command: str):
    setting = joined(command).settings[BATCH]
    assert (setting.value, setting.joined) == (4, "")
    assert command[setting.span.start : setting.span.end] == "4"


def test_torchtune_counts_processes_as_torchrun_does():
    unit = joined("tune run --nproc_per_node 4 lora_finetune_distributed --config tune.yaml")
    assert unit.settings["launch.num_processes"].value == 4


def test_the_launchers_own_config_is_read_too():
    accelerate = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 4\n"
    unit = joined("accelerate launch --config_file a.yaml train.py --config sft.yaml", FILES | {"a.yaml": accelerate})
    assert unit.settings["launch.num_processes"].value == 4
    assert unit.settings[BATCH].value == 2


def test_no_fix_writes_into_the_config_through_the_command():
    unit = joined("axolotl train ax.yaml")
    assert unit.bars(Fix("safe", Text("x", "x"), (Edit("set", BATCH, 1),)))


def test_of_a_config_that_is_not_there_nothing_is_assumed(tmp_path: Path):
    unit = joined("axolotl train gone.yaml")
    assert unit.unread == (RUN_CONFIG,)
    assert "training." in unit.hidden
    path = tmp_path / "run.sh"
    path.write_text("axolotl train gone.yaml\n", encoding="utf-8")
    shown = check(path)
    assert shown.returncode == 0
    assert "No prediction: the command reads gone.yaml" in shown.stdout


def test_a_script_whose_config_is_no_training_config_is_none_of_ours(tmp_path: Path):
    (tmp_path / "data.yaml").write_text(FILES["data.yaml"], encoding="utf-8")
    (tmp_path / "sft.yaml").write_text(TRL, encoding="utf-8")
    path = tmp_path / "run.sh"
    path.write_text("python prepare.py --config data.yaml\ntrl sft --config sft.yaml\n", encoding="utf-8")
    shown = check(path).stdout
    assert "prepare.py" not in shown
    assert "format trl" in shown


@pytest.mark.parametrize(
    "command", ["trl env", "trl vllm-serve --model x", "axolotl fetch examples", "tune ls", "tune cp a b"]
)
def test_other_subcommands_start_no_run(command: str, tmp_path: Path):
    path = tmp_path / "run.sh"
    path.write_text(command + "\n", encoding="utf-8")
    assert check(path).returncode == 2


def check(path: Path) -> subprocess.CompletedProcess[str]:
    return run_text("kb", "check", "--lang", "en", "--gpu", "rtx-3090", path)
