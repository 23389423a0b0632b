"""Projects that go ways of their own: what their programs do with a config decides whether a finding holds."""

from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.core.finding import Finding
from kb.core.result import UnitResult, Unusable
from kb.session.prepare import file_checker
from kb.session.project import find_project
from kb.session.run import Input, check_input

CATALOG = shallow_catalog()
TEAM = """
general: {model_name: google-t5/t5-base}
training:
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 2
  num_train_epochs: 3
  max_steps: 1000
  learning_rate: 5.0e-5
"""
READS = """
import yaml
from transformers import TrainingArguments
config = yaml.safe_load(open("config.yaml"))
args = TrainingArguments(
    per_device_train_batch_size=config["training"]["per_device_train_batch_size"],
    gradient_accumulation_steps=config["training"]["gradient_accumulation_steps"],
    num_train_epochs=config["training"]["num_train_epochs"],
    learning_rate=config["training"]["learning_rate"],
    {more}
)
model = load(config["general"]["model_name"])
Trainer(model, args).train()
"""


def results(folder: Path, files: dict[str, str], name: str, gpu: str = "t4") -> tuple[UnitResult, ...]:
    (folder / ".git").mkdir(exist_ok=True, parents=True)
    for each, text in files.items():
        path = folder / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    question = Question.of(gpu=gpu, versions={"transformers": "4.49.0", "trl": "0.29.0"})
    outcome = check_input(Input(str(folder / name)), file_checker(CATALOG, find_project(str(folder)), question))
    assert not isinstance(outcome, Unusable), outcome
    return tuple(outcome.results)


def said(folder: Path, files: dict[str, str], name: str, rule: str) -> Finding | None:
    found = (each for unit in results(folder, files, name) for each in unit.findings if each.rule == rule)
    return next(found, None)


@pytest.mark.parametrize(
    ("more", "holds"),
    [
        ('max_steps=config["training"]["max_steps"],', True),
        ("", False),  # nothing reads it
        ('**config["training"],', True),
    ],
)
def test_a_key_that_no_program_reads_comes_to_nothing(tmp_path: Path, more: str, holds: bool) -> None:
    files = {"config.yaml": TEAM, "train.py": READS.replace("{more}", more)}
    assert (said(tmp_path, files, "config.yaml", "max-steps-overrides-epochs") is not None) == holds


def test_a_program_that_opens_a_config_by_its_name_reads_what_it_names_alone(tmp_path: Path) -> None:
    config = (
        "encoders: {names: [klue/bert-base]}\ntrain_args: {epoch: 1, batch_size: 16, learning_rate: 2e-5, fp16: true}\n"
    )
    config += "test_args: {batch_size: 16, output_file: a.csv}\n"
    reads = "import yaml\nfrom box import Box\nfrom sentence_transformers import SentenceTransformerTrainingArguments\n"
    reads += "config = Box(yaml.safe_load(open('config.yaml')))\n"
    reads += "for name in config.encoders.names:\n    model.fit(rows(config.train_args.batch_size))\n"
    rule = "yaml-number-is-text"
    for more, told in (("", False), ("Adam(lr=config.train_args.learning_rate)\n", True)):
        found = said(tmp_path, {"config.yaml": config, "train.py": reads + more}, "config.yaml", rule)
        assert (found is not None) == told


def test_a_config_of_a_loop_has_not_what_a_trainer_makes_of_it(tmp_path: Path) -> None:
    """It ends at whichever of epochs and steps comes first."""
    config = (
        "model: {base_model: google-t5/t5-base}\ntrain: {max_steps: 800, epochs: 3, train_batch_size: 8, lr: 2.0e-5}\n"
    )
    reads = "import yaml\ncfg = yaml.safe_load(open('config.yaml'))\nmodel = Scorer(cfg['model']['base_model'])\n"
    reads += "for epoch in range(cfg['train']['epochs']):\n    for batch in loader(cfg['train']['train_batch_size']):\n"
    loop = (
        reads
        + "        loss_of(model, batch, cfg['train']['lr']).backward()\n        stop(cfg['train']['max_steps'])\n"
    )
    rule = "max-steps-overrides-epochs"
    assert said(tmp_path / "a", {"config.yaml": config, "train.py": loop}, "config.yaml", rule) is None
    assert said(tmp_path / "b", {"config.yaml": config}, "config.yaml", rule) is not None


