"""Programs whose flags or overrides are a format's own settings: ms-swift, OpenRLHF, verl, llama-cookbook."""

from typing import Any

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.config.reader import ConfigReader, Joiner
from kb.config.shell.command import CommandReader, read_shell
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.machine.detect import detect

CATALOG = load_catalog()
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
CHECKER = Checker(CATALOG, detect(CATALOG.gpus, gpu="a100-80gb", gpu_count=None, host_memory="200GB", cpus="16"))
SWIFT = "--model Qwen/Qwen2.5-7B-Instruct --torch_dtype bfloat16 --max_length 2048 --dataset a"


def units(text: str) -> tuple[Unit, ...]:
    return read_shell(text, "run.sh", COMMANDS)


def value(unit: Unit, name: str) -> Any:
    """A setting's value; None where it is unknown, "unsaid" where nothing says it."""
    setting = unit.settings.get(name)
    return "unsaid" if setting is None else None if is_unknown(setting.value) else setting.value


def test_a_program_of_ones_own_with_swifts_flags_is_told_its_model_by_model() -> None:
    line = "python sft_own.py --model org/model --train_type lora --model_author us --model_name our-robot\n"
    (unit,) = units(line)
    assert (unit.dialect, value(unit, "model.name")) == ("ms-swift", "org/model")


@pytest.mark.long
def test_swift_sft_is_predicted_with_its_own_defaults() -> None:
    (unit,) = units(f"CUDA_VISIBLE_DEVICES=0 \\\nswift sft {SWIFT} --model_name swift-robot --lora_rank 16\n")
    assert (unit.dialect, value(unit, "model.name")) == ("ms-swift", "Qwen/Qwen2.5-7B-Instruct")
    result = CHECKER.check(unit)
    assert result.note is None and result.prediction is not None and result.setup is not None
    setup = result.setup
    assert (setup.method, setup.lora_r, setup.per_device_train_batch_size, setup.world_size) == ("lora", 16, 1, 1)
    assert setup.gradient_checkpointing and setup.weights == "bf16" and setup.max_source_length == 2048
    assert not setup.batch_known  # 16 samples an update, over as many steps as that takes
    peak = max(phase.process_used_bytes for phase in result.prediction.phases) / 2**30
    assert 17 < peak < 27  # its own example of this run says 22 GB


@pytest.mark.parametrize(
    ("before", "gpus"),
    [
        ("NPROC_PER_NODE=4 ", 4),
        ("NNODES=2 NPROC_PER_NODE=4 ", 8),
        ("CUDA_VISIBLE_DEVICES=3 ", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 ", None),  # one process spreads the model over both
        ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 ", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 ", None),  # each of two over two
        ("", "unsaid"),
    ],
)
def test_swift_starts_one_process_or_as_many_as_its_environment_says(before: str, gpus: object) -> None:
    (unit,) = units(f"{before}swift sft {SWIFT}\n")
    assert value(unit, "launch.num_processes") == gpus


@pytest.mark.parametrize(
    ("command", "note", "named"),
    [
        (f"swift rlhf {SWIFT}", "trainer_not_followed", "DPO"),  # its default
        (f"swift rlhf {SWIFT} --rlhf_type grpo", "trainer_not_followed", "GRPO"),
        (f"$PYTHON -m swift.cli.main rlhf {SWIFT} --rlhf_type grpo", "trainer_not_followed", "GRPO"),
        (f"swift deploy {SWIFT}", "not_modelled", "swift deploy"),
        (f"megatron sft {SWIFT} --micro_batch_size 2", "not_modelled", "Megatron-SWIFT"),
        (f"torchrun --nproc_per_node 2 x/swift/cli/sft.py {SWIFT} --optimizer muon", "not_modelled", "optimizer"),
        (f"swift sft {SWIFT} --tuner_type llamapro", "no_such_run", "tuner_type"),
        ("deepspeed --module openrlhf.cli.train_dpo --train.micro_batch_size 1", "not_modelled", "OpenRLHF DPO"),
        ("python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo", "not_modelled", "verl GRPO"),
        ("python -m verl.trainer.main_ppo data.max_response_length=512", "not_modelled", "verl PPO"),
    ],
)
def test_a_run_without_a_memory_model_is_named(command: str, note: str, named: str) -> None:
    (unit,) = units(command + "\n")
    result = CHECKER.check(unit)
    assert (result.note, result.prediction) == (note, None)
    assert any(named.lower() in str(each).lower() for each in result.note_values.values()), result.note_values


