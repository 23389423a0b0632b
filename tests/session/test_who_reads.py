"""Names in a config against who reads it: a library, a program of the project's own, or nobody."""

import os
from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.core.finding import Finding
from kb.core.result import Unusable
from kb.session.file import FileChecker
from kb.session.lookups import LOOKUPS, still
from kb.session.prepare import file_checker
from kb.session.project import find_project
from kb.session.run import Input, check_input

CATALOG = shallow_catalog()
RENAMED = "evaluation-strategy-removed"
SLIP = "unknown-key-near-known"
HF = "model_name_or_path: t5-small\nper_device_train_batch_size: 4\nevaluation_strategy: epoch\noutput_dir: o\n"
TEAM = "general: {model_name: t5-small}\ntraining: {evaluation_strategy: epoch, learning_rate: 0.001}\n"
PARSER = """
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="t5-small")
    use_qlora: bool = field(default=False)
parser = HfArgumentParser((ModelArguments, TrainingArguments))
"""
ARGPARSE = """
import argparse
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_training_batch_size", type=int)
    parser.add_argument('--learning-rate', type=float)
    parser.add_argument("--num_train_epochs", type=int)
    return parser.parse_args()
"""


def checker_of(folder: Path, **facts: bool) -> FileChecker:
    if facts:
        rows = "".join(f"script.{name} = {str(value).lower()}\n" for name, value in facts.items())
        (folder / "kb.toml").write_text(f"[facts]\n{rows}", "utf-8")
    return file_checker(CATALOG, find_project(str(folder)), Question.of(gpu="t4", versions={"transformers": "5.23.0"}))