def test_a_loop_that_takes_its_batch_from_elsewhere_has_not_the_trainers(tmp_path: Path) -> None:
    loop = "import argparse, yaml\nparser = argparse.ArgumentParser()\nparser.add_argument('--config')\n"
    loop += "config = yaml.safe_load(open(parser.parse_args().config))\n"
    loop += "model = AutoModelForCausalLM.from_pretrained(config['policy'], torch_dtype=torch.bfloat16)\n"
    loop += (
        "model.gradient_checkpointing_enable()\nfor batch in loader_of(config):\n    loss_of(model, batch).backward()\n"
    )
    files = {"run.sh": "torchrun --nproc_per_node=2 train.py --config ${1:-config.yaml}\n", "train.py": loop}
    files["config.yaml"] = "policy: google-t5/t5-base\ndpo_training: {epochs: 1, batch_size: 16}\n"
    (result,) = results(tmp_path, files, "run.sh")
    assert result.setup is not None and not result.setup.batch_known


LIGHTNING = """
trainer: {accelerator: gpu, devices: 2, strategy: ddp, max_epochs: 3}
model: {class_path: own.Model, init_args: {model_name_or_path: google-t5/t5-base}}
data: {class_path: own.Data, init_args: {batch_size: 16}}
"""


@pytest.mark.parametrize(
    "text",
    [
        LIGHTNING,
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
        "step_scheduler: {global_batch_size: 64, local_batch_size: 8}\n"
        "model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, "
        "pretrained_model_name_or_path: google-t5/t5-base}\n",
    ],
)
def test_a_trainer_that_is_not_transformers_looks_for_no_unused_parameters(tmp_path: Path, text: str) -> None:
    checker = file_checker(CATALOG, find_project(str(tmp_path)), Question.of(gpu="t4", gpus=2))
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    outcome = check_input(Input(str(tmp_path / "a.yaml")), checker)
    assert not isinstance(outcome, Unusable), outcome
    (result,) = outcome.results
    assert "find-unused-on-by-default" not in {each.rule for each in result.findings}
    assert result.setup is None or all("find_unused" not in each.name for each in result.setup.assumed)


@pytest.mark.parametrize(
    ("strategy", "looks"),
    [
        ("ddp", False),
        ("ddp_find_unused_parameters_true", True),
        ("{class_path: DDPStrategy, init_args: {find_unused_parameters: true}}", True),
    ],
)
def test_lightnings_strategy_says_whether_it_looks_for_unused_parameters(
    tmp_path: Path, strategy: str, looks: bool
) -> None:
    text = LIGHTNING.replace("strategy: ddp", f"strategy: {strategy}")
    (result,) = results(tmp_path, {"a.yaml": text}, "a.yaml")
    assert result.setup is not None and result.setup.spread.find_unused is looks


def test_a_number_as_text_is_no_fault_where_nothing_reads_yaml(tmp_path: Path) -> None:
    config = "model: {name: google-t5/t5-base}\ntraining: {batch_size: 8, learning_rate: 5e-5, fp16: true}\n"
    flags = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
    flags += "parser.parse_args()\n"
    rule = "yaml-number-is-text"
    assert said(tmp_path / "a", {"config.yaml": config, "train.py": flags}, "config.yaml", rule) is None
    assert said(tmp_path / "b", {"config.yaml": config, "train.py": "import yaml\n" + flags}, "config.yaml", rule)
    casts = ('casts = {"learning_rate": float}\n', 'for key in ("learning_rate", "x"):\n    c[key] = float(c[key])\n')
    for number, cast in enumerate(casts):  # made numbers by the program
        files = {"config.yaml": config, "train.py": "import yaml\n" + flags + cast}
        assert said(tmp_path / f"c{number}", files, "config.yaml", rule) is None
    sets = flags + "TrainingArguments('o', optim='adafactor')\n"
    loads = ("", "import yaml\n", "from ours.settings import load\n", "parser.add_argument('--config')\n")
    for number, load in enumerate(loads):  # what reads no file leaves a config to its format
        files = {"config.yaml": config, "train.py": load + sets}
        assert results(tmp_path / f"d{number}", files, "config.yaml")[0].note == ("set_by_program" if load else None)