@pytest.mark.parametrize(
    ("command", "lora"),
    [
        (f"megatron sft {SWIFT}", False),  # its own default, and not that of `swift sft`
        (f"megatron pt {SWIFT} --tuner_type lora", True),
        (f"swift sft {SWIFT}", "unsaid"),
        ("python -m verl.trainer.main_ppo actor_rollout_ref.model.lora_adapter_path=a", True),
    ],
)
def test_a_program_trains_as_it_does_where_nothing_is_said(command: str, lora: object) -> None:
    assert value(units(f"{command}\n")[0], "lora.enabled") == lora


@pytest.mark.parametrize("dot", [".", "_"])
def test_openrlhf_places_the_policy_on_nodes_of_so_many_gpus(dot: str) -> None:
    command = f"python -m openrlhf.cli.train_ppo_ray --actor{dot}num_nodes 2 --actor{dot}num_gpus_per_node 4"
    assert value(units(f"{command} --ref{dot}num_gpus_per_node 8\n")[0], "launch.num_processes") == 8


def test_openrlhf_hands_its_flags_on_in_a_variable() -> None:
    text = """\
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \\
   --data.max_len 2048 \\
   --train.micro_batch_size 2 \\
   --model.model_name_or_path meta-llama/Meta-Llama-3-8B \\
   --ckpt.output_dir $HOME/out \\
   --ds.lora.rank 64 \\
   --ds.zero_stage 2
EOF
deepspeed --num_gpus 8 --module $training_commands
"""
    (unit,) = units(text)
    assert unit.dialect == "openrlhf"
    found = {name: value(unit, name) for name in ("model.name", "data.max_source_length", "lora.r", "lora.enabled")}
    assert found == {
        "model.name": "meta-llama/Meta-Llama-3-8B", "data.max_source_length": 2048, "lora.r": 64, "lora.enabled": True,
    }  # fmt: skip
    assert value(unit, "launch.num_processes") == 8 and value(unit, "training.output_dir") is None
    model = unit.settings["model.name"].span
    assert text[model.start : model.end] == "meta-llama/Meta-Llama-3-8B"


def test_of_read_without_a_delimiter_only_a_line_would_count() -> None:
    assert units("read -r ARGS <<EOF\nopenrlhf.cli.train_sft\nEOF\ndeepspeed --module $ARGS\n") == ()


@pytest.mark.parametrize(
    ("before", "processes"),
    [("srun --nodes=2 --ntasks-per-node=4 ", 8), ("docker run -it image ", "unsaid"), ("", "unsaid")],
)
def test_a_run_in_the_text_that_a_shell_is_given(before: str, processes: object) -> None:
    text = f"""\
MODEL=Qwen/Qwen2.5-7B-Instruct
{before}bash -c "cd $WORK && python -m swift.cli.sft \\
    --model $MODEL --max_length 2048 \\
    --output_dir $WORK/out" &> log.txt
"""
    (unit,) = units(text)
    assert (unit.dialect, value(unit, "launch.num_processes")) == ("ms-swift", processes)
    assert value(unit, "model.name") == "Qwen/Qwen2.5-7B-Instruct" and value(unit, "training.output_dir") is None
    span = unit.settings["data.max_source_length"].span
    assert text[span.start : span.end] == "2048"