def put(folder: Path, files: dict[str, str]) -> None:
    (folder / ".git").mkdir(exist_ok=True, parents=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def said(folder: Path, name: str, rule: str, **facts: bool) -> Finding | None:
    outcome = check_input(Input(str(folder / name)), checker_of(folder, **facts))
    assert not isinstance(outcome, Unusable), outcome
    return next((each for unit in outcome.results for each in unit.findings if each.rule == rule), None)


def test_a_renamed_key_is_a_fault_only_where_the_program_hands_it_on(tmp_path: Path) -> None:
    put(tmp_path, {"configs/a.yaml": TEAM})
    assert said(tmp_path, "configs/a.yaml", RENAMED) is None
    put(tmp_path, {"src/train.py": "import yaml\nargs = TrainingArguments(eval_strategy=c['evaluation_strategy'])\n"})
    assert said(tmp_path, "configs/a.yaml", RENAMED) is None
    put(tmp_path, {"src/train.py": "import yaml\nc = yaml.safe_load(f)\na = TrainingArguments(**c['training'])\n"})
    found = said(tmp_path, "configs/a.yaml", RENAMED)
    assert found is not None and (found.severity, found.certainty, found.if_so) == ("error", "certain", ())


def test_the_project_says_whether_its_program_hands_names_on(tmp_path: Path) -> None:
    put(tmp_path, {"a.yaml": TEAM, "b.yaml": HF})
    found = said(tmp_path, "a.yaml", RENAMED, passes_training_arguments=True)
    assert found is not None and found.severity == "error"
    assert said(tmp_path, "b.yaml", RENAMED, passes_training_arguments=False) is None


def test_a_flat_file_of_nothing_but_the_librarys_names_is_likely_read_by_it(tmp_path: Path) -> None:
    put(tmp_path, {"a.yaml": HF})
    found = said(tmp_path, "a.yaml", RENAMED)
    assert found is not None and (found.severity, found.certainty) == ("warning", "likely")
    assert [each.name for each in found.if_so] == ["script.passes_training_arguments"]
    assert {fix.safety for fix in found.fixes} == {"unsafe"}
    put(tmp_path, {"a.yaml": HF + "our_own_corpus: x\n"})
    assert said(tmp_path, "a.yaml", RENAMED) is None
    put(tmp_path, {"run.py": PARSER + "args = parser.parse_yaml_file('a.yaml')\n"})
    found = said(tmp_path, "a.yaml", RENAMED)
    assert found is not None and (found.severity, found.certainty) == ("error", "certain")


def test_a_flag_of_the_programs_own_is_no_slip(tmp_path: Path) -> None:
    command = "cd ..\ndeepspeed {} --per_device_training_batch_size 4 --learning_rate 1e-4 --num_train_epochs 2\n"
    put(tmp_path, {"scripts/run.sh": command.format("main.py")})
    assert said(tmp_path, "scripts/run.sh", SLIP) is None
    put(tmp_path, {"main.py": ARGPARSE})
    assert said(tmp_path, "scripts/run.sh", SLIP) is None
    put(tmp_path, {"main.py": PARSER})
    found = said(tmp_path, "scripts/run.sh", SLIP)
    assert found is not None and found.certainty == "certain"
    put(tmp_path, {"main.py": "from lib.flags import parse_args\n", "lib/flags.py": ARGPARSE})
    assert said(tmp_path, "scripts/run.sh", SLIP) is None


def test_a_slip_of_the_programs_own_flag_is_said(tmp_path: Path) -> None:
    put(tmp_path, {"run.sh": "python main.py --learning_rat 1e-4 --num_train_epochs 3 --fp16\n", "main.py": ARGPARSE})
    (tmp_path / "main.py").write_text(ARGPARSE.replace("learning-rate", "learning_rate"), "utf-8")
    assert said(tmp_path, "run.sh", SLIP) is None, "argparse takes the beginning of a flag for the whole"
    put(tmp_path, {"run.sh": "python main.py --learing_rate 1e-4 --num_train_epochs 3 --fp16\n"})
    found = said(tmp_path, "run.sh", SLIP)
    assert found is not None and found.facts["meant"] == "--learning_rate"


@pytest.mark.parametrize(
    ("command", "certainty"),
    [
        ("accelerate launch examples/run_glue.py --model_name_or_path b --evaluation_strategy epoch", "likely"),
        ("python run_glue_no_trainer.py --model_name_or_path b --evaluation_strategy epoch --do_train", None),
        ("torchrun sft.py --model_name_or_path b --evaluation_strategy epoch --bf16 True", None),
        ("torchrun sft.py --model_name_or_path b --evaluation_strategy no --save_strategy steps --bf16 1", "likely"),
        ("trl sft --model_name_or_path b --evaluation_strategy epoch", "certain"),
    ],
)
def test_a_program_that_is_not_there_is_judged_by_its_name_and_its_flags(tmp_path, command, certainty) -> None:
    put(tmp_path, {"run.sh": command + "\n"})
    found = said(tmp_path, "run.sh", RENAMED)
    assert (found.certainty if found else None) == certainty


def test_a_program_that_answers_reports_to_no_tracker(tmp_path: Path) -> None:
    flags = "--model_name_or_path gpt2 --output_dir o --run-name first"
    put(
        tmp_path,
        {"a.sh": f"python predict.py {flags} --eval-batch-size 4\n", "b.sh": f"python run_clm.py {flags} --do_train\n"},
    )
    assert said(tmp_path, "a.sh", "report-to-default-is-none") is None
    assert said(tmp_path, "b.sh", "report-to-default-is-none") is not None


def test_a_class_in_a_python_file_takes_its_own_names(tmp_path: Path) -> None:
    put(tmp_path, {"train.py": "a = TrainingArguments('o', evaluation_strategy='epoch', learning_rate=1e-4)\n"})
    found = said(tmp_path, "train.py", RENAMED)
    assert found is not None and (found.severity, found.certainty) == ("error", "certain")


def test_a_type_is_wrong_only_where_the_name_is_the_librarys(tmp_path: Path) -> None:
    text = "general: {model_name: t5-small}\ntraining: {warmup_steps: a tenth, learning_rate: 0.001}\n"
    put(tmp_path, {"a.yaml": text})
    assert said(tmp_path, "a.yaml", "setting-of-wrong-type") is None
    put(tmp_path, {"train.py": "import yaml\nargs = TrainingArguments(**yaml.safe_load(f)['training'])\n"})
    assert said(tmp_path, "a.yaml", "setting-of-wrong-type") is not None


def test_nothing_above_the_project_is_read_and_nothing_endless(tmp_path: Path) -> None:
    inner = tmp_path / "project"
    put(inner, {"a.yaml": TEAM})
    handing = "import yaml\na = TrainingArguments(**yaml.safe_load(f)['training'])\n"
    (tmp_path / "train.py").write_text(handing, "utf-8")
    (inner / "loop").symlink_to(inner, target_is_directory=True)
    (inner / "zero.py").symlink_to("/dev/zero")
    os.mkfifo(inner / "pipe.py")
    (inner / "large.py").write_text(handing + "#" * (2 << 20), "utf-8")
    assert said(inner, "a.yaml", RENAMED) is None


def test_steps_that_a_program_evaluates_at_by_itself_are_no_interval_of_the_library(tmp_path: Path) -> None:
    text = "num_generations: 4\nmax_prompt_length: 64\nlearning_rate: 0.001\neval_steps: 50\nnum_train_epochs: 1\n"
    program = "import importlib, yaml\ntrl = importlib.import_module('trl')\nc = yaml.safe_load(f)\n"
    program += "a = trl.GRPOConfig(eval_strategy='no', learning_rate=c['learning_rate'])\n"
    rule = "eval-steps-without-eval-strategy"
    put(tmp_path, {"configs/a.yaml": text, "train.py": program})
    assert said(tmp_path, "configs/a.yaml", rule) is None
    put(tmp_path, {"train.py": program.replace("eval_strategy='no', ", "eval_steps=c['eval_steps'], ")})
    assert said(tmp_path, "configs/a.yaml", rule) is not None


def test_a_stored_result_does_not_outlive_a_change_of_the_program(tmp_path: Path) -> None:
    put(tmp_path, {"a.yaml": TEAM, "train.py": "import yaml\na = TrainingArguments(**yaml.safe_load(f)['training'])\n"})
    checker = checker_of(tmp_path)
    check_input(Input(str(tmp_path / "a.yaml")), checker)
    rows = checker.seen.take()
    assert any(kind == "programs" for kind, *_ in rows) and still(rows, LOOKUPS | checker.lookups)
    put(tmp_path, {"train.py": "import yaml\na = TrainingArguments(eval_strategy=c['evaluation_strategy'])\n"})
    assert not still(rows, LOOKUPS | checker_of(tmp_path).lookups)


OWN_CLASS = """
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
@dataclass
class ScriptArguments:
    model_name_or_path: str = field(default="gpt2")
    eval_steps: int = field(default=50)
args = HfArgumentParser(ScriptArguments).parse_args_into_dataclasses()[0]
training = TrainingArguments(eval_strategy="steps", eval_steps=args.eval_steps, output_dir="out")
"""
COMMAND = (
    "python train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --eval_steps 20 --output_dir o {}\n"
)
ADAPTED = "model = get_peft_model(model, LoraConfig(r=8))\n"
NO_STRATEGY = "eval-steps-without-eval-strategy"


@pytest.mark.parametrize(
    ("program", "fires"),
    [
        ("", True),  # nothing to be found: the flags are as the library's are
        (PARSER, True),
        (OWN_CLASS, False),
        (OWN_CLASS.replace('eval_strategy="steps", ', ""), True),  # the program leaves it to the library
        (OWN_CLASS.replace("eval_strategy", "evaluation_strategy"), False),  # under its older name
        (PARSER + "\nimport optax\n", False),  # JAX: the Trainer's defaults are not its own
    ],
)
def test_what_a_program_with_its_own_arguments_sets_itself_is_no_default(
    tmp_path: Path, program: str, fires: bool
) -> None:
    put(tmp_path, {"run.sh": COMMAND.format(""), **({"train.py": program} if program else {})})
    if "optax" in program:
        (tmp_path / "train.py").write_text(program + "eval_strategy = 'steps'\n", "utf-8")
    assert (said(tmp_path, "run.sh", NO_STRATEGY) is not None) == fires


@pytest.mark.parametrize(("name", "fires"), [("eval_strategy", False), ("logging_strategy", True)])
def test_a_program_may_set_what_it_names_by_a_variable(tmp_path: Path, name: str, fires: bool) -> None:
    program = (
        f"key = '{name}' if '{name}' in fields else 'other'\nrow = dict(c)\nrow[key] = 'steps' if data else 'no'\n"
    )
    program += "args = TrainingArguments(**{key: value for key, value in row.items() if key in fields})\n"
    put(
        tmp_path,
        {"a.yaml": HF.replace("evaluation_strategy: epoch", "eval_steps: 20"), "train.py": "import yaml\n" + program},
    )
    assert (said(tmp_path, "a.yaml", NO_STRATEGY) is not None) is fires


@pytest.mark.parametrize(
    ("program", "flags", "method"),
    [
        (PARSER.replace("use_qlora", "verbose") + "model = get_peft_model(model, LoraConfig(r=8))\n", "", None),
        (PARSER.replace("use_qlora", "use_lora") + "model = get_peft_model(model, LoraConfig(r=8))\n", "", "full"),
        (
            PARSER.replace("use_qlora", "verbose") + "model = get_peft_model(model, LoraConfig(r=8))\n",
            "--lora_r 8",
            "lora",
        ),
        (PARSER, "", "full"),
        ("parser.add_argument('--use_lora', action='store_true')\nm = get_peft_model(m, c)\n", "", "full"),
        ("parser.add_argument('--lora_weights', default=None)\nm = get_peft_model(m, c)\n", "", None),
    ],
)
def test_a_program_that_adds_an_adapter_itself_leaves_the_method_open(
    tmp_path: Path, program: str, flags: str, method: str | None
) -> None:
    put(tmp_path, {"run.sh": COMMAND.format(flags), "train.py": program})
    outcome = check_input(Input(str(tmp_path / "run.sh")), checker_of(tmp_path))
    assert not isinstance(outcome, Unusable)
    (result,) = outcome.results
    assert result.setup is not None
    assert (result.setup.method if result.setup.method_known else None) == method
    assert method is not None or result.prediction is None


OF_A_COURSE = (
    PARSER
    + """
model_args, training_args = parser.parse_args_into_dataclasses()
# To set an argument by hand:
# training_args.per_device_train_batch_size = 4
class QuestionAnsweringTrainer(Trainer):
    def evaluate(self):
        whole = True if self.compute_metrics is None else None
        return self.prediction_loop(self.get_eval_dataloader(), description="Evaluation", prediction_loss_only=whole)
"""
)


@pytest.mark.parametrize(
    ("line", "predicted"),
    [
        ("", True),
        ("training_args.gradient_checkpointing = model_args.use_qlora\n", False),
        ("training_args.prediction_loss_only = model_args.use_qlora\n", False),
    ],
)
def test_what_a_comment_shows_and_what_a_loop_takes_sets_no_argument(
    tmp_path: Path, line: str, predicted: bool
) -> None:
    command = "python train.py --model_name_or_path gpt2 --do_train --eval_strategy epoch --output_dir o\n"
    put(tmp_path, {"run.sh": command, "train.py": OF_A_COURSE + line})
    outcome = check_input(Input(str(tmp_path / "run.sh")), checker_of(tmp_path))
    assert not isinstance(outcome, Unusable)
    (result,) = outcome.results
    assert (result.prediction is not None) == predicted, result.note


def test_a_bare_flag_is_a_switch_where_the_program_says_so(tmp_path: Path) -> None:
    put(tmp_path, {"run.sh": "python train.py --learning_rate 1e-4 --fp16 --resume_from_checkpoint\n"})
    assert said(tmp_path, "run.sh", "setting-of-wrong-type") is not None
    put(tmp_path, {"train.py": ARGPARSE + "parser.add_argument('--resume_from_checkpoint', action='store_true')\n"})
    assert said(tmp_path, "run.sh", "setting-of-wrong-type") is None
    put(tmp_path, {"train.py": PARSER + "    resume_from_checkpoint: bool = False\n"})
    assert said(tmp_path, "run.sh", "setting-of-wrong-type") is None


def test_words_of_a_programs_own_are_no_names_of_modules(tmp_path: Path) -> None:
    command = "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --use_peft True --target_modules all --bf16\n"
    put(tmp_path, {"run.sh": command, "train.py": PARSER + "    target_modules: str = field(default='all')\n"})
    assert said(tmp_path, "run.sh", "lora-targets-match-nothing") is None


EVALUATION_TASK = """task: c4
dataset_path: allenai/c4
dataset_name: en
dataset_kwargs: {verification_mode: no_checks}
generation_kwargs: {do_sample: false, num_beams: 1}
doc_to_target: !function preprocess.target
"""


def test_a_file_of_another_programs_own_tags_is_passed_over_unless_it_bears_a_formats_marks(tmp_path: Path) -> None:
    marked = HF + "callback: !include callback.yaml\n"
    put(
        tmp_path,
        {"task.yaml": EVALUATION_TASK, "plain.yaml": EVALUATION_TASK.replace("!function ", ""), "a.yaml": marked},
    )
    checker = checker_of(tmp_path)
    assert check_input(Input(str(tmp_path / "task.yaml"), named=False), checker) is None
    plain = check_input(Input(str(tmp_path / "plain.yaml"), named=False), checker)
    assert plain is None or (not isinstance(plain, Unusable) and plain.results[0].unit.dialect is None)
    for name, named in (("task.yaml", True), ("a.yaml", False)):
        fault = check_input(Input(str(tmp_path / name), named=named), checker)
        assert isinstance(fault, Unusable)
        assert fault.key == "config.tag"


def test_a_record_of_results_is_no_config_however_many_known_names_it_holds(tmp_path: Path) -> None:
    """One of a benchmark repeats the server's options in each of its rows."""
    row = '{"model_name_or_path": "m", "per_device_train_batch_size": 1, "learning_rate": 1, "output_dir": "o"}'
    put(tmp_path, {"report.json": '{"benchmarks": [' + ",".join([row] * 6000) + "]}", "a.yaml": HF})
    checker = checker_of(tmp_path)
    assert check_input(Input(str(tmp_path / "report.json"), named=False), checker) is None
    fault = check_input(Input(str(tmp_path / "report.json"), named=True), checker)
    assert isinstance(fault, Unusable)
    assert fault.key == "config.too-many-values"


def test_arguments_of_a_project_made_after_a_librarys_pattern_are_its_own(tmp_path: Path) -> None:
    config = "stage: sft\nfinetuning_type: lora\ndataset: a\ntemplate: qwen\noutput_dir: o\nwandb_project: ours\n"
    put(tmp_path, {"a.yaml": config, "made.py": "import torch\n"})
    assert said(tmp_path, "a.yaml", "unknown-argument") is not None
    program = "import yaml\nTrainer(TrainingArguments(o))\nwandb.init(project=finetuning_args.wandb_project)\n"
    put(tmp_path, {"train.py": program + "yaml.safe_load(open(path))\n"})
    assert said(tmp_path, "a.yaml", "unknown-argument") is None


def test_the_trainers_config_and_trls_leave_nothing_to_choose(tmp_path: Path) -> None:
    config = "model_name_or_path: m\neval_file: e\nmax_input_length: 768\nmax_new_tokens: 512\nbatch_size: 2\n"
    put(tmp_path, {"a.yaml": config + "output_file: o\nkeyword_match: true\nexact_match: false\n"})
    assert said(tmp_path, "a.yaml", "ambiguous-dialect") is None


def test_a_config_of_own_names_with_adapters_leaves_open_how_the_weights_are_loaded(tmp_path: Path) -> None:
    config = (
        "model: {base_model: Qwen/Qwen2.5-7B-Instruct}\ntrain: {epochs: 2, lr: 2.0e-4, batch_size: 1, max_seq_len: 2048"
    )
    put(tmp_path, {"a.yaml": config + ", lora_r: 16}\n", "b.yaml": config + "}\n"})
    assert said(tmp_path, "a.yaml", "training-peak-exceeds-gpu") is None
    assert said(tmp_path, "b.yaml", "training-peak-exceeds-gpu") is not None


@pytest.mark.parametrize(
    ("trains", "method"),
    [
        ("pl.Trainer(devices=1).fit(Model(config['model_name']))", None),  # Lightning's: fp32, no checkpointing
        ("loss.backward()", None),
        ("Trainer(args=TrainingArguments('out', **config))", "full"),
    ],
)
def test_where_no_program_has_the_librarys_trainer_its_defaults_say_nothing(
    tmp_path: Path, trains: str, method: str | None
) -> None:
    config = "model_name: facebook/opt-125m\nbatch_size: 80\nlearning_rate: 5.0e-5\nmax_length: 160\n"
    program = "config = yaml.safe_load(f)\nload(config['batch_size'], config['max_length'], config['learning_rate'])\n"
    put(tmp_path, {"config.yaml": config, "train.py": f"{program}model = config['model_name']\n{trains}\n"})
    outcome = check_input(Input(str(tmp_path / "config.yaml")), checker_of(tmp_path))
    assert not isinstance(outcome, Unusable), outcome
    (result,) = outcome.results
    assert result.unit.dialect == "hf"  # by names that every library has, no trainer of TRL's
    assert result.setup is not None
    assert (result.setup.method if result.setup.method_known else None) == method
    assert (result.prediction is None) is (method is None)


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("{mixed_precision: fp16, cpu: false, offload: true, split_batches: true}", False),
        ("{split_batches: true, even_batches: false, device: 0}", True),
    ],
)
def test_a_group_is_taken_for_another_only_where_it_holds_the_keys_of_that(
    tmp_path: Path, group: str, told: bool
) -> None:
    program = "import yaml\na = TrainingArguments(**yaml.safe_load(f))\n"
    put(tmp_path, {"a.yaml": HF + f"accelerate_config: {group}\n", "train.py": program})
    assert (said(tmp_path, "a.yaml", SLIP) is not None) is told