@pytest.mark.parametrize("loads", ["OmegaConf.load(path)", "yaml.safe_load(open(path))"])
def test_a_config_read_in_a_programs_way_has_the_numbers_of_its_loader(tmp_path: Path, loads: str) -> None:
    config = "model: {model_id: google-t5/t5-base}\ntraining: {per_device_train_batch_size: 8, learning_rate: 5e-5}\n"
    program = (
        "import sys, yaml\nfrom omegaconf import OmegaConf\nfrom transformers import AutoModelForSeq2SeqLM, Trainer\n"
        f"from transformers import TrainingArguments\npath = sys.argv[1]\ncfg = {loads}\n"
        "model = AutoModelForSeq2SeqLM.from_pretrained(cfg['model']['model_id'])\n"
        "args = TrainingArguments('out', learning_rate=cfg['training']['learning_rate'],\n"
        "    per_device_train_batch_size=cfg['training']['per_device_train_batch_size'])\nTrainer(model, args)\n"
    )
    found = said(tmp_path, {"run.yaml": config, "train.py": program}, "run.yaml", "yaml-number-is-text")
    assert (found is None) == loads.startswith("Omega")


HYDRA = "import hydra\n@hydra.main(config_path='conf', config_name='base')\ndef main(cfg): run(cfg)\n"


def test_a_number_below_hydras_folder_is_one_whatever_else_reads_yaml(tmp_path: Path) -> None:
    config = "model: {name: google-t5/t5-base}\ntraining: {batch_size: 8, learning_rate: 5e-5, fp16: true}\n"
    files = {
        "conf/experiment/a.yaml": config,
        "main.py": HYDRA,
        "log.py": "import yaml\nyaml.safe_load(ArgumentParser())\n",
    }
    assert said(tmp_path, files, "conf/experiment/a.yaml", "yaml-number-is-text") is None


def test_of_a_groups_own_file_nothing_above_it_is_missing(tmp_path: Path) -> None:
    text = (
        "{}defaults:\n  - /model: t5\n  - _self_\ntraining: {{per_device_train_batch_size: 8, learning_rate: 5.0e-5}}\n"
    )
    rule = "hydra-group-missing"
    assert said(tmp_path, {"a.yaml": text.format("")}, "a.yaml", rule) is not None
    assert said(tmp_path, {"b.yaml": text.format("# @package _global_\n")}, "b.yaml", rule) is None


SFT = """
model_name_or_path: meta-llama/Llama-3.1-8B
torch_dtype: bfloat16
dataset_text_field: text
max_seq_length: 2048
packing: true
per_device_train_batch_size: 2
output_dir: out
"""
OWN = """
from trl import SFTTrainer
from dataclasses import dataclass
import transformers
@dataclass
class ModelArguments:
    torch_dtype: str = "auto"
@dataclass
class SFTConfig(transformers.TrainingArguments):
    max_seq_length: int = 2048
"""
STARTS = """
from tune.own import H4ArgumentParser, ModelArguments, SFTConfig
from trl import SFTTrainer
model_args, training_args = H4ArgumentParser((ModelArguments, SFTConfig)).parse()
SFTTrainer(args=training_args).train()
"""


@pytest.mark.parametrize("own", [True, False])
def test_names_in_a_commands_config_are_its_programs(tmp_path: Path, own: bool) -> None:
    program = STARTS if own else STARTS.replace("from tune.own import", "from trl import")
    files = {
        "run.sh": "accelerate launch --num_processes 2 src/tune/run_sft.py conf.yaml --learning_rate 1e-5\n",
        "conf.yaml": SFT,
        "src/tune/run_sft.py": program,
        "src/tune/own.py": OWN,
    }
    for rule in ("trl-torch-dtype-removed", "trl-max-seq-length-renamed"):
        assert (said(tmp_path, files, "run.sh", rule) is None) == own


