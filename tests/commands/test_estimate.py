"""`kb estimate`: one run from flags or a config, in both languages, and what is said of input that is wrong."""

import json
from pathlib import Path

import pytest

from catalog_sample import CATALOG
from command_runs import ROOT
from command_runs import run_kb as kb
from effort import few
from estimate_sample import T5, config_json, estimate, refusal
from kb.advice.question import METHODS, RunSettings
from kb.advice.run.named_model import unknown_model
from kb.advice.run.question_settings import optimizer_named, unit_of, with_flags
from kb.advice.run.setup import setup_of
from kb.core.setup import TrainingSetup
from kb.core.text import UserError

MIB, GB = 2**20, 10**9
LARGE = ("--gpu", "h200")  # where none is named, every known one is asked about
KOBART = ("--model", "kobart", "--task", "generate", "--batch", 16, "--beams", 5, "--seq-in", 512, "--gen-length", 120)
BART_OF_SEVEN_HEADS = {
    "model_type": "bart", "encoder_attention_heads": 7, "decoder_attention_heads": 7, "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048, "encoder_layers": 6, "decoder_layers": 6,
}  # fmt: skip


def setup(flags: RunSettings) -> TrainingSetup:
    def none(library: str, *bounds: object) -> None:
        return None

    model = CATALOG.models.get(flags.model or "")
    return setup_of(
        unit_of(flags), model, facts=CATALOG.facts, constants=CATALOG.constants, gpu_count=None, versions=none
    )


# --- flags --------------------------------------------------------------------------------------------------------


def test_training_from_flags_is_the_real_code_s_to_the_mebibyte() -> None:
    flags = (*T5, "--optimizer", "adamw_torch_fused", "--attention", "sdpa", "--gpu", "rtx-3090")
    made = estimate(*flags)
    assert round(made["phases"]["train"]["peak_allocated_bytes"] / MIB) == 11148
    assert (made["level"], made["verdict"]["status"]) == ("engine", "fits")


def test_the_nearest_run_answers_for_what_is_not_followed_and_that_is_said() -> None:
    made = estimate("--model", "deberta-v3-base", "--gpu", "rtx-3090", "--zero", 3, "--gpus", 2)
    assert made["level"] == "rough" and any("ZeRO-3 of deberta-v2" in note for note in made["notes"])


def test_adapters_of_a_type_without_targets_of_its_own_lie_on_the_usual_ones_and_that_is_said() -> None:
    """PEFT asks for targets of Whisper, GLM-4, LLaVA, ModernBERT, SmolLM3: the engine follows an adapter on any."""
    lora = ("--model", "whisper-tiny", "--method", "lora", "--batch", 1)
    made, named = estimate(*lora), estimate(*lora, "--lora-targets", "q_proj,v_proj")
    assert made["level"] == "engine" and made["phases"] == named["phases"]
    (assumed,) = (row for row in made["assumed"] if row["name"] == "lora.target_modules")
    assert (assumed["value"], assumed["reason"]) == (["q_proj", "v_proj"], "no_default_targets")


def test_beams_are_counted_in_generation() -> None:
    made = estimate(*KOBART, "--precision", "fp32", "--gpu", "rtx-4090")
    assert made["phases"]["generate"]["peak_allocated_bytes"] / GB == pytest.approx(2.64, rel=0.02)
    greedy = estimate(*KOBART, "--beams", 1, "--gpu", "rtx-4090")
    assert (
        greedy["phases"]["generate"]["peak_allocated_bytes"] < 0.6 * made["phases"]["generate"]["peak_allocated_bytes"]
    )


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("fp32", (False, False, "fp32")),
        ("fp16", (True, False, "fp32")),
        ("bf16", (False, True, "fp32")),
        ("pure-fp16", (False, False, "fp16")),
        ("pure-bf16", (False, False, "bf16")),
    ],
)
def test_autocast_and_half_weights_are_two_things(precision: str, said: tuple[bool, bool, str]) -> None:
    made = setup(RunSettings(model="t5-base", precision=precision))
    assert (made.fp16, made.bf16, made.weights) == said


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_read(method: str) -> None:
    made = setup(RunSettings(model="t5-base", method=method))
    assert made.method in (method, "lora")  # DoRA may count as the LoRA that it is
    assert made.load_in_4bit == (method == "qlora")


