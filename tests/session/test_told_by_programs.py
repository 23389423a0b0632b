"""What a program tells beyond its settings: releases by names, the head by the class, and programs not seen."""

from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.core.result import UnitResult
from kb.session.around import Checking
from kb.session.prepare import file_checker
from kb.session.project import Project

CATALOG = shallow_catalog()
GRPO = """
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype="bfloat16")
args = GRPOConfig(
    output_dir="out", per_device_train_batch_size=4, num_generations=4, bf16=True, use_vllm=True,
    max_completion_length=256, {names}
)
GRPOTrainer(model=model, args=args, reward_funcs=[len], train_dataset=[]).train()
"""


def result(folder: Path, text: str, name: str = "train.py", **wanted: object) -> UnitResult:
    (folder / name).write_text(text, "utf-8")
    question = Question.of(**{"gpu": "rtx-4090", **wanted})
    checker = file_checker(CATALOG, Project(), question, Checking(root=str(folder)))
    return next(iter(checker.check(text.encode(), str(folder / name)).results))


def assumed(told: UnitResult) -> dict[str, object]:
    return {each.name: each.value for each in told.prediction.assumed} if told.prediction else {}


@pytest.mark.parametrize(
    ("names", "releases", "mode"),
    [
        ("", {}, "colocate"),
        ("max_prompt_length=256", {"trl": "<0.28"}, "server"),
        ("max_prompt_length=256, generation_kwargs={}", {"trl": ">=0.19.0,<0.28"}, "server"),
        ("max_prompt_length=256, overwrite_output_dir=True", {"trl": "<0.28", "transformers": "<5"}, "server"),
    ],
)
def test_names_narrow_the_releases(tmp_path: Path, names: str, releases: dict, mode: str) -> None:
    told = assumed(result(tmp_path, GRPO.replace("{names}", names)))
    assert {name: told[name] for name in ("trl", "transformers") if name in told} == releases
    assert told["trl.vllm_mode"] == mode  # TRL 1.0 made it colocate


@pytest.mark.parametrize(
    ("imports", "trl"),
    [
        ("from trl import DataCollatorForCompletionOnlyLM", "<0.20"),
        ("try:\n    from trl import DataCollatorForCompletionOnlyLM\nexcept ImportError:\n    pass", None),
    ],
)
def test_what_is_imported_narrows_the_releases(tmp_path: Path, imports: str, trl: str | None) -> None:
    told = assumed(result(tmp_path, f"{imports}\n{GRPO.replace('{names}', '')}"))
    assert told.get("trl") == trl


