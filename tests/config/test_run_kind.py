"""What a run does: a script trains only where an argument, or its name, leaves no other reading."""

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader, read_shell
from kb.core.result import UnitResult
from kb.machine.detect import detect

CATALOG = load_catalog()
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
CONFIGS = ConfigReader(CATALOG.dialects, CATALOG.facts)
MODEL = "--model_name_or_path facebook/opt-350m --output_dir out"


def checked(line: str) -> UnitResult:
    machine = detect(CATALOG.gpus, gpu="rtx-3090", gpu_count=None, host_memory="60GB", cpus="8")
    return Checker(CATALOG, machine).check(read_shell(line + "\n", "run.sh", COMMANDS)[0])


@pytest.mark.parametrize(
    "line",
    [
        f"python generate_text.py {MODEL} --fp16 --prompts rows.csv",
        f"deepspeed --num_gpus 1 run.py {MODEL} --bf16 --seed 3",
        f"python analyze_rows.py {MODEL} --per_device_train_batch_size 512",
        f"python tools/convert-checkpoint.py {MODEL} --per_device_train_batch_size 1 --gradient_checkpointing",
        f"python run_clm_no_trainer.py {MODEL} --per_device_train_batch_size 6 --num_train_epochs 0",
        f"python run_glue.py {MODEL} --do_eval --per_device_eval_batch_size 8 --bf16",
    ],
)
def test_a_script_without_an_argument_for_training_trains_nothing(line: str) -> None:
    result = checked(line)
    assert not result.setup.do_train
    assert result.prediction is None or result.prediction.phase("train") is None
    assert not [each.rule for each in result.findings if "would-save" in each.rule or "training-peak" in each.rule]


@pytest.mark.parametrize(
    "line",
    [
        f"python finetune.py {MODEL} --per_device_train_batch_size 8",
        f"python analyze_and_train.py {MODEL} --per_device_train_batch_size 8",
        f"python evaluate.py {MODEL} --per_device_train_batch_size 8 --learning_rate 1e-4",
        f"python run.py {MODEL} --num_train_epochs 0 --max_steps 100 --per_device_train_batch_size 8",
        f"python run_glue.py {MODEL} --do_train --bf16",
    ],
)
def test_one_argument_for_training_is_enough(line: str) -> None:
    assert checked(line).setup.do_train


def test_an_evaluation_alone_is_still_predicted() -> None:
    result = checked(f"python run_glue.py {MODEL} --do_eval --per_device_eval_batch_size 8 --bf16")
    assert result.prediction is not None
    assert result.prediction.phase("evaluate") is not None


def test_a_file_of_arguments_trains_by_its_script() -> None:
    text = "model_name_or_path: facebook/bart-base\nfp16: true\nlearning_rate: 3.0e-5\n"
    machine = detect(CATALOG.gpus, gpu="rtx-3090", gpu_count=None, host_memory="60GB", cpus="8")
    assert Checker(CATALOG, machine).check(CONFIGS.read(text, "config.yaml")[0]).setup.do_train


def of_config(text: str) -> UnitResult:
    machine = detect(CATALOG.gpus, gpu="rtx-3090", gpu_count=None, host_memory="60GB", cpus="8")
    return Checker(CATALOG, machine).check(CONFIGS.read(text, "run.yaml")[0])


GROUPS = "training: {per_device_train_batch_size: 2, bf16: true, fp16: false, optim: sgd%s}\n"


def test_a_model_beside_the_groups_is_the_models() -> None:
    for name in ("model_name_or_path: %s", "model_name: %s", "model: {name_or_path: %s, dtype: float32}"):
        result = of_config(name % "facebook/opt-350m" + "\n" + GROUPS % "")
        assert result.setup.model_name == "facebook/opt-350m" and result.prediction is not None


@pytest.mark.parametrize(
    "text",
    [
        GROUPS % ", num_generations: 4",
        GROUPS % ", max_completion_length: 256",
        GROUPS % "" + "grpo: {num_generations: 4}\n",
        GROUPS % "" + "dpo: {beta: 0.1}\n",
        GROUPS % "" + "train: {beta: 0.1, loss_type: sigmoid}\n",
        GROUPS % "" + "dpo: {label_smoothing: 0.1, reference_free: true}\n",
    ],
)
def test_groups_of_post_training_are_no_plain_training(text: str) -> None:
    result = of_config("model_name: facebook/opt-350m\n" + text)
    assert result.prediction is None
    group = text.splitlines()[-1].partition(":")[0]
    assert group in ("train", "training") or group in str(result.note_values["named"])


def test_a_group_by_a_settings_name_is_no_value_of_it() -> None:
    """``fp16: {enabled: true}`` of a group for DeepSpeed had ended in a fault."""
    text = "model: {name: facebook/opt-350m}\ntraining: {output_dir: o, batch_size: 4, epochs: 3, save_steps: 50, "
    text += "report_to: none}\n"
    (unit,) = CONFIGS.read(text + "deepspeed: {fp16: {enabled: true}, zero_optimization: {stage: 2}}\n", "run.yaml")
    assert unit.dialect == "team" and "training.fp16" not in unit.settings


def test_a_trainer_that_is_known_says_what_its_keys_are() -> None:
    text = "base_model: facebook/opt-350m\nrl: dpo\ndpo_beta: 0.1\ndatasets: [{path: org/data, type: chatml.intel}]\n"
    result = of_config(text + "micro_batch_size: 1\nsequence_len: 512\nlearning_rate: 1e-5\nadapter: lora\nlora_r: 8\n")
    assert result.unit.dialect == "axolotl" and result.unit.as_written("run.not_modelled") is None


def test_a_group_that_is_switched_off_says_nothing_and_a_section_may_have_its_name() -> None:
    text = GROUPS % ", use_vllm: false, beta: 0.9" + "dpo: {enabled: false, beta: 0.1}\ngrpo: {use_grpo: false}\n"
    assert of_config("model_name: facebook/opt-350m\n" + text).prediction is not None
    sections = CONFIGS.read("sft: {training: {fp16: true}}\ndpo: {training: {fp16: true}}\n", "run.yaml")
    assert [unit.section for unit in sections] == ["sft", "dpo"]


@pytest.mark.parametrize("text", ["dpo: false", "dpo: {}", "dpo:", "distillation: off", 'reward: {enabled: "false"}'])
def test_a_trainer_that_is_not_used_leaves_the_prediction(text: str) -> None:
    assert of_config("model_name: facebook/opt-350m\n" + GROUPS % "" + text + "\n").prediction is not None


@pytest.mark.parametrize("text", ["DPO: {beta: 0.1}", "dpo: {beta: {enabled: false}}"])
def test_a_trainer_is_one_however_it_is_spelt(text: str) -> None:
    assert of_config("model_name: facebook/opt-350m\n" + GROUPS % "" + text + "\n").prediction is None