def test_optimizers_are_read_by_the_flags_names_and_by_the_trainers() -> None:
    assert optimizer_named("adamw_8bit") == optimizer_named("adamw_bnb_8bit") == "adamw_bnb_8bit"
    assert (optimizer_named(None), optimizer_named("none")) == (None, "none")
    with pytest.raises(UserError) as refused:
        optimizer_named("adamw_8bt")
    assert refused.value.values["meant"] == "adamw_8bit"


def test_without_an_optimizer_nothing_is_kept_for_it() -> None:
    made = estimate(*T5, "--optimizer", "none", *LARGE)
    assert "optimizer" not in {term["name"] for term in made["phases"]["train"]["terms"]}


def test_a_task_alone_has_its_own_phases_only() -> None:
    assert set(estimate(*KOBART, *LARGE)["phases"]) == {"load", "generate"}
    evaluated = estimate("--model", "kobart", "--task", "evaluate", "--batch", 4, "--seq-in", 512, *LARGE)
    assert set(evaluated["phases"]) == {"load", "evaluate"}
    assert evaluated["setup"]["per_device_eval_batch_size"] == 4


@pytest.mark.exhaustive
def test_training_with_an_evaluation_batch_evaluates_and_with_beams_generates() -> None:
    assert "evaluate" in estimate(*T5, "--eval-batch", 8)["phases"]
    made = estimate(*T5, "--eval-batch", 8, "--beams", 4, "--gen-length", 100)
    assert "generate" in made["phases"]
    assert (made["setup"]["generation_num_beams"], made["setup"]["generation_max_length"]) == (4, 100)


def test_what_the_flags_leave_open_is_listed_as_assumed() -> None:
    assumed = {row["name"]: row for row in estimate("--model", "t5-base", *LARGE)["assumed"]}
    assert assumed["training.per_device_train_batch_size"]["value"] == 8
    assert {"training.optim", "data.max_source_length", "model.attn_implementation"} <= assumed.keys()
    assert assumed["model.torch_dtype"]["value"] == "float32"
    alone = {row["name"] for row in estimate("--model", "kobart", "--task", "generate", *LARGE)["assumed"]}
    assert "inference.batch_size" in alone
    assert "training.optim" not in alone, "no optimizer is in a generation"


def test_more_gpus_shard_with_zero_and_not_without() -> None:
    plain, sharded = (
        estimate(*T5, "--gpu", "rtx-3090", "--gpus", 4, *more)["phases"]["save"]["terms"]
        for more in ((), ("--zero", 3))
    )
    size = [{row["name"]: row["bytes"] for row in terms} for terms in (plain, sharded)]
    assert size[1]["optimizer"] < size[0]["optimizer"] / 2


def test_no_gpu_named_shows_the_known_ones() -> None:
    made = estimate(*T5)
    assert made["verdict"]["status"] == "unknown"
    status = {row["gpu"]: row["status"] for row in made["gpu_fits"]}
    assert (status["rtx-3080-10gb"], status["a100-80gb"]) == ("oom", "fits")


def test_a_run_that_runs_out_ends_with_1() -> None:
    assert estimate(*T5, "--batch", 64, "--gpu", "rtx-3080-10gb", code=1)["verdict"]["status"] == "oom"