def test_what_the_project_says_is_narrowed_and_a_name_that_it_may_lack_is_still_told(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("trl>=0.20\n")
    told = result(tmp_path, GRPO.replace("{names}", "max_prompt_length=256"))
    assert assumed(told)["trl"] == "<0.28"
    finding = next(each for each in told.findings if each.rule == "trl-max-seq-length-renamed")
    assert [(on.library, on.since, on.specifier) for on in finding.on_releases] == [("trl", (0, 28), ">=0.20")]


def test_names_that_no_release_has_together_narrow_nothing(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("trl==1.0.0\n")
    told = result(tmp_path, GRPO.replace("{names}", "max_prompt_length=256"))
    assert "trl" not in assumed(told)
    assert "trl-max-seq-length-renamed" in [each.rule for each in told.findings if each.severity == "error"]


COMMAND = "python train_it.py --model_name Qwen/Qwen2.5-1.5B-Instruct --num_generations 8 --gamma 1.0 {more}\n"


def test_a_program_that_is_not_here_has_defaults_of_its_own(tmp_path: Path) -> None:
    mirrored = "--sync_ref_model --machine_name m1 --warmup_ratio 0.1 --save_steps 465"  # names of TRL's among its own
    for more in ("", mirrored):
        assert result(tmp_path, COMMAND.replace("{more}", more), "run.sh").prediction is None
    said = "--output_dir out --per_device_train_batch_size 8 --max_completion_length 256"
    assert result(tmp_path, COMMAND.replace("{more}", said), "run.sh").prediction is not None


def test_a_reference_that_follows_says_nothing_of_the_loss(tmp_path: Path) -> None:
    """``sync_ref_model`` is DPO's, GRPO's and others'."""
    said = "--output_dir out --per_device_train_batch_size 8 --sync_ref_model --beta 0.1"
    told = result(tmp_path, COMMAND.replace("--num_generations 8", "").replace("{more}", said), "run.sh")
    assert told.prediction is None and told.note == "preference_of_command"


PREFERS = """
from transformers import HfArgumentParser
from trl import {names}

args = HfArgumentParser(DPOConfig).parse_args_into_dataclasses()[0]
{calls}
"""


@pytest.mark.parametrize(
    ("trainers", "kind"),
    [(("DPOTrainer",), "dpo"), (("DPOTrainer", "SFTTrainer"), None), (("DPOTrainer", "KTOTrainer"), None), ((), None)],
)
def test_the_program_says_which_trainer_takes_a_name_that_several_have(
    tmp_path: Path, trainers: tuple[str, ...], kind: str | None
) -> None:
    calls = "\n".join(f"{each}(model, None, args, train_dataset=rows).train()" for each in trainers)
    names = ", ".join(("DPOConfig", *trainers))
    (tmp_path / "prefer.py").write_text(PREFERS.format(names=names, calls=calls), "utf-8")
    (tmp_path / "requirements.txt").write_text("trl==0.24.0\ntransformers==4.57.1\n", "utf-8")
    command = "python prefer.py --model_name_or_path Qwen/Qwen2.5-0.5B --beta 0.1 --max_length 1024 --output_dir o "
    told = result(tmp_path, command + "--per_device_train_batch_size 1 --bf16\n", "run.sh")
    assert (told.setup.post.kind if told.setup and told.setup.post else None) == kind
    assert kind is None or told.prediction is not None


LOADS = """
from peft import AutoPeftModelForCausalLM
from transformers import HfArgumentParser
from trl import SFTConfig

@dataclass
class ModelArguments:
    model_name_or_path: str
    use_peft_lora: bool = field(default=False)
    use_4bit_quantization: bool = field(default=False)

model_args, args = HfArgumentParser((ModelArguments, SFTConfig)).parse_args_into_dataclasses()
{model}
"""


@pytest.mark.parametrize(
    ("model", "then", "loads"),
    [
        ("AutoPeftModelForCausalLM", "", True),
        ("AutoModelForCausalLM", "", False),
        ("AutoModelForCausalLM", "model = PeftModel.from_pretrained(model, 'start', is_trainable=True)", True),
    ],
)
def test_a_program_that_loads_adapters_trains_them_whatever_its_flags_say(
    tmp_path: Path, model: str, then: str, loads: bool
) -> None:
    text = LOADS.replace("{model}", f"model = {model}.from_pretrained(model_args.model_name_or_path)\n{then}")
    (tmp_path / "sft.py").write_text(text, "utf-8")
    command = "python sft.py --model_name_or_path Qwen/Qwen2.5-7B-Instruct --use_4bit_quantization True --packing True "
    told = result(tmp_path, command + "--output_dir o --per_device_train_batch_size 1\n", "run.sh")
    assert (told.note == "quantized_alone") is not loads and told.prediction is None
    assert told.setup is not None and not told.setup.method_known  # packed weights are not fully fine-tuned


def test_names_of_a_file_narrow_trl(tmp_path: Path) -> None:
    config = (
        "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\noutput_dir: o\nper_device_train_batch_size: 4\nbf16: true\n"
    )
    config += "num_generations: 4\nuse_vllm: true\nmax_completion_length: 256\n"
    assert assumed(result(tmp_path, config, "grpo.yaml"))["trl.vllm_mode"] == "colocate"
    told = assumed(result(tmp_path, config + "max_prompt_length: 256\n", "grpo.yaml"))
    assert (told["trl"], told["trl.vllm_mode"]) == ("<0.28", "server")


READS = """
import yaml
from transformers import Trainer, TrainingArguments

def load(path):
    with open(path) as file:
        cfg = yaml.safe_load(file)
    {more}
    return cfg

Trainer(args=TrainingArguments(**load("train.yaml"))).train()
"""
CONFIG = "model_name: Qwen/Qwen2.5-0.5B\nlearning_rate: 1e-5\nper_device_train_batch_size: 4\nmax_steps: 10\n"


@pytest.mark.parametrize(
    ("more", "said"), [("pass", True), ('cfg["learning_rate"] = float(cfg["learning_rate"])', False)]
)
def test_text_that_the_program_makes_a_number_is_no_fault(tmp_path: Path, more: str, said: bool) -> None:
    (tmp_path / "kb.toml").write_text("")
    (tmp_path / "train.py").write_text(READS.replace("{more}", more), "utf-8")
    found = [each.rule for each in result(tmp_path, CONFIG, "train.yaml").findings]
    assert ("yaml-number-is-text" in found) is said


FLAGS = """
import argparse, yaml
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--learning_rate"{kind}, default=1e-5)
parser.set_defaults(**yaml.safe_load(open(parser.parse_known_args()[0].config)))
args = parser.parse_args()
Trainer(args=TrainingArguments("out", learning_rate=args.learning_rate)).train()
"""
FIELDS = """
import yaml
from {library} import BaseModel
from transformers import Trainer, TrainingArguments

class Settings(BaseModel):
    learning_rate: float = 1e-5

settings = Settings(**yaml.safe_load(open("train.yaml")))
Trainer(args=TrainingArguments("out", learning_rate=settings.learning_rate)).train()
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (FLAGS.replace("{kind}", ", type=float"), False),
        (FLAGS.replace("{kind}", ""), True),
        (FIELDS.replace("{library}", "pydantic"), False),
        (FIELDS.replace("{library}", "bases"), True),
        (
            "from dynaconf import Dynaconf\nTrainer(TrainingArguments(**Dynaconf(settings_files=['train.yaml'])))\n",
            False,
        ),
    ],
)
def test_text_that_a_parser_or_a_class_makes_a_number_is_no_fault(tmp_path: Path, program: str, said: bool) -> None:
    (tmp_path / "kb.toml").write_text("")
    (tmp_path / "train.py").write_text(program, "utf-8")
    found = [each.rule for each in result(tmp_path, CONFIG, "train.yaml").findings]
    assert ("yaml-number-is-text" in found) is said


def test_an_empty_setting_that_the_program_fills_in_is_not_told(tmp_path: Path) -> None:
    fills = """
from trl import SFTConfig, TrlParser
class Own(SFTConfig):
    def __post_init__(self):
        {}
        super().__post_init__()
TrlParser((Own,)).parse_args_and_config()
"""
    config = "model_name_or_path: Qwen/Qwen3-4B\noutput_dir: o\ndataloader_num_workers: null\nmax_length: 512\n"
    (tmp_path / "kb.toml").write_text("")
    for line, said in (("pass", True), ("self.dataloader_num_workers = self.dataloader_num_workers or 8", False)):
        (tmp_path / "train.py").write_text(fills.replace("{}", line), "utf-8")
        found = [each.rule for each in result(tmp_path, config, "train.yaml").findings]
        assert ("setting-left-empty" in found) is said


def test_a_value_that_stands_in_the_programs_table_is_not_left_out_of_its_config(tmp_path: Path) -> None:
    program = """
import yaml
from transformers import HfArgumentParser, Trainer, TrainingArguments

parser = HfArgumentParser((TrainingArguments,))
config = yaml.safe_load(open("train.yaml"))
table = {"output_dir": "o", "eval_steps": config["training"]["eval_steps"], {more}}
Trainer(args=TrainingArguments(**table)).train()
"""
    config = "model: {base_model: Qwen/Qwen2.5-0.5B}\ntraining: {train_batch_size: 4, eval_steps: 100, num_epochs: 1}\n"
    (tmp_path / "kb.toml").write_text("")
    for more, said in (('"save_steps": 100', True), ('"evaluation_strategy": "steps"', False)):
        (tmp_path / "train.py").write_text(program.replace("{more}", more), "utf-8")
        found = [each.rule for each in result(tmp_path, config, "train.yaml").findings]
        assert ("eval-steps-without-eval-strategy" in found) is said


def test_workers_that_only_the_program_knows_leave_the_gpus_prediction_as_it_is(tmp_path: Path) -> None:
    program = """
import os, yaml
from transformers import Trainer, TrainingArguments

config = yaml.safe_load(open("train.yaml"))
Trainer(args=TrainingArguments(**config, dataloader_num_workers=os.cpu_count())).train()
"""
    config = (
        "model_name_or_path: Qwen/Qwen2.5-7B\noutput_dir: o\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-5\n"
    )
    (tmp_path / "kb.toml").write_text("")
    (tmp_path / "train.py").write_text(program, "utf-8")
    told = result(tmp_path, config, "train.yaml", gpu="16GB:8.9", host_memory="1GB")
    assert told.prediction is not None
    assert assumed(told)["training.dataloader_num_workers"] == 0
    named = {each.rule: {row.name for row in each.if_so} for each in told.findings if each.if_so}
    assert "training.dataloader_num_workers" not in named.get("training-peak-exceeds-gpu", ())
    assert "training.dataloader_num_workers" in named["host-floor-over-limit"]


def test_what_is_wrong_with_a_config_that_several_commands_read_is_told_once(tmp_path: Path) -> None:
    config = "model_name_or_path: Qwen/Qwen3-4B\noutput_dir: o\nlearning_rate: 5.0e-5\nmax_length: 512\n"
    (tmp_path / "kb.toml").write_text("")
    (tmp_path / "sft.yaml").write_text(config + "torch_empty_cache_steps: 1\n", "utf-8")
    runs = [f"trl sft --config sft.yaml --model_name_or_path Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B")]
    checker = file_checker(CATALOG, Project(), Question.of(gpu="rtx-4090"), Checking(root=str(tmp_path)))
    outcome = checker.check("\n".join(runs).encode(), str(tmp_path / "run.sh"))
    told = [[each.rule for each in section.findings] for section in outcome.results]
    assert ["empty-cache-every-few-steps" in rules for rules in told] == [True, False, False]


BY_UNSLOTH = """
import yaml
from trl import SFTTrainer
from unsloth import FastLanguageModel

config = yaml.safe_load(open("train.yaml"))
model, tokenizer = FastLanguageModel.from_pretrained(config["model"]["name"])
SFTTrainer(model=model, tokenizer=tokenizer).train()
"""
TEAM = "model: {name: Qwen/Qwen2.5-0.5B}\ntraining: {per_device_train_batch_size: 4, bf16: true}\nlora: {r: 8}\n"


@pytest.mark.exhaustive
def test_a_file_of_a_program_that_loads_by_unsloth_has_unsloths_defaults(tmp_path: Path) -> None:
    (tmp_path / "kb.toml").write_text("")
    for number in range(60):  # tools of the project, which come before it by their names
        text = "import yaml\nArgumentParser()\n" + "x = 1  # \n" * 9000
        (tmp_path / f"a_tool_{number}.py").write_text(text, "utf-8")
    assert result(tmp_path, TEAM, "train.yaml").prediction is not None
    (tmp_path / "train.py").write_text(BY_UNSLOTH, "utf-8")
    assert result(tmp_path, TEAM, "train.yaml").prediction is None


def test_flags_of_a_parser_of_its_own_leave_the_rest_to_the_program(tmp_path: Path) -> None:
    command = "python train_it.py --model-name bert-base-uncased --num-epochs 10 --batch-size 16 --learning-rate 2e-5 "
    told = result(tmp_path, command + "--early-stopping-patience 3 --output-dir out\n", "run.sh")
    assert "early-stopping-without-metric-or-eval" not in [each.rule for each in told.findings]


HEADED = """
from transformers import {class}, Trainer, TrainingArguments
model = {class}.from_pretrained("{model}")
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=32, fp16=True)).train()
"""


def peak(folder: Path, model: str, name: str) -> int | None:
    told = result(folder, HEADED.replace("{class}", name).replace("{model}", model))
    phase = told.prediction.phase("train") if told.prediction else None
    return phase.low_bytes if phase else None


def test_the_class_of_a_program_says_which_head_a_model_has(tmp_path: Path) -> None:
    sequence = peak(tmp_path, "bert-base-uncased", "AutoModelForSequenceClassification")
    masked = peak(tmp_path, "bert-base-uncased", "AutoModelForMaskedLM")
    assert sequence and masked and masked > 1.5 * sequence  # logits over the whole vocabulary
    assert peak(tmp_path, "Qwen/Qwen2.5-0.5B", "AutoModelForSequenceClassification") is None
    assert peak(tmp_path, "Qwen/Qwen2.5-0.5B", "AutoModelForCausalLM")


@pytest.mark.parametrize(
    ("head", "told_of"),
    [
        ("from trainer import SFTTrainer", False),
        ("from trl import SFTTrainer", True),
        ("from transformers import Trainer as Base", True),
    ],
)
def test_a_parser_without_the_librarys_class_has_none_of_its_defaults(tmp_path: Path, head: str, told_of: bool) -> None:
    (tmp_path / "train.py").write_text(
        f"import argparse\n{head}\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--train_batch_size', type=int)\n"
        "parser.add_argument('--eval_steps', type=int, default=-1)\n"
    )
    command = "python train.py --train_batch_size 8 --learning_rate 1e-5 --eval_steps 10 --bf16\n"
    told = result(tmp_path, command, "run.sh")
    assert any(each.rule == "eval-steps-without-eval-strategy" for each in told.findings) is told_of


@pytest.mark.parametrize(
    ("model", "level"), [("LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct", "rough"), ("facebook/opt-6.7b", "engine")]
)
def test_in_8_bits_with_checkpointing_what_the_engine_does_not_follow_is_answered_roughly(
    tmp_path: Path, model: str, level: str
) -> None:
    program = (
        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments\n"
        "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"
        "quantized = BitsAndBytesConfig(load_in_8bit=True)\n"
        f"model = AutoModelForCausalLM.from_pretrained('{model}', quantization_config=quantized)\n"
        "model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={'use_reentrant': False})\n"
        "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj', 'v_proj']))\n"
        "arguments = TrainingArguments('out', per_device_train_batch_size=4, fp16=True, learning_rate=1e-4,\n"
        "    gradient_checkpointing=True, gradient_checkpointing_kwargs={'use_reentrant': False})\n"
        "Trainer(model=model, args=arguments).train()\n"
    )
    told = result(tmp_path, program)
    assert told.prediction is not None
    assert told.prediction.level == level


def _with_adapter(prepares: str, targets: str) -> str:
    return (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "from peft import LoraConfig, get_peft_model\n"
        "from peft import prepare_model_for_int8_training, prepare_model_for_kbit_training\n"
        "model = AutoModelForCausalLM.from_pretrained('facebook/opt-6.7b', load_in_8bit=True)\n"
        f"{prepares}"
        f"model = get_peft_model(model, LoraConfig(r=8, target_modules={targets}))\n"
        "arguments = TrainingArguments('out', per_device_train_batch_size=4, fp16=True, learning_rate=1e-4)\n"
        "Trainer(model=model, args=arguments).train()\n"
    )


@pytest.mark.parametrize("name", ["int8", "kbit"])
def test_what_prepares_a_packed_model_turns_checkpointing_on_in_every_release_of_peft(
    tmp_path: Path, name: str
) -> None:
    """``prepare_model_for_int8_training`` is the older name, which programs in the manner of alpaca-lora still call."""
    prepares = f"model = prepare_model_for_{name}_training(model)\n"
    told = result(tmp_path, _with_adapter(prepares, "['q_proj', 'v_proj']"))
    assert told.setup is not None and (told.setup.gradient_checkpointing, told.setup.prepare_for_kbit) == (True, True)
    told = result(tmp_path, _with_adapter("", "['q_proj', 'v_proj']"))
    assert told.setup is not None and not told.setup.gradient_checkpointing


def test_all_linear_among_other_names_is_a_module_that_is_not_there(tmp_path: Path) -> None:
    told = result(tmp_path, _with_adapter("", "['all-linear', 'q_proj']"))
    assert told.setup is not None and told.setup.lora_target_modules == ("q_proj",)
    assert told.prediction is not None


@pytest.mark.parametrize(
    ("frozen", "predicted"),
    [
        ("", True),
        ("for each in model.base_model.parameters():\n    each.requires_grad = False\n", False),
        ("model.base_model.requires_grad_(False)\n", False),
        ("model.freeze_encoder()\n", False),
        ("# each.requires_grad = False\n", True),
    ],
)
def test_a_part_that_does_not_train_is_no_full_fine_tuning(tmp_path: Path, frozen: str, predicted: bool) -> None:
    program = (
        "from transformers import AutoModelForSeq2SeqLM, Trainer, TrainingArguments\n"
        f"model = AutoModelForSeq2SeqLM.from_pretrained('facebook/bart-base')\n{frozen}"
        "Trainer(model=model, args=TrainingArguments('out', per_device_train_batch_size=4)).train()\n"
    )
    assert (result(tmp_path, program).prediction is not None) is predicted


@pytest.mark.parametrize(
    ("lines", "predicted"),
    [
        ("", True),
        ("for each in model.model.parameters():\n    each.requires_grad = False\n", False),
        ("class Model(LlamaForCausalLM):\n    def forward(self): ...\n", False),
        ("loss = linear_cross_entropy(states, weight, labels)\n", False),
        ("# nothing of linear_cross_entropy\n", True),
    ],
)
@pytest.mark.parametrize("parses", [False, True])
def test_what_a_program_does_with_weights_and_loss_decides_whether_its_command_is_predicted(
    tmp_path: Path, lines: str, predicted: bool, parses: bool
) -> None:
    arguments = "TrainingArguments('out', per_device_train_batch_size=4)"
    if parses:
        arguments = "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]"
    (tmp_path / "train.py").write_text(
        "from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('huggyllama/llama-7b')\n"
        f"{lines}"
        f"Trainer(model=model, args={arguments}).train()\n"
    )
    if not parses:
        assert (result(tmp_path, (tmp_path / "train.py").read_text()).prediction is not None) is predicted
        return
    command = (
        "python train.py --model_name_or_path huggyllama/llama-7b --do_train --output_dir out --bf16 "
        "--per_device_train_batch_size 4 --block_size 512\n"
    )
    assert (result(tmp_path, command, "run.sh").prediction is not None) is predicted


def test_a_compiled_model_is_predicted_as_eager_code_and_says_so(tmp_path: Path) -> None:
    config = "model_name_or_path: huggyllama/llama-7b\nper_device_train_batch_size: 64\nlearning_rate: 0.001\n"
    (finding,) = (each for each in result(tmp_path, config, "a.yaml").findings if "training-peak" in each.rule)
    (compiled,) = (
        each
        for each in result(tmp_path, config + "torch_compile: true\n", "b.yaml").findings
        if "training-peak" in each.rule
    )
    assert finding.rule == compiled.rule
    assert "training.torch_compile" not in {each.name for each in finding.if_so}
    assert "training.torch_compile" in {each.name for each in compiled.if_so}


def test_a_flag_of_ones_own_by_which_not_all_weights_train_is_no_full_fine_tuning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments\n"
        "arguments = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses()[0]\n"
        "Seq2SeqTrainer(args=arguments).train()\n"
    )
    command = (
        "python train.py --model_name_or_path google/mt5-base --do_train --output_dir out "
        "--per_device_train_batch_size 4 --max_source_length 512"
    )
    assert result(tmp_path, f"{command}\n", "run.sh").prediction is not None
    assert result(tmp_path, f"{command} --enable_peft false\n", "run.sh").prediction is not None
    assert result(tmp_path, f"{command} --enable_peft\n", "run.sh").prediction is None
    assert result(tmp_path, f"{command} --freeze_encoder\n", "run.sh").prediction is None


def test_a_length_that_is_only_the_programs_default_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass, field\n"
        "from transformers import AutoModelForSeq2SeqLM, HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments\n"
        "@dataclass\nclass Data:\n    model_name_or_path: str = field()\n"
        "    max_source_length: int = field(default=1024)\n"
        "data, arguments = HfArgumentParser((Data, Seq2SeqTrainingArguments)).parse_args_into_dataclasses()\n"
        "model = AutoModelForSeq2SeqLM.from_pretrained(data.model_name_or_path)\n"
        "Seq2SeqTrainer(model=model, args=arguments).train()\n"
    )
    command = "python train.py --model_name_or_path google/mt5-base --do_train --output_dir out"
    command += " --per_device_train_batch_size 32"
    assert "data.max_source_length" in assumed(result(tmp_path, f"{command}\n", "run.sh"))
    written = result(tmp_path, f"{command} --max_source_length 1024\n", "run.sh")
    assert "data.max_source_length" not in assumed(written)


LOADER = "import yaml\n\ndef load_config(name):\n    return yaml.safe_load(open(f'config/{name}.yaml'))\n"
STARTS = (
    "from transformers import Trainer, TrainingArguments\nfrom utils import load_config\nfrom model import load\n"
    "config = load_config('train')\nTrainer(model=load(config), args=TrainingArguments(**config['training'])).train()\n"
)
PREPARES = (
    "from peft import prepare_model_for_kbit_training\nfrom transformers import AutoModelForCausalLM\n\n"
    "def load(config):\n    model = AutoModelForCausalLM.from_pretrained(config['model']['name'])\n"
    "    return prepare_model_for_kbit_training(model)\n"
)


@pytest.mark.parametrize("loads_here", [True, False])
def test_a_program_whose_module_loads_the_config_reads_it_too(tmp_path: Path, loads_here: bool) -> None:
    starts = STARTS.replace("from utils import load_config\n", LOADER) if loads_here else STARTS
    for name, text in {"train.py": starts, "utils.py": LOADER, "model.py": PREPARES}.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "requirements.txt").write_text("transformers==4.57.6\n", "utf-8")
    config = (
        "model: {name: Qwen/Qwen2.5-0.5B}\ntraining: {output_dir: out, per_device_train_batch_size: 64, bf16: true}\n"
    )
    told = result(tmp_path, config, "train.yaml")
    assert told.prediction is None  # whether it checkpoints, the program says
    assert "gradient_checkpointing" in str(told.note_values["settings"])


def test_what_a_module_of_settings_declares_is_nothing_to_the_librarys_class(tmp_path: Path) -> None:
    settings = f"{LOADER}\nclass Settings:\n    warmup_ratio: float = 0.1\n"
    (tmp_path / "utils.py").write_text(settings, "utf-8")
    (tmp_path / "requirements.txt").write_text("transformers==5.20.0\n", "utf-8")
    text = (
        "from transformers import Trainer, TrainingArguments\nfrom utils import Settings, load_config\n"
        "config = Settings(**load_config('train'))\nargs = TrainingArguments('out', warmup_ratio=config.warmup_ratio)\n"
        "Trainer(model=model, args=args).train()\n"
    )
    assert "warmup-ratio-removed" in {each.rule for each in result(tmp_path, text).findings}


DPO = "python train_dpo.py --model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size 4 --bf16 true\n"


@pytest.mark.parametrize(
    ("program", "by_name"),
    [
        (None, True),
        ("import argparse\np = argparse.ArgumentParser()\nfrom mine import train\ntrain(p.parse_args())\n", True),
        ("from trl import DPOTrainer\nfrom mine import settings\nDPOTrainer(**settings()).train()\n", False),
    ],
)
def test_a_trainer_that_a_scripts_name_alone_says_is_assumed(
    tmp_path: Path, program: str | None, by_name: bool
) -> None:
    if program is not None:
        (tmp_path / "train_dpo.py").write_text(program)
    told = result(tmp_path, DPO, "run.sh")
    assert ("script.trainer" in assumed(told)) is by_name


BY_OMEGACONF = """
from omegaconf import OmegaConf
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

