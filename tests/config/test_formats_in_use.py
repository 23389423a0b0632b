"""What the examples of public projects taught: shapes that were misread, and runs that are of no kind kb predicts."""

import json
from pathlib import Path

import pytest

from catalog_sample import load_catalog, shallow_catalog
from kb.advice.question import Question
from kb.advice.run.named_model import ModelIndex
from kb.config.hydra.tree import _upwards
from kb.config.marks import bears_marks
from kb.core.expression import is_unknown
from kb.core.result import Unusable
from kb.core.setup import PostTraining
from kb.report.check.json_report import untold
from kb.report.check.text import is_bare
from kb.session.prepare import file_checker
from kb.session.project import find_project
from kb.session.run import FileResult, Input, check_input
from warm_runs import run_text

CATALOG = load_catalog()


@pytest.fixture(scope="module")
def checker(tmp_path_factory):
    wanted = Question.of(gpu="a100-80gb", host_memory="500GB")
    return file_checker(shallow_catalog(), find_project(str(tmp_path_factory.mktemp("project"))), wanted)


def checked(checker, name: str, text: str) -> FileResult:
    outcome = check_input(Input(name, raw=text.encode()), checker)
    assert not isinstance(outcome, Unusable), outcome
    return outcome


def rules_of(outcome: FileResult) -> set[str]:
    return {finding.rule for unit in outcome.results for finding in unit.findings if finding.severity != "info"}


LLAMAFACTORY = """\
llamafactory-cli train --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --stage sft --do_train \\
    --finetuning_type lora --lora_target {target} --cutoff_len 2048 --output_dir o --bf16 {more}
"""


def test_flags_of_a_tool_are_translated_as_its_files_are(checker):
    outcome = checked(checker, "t.sh", LLAMAFACTORY.format(target="all", more=""))
    (unit,) = outcome.results
    assert rules_of(outcome) == set()
    assert unit.unit.settings["lora.target_modules"].value == ("all-linear",) or "all-linear" in str(
        unit.unit.settings["lora.target_modules"].value
    )
    assert unit.unit.settings["data.max_source_length"].value == 2048
    assert unit.prediction is not None


def test_a_list_in_one_flag_is_parted(checker):
    (unit,) = checked(checker, "t.sh", LLAMAFACTORY.format(target="q_proj,v_proj", more="")).results
    assert unit.unit.settings["lora.target_modules"].value == ("q_proj", "v_proj")


def test_a_flag_that_says_nothing_of_a_setting_leaves_it(checker):
    (unit,) = checked(checker, "t.sh", LLAMAFACTORY.format(target="all", more="--quantization_bit 8")).results
    assert "quantization.load_in_4bit" not in unit.unit.settings
    assert unit.unit.settings["quantization.load_in_8bit"].value is True


@pytest.mark.parametrize(
    "text",
    [
        LLAMAFACTORY.format(target="all", more="").replace("--stage sft", "--stage ppo"),
        "trl ppo --model_name_or_path Qwen/Qwen2-0.5B-Instruct --per_device_train_batch_size 2",
        "accelerate launch trl/scripts/gkd.py --model_name_or_path Qwen/Qwen2-0.5B-Instruct --learning_rate 1e-5",
    ],
)
def test_commands_of_methods_that_are_not_predicted_say_so(checker, text):
    (unit,) = checked(checker, "t.sh", text).results
    assert unit.prediction is None
    assert unit.note == "trainer_not_predicted"