@pytest.mark.parametrize(
    ("program", "trains"),
    [
        ("import yaml\nrows = load(yaml.safe_load(open(args.config))['training']['seed'])\nrows.to_json('a')\n", False),
        ("import yaml, subprocess\nsubprocess.run(['accelerate', 'launch', 'train.py'])\n", True),
        ("import yaml\nfrom lab.runner import Run\nRun(yaml.safe_load(open(args.config))).go()\n", True),
    ],
)
def test_a_program_that_trains_nothing_is_no_run_of_its_config(tmp_path: Path, program: str, trains: bool) -> None:
    config = TEAM.replace("max_steps: 1000", "per_device_eval_batch_size: 8")
    files = {
        "run.sh": "python tools/go.py --config config.yaml\n",
        "config.yaml": config,
        "tools/go.py": program,
    }
    unit = results(tmp_path, files, "run.sh")[0].unit
    assert ("training.per_device_train_batch_size" in unit.settings) == trains


@pytest.mark.parametrize(
    ("quote", "size", "stage"), [("'EOF'", '"auto"', 2), ("EOF", '"auto"', 2), ("EOF", "$SIZE", None)]
)
def test_a_file_that_the_script_writes_is_read_there(tmp_path: Path, quote: str, size: str, stage: int | None) -> None:
    script = (
        f"cat > ds.json << {quote}\n"
        f'{{"zero_optimization": {{"stage": 2}}, "train_batch_size": {size}}}\nEOF\n'
        "deepspeed --num_gpus 2 train.py --model_name_or_path t5-small --output_dir out --do_train "
        "--per_device_train_batch_size 8 --deepspeed ds.json\n"
    )
    unit = results(tmp_path, {"run.sh": script, "train.py": "HfArgumentParser(TrainingArguments)"}, "run.sh")[0].unit
    found = unit.settings.get("deepspeed.zero_stage")
    assert (found and found.value) == stage


@pytest.mark.parametrize(
    ("before", "stage"),
    [
        ("", 3),
        ("# envsubst < other.json > ds.json\n", 3),
        ("envsubst < other.json > ds.json && \\\n", 2),
        ("cp other.json ds.json\n", 2),
        ("cp other.json ds.json\ncp third.json ds.json\n", None),
        ("sed -i 's/3/1/' ds.json\n", None),
        ("python make.py > ./ds.json\n", None),
        ('cat > ds.json << \'EOF\'\n{"zero_optimization": {"stage": 1}}\nEOF\n', 1),
    ],
)
def test_of_a_file_that_a_script_writes_what_lay_there_counts_for_nothing(
    tmp_path: Path, before: str, stage: int | None
) -> None:
    script = before + (
        "deepspeed --num_gpus 2 train.py --model_name_or_path t5-small --output_dir out --do_train "
        "--per_device_train_batch_size 8 --deepspeed ds.json\n"
    )
    files = {"run.sh": script, "train.py": "HfArgumentParser(TrainingArguments)"}
    files |= {"ds.json": '{"zero_optimization": {"stage": 3}}', "other.json": '{"zero_optimization": {"stage": 2}}'}
    found = results(tmp_path, files, "run.sh")[0].unit.settings.get("deepspeed.zero_stage")
    assert (found and found.value) == stage


def test_what_is_set_for_several_commands_one_may_set_otherwise(tmp_path: Path) -> None:
    shared = 'shared="--model_name_or_path t5-small --output_dir out --do_train --max_steps 900"\n'
    shared += "python train.py $shared {}\n"
    rule = "yaml-duplicate-key"
    assert said(tmp_path, {"a.sh": shared.format("--max_steps 50")}, "a.sh", rule) is None
    assert said(tmp_path, {"b.sh": shared.format("--save_steps 50 --save_steps 90")}, "b.sh", rule) is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.sh", "vllm serve meta-llama/Llama-3.1-8B --device {} --dtype float32\n"),
        ("s.sh", "python -m vllm.entrypoints.openai.api_server --model meta-llama/Llama-3.1-8B --device={}\n"),
        (
            "compose.yaml",
            "services:\n  a:\n    image: vllm/vllm-openai:v0.8.5\n    command: --model a/b --device {}\n",
        ),
        (
            "compose.yaml",
            "services:\n  a:\n    image: vllm/vllm-openai:v0.8.5\n    command: --model a/b --dtype float32\n"
            "    environment: [VLLM_TARGET_DEVICE={}]\n",
        ),
    ],
)
def test_a_server_on_the_cpu_is_none_of_a_gpu(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text.format("cpu"), "utf-8")
    checker = file_checker(CATALOG, find_project(str(tmp_path)), Question.of(gpu="t4"))
    found = check_input(Input(str(tmp_path / name)), checker)
    assert isinstance(found, Unusable) or all(each.unit.dialect != "vllm" for each in found.results)
    assert results(tmp_path, {name: text.format("cuda")}, name)[0].unit.dialect == "vllm"


