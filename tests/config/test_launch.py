"""On how many GPUs a run is: from its launcher, its script, its comments; one is assumed where nothing says more."""

from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader, read_shell
from kb.config.shell.processes import read_allotment
from kb.core.document import Unit, speaks_of_several_gpus
from kb.core.expression import is_unknown
from kb.core.hardware import Machine
from kb.core.result import UnitResult
from kb.machine.detect import detect

CATALOG = load_catalog()
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
CONFIGS = ConfigReader(CATALOG.dialects, CATALOG.facts)
TRAIN = "train.py --model_name_or_path google/mt5-base --per_device_train_batch_size 4 --learning_rate 1e-4\n"
CONFIG = "model_name_or_path: google/mt5-base\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-4\n"


def machine(gpu: str = "rtx-3090") -> Machine:
    return detect(CATALOG.gpus, gpu=gpu, gpu_count=None, host_memory="60GB", cpus="8")


def script(text: str) -> Unit:
    return read_shell(text, "run.sh", COMMANDS)[-1]


def config(text: str) -> Unit:
    return CONFIGS.read(text, "config.yaml")[0]


def processes(text: str) -> Any:
    """The number of processes; None where it cannot be told, "assumed" where nothing is said of them."""
    setting = script(text).settings.get("launch.num_processes")
    return "assumed" if setting is None else None if is_unknown(setting.value) else setting.value


def checked(unit: Unit, gpu_count: int | None = None) -> UnitResult:
    return Checker(CATALOG, machine()._replace(gpu_count=gpu_count)).check(unit)


@pytest.mark.parametrize(
    ("launch", "count"),
    [
        ("torchrun --nproc_per_node gpu ", None),
        ("torchrun ", 1),
        ("torchrun --nproc_per_node 4 --nnodes 1:4 ", None),
        ("torchrun --nproc_per_node 4 --nnodes $NODES ", None),
        ("NPROC=6\ntorchrun --nproc_per_node $NPROC ", 6),
        ("CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc_per_node=auto ", 3),
        ("accelerate launch ", None),
        ("accelerate launch --multi_gpu ", None),
        ("accelerate launch --cpu ", 1),
        ("accelerate launch --multi_gpu --gpu_ids 0,1 ", 2),
        ("accelerate launch --config_file fsdp.yaml ", "assumed"),  # the file may say it
        ("deepspeed ", None),
        ("deepspeed --num_gpus 4 --num_nodes 2 ", 8),
        ("deepspeed --include localhost:0,2 ", 2),
        ('deepspeed --include="a:0,1@b:3" ', 3),
        ("deepspeed --include worker-1 ", None),
        ("deepspeed --hostfile hosts ", None),
        ("export CUDA_VISIBLE_DEVICES=4,5\ndeepspeed ", 2),
        ("srun -n 16 python ", 16),
        ("srun --ntasks-per-node=4 -N2 python ", 8),
        ("srun --ntasks $TASKS python ", None),
        ("srun python ", None),
        ("mpirun -np 4 -x A=1 python ", 4),
        ("mpirun -n $N python ", None),
        ("python ", 1),
        ("$RUN ", "assumed"),
    ],
)
def test_each_launcher_counts_its_processes(launch: str, count: Any) -> None:
    assert processes(launch + TRAIN) == count


@pytest.mark.parametrize(
    ("lines", "launch", "count"),
    [
        ("#SBATCH --nodes=2 --gres=gpu:a100:4\n", "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 ", 8),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4  # one for each GPU\n", "srun python ", 8),
        ("#SBATCH -J big-n3 --ntasks=6\n", "srun python ", 6),
        ("#SBATCH --nodes=1-4\n#SBATCH --ntasks-per-node 4\n", "srun python ", None),
        ("#SBATCH --gpus-per-node=4\n", "deepspeed ", 4),
        ("#SBATCH --gres=gpu:2\n", "torchrun --nproc_per_node gpu ", 2),
        ("#SBATCH --nodes=2 --gpus=8\n", "torchrun --nnodes 2 --nproc_per_node $SLURM_GPUS_ON_NODE ", 8),
        ("#SBATCH --gres=gpu:4\n", "python ", None),  # DataParallel, or processes that the script starts itself
        ("#SBATCH --gres=gpu:1\n", "python ", 1),
        ("# resources: {nvidia.com/gpu: 8}\n", "deepspeed ", 8),
        ("gantry run --gpus 4 --name a\n", "accelerate launch ", 4),
    ],
)
def test_what_a_script_asks_for_counts(lines: str, launch: str, count: Any) -> None:
    assert processes(f"#!/bin/bash\n{lines}{launch}{TRAIN}") == count


