"""The type that weights are loaded in: the one named, the checkpoint's own, or fp32; what is taken is listed."""

import json
from pathlib import Path

import pytest

from catalog_sample import load_catalog, load_guide, read_units, shallow
from effort import few
from kb.advice.check import Checker
from kb.advice.fit.estimator import Estimator, on_gpu
from kb.advice.question import Question, RunSettings
from kb.advice.run.named_model import ModelIndex
from kb.advice.run.question_settings import unit_of
from kb.advice.run.run_kind import checkpoint_dtype, weights_of
from kb.advice.run.settings_reader import SettingsReader
from kb.config.python.reader import PythonReader
from kb.core.document import Unit
from kb.core.hardware import Machine
from kb.core.setup import TrainingSetup
from kb.session.models import read_model_config

CATALOG = load_catalog()
BF16, FP32 = CATALOG.models["phi-3-mini"], CATALOG.models["mt5-base"]
UNKNOWN = CATALOG.models["gpt2"]._replace(weights_dtype=None)


def unit(model: str = "microsoft/Phi-3-mini-4k-instruct", dtype: str = "") -> Unit:
    text = f"model_name_or_path: {model}\n{dtype}\nper_device_train_batch_size: 1\nlearning_rate: 0.001\n"
    (found,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    return found


def setup_of(found: Unit) -> TrainingSetup:
    return Checker(CATALOG, Machine()).prepare(found).setup


@pytest.mark.parametrize(
    ("model", "version", "weights", "reason"),
    [
        (BF16, None, "bf16", "checkpoint_own_type_newest"),
        (BF16, (5, 23), "bf16", "checkpoint_own_type"),
        (BF16, (4, 57, 6), "fp32", "transformers_4_default"),
        (FP32, (5, 23), "fp32", None),
        (FP32, (4, 57, 6), "fp32", None),
        (UNKNOWN, (5, 23), "fp32", "checkpoint_type_not_recorded"),
        (UNKNOWN, (4, 57, 6), "fp32", "transformers_4_default"),
        (None, None, "fp32", None),
    ],
)
def test_transformers_5_keeps_the_type_of_the_checkpoint(model, version, weights, reason) -> None:
    read = SettingsReader(unit(), CATALOG.facts)
    assert weights_of(read, model, {}, version) == weights
    assert [each.reason for each in read.assumed] == ([reason] if reason else [])


@pytest.mark.parametrize("packed", ["load_in_4bit", "load_in_8bit"])
@pytest.mark.parametrize(("version", "weights"), [((4, 36), "fp16"), ((4, 57, 6), "fp16"), ((5, 0), "bf16")])
def test_transformers_4_loads_what_bitsandbytes_does_not_pack_in_fp16(packed, version, weights) -> None:
    read = SettingsReader(unit(dtype=f"{packed}: true"), CATALOG.facts)
    assert weights_of(read, BF16, {}, version) == weights


QWEN = "Qwen/Qwen2.5-7B"  # stored in bf16
TRL = f"model_name_or_path: {QWEN}\ndataset_text_field: text\npacking: true\nmax_length: 512\n"
LLAMA_FACTORY = f"model_name_or_path: {QWEN}\nstage: sft\ncutoff_len: 512\ntemplate: qwen\ndataset: a\n"
AXOLOTL = f"base_model: {QWEN}\nmicro_batch_size: 1\nsequence_len: 512\ndatasets: [a]\nadapter: lora\n"


@pytest.mark.parametrize(
    ("text", "versions", "weights", "reason"),
    [
        (TRL, {}, "fp32", "trainer_default_newest"),
        (TRL, {"trl": (0, 27), "transformers": (5, 10)}, "fp32", "trainer_default"),
        (TRL, {"trl": (0, 26, 2), "transformers": (5, 10)}, "bf16", "checkpoint_own_type"),
        (TRL, {"trl": (0, 19, 1), "transformers": (4, 54)}, "fp32", "transformers_4_default"),
        (TRL + "dtype: auto\n", {"trl": (1, 16)}, "bf16", "checkpoint_own_type"),
        (TRL + "dtype: bfloat16\n", {}, "bf16", None),
        (LLAMA_FACTORY + "finetuning_type: lora\n", {"llamafactory": (0, 9, 4)}, "bf16", "trainer_default"),
        (LLAMA_FACTORY + "finetuning_type: lora\nfp16: true\n", {"llamafactory": (0, 9, 3)}, "fp16", "trainer_default"),
        (LLAMA_FACTORY + "finetuning_type: full\nbf16: true\n", {}, "fp32", None),
        (LLAMA_FACTORY + "finetuning_type: full\npure_bf16: true\n", {}, "bf16", None),
        (AXOLOTL, {"transformers": (4, 54)}, "bf16", "trainer_default"),
        (AXOLOTL + "bf16: false\n", {}, "fp32", None),
        (AXOLOTL + "bf16: false\nfp16: true\n", {}, "fp16", None),
        (AXOLOTL + "bf16: true\nfp16: true\n", {}, "bf16", None),
    ],
)
def test_trainers_load_weights_in_their_own_ways(text, versions, weights, reason) -> None:
    (found,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    setup = Checker(CATALOG, Machine(), versions=versions.get).prepare(found).setup
    assert setup.weights == weights
    assert [each.reason for each in setup.assumed if each.name == "model.torch_dtype"] == ([reason] if reason else [])


@pytest.mark.parametrize(
    ("loads", "trainer", "weights"),
    [
        ('model = AutoModelForCausalLM.from_pretrained("%s")', "model=model", "bf16"),
        ('model, tokenizer = FastLanguageModel.from_pretrained("%s", dtype=None)', "model=model", "bf16"),
        ('model, tokenizer = FastLanguageModel.from_pretrained("%s", dtype=torch.float16)', "model=model", "fp16"),
        ("", 'model="%s"', "fp32"),
    ],
)
def test_a_program_that_loads_the_model_itself_leaves_trl_nothing_to_choose(loads, trainer, weights) -> None:
    text = f"{loads}\nargs = SFTConfig(output_dir='o', max_length=512)\ntrainer = SFTTrainer({trainer}, args=args)\n"
    (found,) = PythonReader(CATALOG.dialects, CATALOG.facts).read(text.replace("%s", QWEN), "train.py")
    setup = Checker(CATALOG, Machine(), versions={"trl": (1, 16), "transformers": (5, 23)}.get).prepare(found).setup
    assert (setup.model_name, setup.weights) == (QWEN, weights)


@pytest.mark.parametrize(
    ("text", "bf16", "fp16"),
    [
        (LLAMA_FACTORY + "finetuning_type: lora\npure_bf16: true\n", False, False),
        (LLAMA_FACTORY + "finetuning_type: lora\npure_bf16: true\nbf16: true\n", True, False),
        (AXOLOTL + "bf16: true\nfp16: true\n", True, False),
    ],
)
def test_what_is_autocast_where_two_types_are_written(text, bf16, fp16) -> None:
    (found,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    checked = Checker(CATALOG, Machine()).check(found)
    assert (checked.setup.bf16, checked.setup.fp16) == (bf16, fp16)
    assert "fp16-and-bf16-both" not in [each.rule for each in checked.findings]


def test_lora_on_a_bf16_checkpoint_takes_half_under_transformers_5() -> None:
    text = f"""
model_name_or_path: {QWEN}
output_dir: out
per_device_train_batch_size: 1
bf16: true
gradient_checkpointing: true
use_lora: true
lora_r: 16
max_source_length: 1024
"""
    (found,) = read_units(text, "train.yaml", CATALOG.dialects, CATALOG.facts)
    assert found.dialect == "hf"
    sizes = []
    for version in ((5, 10), (4, 54)):
        checker = Checker(CATALOG, Machine(), versions={"transformers": version}.get)
        phase = checker.prepare(found).predicted.report.phase("train")
        sizes.append(phase.process_used_bytes / 2**30)
    assert sizes == pytest.approx([17.1, 32.9], rel=0.015)


def test_a_model_with_another_name_for_its_other_type_has_that_type() -> None:
    index = ModelIndex(CATALOG.models)
    kinds = {name: index.resolve(name).weights_dtype for name in ("google/gemma-2-2b", "google/gemma-2-2b-it")}
    assert kinds == {"google/gemma-2-2b": "fp32", "google/gemma-2-2b-it": "bf16"}


def test_a_guessed_model_lends_its_type_and_claims_nothing_of_it() -> None:
    guessed = ModelIndex(CATALOG.models).guess("our-team/qwen2.5-7b-summaries")
    assert guessed.weights_dtype == "bf16"
    assert checkpoint_dtype(guessed) is None


@pytest.mark.parametrize(
    ("dtype", "weights"), [("dtype: float32", "fp32"), ("dtype: bfloat16", "bf16"), ("dtype: torch.float16", "fp16")]
)
def test_a_type_that_the_config_names_wins(dtype: str, weights: str) -> None:
    setup = setup_of(unit(dtype=dtype))
    assert setup.weights == weights
    assert "checkpoint_own_type" not in {each.reason for each in setup.assumed}


def test_auto_is_the_checkpoints_type_in_any_version() -> None:
    read = SettingsReader(unit(dtype="dtype: auto"), CATALOG.facts)
    assert weights_of(read, BF16, {}, (4, 50)) == "bf16"


def test_a_project_can_say_what_its_checkpoint_stores() -> None:
    read = SettingsReader(unit(), CATALOG.facts)
    assert weights_of(read, UNKNOWN, {"model.checkpoint_dtype": "bfloat16"}, None) == "bf16"


def test_full_training_of_a_half_checkpoint_is_predicted_as_such() -> None:
    checker = Checker(CATALOG, Machine())
    own, wide = (checker.prepare(unit(dtype=dtype)).predicted.report for dtype in ("", "dtype: float32"))
    assert own is not None
    assert wide is not None
    assert own.phase("train").peak_allocated_bytes < 0.6 * wide.phase("train").peak_allocated_bytes


def test_flags_name_fp32_themselves() -> None:
    assert setup_of(unit_of(RunSettings(model="phi-3-mini"))).weights == "fp32"


def test_a_config_json_says_what_its_weights_are(tmp_path: Path) -> None:
    architecture = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
    for name, weights in (("torch_dtype", "bf16"), ("dtype", "bf16"), ("other", None)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**architecture, name: "bfloat16"}))
        assert read_model_config(str(path)).weights_dtype == weights


def test_the_fact_has_pytorchs_name() -> None:
    assert [checkpoint_dtype(model) for model in (BF16, FP32, UNKNOWN, None)] == ["bfloat16", "float32", None, None]


@pytest.mark.parametrize(
    ("model", "named"), few([("qwen2.5-0.5b", "float32"), ("mt5-base", None), ("phi-3-mini", "float32")])
)
@pytest.mark.long
def test_a_recommended_config_names_the_type_that_the_library_might_not_take(model: str, named: str | None) -> None:
    from kb.advice.fit.recommend_answer import answer
    from kb.report.recommend.formats import settings_of

    estimator = Estimator(shallow(CATALOG.models[model]), on_gpu(CATALOG.gpus["h200"]), CATALOG.constants)
    setup = answer("train", Question.of(), estimator, CATALOG, load_guide()).setup
    assert setup is not None
    assert settings_of(setup, stored=CATALOG.models[model].weights_dtype).get("model.torch_dtype") == named