def test_evaluation_that_no_run_reaches_takes_nothing(tmp_path: Path) -> None:
    config = "model_name_or_path: t5-base\nper_device_train_batch_size: 8\noutput_dir: o\n"
    config += "eval_strategy: steps\neval_steps: {}\n"
    often, never = (results(tmp_path, {"a.yaml": config.format(steps)}, "a.yaml")[0] for steps in (500, 1_000_000_000))
    assert [each.setup.do_eval for each in (often, never) if each.setup is not None] == [True, False]


def test_a_loop_of_ones_own_compares_no_values_of_deepspeed(tmp_path: Path) -> None:
    files = {
        "ds.json": '{"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}',
        "run.sh": "deepspeed --num_gpus 2 train.py --deepspeed ds.json --model_name_or_path t5-base --output_dir o "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 1e-5\n",
    }
    rule = "deepspeed-values-disagree-with-trainer"
    own = "import deepspeed\nengine, *_ = deepspeed.initialize(args=args)\nengine.backward(loss)\nengine.step()\n"
    assert said(tmp_path, files | {"train.py": own}, "run.sh", rule) is None
    auto = '{"train_batch_size": "auto", "zero_optimization": {"stage": 2}}'
    for more, fires in (("", True), ("config = json.load(open(args.deepspeed))\n", False)):
        found = said(
            tmp_path, files | {"ds.json": auto, "train.py": own + more}, "run.sh", "deepspeed-auto-outside-trainer"
        )
        assert (found is not None) == fires
    trainer = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    assert said(tmp_path, files | {"train.py": trainer}, "run.sh", rule) is not None


@pytest.mark.parametrize(
    ("config", "dialect"),
    [
        ("cutoff_len: 150\nblock_size: 100\nbatch_size: 4\nreport_to: [wandb]\n", None),  # a project's own
        ("model_name_or_path: a/b\ncutoff_len: 150\nstage: sft\nlora_rank: 8\n", "llamafactory"),
        (
            "model: {model_id: google/gemma-2-9b-it}\nlora: {r: 8, finetune_vision_layers: false, "
            "finetune_language_layers: true}\ntraining: {per_device_train_batch_size: 8, num_train_epochs: 10}\n",
            "team",
        ),
        (
            "model: unsloth/gemma-2-9b-it\nlora: {lora_r: 8, finetune_vision_layers: false, "
            "finetune_language_layers: true}\ntraining: {batch_size: 8, num_epochs: 10}\n",
            "unsloth",
        ),
    ],
)
def test_a_programs_own_config_is_no_librarys_for_a_name_or_two(
    tmp_path: Path, config: str, dialect: str | None
) -> None:
    (tmp_path / "a.yaml").write_text(config, "utf-8")
    checker = file_checker(CATALOG, find_project(str(tmp_path)), Question.of(gpu="t4"))
    found = check_input(Input(str(tmp_path / "a.yaml")), checker)
    assert (None if isinstance(found, Unusable) else found.results[0].unit.dialect) == dialect


