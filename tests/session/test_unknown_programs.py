"""What nobody can tell from a project's files is not told: of programs that are not here, of modules that only load."""

import json
from pathlib import Path
from typing import Any

import pytest

from warm_runs import run_text

COMMAND = (
    "accelerate launch {program} --model_name_or_path gpt2 --do_train --do_eval --eval_steps 500 --learning_rate 1e-4 "
    "--per_device_train_batch_size 4 --output_dir out --teacher gpt2-medium "
    "--kl_weight 0.5 --freeze_encoder --wer_threshold 10 --temperature 2\n"
)
BY_FILE = """\
import argparse
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

first = argparse.ArgumentParser()
first.add_argument("--train_args_file", type=str, default="rm.json")
own, args = HfArgumentParser((Own, TrainingArguments)).parse_json_file(json_file=first.parse_args().train_args_file)
Trainer(model=AutoModelForCausalLM.from_pretrained(own.model_name_or_path), args=args, train_dataset=rows).train()
"""
LOADS = """\
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

def load(args):
    model = AutoModelForCausalLM.from_pretrained(args.path, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    model.gradient_checkpointing_enable()
    return model
"""
CALL = """\
from transformers import BitsAndBytesConfig, TrainingArguments, Trainer, AutoModelForCausalLM

def quantized():
    return BitsAndBytesConfig(load_in_4bit=True)

def {name}(model="gpt2"):
    loaded = AutoModelForCausalLM.from_pretrained(model, quantization_config=quantized())
    Trainer(model=loaded, args=TrainingArguments(output_dir="o", max_steps=5, num_train_epochs=1)).train()
"""
SHARED = """\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

CONFIG = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_compute_dtype="bfloat16",
)
"""
RUN = """
def {name}():
    loaded = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", quantization_config=CONFIG)
    adapted = get_peft_model(loaded, LoraConfig(r=8, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    Trainer(model=adapted, args=TrainingArguments(output_dir="o", bf16=True, max_steps=500)).train()
"""
GRPO = """\
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

arguments = GRPOConfig(
    output_dir="o", per_device_train_batch_size=4, max_completion_length=128,
    model_init_kwargs={{"torch_dtype": torch.bfloat16}},
)
GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs={rewards}, args=arguments,
    peft_config=LoraConfig(task_type="CAUSAL_LM"),
).train()
"""


def checked(path: Path) -> list[dict[str, Any]]:
    run = run_text("kb.check", path, "--gpu", "rtx-4090", "--format", "json", "--notes", "--no-cache")
    found: list[dict[str, Any]] = json.loads(run.stdout)["files"] if run.stdout.startswith("{") else []
    return found


def rules(path: Path) -> list[str]:
    return [row["rule"] for unit in checked(path) for row in unit["findings"]]


def test_a_program_that_is_not_here_may_evaluate_by_a_loop_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("transformers==5.23.0\n")
    unknown = tmp_path / "distill.sh"
    unknown.write_text(COMMAND.format(program="distill.py"))
    example = tmp_path / "example.sh"
    example.write_text(COMMAND.format(program="run_clm.py"))
    assert "eval-steps-without-eval-strategy" not in rules(unknown)
    assert "eval-steps-without-eval-strategy" in rules(example)


QLORA = (
    CALL.format(name="main")
    + """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
parser.add_argument("--block", type=int)
args = parser.parse_args()
main(args.model_name_or_path)
"""
)
JOB = """\
SCRIPT="$SLURM_SUBMIT_DIR/tuning/train.py"
python "$SCRIPT" --model_name_or_path gpt2 --per_device_train_batch_size 4 --output_dir out --block 8192 \\
    --steps_run 9 --into $TMPDIR
"""


def test_a_program_behind_a_variable_is_found_by_its_end_and_one_that_is_not_there_leaves_its_flags_open(
    tmp_path: Path,
) -> None:
    script = tmp_path / "tuning" / "job.sbatch"
    script.parent.mkdir()
    (tmp_path / ".git").mkdir()
    script.write_text(JOB, "utf-8")
    (alone,) = checked(script)  # what --block means nobody knows: no usual length and no library's default is told
    assert alone["prediction"] is None
    (script.parent / "train.py").write_text(QLORA, "utf-8")
    (found,) = checked(script)
    assert found["setup"]["effective_batch_size"] == 8  # which reads no flag of that name
    for more in ('[ "$X" ] && SCRIPT=$D/b/train.py', "read -r SCRIPT < f", "export Y=1 SCRIPT=$D/b/train.py"):
        script.write_text(JOB.replace("python", f"{more}\npython"), "utf-8")
        assert all("read_by" not in each for each in checked(script))  # which of two it starts, nobody knows


def test_what_a_file_says_that_a_flag_names_is_not_the_library_s_default(tmp_path: Path) -> None:
    (tmp_path / "train_sft.py").write_text(BY_FILE, "utf-8")
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 4 train_sft.py --train_args_file sft.json\n", "utf-8")
    (told,) = checked(tmp_path / "run.sh")
    assert told["setup"]["effective_batch_size"] is None  # 8 × 1 × 4, of the Trainer's default