# --- a config -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", few(["mt5-summary-team.yaml", "kobart-clean.yaml", "t5-base-arguments.yaml"]))
def test_a_config_has_the_prediction_that_kb_check_has(name: str) -> None:
    place = ("--gpu", "rtx-3090", "--host-memory", "60GB")
    path = ROOT / "examples" / name
    checked = json.loads(kb("check", path, *place, "--format", "json", module="kb").stdout)["files"][0]["prediction"]
    run = kb(path, *place, "--format", "json", module="kb.estimate")
    made = json.loads(run.stdout)
    assert {key: made[key] for key in checked} == checked
    assert run.returncode == ("oom" in (made["verdict"]["status"],) or made["host"]["low_bytes"] > 60 * GB)


@pytest.mark.exhaustive
def test_every_section_is_a_run_and_one_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "sections.yaml"
    section = "{general: {model_name: google/mt5-base}, training: {per_device_train_batch_size: %d, bf16: true}}"
    path.write_text(f"small: {section % 2}\nlarge: {section % 16}\n", "utf-8")
    made = estimate(path)
    assert [run["section"] for run in made["runs"]] == ["small", "large"]
    chosen = estimate(path, "--section", "large")
    assert chosen["phases"] == made["runs"][1]["phases"]
    assert "small" in refusal(path, "--section", "medium")


def test_flags_take_the_place_of_a_configs_settings() -> None:
    path = ROOT / "examples/t5-base-arguments.yaml"
    before, after = (
        estimate(path, *LARGE),
        estimate(path, *LARGE, "--batch", 1, "--precision", "bf16", "--method", "lora"),
    )
    assert after["setup"]["per_device_train_batch_size"] == 1 != before["setup"]["per_device_train_batch_size"]
    assert (after["setup"]["method"], after["setup"]["bf16"], after["setup"]["fp16"]) == ("lora", True, False)
    assert after["setup"]["max_source_length"] == before["setup"]["max_source_length"]


def test_another_task_leaves_a_configs_own_task_out() -> None:
    made = estimate(ROOT / "examples/t5-base-arguments.yaml", "--task", "generate", "--batch", 2, *LARGE)
    assert set(made["phases"]) == {"load", "generate"}


def test_standard_input_is_read() -> None:
    path = ROOT / "examples/t5-base-arguments.yaml"
    assert estimate("-", *LARGE, stdin=path.read_text("utf-8"))["phases"] == estimate(path, *LARGE)["phases"]


def test_flags_do_not_change_the_unit_they_are_laid_on() -> None:
    unit = unit_of(RunSettings(model="t5-base", batch=4))
    with_flags(unit, RunSettings(batch=8, task="generate"))
    assert unit.settings["training.per_device_train_batch_size"].value == 4