def test_overrides_of_hydra() -> None:
    (unit,) = units(
        "ray job submit -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae \\\n"
        "  data.max_prompt_length=1024 +actor_rollout_ref.model.lora_rank=32 \\\n"
        "  actor_rollout_ref.model.path=$MODEL trainer.n_gpus_per_node=8 trainer.nnodes=1\n"
    )
    assert value(unit, "trl.max_prompt_length") == 1024 and value(unit, "lora.r") == 32
    assert value(unit, "model.name") is None and value(unit, "launch.num_processes") == 8
    (many,) = units("python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=4\n")
    assert value(many, "launch.num_processes") == 32 and value(many, "launch.num_machines") == 4
    (open_,) = units("python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=$NNODES\n")
    assert value(open_, "launch.num_processes") is None
    micro = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"
    for dynamic, batch in (("True", None), ("False", 8)):
        (unit,) = units(f"python -m verl.trainer.main_ppo {micro} actor_rollout_ref.actor.use_dynamic_bsz={dynamic}\n")
        assert value(unit, "training.per_device_train_batch_size") == batch


@pytest.mark.parametrize("flag", ["--nproc_per_node=$N", "--nproc-per-node=${N:-$M}", "--nproc_per_node $N"])
def test_a_number_of_processes_from_the_caller_is_not_known(flag: str) -> None:
    (unit,) = units(f"torchrun --nnodes=1 {flag} -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-0.6B\n")
    assert value(unit, "launch.num_processes") is None


def test_an_override_given_twice_is_shown_as_it_is_written() -> None:
    (unit,) = units("python -m verl.trainer.main_ppo data.max_prompt_length=1 data.max_prompt_length=2\n")
    assert [event.values["key"] for event in unit.events] == ["data.max_prompt_length"]


def test_a_yaml_file_of_swift() -> None:
    text = "model: Qwen/Qwen2.5-7B\ntuner_type: full\ndeepspeed: zero3_offload\nENV: {NPROC_PER_NODE: 4}\nlr: 1\n"
    (unit,) = ConfigReader(CATALOG.dialects, CATALOG.facts).read(text, "sft.yaml")
    assert (unit.dialect, value(unit, "lora.enabled"), value(unit, "launch.num_processes")) == ("ms-swift", False, 4)
    assert (value(unit, "deepspeed.zero_stage"), value(unit, "deepspeed.offload_param.device")) == (3, "cpu")
    assert value(unit, "training.deepspeed") == "unsaid"  # a preset, no file


COOKBOOK = "--model_name meta-llama/Meta-Llama-3-8B --batch_size_training 2"


@pytest.mark.parametrize(
    ("text", "method", "processes", "batch", "length"),
    [
        (f"torchrun --nproc_per_node 4 a/finetuning/finetuning.py --enable_fsdp {COOKBOOK}", "full", 4, 2, 4096),
        (f"torchrun --nnodes 2 --nproc_per_node 4 finetuning.py --enable_fsdp {COOKBOOK}", "full", 8, 2, 4096),
        (f"torchrun --nproc_per_node 2 $HOME/llama/finetuning.py --low_cpu_fsdp {COOKBOOK}", "full", 2, 2, 4096),
        (f"python -m llama_cookbook.finetuning --use_peft {COOKBOOK} --context_length 1024", "lora", 1, 2, 1024),
        (f"python3 -m llama_recipes.finetuning --use_peft --quantization --lr 1e-4 {COOKBOOK}", "lora", 1, 2, 4096),
        (f"python finetuning.py --use_peft --quantization 4bit {COOKBOOK} --micro_batch_size 1", "qlora", 1, 1, 4096),
        (f"torchrun --nproc_per_node 8 llama_finetuning.py --enable_fsdp --pure_bf16 {COOKBOOK}", "full", 8, 2, 4096),
    ],
)
def test_llama_cookbook_is_read_by_its_own_names_and_not_predicted(
    text: str, method: str, processes: int, batch: int, length: int
) -> None:
    (unit,) = units(f"{text}\n")
    assert unit.dialect == "llama-cookbook"
    result = CHECKER.check(unit)
    assert result.note == "not_modelled" and result.setup is not None
    setup = result.setup
    assert (setup.method, setup.world_size) == (method, processes)
    assert (setup.per_device_train_batch_size, setup.max_source_length) == (batch, length)
    assert setup.load_in_8bit == ("--quantization --lr" in text)
    assert "fsdp-string-deprecated" not in [each.rule for each in result.findings]  # its flag is no Trainer's argument