def test_several_machines_are_told_apart_from_processes() -> None:
    assert script("torchrun --nnodes 2 --nproc_per_node 4 " + TRAIN).settings["launch.num_machines"].value == 2
    assert read_allotment("#SBATCH --nodes=4\n").variables()["SLURM_NTASKS"] == "4"


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train x.yaml", 8),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train x.yaml", 2),
        ("FORCE_TORCHRUN=1 llamafactory-cli train x.yaml", None),
        ("llamafactory-cli train x.yaml", "assumed"),
        ("axolotl train x.yaml --num-processes 4", 4),
        ("tune run --nproc_per_node 2 full_finetune_distributed --config x.yaml", 2),
        ("tune run lora_finetune_single_device --config x.yaml", 1),
    ],
)
def test_programs_with_a_config_are_told_by_flags_or_environment(command: str, count: Any) -> None:
    assert processes(command + "\n") == count


@pytest.mark.parametrize(("flag", "count"), [("--gpus 8", None), ("--devices 1", 1), ("--num_nodes $N", None)])
def test_a_script_may_start_its_processes_itself(flag: str, count: Any) -> None:
    assert processes(f"python {TRAIN.strip()} {flag}\n") == count


def test_an_uncounted_launch_gets_no_verdict_and_says_why() -> None:
    result = checked(script("deepspeed " + TRAIN))
    assert (result.prediction, result.note) == (None, "gpus_not_counted")
    assert result.note_values == {"said": "deepspeed"}
    assert checked(script("deepspeed " + TRAIN), gpu_count=4).prediction is not None


def test_here_each_gpu_of_this_machine_counts() -> None:
    two = machine()._replace(gpus=machine().gpus * 2, gpu_source="nvml")
    assert Checker(CATALOG, two).check(script("deepspeed " + TRAIN)).setup.world_size == 2
    assert Checker(CATALOG, two).check(script("torchrun --nproc_per_node $N " + TRAIN)).prediction is None


def test_one_gpu_is_assumed_by_name_where_nothing_says_more() -> None:
    (assumed,) = [each for each in checked(config(CONFIG)).setup.assumed if each.name == "launch.num_processes"]
    assert (assumed.value, assumed.reason) == (1, "one_gpu")
    for known in (script("python " + TRAIN), script("torchrun --nproc_per_node 2 " + TRAIN)):
        assert "launch.num_processes" not in [each.name for each in checked(known).setup.assumed]


@pytest.mark.parametrize(
    ("comment", "count"),
    [
        ("# Config for single-device LoRA finetuning in lora_finetune_single_device.py\n", 1),
        ("# 단일 GPU (24 GB)에서 실행\n\n# second comment\n", 1),
        ("# Best on 2+ GPUs. For single device finetuning use 7B_lora_single_device.yaml\n", None),
        ("# Config for multi-device finetuning; for a single device see the other file\n", None),
    ],
)
def test_a_comment_at_the_head_says_that_there_is_one_gpu(comment: str, count: int | None) -> None:
    said = config(comment + CONFIG).settings.get("launch.num_processes")
    assert (None if said is None else said.value) == count


@pytest.mark.parametrize(
    "more", ["deepspeed: ds_zero2.json\n", "fsdp: full_shard\n", "# 8xA100, torchrun\n", "# accelerate launch t.py\n"]
)
def test_a_config_made_for_several_gpus_is_not_taken_for_one(more: str) -> None:
    text = more + CONFIG if more.startswith("#") else CONFIG + more
    result = checked(config(text))
    assert "launch.num_processes" in result.setup.unresolved
    assert result.prediction is None