config = OmegaConf.load("run.yaml")
adapter = OmegaConf.to_container(config.adapter, resolve=True)
args = SFTConfig(**config.train)
SFTTrainer(model=config.model.name, args=args, peft_config=LoraConfig(**adapter)).train()
"""
RUN_YAML = """
model: {name: Qwen/Qwen2.5-0.5B-Instruct}
train: {output_dir: o, learning_rate: 2e-5, per_device_train_batch_size: 2, max_length: 256, bf16: true}
adapter: {r: 6, target_modules: [q_proj], task_type: CAUSAL_LM}
"""


def test_omegaconf_reads_2e_5_as_a_number_and_hands_a_part_on_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_YAML)
    told = result(tmp_path, BY_OMEGACONF)
    assert told.unit.settings["training.learning_rate"].value == 2e-5
    assert told.setup is not None and (told.setup.method, told.setup.lora_r) == ("lora", 6)
    assert told.prediction is not None
    assert not {"quoted-number", "yaml-number-is-text"} & {each.rule for each in told.findings}


@pytest.mark.parametrize(("written", "read", "rules"), [
    ("1.5e5", 150000.0, set()), ("1_0e-3", 0.01, set()), (".5e-3", 0.0005, set()), ("1.0e-4", 0.0001, set()),
    ('"1e-1"', 0.1, {"quoted-number"}), ("'0.5'", 0.5, {"quoted-number"}),
])  # fmt: skip
def test_omegaconf_reads_what_its_own_loader_takes_for_a_number_where_it_is_not_quoted(
    tmp_path: Path, written: str, read: float, rules: set[str]
) -> None:
    (tmp_path / "run.yaml").write_text(RUN_YAML.replace("2e-5", written))
    told = result(tmp_path, BY_OMEGACONF)
    assert told.unit.settings["training.learning_rate"].value == read
    found = [each for each in told.findings if each.rule in ("quoted-number", "yaml-number-is-text")]
    assert ({each.rule for each in found}, [each.fixes for each in found if each.fixes]) == (rules, [])


@pytest.mark.parametrize("loads", ["OmegaConf.load('run.yaml')", "yaml.safe_load(open('run.yaml'))"])
def test_a_quoted_number_that_a_program_loads_is_told_as_one(tmp_path: Path, loads: str) -> None:
    (tmp_path / "run.yaml").write_text(RUN_YAML.replace("batch_size: 2", 'batch_size: "2"').replace("2e-5", "1.0e-5"))
    told = result(
        tmp_path,
        f"import yaml\nfrom omegaconf import OmegaConf\nfrom trl import SFTConfig, SFTTrainer\n\nconfig = {loads}\n"
        "args = SFTConfig(**config['train'])\nSFTTrainer(model='Qwen/Qwen2.5-0.5B-Instruct', args=args).train()\n",
    )
    found = [each for each in told.findings if each.rule in ("quoted-number", "yaml-number-is-text")]
    assert [(each.rule, each.fixes) for each in found] == [("quoted-number", ())]


def test_what_a_file_says_otherwise_than_meant_is_not_mended_in_the_program_that_loads_it(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_YAML)
    told = result(
        tmp_path,
        "import yaml\nfrom trl import SFTConfig, SFTTrainer\n\nconfig = yaml.safe_load(open('run.yaml'))\n"
        "args = SFTConfig(**config['train'])\nSFTTrainer(model='Qwen/Qwen2.5-0.5B-Instruct', args=args).train()\n",
    )
    found = [each for each in told.findings if each.rule in ("quoted-number", "yaml-number-is-text")]
    assert [(each.rule, each.fixes) for each in found] == [("yaml-number-is-text", ())]