def test_programs_of_tests_are_not_read_in_folders(tmp_path: Path) -> None:
    test = tmp_path / "tests" / "test_training.py"
    test.parent.mkdir()
    test.write_text(CALL.format(name="test_training"))
    (tmp_path / "train.py").write_text(CALL.format(name="main"))
    (tmp_path / "test_run.py").write_text(CALL.format(name="main"))  # a trial run, no test
    assert {Path(unit["path"]).name for unit in checked(tmp_path)} == {"train.py", "test_run.py"}
    assert [Path(unit["path"]).name for unit in checked(test)] == ["test_training.py"]


def test_a_fault_of_one_place_is_told_once_for_all_runs_that_share_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SHARED + RUN.format(name="first") + RUN.format(name="second"))
    units = checked(path)
    assert len(units) == 2
    assert [row["line"] for unit in units for row in unit["findings"] if row["rule"] == "4bit-default-is-fp4"] == [5]


def test_a_module_that_only_loads_a_model_claims_no_method_and_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "load.py"
    path.write_text(LOADS)
    (unit,) = checked(path)
    assert unit["setup"]["method"] is None
    assert unit["setup"]["effective_batch_size"] is None
    text = run_text("kb.check", path, "--no-cache").stdout
    assert "full fine-tuning" not in text
    assert "effective batch" not in text


def test_of_code_that_calls_no_trainer_that_is_said_and_not_each_default(tmp_path: Path) -> None:
    path = tmp_path / "load.py"
    path.write_text(LOADS.replace("args.path", "'gpt2'"))
    text = " ".join(run_text("kb.check", path, "--no-cache").stdout.split())
    assert "no call in it that kb reads says in what batches it trains or generates" in text
    assert "eval_strategy" not in text


def test_what_a_config_leaves_to_its_program_is_not_what_it_says_itself(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "train.py").write_text(
        "import yaml\nfrom transformers import TrainingArguments\nc = yaml.safe_load(open('a.yaml'))\n"
        "t = c['training']\nargs = TrainingArguments(t['output_dir'], bf16=t['half'], gradient_checkpointing=t['on'])\n"
    )
    path = tmp_path / "a.yaml"
    path.write_text("general: {model_name: gpt2}\ntraining: {output_dir: o, optim: adafactor, num_train_epochs: 1}\n")
    text = " ".join(run_text("kb.check", path, "--no-cache").stdout.split())
    told = text.partition("this file leaves out, such as ")[2].partition(". If it")[0]
    assert "gradient_checkpointing" in told and "optim" not in told


@pytest.mark.parametrize("rewards", ['"org/reward-model"', '[length, "org/reward-model"]'])
def test_a_reward_model_beside_the_trained_one_leaves_nothing_to_predict(tmp_path: Path, rewards: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(GRPO.format(rewards=rewards))
    (unit,) = checked(path)
    assert unit["prediction"] is None


def test_how_a_trainer_loads_its_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GRPO.format(rewards="length"))
    (unit,) = checked(path)
    assert "model.torch_dtype" not in {row["name"] for row in unit["prediction"]["assumed"]}


@pytest.mark.parametrize("model", ["claude-3-5-sonnet-20241022", "gpt-4o-mini", "gemini-2.0-flash", "o3-mini"])
def test_a_command_that_asks_a_service_is_no_run_here(tmp_path: Path, model: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"python label.py --model {model} --batch_size 8\npython make.py --model gpt2 --batch_size 8\n")
    assert [unit["setup"]["model_name"] for unit in checked(path)] == ["gpt2"]


@pytest.mark.parametrize("address", ["--endpoint http://10.0.0.1:7004/generate", "--openai_api_base=$URL"])
def test_a_command_that_is_told_where_its_server_is_runs_no_model(tmp_path: Path, address: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        f"python ask.py --model Qwen/Qwen2.5-7B {address} --batch_size 32\n"
        f"python train.py --model Qwen/Qwen2.5-7B {address} --learning_rate 1e-4 --num_train_epochs 1\n"
    )
    assert len(checked(path)) == 1  # the training, which may ask a server too


def test_a_command_of_a_harness_or_a_client_names_an_engine_or_a_server_no_run_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "python -m simple_evals --model $MODEL --base_url $URL --debug\n"
        'python3 load_test.py --framework vllm --config w.json --url "$URL" --model gpt2\n'
        "python bench_serving.py --backend vllm --model meta-llama/Llama-3.1-8B --num-prompts 100\n"
        "accelerate launch -m lm_eval --model hf --model_args pretrained=gpt2 --batch_size 8\n"
        "python generate.py --model gpt2 --batch_size 8\n"
    )
    assert [unit["setup"]["model_name"] for unit in checked(path)] == ["gpt2"]