@pytest.mark.parametrize(
    ("kind", "post"),
    [
        ("dpo", PostTraining("dpo", reference="model")),
        ("grpo --use_vllm true --vllm_mode server", PostTraining("grpo", completion=512)),
        ("grpo", PostTraining("grpo", completion=512, generated_rows=16)),
        ("reward", PostTraining("reward", head="rows")),
    ],
)
def test_post_training_by_trl_is_predicted(kind, post, tmp_path):
    """Without a GPU: what the largest batch of each assumption would be is nothing that this asks."""
    checker = file_checker(shallow_catalog(), find_project(str(tmp_path)), Question.of(gpu="none"))
    given = "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --learning_rate 1e-5"
    text = f"trl {kind} --model_name_or_path Qwen/Qwen2-0.5B-Instruct {given}\n"
    (unit,) = checked(checker, "t.sh", text).results
    assert unit.setup.post == post
    assert unit.prediction is not None


def test_plain_fine_tuning_by_trl_is_predicted(checker):
    text = "trl sft --model_name_or_path Qwen/Qwen2-0.5B-Instruct --per_device_train_batch_size 2 --max_length 512\n"
    (unit,) = checked(checker, "t.sh", text).results
    assert unit.unit.settings["script.trainer"].value == "sft"
    assert (unit.prediction is None, unit.note) == (False, None)


@pytest.mark.parametrize(
    ("more", "trainer"),
    [
        ("use_peft: true\nlora_r: 16\nbeta: 0.1\nrpo_alpha: 1.0\n", "dpo"),
        ("use_peft: true\nbeta: 0.1\ndesirable_weight: 1.0\n", "kto"),
        ("beta: 0.1\nmax_prompt_length: 256\n", "preference"),
        ("beta: 0.04\nreward_funcs: [accuracy]\nmax_completion_length: 256\n", "grpo"),
        ("loss_type: [apo_zero, sft]\ndataset_mixer: {a: 1.0}\nloss_weights: [1.0, 0.5]\n", "dpo"),
        ("dataset_mixer: {a: 1.0}\npacking: false\n", "sft"),
    ],
)
def test_the_trainer_of_a_trl_config_is_read_from_the_names_that_it_alone_has(checker, more, trainer):
    text = "model_name_or_path: Qwen/Qwen2-0.5B\ndataset_name: my/pairs\nmax_length: 1024\nbf16: true\n" + more
    (unit,) = checked(checker, "a.yaml", text).results
    assert (unit.unit.dialect, unit.unit.settings["script.trainer"].value) == ("trl", trainer)
    assert (unit.prediction is None) == (trainer == "preference")


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_other_commands_say_that_a_preference_run_is_not_predicted(tmp_path, command):
    text = "model_name_or_path: Qwen/Qwen2-0.5B\ndataset_name: d\nbeta: 0.1\n{}learning_rate: 5e-6\n"
    (tmp_path / "a.yaml").write_text(text.format(""))
    run = run_text("kb", command, "a.yaml", "--gpu", "t4", "--lang", "en", cwd=tmp_path)
    assert run.returncode == 2 and "beta makes this a post-training run" in run.stderr, run.stderr


def test_a_config_of_trl_may_write_numbers_and_booleans_as_text(checker):
    """TrlParser hands the entries to argparse as defaults, which converts them; what lies deeper it does not touch."""
    text = """\
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
dataset_name: x
use_peft: "true"
learning_rate: 2e-4
packing: "false"
per_device_train_batch_size: "4"
max_length: 1024
"""
    outcome = checked(checker, "a.yaml", text)
    (unit,) = outcome.results
    assert unit.unit.dialect == "trl"
    assert not rules_of(outcome) & {"yaml-number-is-text", "quoted-boolean", "quoted-number", "setting-of-wrong-type"}
    assert unit.setup.method == "lora" and unit.setup.per_device_train_batch_size == 4
    deeper = text + 'gradient_checkpointing_kwargs: {use_reentrant: "false"}\n'
    assert "quoted-boolean" in rules_of(checked(checker, "a.yaml", deeper))
    python = "a = SFTConfig(output_dir='o', learning_rate='2e-4', max_length=1024)\n"
    assert "quoted-number" in rules_of(checked(checker, "a.py", python))