MARKED = '\ufeff{"per_device_train_batch_size": 4, "learning_rate": 0.001, "output_dir": "o", "num_train_epochs": 3}\n'


def test_a_byte_order_mark_is_a_fault_only_of_what_stops_there(tmp_path: Path) -> None:
    mark = "byte-order-mark"
    put(tmp_path, {"a.json": MARKED, "a.yaml": "\ufeff" + HF, "run.sh": "\ufeffpython train.py --fp16 --do_train\n"})
    assert said(tmp_path, "a.json", mark) is not None
    assert said(tmp_path, "a.yaml", mark) is None
    assert said(tmp_path, "run.sh", mark) is not None
    put(tmp_path, {"train.py": "c = json.load(open(p, encoding='utf-8-sig'))\na = TrainingArguments(**c)\n"})
    assert said(tmp_path, "a.json", mark) is None


HALF = "model_name_or_path: facebook/bart-base\ntorch_dtype: float16\nfp16: true\noutput_dir: o\ndo_train: true\n"
OF_HALF = "--model_name_or_path facebook/bart-base --torch_dtype float16 --fp16 --do_train --output_dir o\n"


@pytest.mark.parametrize(
    ("name", "text", "facts", "severity"),
    [
        ("a.yaml", HALF, "", "warning"),
        ("a.yaml", HALF, 'launch.launcher = "torchrun"\n', "error"),
        ("run.sh", "python train.py " + OF_HALF, "", "error"),
        ("run.sh", "accelerate launch train.py " + OF_HALF, "", "warning"),
        ("run.sh", "accelerate launch --multi_gpu train.py " + OF_HALF, "", "error"),
        ("run.sh", "accelerate launch --config_file ddp.yaml train.py " + OF_HALF, "", "error"),
        ("run.sh", "accelerate launch --config_file zero.yaml train.py " + OF_HALF, "", None),
    ],
)
def test_what_an_accelerate_config_may_change_is_certain_only_where_none_starts_the_run(
    tmp_path: Path, name: str, text: str, facts: str, severity: str | None
) -> None:
    zero = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\nnum_processes: 2\n"
    put(tmp_path, {name: text, "ddp.yaml": "distributed_type: MULTI_GPU\nnum_processes: 2\n", "zero.yaml": zero})
    put(tmp_path, {"train.py": PARSER, "kb.toml": f"[facts]\n{facts}"})
    found = said(tmp_path, name, "fp16-amp-on-fp16-weights")
    assert (found.severity if found else None) == severity