def test_a_finetuning_script_of_anybody_s_own_is_no_llama_cookbook() -> None:
    (unit,) = units("python finetuning.py --model_name t5-base --batch_size 4 --epochs 3\n")
    assert unit.dialect == "command-training"
    assert units("finetuning --enable_fsdp --batch_size_training 2\n") == ()


@pytest.mark.parametrize("script", ["$HOME/work/run_clm.py", '"${DIR}/run_clm.py"', "$(pwd)/run_clm.py"])
@pytest.mark.parametrize("launcher", ["torchrun --nproc_per_node 2", "accelerate launch --num_processes 2"])
def test_a_script_in_a_folder_that_only_the_run_knows_is_a_script(launcher: str, script: str) -> None:
    flags = "--model_name_or_path gpt2 --per_device_train_batch_size 4 --do_train --output_dir out"
    (unit,) = units(f"{launcher} {script} {flags}\n")
    assert (unit.dialect, value(unit, "launch.num_processes")) == ("hf", 2)
    assert unit.script == "run_clm.py"


@pytest.mark.parametrize(
    ("command", "dialect", "said"),
    [
        (
            "litgpt finetune_lora --config a.yaml --train.micro_batch_size 2 --devices 4 --quantize bnb.nf4",
            "litgpt",
            {"lora.enabled": True, "launch.num_processes": 4, "quantization.load_in_4bit": True},
        ),
        ("litgpt pretrain pythia-14m --devices auto", "litgpt", {"launch.num_processes": None, "lora.enabled": False}),
        (
            "torchrun --nproc_per_node=2 -m flame.train --job.config_file a.toml --training.seq_len 2048",
            "torchtitan",
            {"launch.num_processes": 2, "data.max_source_length": 2048, "launch.run_config": "a.toml"},
        ),
        ("torchrun --nproc_per_node=2 -m own.train --seq_len 2048 --lr 1e-4", "command", {}),
        (
            "torchrun --nproc_per_node 4 tune_llama.py --enable_fsdp --peft_method lora --use_peft"
            " --batching_strategy packing --batch_size_training 2 --context_length 1024",
            "llama-cookbook",
            {"launch.num_processes": 4, "data.max_source_length": 1024, "lora.enabled": True},
        ),
        ("python own.py --peft_method lora --val_batch_size 4 --learning_rate 1e-4", "command", {}),
    ],
)
def test_commands_of_programs_with_loops_of_their_own(command: str, dialect: str, said: dict[str, Any]) -> None:
    (unit,) = units(command + "\n")
    assert unit.dialect == dialect and {name: value(unit, name) for name in said} == said


@pytest.mark.parametrize(
    "command",
    [
        "python -m torchtitan.train --module llama3 --config llama3_8b --training.steps 10",
        "python -m torchtitan.train --job.config_file $CONFIG --training.steps 10",
        "xtuner train internlm2_chat_7b_qlora_oasst1_e3 --deepspeed deepspeed_zero2",
        "trl sft --config $CONFIG --max_steps 10",
        "axolotl train $CONFIG",
    ],
)
def test_of_a_config_that_is_not_here_no_default_counts(command: str) -> None:
    joiner = Joiner(ConfigReader(CATALOG.dialects, CATALOG.facts), CATALOG.dialects, lambda path, named: None)
    result = CHECKER.check(joiner.join(units(command + "\n")[0]))
    assert result.prediction is None and not [each for each in result.findings if each.severity != "info"]