@pytest.mark.parametrize("name", ["PPOConfig", "GKDConfig"])
def test_calls_of_methods_that_are_not_predicted_say_so(checker, name):
    text = f'm = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-0.5B-Instruct")\na = {name}(output_dir="o")\n'
    (unit,) = checked(checker, "t.py", text).results
    assert (unit.prediction, unit.note) == (None, "trainer_not_predicted")
    assert unit.note_values["said"] == name


def test_a_preference_recipe_is_not_predicted_and_an_instruction_recipe_is(checker):
    recipe = "model_name_or_path: Qwen/Qwen2-0.5B\ndataset_mixer: {a: 1.0}\nmax_length: 1024\nbf16: true\n"
    (preference,) = checked(checker, "a.yaml", recipe + "beta: 0.01\nmax_prompt_length: 512\n").results
    (instruction,) = checked(checker, "b.yaml", recipe + "max_seq_length: 2048\n").results
    assert (preference.note, instruction.note) == ("preference_not_predicted", None)
    assert instruction.prediction is not None


def test_a_group_s_own_config_with_the_lengths_of_a_preference_is_no_grpo(checker):
    lengths = "  max_prompt_length: 512\n  max_completion_length: 128\n"
    text = "model: {name: Qwen/Qwen2-0.5B}\ntraining:\n  per_device_train_batch_size: 1\n"
    (unsaid,) = checked(checker, "a.yaml", text + lengths).results
    (grpo,) = checked(checker, "b.yaml", text + "  num_generations: 4\n" + lengths).results
    assert (unsaid.note, grpo.note) == ("preference_not_predicted", "trainer_not_followed")


def test_a_section_leaves_open_what_the_top_leaves_to_the_program(checker):
    four_bit = "quantization: {load_in_4bit: true, bnb_4bit_quant_type: nf4, compute_dtype: auto}\n"
    top = "model: {name: Qwen/Qwen2-0.5B}\ntraining: {per_device_train_batch_size: 1}\n"
    outcome = checked(checker, "a.yaml", four_bit + top + "small:\n  training: {per_device_train_batch_size: 2}\n")
    assert len(outcome.results) == 2
    assert "qlora-compute-dtype-left-at-fp32" not in rules_of(outcome)


RECORD = """\
wandb_version: 1

_name_or_path:
  desc: null
  value: Qwen/Qwen2-0.5B
_wandb:
  desc: null
  value: {cli_version: 0.16.2, framework: huggingface}
evaluation_strategy:
  desc: null
  value: steps
fp16:
  desc: null
  value: true
fp16_backend:
  desc: null
  value: auto
learning_rate:
  desc: null
  value: 0.0003
logging_dir:
  desc: null
  value: out/runs
max_grad_norm:
  desc: null
  value: 1
no_cuda:
  desc: null
  value: false
per_device_train_batch_size:
  desc: null
  value: 4
per_gpu_train_batch_size:
  desc: null
  value: None
task_specific_params:
  desc: null
  value: null
"""


def test_a_run_that_wandb_recorded_is_read_and_nothing_is_said_of_its_names(checker):
    outcome = checked(checker, "config.yaml", RECORD)
    (unit,) = outcome.results
    assert (unit.unit.dialect, unit.unit.reader) == ("wandb-run", "record")
    assert unit.findings == ()
    batch = unit.unit.settings["training.per_device_train_batch_size"]
    assert (batch.value, unit.setup.model_name, unit.setup.fp16) == (4, "Qwen/Qwen2-0.5B", True)
    assert outcome.text.split("\n")[batch.span.line - 1].strip() == "value: 4"
    learnt = checked(checker, "config.yaml", RECORD + "num_generations:\n  desc: null\n  value: 8\n").results[0]
    assert learnt.note == "trainer_not_followed"