# --- input that is wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--model"),
        (("--model", "t5-bse"), "t5-base"),
        (("--model", "t5-base", "--gpu", "rtx3099"), "rtx-3090"),
        (("--model", "t5-base", "--batch", "0"), "--batch 0"),
        (("--model", "t5-base", "--seq-in", "1000000000000000"), "--seq-in"),
        (("--model", "t5-base", "--batch", "many"), "many"),
        (("--model", "kobart", "--seq-in", "5000"), "1026"),
        (("--model", "kobart", "--task", "generate", "--seq-in", "512", "--gen-length", "2000"), "1026"),
        (("--model", "t5-base", "--optimizer", "adamw_8bt"), "adamw_8bit"),
        (("--model", "t5-base", "--method", "lora", "--lora-targets", "foo"), "wi"),
        (("--model", "t5-base", "--task", "trian"), "evaluate"),
        (("--model", "t5-base", "--gpus", "0"), "0"),
        (("--model", "t5-base", "--snapshot", "x.pickle"), "--simulate"),
        (("--model", "t5-base", "--plot", "no/such/folder/x.svg"), "no/such/folder/x.svg"),
        (("--model", "t5-base", "--section", "a"), "--section"),
        (("--model", "t5-base", "--simulate", "--memory-limit", "lots"), "--memory-limit lots"),
        (("--model", "t5-base", "--simulate", "--time-limit", "nan"), "--time-limit"),
        (("--model", "t5-base", "--simulate", "--trust-remote-code"), "--model-config"),
        (("nothing-here.yaml",), "nothing-here.yaml"),
    ],
)
def test_what_cannot_be_used_is_said_with_what_to_do(arguments: tuple[str, ...], said: str, language: str) -> None:
    text = refusal(*arguments, language=language)
    assert said in text
    assert any("가" <= letter <= "힣" for letter in text) == (language == "ko"), text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mt5-bas", ["mt5-base"]),
        ("./models/t5-bsae/", ["t5-base"]),
        ("distilber-base", ["distilbert-base-uncased"]),
        ("gpt-2", ["gpt2"]),
        ("Salesforce/blip2-opt-2.7b", []),  # another family
        ("Qwen/Qwen9-4B", []),  # another version
        ("google/gemma-3n-E4B", []),
        ("bigcode/starcoder", []),
        ("microsoft/phi-1", []),
        ("google/umt5-base", []),
        ("google/mt5-xxl", []),  # another size
        ("/", []),
    ],
)
def test_an_unknown_model_is_no_misspelling_of_another_family_version_or_size(name: str, meant: list[str]) -> None:
    assert unknown_model(name, CATALOG).values.get("meant", "") == ", ".join(meant)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d_model": None}, "d_model"),
        ({"num_heads": "eight"}, "num_heads"),
        ({"num_layers": -1}, "num_layers"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "abacus"}, "abacus"),
        (BART_OF_SEVEN_HEADS, "encoder_attention_heads"),
    ],
)
def test_a_config_json_with_a_fault_is_named_with_its_field(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    path = config_json(tmp_path, **changes)
    english, korean = (refusal("--model-config", path, language=language) for language in ("en", "ko"))
    assert said in english
    assert said in korean
    assert str(path) in english
    assert any("가" <= letter <= "힣" for letter in korean.replace(str(path), "")), korean


def test_a_config_json_that_is_no_json_is_said(tmp_path: Path) -> None:
    for content in ("{", "[1, 2]", "[" * 100_000):
        (tmp_path / "config.json").write_text(content, "utf-8")
        assert "config.json" in refusal("--model-config", tmp_path)


def test_a_config_json_of_packed_weights_is_said_to_be_of_such(tmp_path: Path) -> None:
    path = config_json(tmp_path, quantization_config={"quant_method": "awq"})
    assert f"awq ({path})" in refusal("--model-config", path, "--batch", 1)


def test_a_models_own_code_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(f"open({str(trace)!r}, 'w').close()\n", "utf-8")
    config_json(tmp_path, auto_map={"AutoModelForSeq2SeqLM": "modeling_own.Own"})
    made = estimate("--model-config", tmp_path, "--batch", 1)
    assert any("auto_map" in note for note in made["notes"])
    assert not trace.exists()


def test_the_largest_sizes_are_answered_at_once_and_without_overflow() -> None:
    made = estimate(
        "--model", "t5-base", "--batch", 10**6, "--seq-in", 10**6, "--seq-out", 10**6, "--gpu", "t4", code=1
    )
    assert made["verdict"]["status"] == "oom"
    assert made["phases"]["train"]["peak_allocated_bytes"] > 10**18


# --- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_text_has_the_ledger_the_level_and_the_next_step(language: str) -> None:
    text = kb(*T5, "--gpu", "rtx-3090", "--lang", language, module="kb.estimate").stdout
    assert "google-t5/t5-base" in text
    assert "RTX 3090" in text
    assert "11,1" in text, "the peak in MiB"
    assert "±" in text
    assert "kb recommend --model t5-base --gpu rtx-3090" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.exhaustive
def test_a_config_that_runs_out_is_handed_to_kb_plan() -> None:
    path = ROOT / "examples/mt5-summary-team.yaml"
    run = kb(path, "--gpu", "t4", "--lang", "en", module="kb.estimate")
    assert run.returncode == 1
    assert f"kb plan {path} --gpu t4" in " ".join(run.stdout.split())