@pytest.mark.parametrize(
    ("comment", "several"),
    [
        ("effective batch size 64 with 4 nodes", True),
        ("유효 배치 64 (GPU 4개)", True),
        ("x8 GPUs", True),
        ("8 x H100", True),
        ("2 노드", True),
        ("accelerate launch --num_processes 1 train.py", False),
        ("effective batch 64", False),
        ("fits in 24 GB of one GPU", False),
        ("1 GPU", False),
        ("RTX 3090 with 24GB", False),
        ("per GPU: 16", False),
    ],
)
def test_a_comment_may_speak_of_several(comment: str, several: bool) -> None:
    assert speaks_of_several_gpus(comment) is several


def test_an_effective_batch_for_several_nodes_is_undecided_not_wrong() -> None:
    beside = CONFIG + "gradient_accumulation_steps: 2  # effective batch 30 with 4 nodes\n"
    for count in (None, 1):
        assert "effective-batch-not-as-said" not in [each.rule for each in checked(config(beside), count).findings]
    alone = CONFIG + "gradient_accumulation_steps: 2  # effective batch 30\n"
    assert "effective-batch-not-as-said" in [each.rule for each in checked(config(alone)).findings]


@pytest.mark.parametrize(
    ("wrapper", "launcher"),
    [("uv run ", "python"), ("nohup ", "python"), ("poetry run ", "python"), ("srun -n 2 ", None), ("mpirun ", None)],
)
def test_what_only_runs_the_command_that_follows_hides_no_launcher(wrapper: str, launcher: str | None) -> None:
    assert script(f"{wrapper}python {TRAIN}").launcher == launcher
    spread = script(f"{wrapper}accelerate launch --config_file two.yaml {TRAIN}")
    assert (spread.launcher, spread.settings["launch.config_file"].value) == ("accelerate", "two.yaml")
    assert script(f"{wrapper}torchrun --nproc_per_node 4 {TRAIN}").settings["launch.num_processes"].value == 4


@pytest.mark.parametrize(
    ("name", "several"),
    [
        ("config_grpo_4gpu.yaml", True),
        ("sft-8xa100.yaml", True),
        ("train.2nodes.yaml", True),
        ("config_1gpu.yaml", False),
        ("llama_gpu.yaml", False),
        ("qwen2_a100.yaml", False),
    ],
)
def test_a_files_name_may_speak_of_several_gpus(name: str, several: bool) -> None:
    result = checked(CONFIGS.read(CONFIG, f"recipes/{name}")[0])
    assert ("launch.num_processes" in result.setup.unresolved) is several


def test_a_flag_with_a_file_is_no_config_of_the_run() -> None:
    assert "launch.run_config" not in script("python train.py --test_file=./data/test.json --seed 1\n" + TRAIN).settings
    assert (
        script(f"python train.py --test_file=./data/rows.json {TRAIN[9:]}")
        .settings.keys()
        .isdisjoint({"launch.run_config"})
    )
    swift = script("swift sft --model Qwen/Qwen2.5-7B --dataset ./data/a.json ./data/b.json --max_length 2048\n")
    assert "launch.run_config" not in swift.settings and swift.settings["data.max_source_length"].value == 2048
    assert script("axolotl train --debug run.yml\n").settings["launch.run_config"].value == "run.yml"
    assert script("python train.py run.yaml --seed 1\n").settings["launch.run_config"].value == "run.yaml"


def test_the_beginning_of_a_flag_stands_for_the_whole_as_argparse_has_it() -> None:
    unit = script(f"python {TRAIN.rstrip()} --gradient_accumulation_step=8 --warmup_ratios 0.1\n")
    found = unit.settings["training.gradient_accumulation_steps"]
    assert (found.value, found.path) == (8, ("--gradient_accumulation_step",))
    assert [event.values["key"] for event in unit.events] == ["--warmup_ratios"]
    two = script(f"python {TRAIN.rstrip()} --gradient_checkpoint --eval 3\n")  # some releases have two that begin so
    assert is_unknown(two.settings["training.gradient_checkpointing"].value)
    assert not [name for name in two.settings if name.startswith("training.eval")]