def test_formats_that_are_known_by_name_alone_are_not_predicted_and_not_taken_for_others(checker):
    litgpt = """\
checkpoint_dir: checkpoints/Qwen/Qwen2-0.5B
precision: bf16-true
lora_r: 16
lora_query: true
lora_head: false
data: {class_path: litgpt.data.JSON, init_args: {num_workers: 2}}
train: {global_batch_size: 16, micro_batch_size: 2, lr_warmup_steps: 20, epochs: 1, max_seq_length: 1024}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 3e-4, betas: [0.9, 0.95]}}
"""
    nemo = """\
step_scheduler: {global_batch_size: 64, local_batch_size: 4, num_epochs: 1}
dist_env: {backend: nccl, timeout_minutes: 5}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen2-0.5B
peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, dim: 8, alpha: 32}
optimizer: {_target_: torch.optim.Adam, lr: 2e-5, eps: 1e-8}
"""
    for text, dialect, named in ((litgpt, "litgpt", "LitGPT"), (nemo, "nemo-automodel", "NeMo AutoModel")):
        (unit,) = checked(checker, "a.yaml", text).results
        assert (unit.unit.dialect, unit.setup.model_name) == (dialect, "Qwen/Qwen2-0.5B")
        assert (unit.prediction, unit.note, unit.note_values) == (None, "not_modelled", {"named": named})
        assert not unit.findings
        assert unit.setup.unmodelled
        assert {"world_size", "gradient_accumulation_steps"} <= untold(unit.setup, unit.unit)
        assert ("weights" in untold(unit.setup, unit.unit)) == (dialect == "nemo-automodel")
        assert unit.setup.weights == "bf16" or dialect == "nemo-automodel"
        assert "per_device_train_batch_size" not in untold(unit.setup, unit.unit)
    (unit,) = checked(checker, "a.yaml", litgpt.replace("lora_r: 16\n", "")).results
    assert not unit.setup.method_known, "the command says it, which may pretrain"
    draft = """\
recipe: TrainEagle3Recipe
recipe_args: {target_model_name_or_path: Qwen/Qwen2-0.5B, micro_batch_size: 1, grad_accumulation_steps: 1}
"""
    (unit,) = checked(checker, "a.yaml", draft).results
    assert (unit.unit.dialect, unit.setup.model_name) == ("nemo-automodel", None)
    assert not unit.setup.method_known, "a draft is trained, the model that is named is not"
    assert not unit.setup.batch_known, "on how many GPUs is not said"
    (unit,) = checked(
        checker, "a.yaml", nemo + "fsdp: {dp_size: 8, tp_size: 1, activation_checkpointing: true}\n"
    ).results
    assert (unit.setup.world_size, unit.setup.gradient_checkpointing) == (8, True)
    for more in (
        "distributed: {dp_size: none, ep_size: 8}\n",
        "distributed: {dp_size: 2}\nteacher_distributed: {pp_size: 2}\n",
    ):
        (unit,) = checked(checker, "a.yaml", nemo + more).results
        assert is_unknown(unit.unit.settings["launch.num_processes"].value)
    (unit,) = checked(checker, "a.yaml", nemo + "distributed: {dp_size: 8, ep_size: 8}\n").results
    assert unit.setup.world_size == 8


def test_torchtune_with_a_preference_loss_is_not_predicted(checker):
    text = """\
model: {_component_: torchtune.models.llama2.lora_llama2_7b, lora_attn_modules: [q_proj, v_proj], lora_rank: 8}
tokenizer: {_component_: torchtune.models.llama2.llama2_tokenizer, max_seq_len: 1024}
optimizer: {_component_: torch.optim.AdamW, lr: 5e-4}
loss: {_component_: torchtune.rlhf.loss.DPOLoss, beta: 0.1}
batch_size: 4
"""
    (unit,) = checked(checker, "a.yaml", text).results
    assert (unit.unit.dialect, unit.note) == ("torchtune", "trainer_not_followed")