@pytest.mark.parametrize("fills", [True, False])
def test_a_program_that_starts_axolotl_from_within_may_fill_its_config_in(tmp_path: Path, fills: bool) -> None:
    config = (
        "base_model: TinyLlama/TinyLlama-1.1B-Chat-v1.0\nmicro_batch_size: 1\nsequence_len: 2048\nadapter: lora\n"
        "load_in_4bit: auto\ndata_dir: auto\n"
    )
    program = (
        'from axolotl.cli.train import do_cli\ncfg = load(path)\nif cfg.load_in_4bit == "auto":\n'
        '    cfg.load_in_4bit = True\ncfg.pop("data_dir")\ndo_cli(parse_args(cfg), yaml=True)\n'
    )
    files = {"config.yaml": config, "train.py": program} if fills else {"config.yaml": config}
    for rule in ("setting-of-wrong-type", "unknown-argument"):
        assert (said(tmp_path, files, "config.yaml", rule) is None) == fills


ORPO = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser
from trl import ORPOConfig, ORPOTrainer
from peft import LoraConfig, TaskType
@dataclass
class ScriptArguments:
    model_name_or_path: str = field(default="t5-small")
    max_steps: int = field(default=1000)
    eval_steps: int = field(default=20)
    eval_strategy: str = field(default="steps")
    target_modules: str = field(default="all")