def test_nothing_behind_two_dashes_is_a_flag() -> None:
    unit = script(f"python {TRAIN[:-1]} -- --learning_rate 1 -b 2\n")
    assert unit.settings["training.learning_rate"].value == 1e-4 and "-b" not in unit.keys


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("CUDA_VISIBLE_DEVICES=5,7 torchrun --nproc_per_node 4 ", 2),
        ("export CUDA_VISIBLE_DEVICES=0\naccelerate launch --num_processes 2 ", 1),
        ("export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0,1}\ntorchrun --nproc_per_node 4 ", None),
        ("CUDA_VISIBLE_DEVICES=$1 torchrun --nproc_per_node 4 ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --gpu_ids 0,1 --num_processes 2 ", None),
        ("CUDA_VISIBLE_DEVICES=0,1 python ", None),  # which may start more by itself
        ("torchrun --nproc_per_node 4 ", None),
        ("CUDA_VISIBLE_DEVICES=0,1,-1,2 torchrun --nproc_per_node 4 ", 2),
        ("CUDA_VISIBLE_DEVICES=GPU-8c1b,MIG-07aa torchrun --nproc_per_node 4 ", 2),
        ("CUDA_VISIBLE_DEVICES=-1 torchrun --nproc_per_node 4 ", None),  # this, and no word of a GPU, hide all
        ('export CUDA_VISIBLE_DEVICES=""\npython ', None),
        ("export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-}\npython ", None),
        ("CUDA_VISIBLE_DEVICES=NoDevFiles torchrun --nproc_per_node 4 ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 --num_machines 1 --machine_rank 0 ", 1),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 --num_machines $NODES ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 --num-machines=$SLURM_NNODES ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 --machine_rank $R --main_process_ip $IP ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --config_file $CFG --num_processes 2 ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --config_file=$CFG --num_processes 2 ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch $MORE --num_processes 2 ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 $MORE ", None),
        ("CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes $N --main_process_port=$PORT ", 1),
    ],
)
def test_the_gpus_that_a_script_lets_its_processes_see_are_read(script: str, seen: int | None) -> None:
    unit = read_shell(f"{script}train.py --model_name_or_path gpt2 --learning_rate 1e-4\n", "run.sh", COMMANDS)[0]
    said = unit.settings.get("launch.visible_gpus")
    assert (None if said is None else said.value) == seen
    assert ("launch.cpu" in unit.settings) == any(none in script for none in ("=-1 ", '=""'))  # it keeps to the CPU


USE = "export ACCELERATE_USE_DEEPSPEED={}\nexport ACCELERATE_DEEPSPEED_ZERO_STAGE={}\n"


@pytest.mark.parametrize(
    ("before", "on", "stage"),
    [
        (USE.format("true", 3) + "torchrun --nproc_per_node 4 ", True, 3),
        (USE.format("true", "$STAGE") + "torchrun --nproc_per_node 4 ", True, None),
        (USE.format("$USE", 3) + "torchrun --nproc_per_node 4 ", None, 3),
        (USE.format("false", 3) + "torchrun --nproc_per_node 4 ", "unset", "unset"),
        (USE.format("true", 3) + "accelerate launch --use_deepspeed --zero_stage 2 ", True, 2),
        ("ACCELERATE_DEEPSPEED_ZERO_STAGE=3 torchrun --nproc_per_node 4 ", "unset", "unset"),
    ],
)
def test_the_environment_may_turn_deepspeed_on(before: str, on: Any, stage: Any) -> None:
    settings = script(before + TRAIN).settings
    for name, value in (("launch.use_deepspeed", on), ("deepspeed.zero_stage", stage)):
        setting = settings.get(name)
        found = "unset" if setting is None else None if is_unknown(setting.value) else setting.value
        assert found == value


def test_the_environment_may_turn_fsdp_on() -> None:
    settings = script(
        f"export ACCELERATE_USE_FSDP=1 FSDP_OFFLOAD_PARAMS=true\ntorchrun --nproc_per_node 4 {TRAIN}"
    ).settings
    assert settings["launch.use_fsdp"].value is True
    assert settings["accelerate.fsdp_offload_params"].value is True