def test_arguments_by_position_and_by_name_are_two_even_where_the_order_differs(checker):
    text = """\
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-0.5B-Instruct")
args = DPOConfig(output_dir="o", per_device_train_batch_size=4)
trainer = DPOTrainer(model, ref_model, args=args)
other = MyTrainer(model, ref_model, args=args)
"""
    (unit,) = checked(checker, "t.py", text).results
    assert unit.unit.settings["training.per_device_train_batch_size"].value == 4


def test_a_script_that_only_writes_a_model_trains_nothing(checker):
    text = "python scripts/expand.py --model_name_or_path meta-llama/Meta-Llama-3-8B --output_dir o --num_expand 8\n"
    outcome = checked(checker, "t.sh", text)
    assert rules_of(outcome) == set()
    assert outcome.results[0].prediction is None


def test_the_switch_of_deepspeed_needs_no_value(checker):
    text = "deepspeed main.py --model_name_or_path facebook/opt-1.3b --per_device_train_batch_size 8 --deepspeed\n"
    assert "setting-of-wrong-type" not in rules_of(checked(checker, "t.sh", text))


def test_axolotl_in_a_notebook_is_read(checker):
    code = 'cfg = DictDefault(base_model="Qwen/Qwen3-4B", load_in_4bit=True, adapter="qlora", micro_batch_size=1,\n'
    code += "    sequence_len=2048, lora_r=32, lora_target_linear=True, optimizer='adamw_torch_8bit')\n"
    cell = {"cell_type": "code", "metadata": {}, "source": code, "outputs": [], "execution_count": None}
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    (unit,) = checked(checker, "t.ipynb", text).results
    assert unit.unit.dialect == "axolotl"
    assert unit.setup is not None and unit.setup.method == "qlora"
    assert bears_marks(b"DictDefault(")


def test_recipes_with_a_group_of_training_are_not_taken_for_another_format(checker):
    text = """\
checkpoint_dir: checkpoints/x
lora_r: 32
lora_alpha: 16
data: {class_path: litgpt.data.Alpaca2k, init_args: {num_workers: 4}}
train: {micro_batch_size: 2, global_batch_size: 8, max_seq_length: 512}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.0002}}
"""
    assert checked(checker, "a.yaml", text).results[0].unit.dialect == "litgpt"


def test_copies_of_a_fused_model_that_are_saved_in_parts_have_the_parts():
    index = ModelIndex(CATALOG.models)
    fused, parted = index.resolve("microsoft/phi-4"), index.resolve("unsloth/Phi-4-unsloth-bnb-4bit")
    assert fused is not None and parted is not None
    assert (fused.architecture.fused_qkv, parted.architecture.fused_qkv) == (True, False)
    assert fused.parameters == parted.parameters


@pytest.mark.parametrize(
    ("path", "meant"), [("actor/../optim/adam", "optim/adam"), ("a/b/../../c", "c"), ("../c", "../c"), ("a/c", "a/c")]
)
def test_a_group_beside_its_own_is_found(path, meant):
    assert _upwards(path) == meant