@pytest.mark.parametrize(("source", "engine"), [
    ("from vllm import LLM\nllm = LLM(args.model_name)\n", "infer.py has vllm run the model"),
    ("from llama_cpp import Llama\nLlama.from_pretrained(args.model_name)\n", "infer.py has llama_cpp run the model"),
    ("import vllm\nm = AutoModel.from_pretrained(args.m) if args.hf else vllm.LLM(args.m)\n", "may have vllm run"),
    ("from openai import OpenAI\nOpenAI().chat.completions.create(model=args.model_name)\n", "infer.py loads no model"),
    ("from transformers import AutoModel\nm = AutoModel.from_pretrained(args.model_name)\n", None),
    ("from transformers import pipeline\np = pipeline(model=args.model_name)\n", None),
])  # fmt: skip
def test_what_generate_takes_is_told_only_of_a_program_that_loads_the_model_so(
    tmp_path: Path, source: str, engine: str | None
) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "infer.py").write_text(source)
    path = tmp_path / "run.sh"
    path.write_text("python infer.py --model_name gpt2 --batch_size 8 --max_new_tokens 64\n")
    (unit,) = checked(path)
    assert (unit["prediction"] is not None) == (engine is None)
    assert engine is None or engine in unit["note"]
    if engine == "infer.py has vllm run the model":  # in a folder there are many such, and nothing is found in them
        assert "left out here" in " ".join(run_text("kb.check", tmp_path, "--no-cache").stdout.split())


def test_what_is_open_is_named_by_its_setting_where_a_word_alone_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("CUDA_VISIBLE_DEVICES=0,1 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --train_type lora\n")
    text = " ".join(run_text("kb.check", path, "--no-cache").stdout.split())
    assert "the value of launch.num_processes" in text


IMPORTED = "from llamafactory.train.tuner import run_exp\n"
STARTED = "\nif __name__ == '__main__':\n    run_exp()\n"
FILE = "import yaml\ncfg = yaml.safe_load(open('a.yaml'))\ncfg['per_device_train_batch_size'] = 16\n"


@pytest.mark.parametrize(("source", "own"), [
    (IMPORTED + STARTED, False),
    ("from llamafactory.train.tuner import (\n    export_model,\n    run_exp,\n)\n" + STARTED, False),
    (IMPORTED.replace("llamafactory.train.tuner", "ours") + STARTED, True),
    (IMPORTED + FILE + "run_exp(cfg)\n", True),
    ("from llamafactory.train.tuner import (\n    run_exp)\n" + FILE + "run_exp(args=cfg)\n", True),
    (IMPORTED + FILE + "if cfg:\n    run_exp()\nelse:\n    run_exp(cfg)\n", True),
    ("import sys\n" + IMPORTED + "sys.argv += ['per_device_train_batch_size=16']\n" + STARTED, True),
    (IMPORTED.strip() + " as run\n" + FILE + "run(cfg)\n", True),
])  # fmt: skip
def test_a_copy_of_llama_factory_is_started_with_its_own_settings_alone(tmp_path: Path, source: str, own: bool) -> None:
    (tmp_path / "requirements.txt").touch()
    package = tmp_path / "src" / "llamafactory" / "train"
    package.mkdir(parents=True)
    (package / "tuner.py").write_text(
        "from transformers import Seq2SeqTrainingArguments, Trainer\n\n\ndef run_exp(args=None):\n"
        "    args = Seq2SeqTrainingArguments(do_eval=args['x'], fp16=args['y'], optim=args['z'])\n"
        "    Trainer(args=args).train()\n"
    )
    (tmp_path / "src" / "ours.py").write_text((package / "tuner.py").read_text())
    (tmp_path / "src" / "train.py").write_text(source)
    (tmp_path / "a.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndo_train: true\nfinetuning_type: lora\ntemplate: qwen\n"
        "dataset: d\ncutoff_len: 256\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-4\noutput_dir: o\n"
    )
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nproc_per_node 2 src/train.py a.yaml\n")
    (unit,) = checked(path)
    assert (unit["prediction"] is None) is own
    assert unit["setup"]["world_size"] == 2


@pytest.mark.parametrize(("name", "more", "trains"), [
    ("predict.py", "", False),
    ("run_inference.py", "def main():\n    model.eval()\n\nmain()\n", False),
    ("predict.py", "Trainer(model=model, args=args).train()\n", True),
    ("finetune.py", "", True),
])  # fmt: skip
def test_a_program_that_answers_with_a_training_config_trains_nothing(
    tmp_path: Path, name: str, more: str, trains: bool
) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "ours.py").write_text(
        "from transformers import Trainer\n\ndef start(model):\n    Trainer(model).train()\n"
    )
    (tmp_path / name).write_text(
        "import yaml\nfrom transformers import AutoModelForCausalLM\nfrom ours import start\n\n"
        "config = yaml.safe_load(open(path))\nmodel = AutoModelForCausalLM.from_pretrained(config['model'])\n" + more
    )
    (tmp_path / "a.yaml").write_text(
        "general: {model_name: gpt2}\ntraining: {per_device_train_batch_size: 2, bf16: true}\n"
    )
    path = tmp_path / "run.sh"
    path.write_text(f"python {name} --config a.yaml\n")
    assert bool([unit for unit in checked(path) if unit["setup"] and unit["setup"]["model_name"]]) is trains