@pytest.mark.parametrize(("launcher", "batch"), [("python", 6), ("torchrun --nproc_per_node 2", 64)])
def test_an_evaluation_batch_is_no_larger_than_what_is_evaluated_on_one_gpu(
    tmp_path: Path, launcher: str, batch: int
) -> None:
    """On several accelerate fills each process's last batch with samples from the beginning."""
    flags = "--per_device_eval_batch_size 64 --max_eval_samples 6 --do_eval --do_train --output_dir o\n"
    put(tmp_path, {"run.sh": f"{launcher} train.py --model_name_or_path t5-small {flags}", "train.py": PARSER})
    outcome = check_input(Input(str(tmp_path / "run.sh")), checker_of(tmp_path))
    assert not isinstance(outcome, Unusable)
    setup = outcome.results[0].setup
    assert setup is not None and setup.per_device_eval_batch_size == batch


@pytest.mark.parametrize(("word", "told"), [("filled", False), ("None", True)])
def test_a_word_that_stands_for_several_settings_is_a_placeholder(tmp_path: Path, word: str, told: bool) -> None:
    text = HF + f"learning_rate: {word}\nrun_name: {word}\nwarmup_ratio: {word}\n"
    program = "import yaml\na = TrainingArguments(**yaml.safe_load(f))\n"
    put(tmp_path, {"a.yaml": text, "train.py": program})
    assert (said(tmp_path, "a.yaml", "setting-of-wrong-type") is not None) is told