args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()[0]
if "all" in args.target_modules: names = linear_names(model)
config = ORPOConfig("out", num_train_epochs=3, eval_steps=args.eval_steps, eval_strategy=args.eval_strategy)
ORPOTrainer(model, config, peft_config=LoraConfig(task_type=TaskType.SEQ_CLS, target_modules=names)).train()
"""


def test_what_a_program_has_of_its_own_is_no_fault_of_its_command(tmp_path: Path) -> None:
    command = (
        "python {} --model_name_or_path Qwen/Qwen2.5-0.5B --num_train_epochs 3 --output_dir out --eval_steps 9 "
        "--do_train --use_peft true --target_modules all --per_device_train_batch_size 2\n"
    )
    files = {"run.sh": command.format("orpo_training.py"), "src/trainer/orpo_training.py": ORPO}
    found = {each.rule for unit in results(tmp_path / "a", files, "run.sh") for each in unit.findings}
    told = ("eval-steps-without-eval-strategy", "max-steps-overrides-epochs", "lora-targets-match-nothing")
    assert not found.intersection((*told, "lora-target-string-is-a-regex"))
    # a name that programs of any project have is looked for where the command says
    own = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    files = {"run.sh": command.format("train.py"), "other/train.py": ORPO, "train.py": own}
    found = {each.rule for unit in results(tmp_path / "b", files, "run.sh") for each in unit.findings}
    assert "eval-steps-without-eval-strategy" in found


def test_a_task_type_that_the_program_gives_is_that_of_the_run(tmp_path: Path) -> None:
    command = "python reward.py --model_name_or_path a/b --output_dir out --use_peft true --lora_r 8 --max_length 512\n"
    trl = (
        "from trl import ModelConfig, RewardConfig, RewardTrainer, TrlParser\nTrlParser((RewardConfig, ModelConfig))\n"
    )
    files = {"run.sh": command, "reward.py": trl + "peft = get_peft_config(model_args)\nRewardTrainer()\n"}
    own = trl + "peft = LoraConfig(task_type=TaskType.SEQ_CLS)\nRewardTrainer()\n"
    named = trl + "kind = TaskType.SEQ_CLS\npeft = LoraConfig(task_type=kind)\nRewardTrainer()\n"
    rule = "reward-adapter-task-type"
    for text, fires in ((files["reward.py"], True), (own, False), (named, False)):
        question = Question.of(gpu="t4", versions={"transformers": "5.3.0", "trl": "0.29.0"})
        for name, each in (files | {"reward.py": text}).items():
            (tmp_path / name).write_text(each, "utf-8")
        outcome = check_input(
            Input(str(tmp_path / "run.sh")), file_checker(CATALOG, find_project(str(tmp_path)), question)
        )
        assert not isinstance(outcome, Unusable)
        assert (rule in {each.rule for unit in outcome.results for each in unit.findings}) == fires


@pytest.mark.parametrize(
    ("given", "told"),
    [('cfg["lora"]["task_type"]', True), ('A if cfg["lora"]["task_type"].lower() == "seq2seq_lm" else B', False)],
)
def test_a_task_type_that_the_program_compares_with_a_word_of_its_own_is_no_pefts(
    tmp_path: Path, given: str, told: bool
) -> None:
    config = "model: {name: google-t5/t5-small}\nlora: {r: 8, task_type: seq2seq_lm}\ntraining: {num_train_epochs: 1}\n"
    program = (
        "from transformers import Trainer, TrainingArguments\ncfg = yaml.safe_load(open(args.config))\n"
        f"peft = LoraConfig(task_type={given})\nTrainer(args=TrainingArguments(**cfg['training'])).train()\n"
    )
    files = {"run.sh": "python train.py --config c.yaml\n", "c.yaml": config, "train.py": program}
    assert (said(tmp_path, files, "run.sh", "lora-task-type-invalid") is not None) is told


def test_axolotls_preprocessing_is_no_run(tmp_path: Path) -> None:
    config = "base_model: t5-small\nmicro_batch_size: 2\nsequence_len: 2048\nsample_packing: true\n"
    files = {
        "a.yml": config,
        "p.sh": "python -m axolotl.cli.preprocess a.yml --debug\npython -m axolotl.cli.train a.yml\n",
    }
    units = [each.unit for each in results(tmp_path, files, "p.sh")]
    assert len(units) == 1
    assert units[0].dialect == "axolotl"


@pytest.mark.parametrize(
    ("cut", "length"),
    [
        ("    block_size = 128\n    rows = rows.map(group_texts)\n", 128),
        ("    rows = rows.map(lambda each: group_texts(each, 96))\n", 96),
        ("    block_size = 128\n    rows, others = group_texts(rows, 96), group_texts(others, 128)\n", None),
    ],
)
def test_texts_joined_together_are_as_long_as_a_function_cuts_them(
    tmp_path: Path, cut: str, length: int | None
) -> None:
    program = (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        f"def load(rows, others):\n{cut}    return rows\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
        "Trainer(model, TrainingArguments('out', per_device_train_batch_size=16), train_dataset=load(a, b)).train()\n"
    )
    settings = results(tmp_path, {"train.py": program}, "train.py")[0].unit.settings
    found = settings.get("data.max_source_length")
    assert (found and found.value) == length


@pytest.mark.parametrize(("tuner", "dialect"), [("--tuner_type lora ", "ms-swift"), ("--use_peft ", "trl")])
def test_swifts_programs_are_known_by_their_flags_where_their_folder_is_not_told(
    tmp_path: Path, tuner: str, dialect: str
) -> None:
    script = (
        'torchrun --nproc_per_node=2 $(python -c "import swift; print(swift.__path__[0])")/cli/sft.py --model a/b '
        f"--quant_bits 4 --bnb_4bit_quant_type nf4 --lora_rank 8 --max_length 2048 {tuner}--dataset_text_field text\n"
    )
    (result,) = results(tmp_path, {"run.sh": script}, "run.sh")
    assert result.unit.dialect == dialect


WAYS = """\
from omegaconf import OmegaConf
from transformers import Trainer, TrainingArguments
cfg = cut(OmegaConf.load(sys.argv[1])).training
args = TrainingArguments(
    output_dir="out", num_train_epochs=cfg.num_train_epochs, learning_rate=cfg.learning_rate,
    per_device_train_batch_size=cfg.per_device_train_batch_size, {}
)
Trainer(args=args).train()
"""


@pytest.mark.parametrize(("other", "certainty"), [("max_steps=cfg.max_steps,", "certain"), ("", "likely")])
def test_what_one_of_two_ways_to_train_passes_over_is_likely(tmp_path: Path, other: str, certainty: str) -> None:
    config = (
        "training:\n  num_train_epochs: 3\n  max_steps: 100\n  learning_rate: 1.0e-5\n"
        "  per_device_train_batch_size: 2\n"
    )
    ways = {"sft.py": WAYS.format("max_steps=cfg.max_steps,"), "pretrain.py": WAYS.format(other)}
    (unit,) = results(tmp_path, {"train.yaml": config, "requirements.txt": "", **ways}, "train.yaml")
    told = {each.rule: each.certainty for each in unit.findings}
    assert told.get("max-steps-overrides-epochs") == certainty