def test_a_hydra_list_may_name_a_group_beside_its_own(checker, tmp_path: Path):
    files = {
        "main.yaml": "defaults:\n  - actor: small\n  - _self_\n",
        "actor/small.yaml": "defaults:\n  - ../optim@optim: adam\n  - _self_\nsize: 1\n",
        "optim/adam.yaml": "learning_rate: 0.001\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    outcome = check_input(Input(str(tmp_path / "main.yaml")), checker)
    assert not isinstance(outcome, Unusable)
    assert "hydra-group-missing" not in rules_of(outcome)


EMBEDDER = """\
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.training_args import SentenceTransformerTrainingArguments

model = SentenceTransformer("google-bert/bert-base-uncased")
loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=32)
args = SentenceTransformerTrainingArguments(
    "out", per_device_train_batch_size=256, fp16=True, warmup_ratio=0.1, batch_sampler="no_duplicates",
    prompts={"question": "query: "}, router_mapping={"question": "query"},
)
SentenceTransformerTrainer(model=model, args=args, train_dataset=data, loss=loss).train()
"""
BESIDE = """\
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def build():
    return AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")

embedder = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=4, bf16=True)
Trainer(build(), args, train_dataset=data).train()
"""
NOT_MODELLED = {"named": "sentence-transformers"}


@pytest.mark.parametrize(
    ("name", "text", "dialect", "model"),
    [
        (
            "train.py",
            EMBEDDER.replace("CachedMultipleNegativesRankingLoss", "CoSENTLoss").replace(", mini_batch_size=32", ""),
            "sentence-transformers",
            "google-bert/bert-base-uncased",
        ),
        (
            "train.py",
            EMBEDDER.replace("SentenceTransformerTr", "CrossEncoderTr").replace(
                "SentenceTransformer(", "CrossEncoder("
            ),
            "sentence-transformers",
            "google-bert/bert-base-uncased",
        ),
        (
            "train.yaml",
            "model_name_or_path: bert-base-uncased\nper_device_train_batch_size: 64\nnum_train_epochs: 1\nfp16: true\n"
            "batch_sampler: no_duplicates\nwarmup_ratio: 0.1\noutput_dir: out\n",
            "sentence-transformers",
            "bert-base-uncased",
        ),
        (
            "train.yaml",
            "model_name_or_path: sentence-transformers/all-MiniLM-L6-v2\nper_device_train_batch_size: 64\n"
            "num_train_epochs: 1\nlearning_rate: 2.0e-5\noutput_dir: out\n",
            "hf",
            "sentence-transformers/all-MiniLM-L6-v2",
        ),
    ],
)
def test_losses_over_a_whole_batch_are_no_plain_encoders(checker, name, text, dialect, model):
    (unit,) = checked(checker, name, text).results
    assert (unit.unit.dialect, unit.setup.model_name) == (dialect, model)
    assert (unit.prediction, unit.note, unit.note_values) == (None, "not_modelled", NOT_MODELLED)
    assert [each.rule for each in unit.findings if each.rule != "depends-on-release"] == []


CACHED = "loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=32)\n"
RANKED = "loss = losses.MultipleNegativesRankingLoss(model)\n"
MODULES = """\
from sentence_transformers import models
word = models.Transformer("klue/roberta-base", max_seq_length=256)
pooled = models.Pooling(word.get_word_embedding_dimension(), pooling_mode="cls")
model = SentenceTransformer(modules=[word, pooled, models.Normalize()])
"""
MADE = 'model = SentenceTransformer("google-bert/bert-base-uncased")\n'


@pytest.mark.parametrize(
    ("old", "new", "cached", "length"),
    [
        (CACHED, CACHED, 32, 512),
        (CACHED, CACHED.replace(", mini_batch_size=32", ""), 32, 512),  # the library's own
        (CACHED, CACHED.replace("=32", "=8"), 8, 512),
        (CACHED, RANKED, 0, 512),
        (CACHED, CACHED + "other = MultipleNegativesRankingLoss(model)\n", 32, 512),  # the trainer is given the first
        (CACHED, "model.max_seq_length = 128\n" + CACHED, 32, 128),
        (CACHED, "LENGTH = 128\nmodel.max_seq_length = LENGTH\n" + CACHED, 32, 128),
        (MADE, MODULES, 32, 256),
    ],
)
def test_a_ranking_loss_of_a_script_is_predicted_as_such(checker, old, new, cached, length):
    (unit,) = checked(checker, "train.py", EMBEDDER.replace(old, new)).results
    post = unit.setup.post
    assert post is not None and (post.kind, post.columns, post.cached) == ("embedding", 2, cached)
    assert (post.pooling, post.normalizes) == (("cls", True) if new is MODULES else ("mean", False))
    assert unit.setup.max_source_length == length
    assert unit.prediction is not None and unit.prediction.level == "engine" and unit.note is None
    assert ("embedding.columns", "pairs_of_texts") in [(each.name, each.reason) for each in unit.prediction.assumed]
    assert not [
        edit for each in unit.findings for fix in each.fixes for edit in fix.edits
    ]  # of negatives none is spared


@pytest.mark.parametrize(
    "more",
    [
        "loss = MatryoshkaLoss(model, loss, matryoshka_dims=[768, 128])\n",
        "if choice:\n    loss = CoSENTLoss(model)\n",
        "loss = losses.CoSENTLoss(model)\n",
        'loss = {"pairs": loss, "scores": CoSENTLoss(model)}\n',
    ],
)
def test_another_loss_that_the_trainer_may_be_given_is_not_predicted_as_a_ranking_loss(checker, more):
    (unit,) = checked(checker, "train.py", EMBEDDER.replace(CACHED, CACHED + more)).results
    assert (unit.prediction, unit.note, unit.note_values) == (None, "not_modelled", NOT_MODELLED)


def test_a_config_that_names_the_loss_says_so_too(checker):
    text = (
        "model_name_or_path: klue/roberta-base\nloss: CachedMultipleNegativesRankingLoss\nmini_batch_size: 64\n"
        "per_device_train_batch_size: 1024\nnum_train_epochs: 1\nbf16: true\nbatch_sampler: no_duplicates\n"
    )
    (unit,) = checked(checker, "train.yaml", text).results
    assert unit.setup.post is not None and unit.setup.post.cached == 64
    assert unit.prediction is not None


def test_a_model_of_embeddings_beside_a_run_is_not_the_runs_model(checker):
    (unit,) = checked(checker, "train.py", BESIDE).results
    assert (unit.unit.dialect, unit.setup.model_name) == ("hf", "Qwen/Qwen2.5-0.5B")
    assert unit.prediction is not None


TRIPLETS = 'train = Dataset.from_dict({"anchor": a, "positive": p, "negative": n})\n'


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (TRIPLETS, 3),
        ("rows = [InputExample(texts=[q, p, n]) for q, p, n in data]\n", 3),
        ('train = load_dataset("all-nli", "triplet", split="train")\n', 3),
        (TRIPLETS.replace(', "negative": n', ""), 2),
        (TRIPLETS.replace('"negative": n', '"negative_1": n, "negative_2": m'), 2),
    ],
)
def test_triplets_are_read_where_a_program_names_them(checker, rows, columns):
    text = EMBEDDER.replace("model = Sent", rows + "model = Sent")
    (unit,) = checked(checker, "train.py", text).results
    assert unit.setup.post is not None
    assert unit.setup.post.columns == columns


def test_a_file_of_hard_negatives_is_not_one_of_pairs(checker):
    text = EMBEDDER.replace("model = Sent", "rows = pd.read_csv('full_hard_neg.csv')\nmodel = Sent")
    (unit,) = checked(checker, "train.py", text).results
    assert unit.prediction is None  # it had been counted as pairs: of a sample one negative and more were left out


def test_an_adapter_that_was_saved_says_nothing_in_a_folder_s_report(checker):
    saved = (
        '{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2-0.5B", "r": 8, "target_modules": ["q_proj"]}\n'
    )
    (adapter,) = checked(checker, "adapter_config.json", saved).results
    assert adapter.unit.dialect == "peft-adapter" and is_bare(adapter)


def test_a_call_s_torch_dtype_is_read_by_no_script(tmp_path):
    checker = file_checker(
        shallow_catalog(), find_project(str(tmp_path)), Question.of(versions={"transformers": "4.57.0"})
    )
    text = 'm = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2-0.5B", torch_dtype=torch.float16)\n'
    (unit,) = checked(checker, "a.py", text).results
    (found,) = [each for each in unit.findings if each.rule == "torch-dtype-renamed"]
    assert ["script" in each.title.en for each in found.fixes if each.certain] == [False]
