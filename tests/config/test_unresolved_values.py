"""Values that the file alone does not tell, or that no run could use: never replaced by a default."""

import datetime
import json
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from command_runs import checked_file
from kb.advice.check import Checker, Disk
from kb.config.reader import ConfigReader
from kb.config.shell.command import CommandReader
from kb.core.document import Unit
from kb.core.expression import is_unknown
from kb.core.facts import coerce
from kb.core.result import UnitResult
from kb.machine.detect import detect
from kb.session.file import FileChecker
from kb.session.models import model_in_folder

CATALOG = load_catalog()
READER = ConfigReader(CATALOG.dialects, CATALOG.facts)
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
MACHINE = detect(CATALOG.gpus, gpu="a100-80gb", gpu_count=None, host_memory="60GB", cpus="48")
CHECKER = Checker(CATALOG, MACHINE, disk=Disk(model_in_folder=model_in_folder))
HEAD = "general: {model_name: google/mt5-base}\ntokenizer: {encoder_max_len: 512, decoder_max_len: 64}\n"


def unit(text: str) -> Unit:
    return READER.read(text, "config.yaml")[0]


def check(text: str) -> UnitResult:
    return CHECKER.check(unit(text))


def fired(result: UnitResult) -> set[str]:
    return {finding.rule for finding in result.findings}


@pytest.mark.parametrize(
    "written",
    ["${BATCH}", '"${BATCH}"', '"${oc.env:BATCH,8}"', '"{{ batch }}"', "$BATCH", "__BATCH__", '"@BATCH@"'],
)
def test_a_batch_that_is_filled_in_later_is_unknown_and_no_error(written: str) -> None:
    result = check(HEAD + f"training:\n  bf16: true\n  per_device_train_batch_size: {written}\n")
    assert "unresolved-value" in fired(result) and "setting-of-wrong-type" not in fired(result)
    assert is_unknown(result.unit.settings["training.per_device_train_batch_size"].value)
    assert result.prediction is None
    assert (result.note, result.note_values) == ("unresolved_values", {"settings": "per_device_train_batch_size"})


def test_what_the_file_says_elsewhere_is_known_and_a_group_that_is_off_says_nothing() -> None:
    own = "sizes: {batch: 4}\nmegatron_cfg: {enabled: false, tensor_model_parallel_size: 2}\n"
    own += "quantization: {enabled: false, load_in_4bit: true}\n"
    result = check(HEAD + own + "training: {bf16: true, per_device_train_batch_size: '${sizes.batch}'}\n")
    assert "unresolved-value" not in fired(result) and result.note is None
    assert (result.setup.per_device_train_batch_size, result.setup.method) == (4, "full")
    assert result.unit.settings["quantization.load_in_4bit"].value is False


def test_a_switch_that_is_filled_in_later_leaves_open_what_one_of_its_values_decides() -> None:
    lines = "model_name_or_path: google/mt5-base\nuse_peft: true\nlora_r: 8\nmax_seq_length: 512\n"
    assert is_unknown(unit(lines + "use_flash_attention_2: ${FLASH}\n").settings["model.attn_implementation"].value)
    named = lines + "use_flash_attention_2: ${FLASH}\nattn_implementation: eager\n"
    assert unit(named).settings["model.attn_implementation"].value == "eager"
    assert "model.attn_implementation" not in unit(lines + "use_flash_attention_2: false\n").settings


@pytest.mark.parametrize("written", ["auto", "[4, 8]", ".inf", "16 → 12", "{value: 4}", "4.5", "true"])
def test_a_batch_that_is_no_number_is_not_replaced_by_the_default(written: str) -> None:
    result = check(HEAD + f"training:\n  bf16: true\n  per_device_train_batch_size: {written}\n")
    assert result.prediction is None and result.note == "unresolved_values"
    assert result.setup is not None and not result.setup.batch_known
    assert all(each.name != "training.per_device_train_batch_size" for each in result.setup.assumed)


@pytest.mark.parametrize("written", ["0", "-5"])
@pytest.mark.parametrize("name", ["per_device_train_batch_size", "gradient_accumulation_steps"])
def test_a_batch_below_one_is_not_taken_for_one(name: str, written: str) -> None:
    result = check(HEAD + f"training:\n  bf16: true\n  {name}: {written}\n")
    assert result.prediction is None and result.note_values == {"settings": name}
    assert "zero-batch-or-accumulation" in fired(result)
    assert not {"under-the-target-range", "training-peak-exceeds-gpu", "effective-batch-not-as-said"} & fired(result)


def test_a_rule_that_waits_for_such_a_value_says_so() -> None:
    result = check(HEAD + "training:\n  bf16: true\n  per_device_train_batch_size: ${BATCH}\n")
    needs = {row.rule: row.needs for row in result.not_evaluated}
    assert "training.per_device_train_batch_size" in needs["training-peak-exceeds-gpu"]


@pytest.mark.parametrize(
    "text",
    [
        "training: {bf16: true}\nqlora: {use_qlora: false, lora_rank: '${R}'}\n",
        "training: {bf16: true, per_device_eval_batch_size: '${E}', generation_num_beams: auto}\n",
        "training: {bf16: true, learning_rate: '${LR}', output_dir: '${OUT}/x'}\n",
        "training: {bf16: true, fsdp: false}\n",
        "inference: {batch_size: 8}\n",
    ],
)
def test_a_value_that_the_run_does_not_use_stands_in_no_ones_way(text: str) -> None:
    result = check(HEAD + text)
    assert result.prediction is not None and result.note is None


def test_a_text_that_is_filled_in_is_unknown_without_a_finding() -> None:
    result = check("general:\n  model_name: ${MODEL}\ntraining: {bf16: true, output_dir: '${OUT}/run'}\n")
    assert "unresolved-value" not in fired(result)
    assert (result.note, result.note_values) == ("model_open", {"settings": "model_name"})


def test_a_command_whose_batch_is_a_shell_variable_is_not_predicted() -> None:
    text = "python t.py --model_name_or_path google/mt5-base --per_device_train_batch_size $1 --learning_rate 1e-4"
    read = COMMANDS.read(text)
    assert read is not None
    assert CHECKER.check(read).note_values == {"settings": "--per_device_train_batch_size"}


# --- lists ----------------------------------------------------------------------------------------------------------

ODD_LISTS = [
    "[q, no]",
    "[q, 1]",
    "[q, 1.5]",
    "[q, null]",
    "[q, 2024-01-01]",
    "[[q, v]]",
    "[q, [v]]",
    "[{}]",
    "[{q: v}]",
    "[q, {a: [b]}]",
    "[[]]",
    "[[[]]]",
    "[no]",
    "[null]",
    "[~, ~]",
    "no",
    "[!!binary aGk=]",
]


@pytest.mark.parametrize("written", ODD_LISTS)
@pytest.mark.parametrize("name", ["target_modules", "modules_to_save"])
def test_a_list_of_other_things_than_text_is_unknown_and_told(name: str, written: str) -> None:
    text = HEAD + f"qlora:\n  lora_rank: 8\n  {name}: {written}\ntraining: {{bf16: true}}\n"
    try:
        read = unit(text)
    except ValueError:
        assert "binary" in written  # a tag that is not YAML's own is refused as such
        return
    result = CHECKER.check(read)
    assert result.note_values == {"settings": name}
    assert is_unknown(CHECKER.facts(read).get(f"lora.{name}"))


@pytest.mark.parametrize("written", ["[1, 2]", "[1.5]", "{q: 1}", "{}", "3", "q.*v", "'[q, v]'", '["${A}", v]', "${A}"])
@pytest.mark.parametrize("name", ["target_modules", "modules_to_save"])
def test_what_is_no_list_of_names_is_not_replaced_by_the_default_targets(name: str, written: str) -> None:
    result = check(HEAD + f"qlora:\n  lora_rank: 8\n  {name}: {written}\ntraining: {{bf16: true}}\n")
    assert result.prediction is None and result.note_values == {"settings": name}


def test_all_linear_is_every_linear_layer() -> None:
    named = check(HEAD + "qlora: {lora_rank: 8, target_modules: all-linear}\ntraining: {bf16: true}\n")
    default = check(HEAD + "qlora: {lora_rank: 8}\ntraining: {bf16: true}\n")
    assert named.prediction is not None and default.prediction is not None
    assert named.prediction.phases[0].peak_allocated_bytes > default.prediction.phases[0].peak_allocated_bytes


@pytest.mark.parametrize("value", [["q", "v"], ("q",), [], ["q"] * 2000])
def test_a_list_of_text_is_a_tuple_of_bounded_length(value: object) -> None:
    assert coerce(value, "list", "lora.target_modules") == tuple(value)[:1000]  # type: ignore[arg-type]


def test_token_ids_are_a_list_of_the_right_type() -> None:
    assert unit("generation: {bad_words_ids: [[1, 2], [3]], suppress_tokens: [1, 2], num_beams: 4}\n").events == ()


# --- what a config builds on ----------------------------------------------------------------------------------------


def test_the_config_that_this_one_builds_on_is_said_not_to_be_read() -> None:
    result = check("base_config: config.yaml\n" + HEAD + "training: {bf16: true}\n")
    assert result.prediction is not None
    first = result.prediction.assumed[0]
    assert (first.name, first.value, first.reason) == ("launch.base_config", "config.yaml", "not_read")


# --- the model's folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ('{"model_type": "weird"}', "model_config_unknown_type"),
        ("{", "model_config_not_json"),
        ("[]", "model_config_not_json"),
    ],
)
def test_a_model_folder_that_cannot_be_used_says_why(tmp_path: Path, content: str, note: str) -> None:
    (tmp_path / "config.json").write_text(content)
    result = check(f"general: {{model_name: {tmp_path}}}\ntraining: {{bf16: true}}\n")
    assert result.prediction is None and result.note == note
    assert result.note_values["path"] == str(tmp_path / "config.json")


def test_a_name_that_is_no_folder_is_a_model_that_is_not_known() -> None:
    assert check("general: {model_name: nobody/nothing}\ntraining: {bf16: true}\n").note == "model_not_known"


# --- an inference command -------------------------------------------------------------------------------------------


def test_autocast_beside_an_inference_batch_is_no_training() -> None:
    read = COMMANDS.read("python t.py --model google/mt5-base --batch_size 16 --fp16 --num_beams 4")
    assert read is not None
    setup = CHECKER.check(read).setup
    assert setup is not None and setup.fp16
    assert (setup.do_train, setup.do_predict, setup.inference_batch_size) == (False, True, 16)


# --- damaged text ---------------------------------------------------------------------------------------------------


def test_a_config_in_damaged_text_is_recognised_all_the_same() -> None:
    text = "# 배치 크기 설정 효과\n" + HEAD + "training: {bf16: true, per_device_train_batch_size: 4}  # 학습 배치\n"
    raw = text.encode().decode("latin-1").encode()
    file = FileChecker(CATALOG, CHECKER, today=datetime.date(2026, 1, 1)).check(raw, "train.yaml")
    (result,) = file.results
    assert result.unit.dialect == "team" and result.prediction is not None
    assert "mojibake" in fired(result)
    batch = result.unit.settings["training.per_device_train_batch_size"].span
    assert file.text[batch.start : batch.end] == "4"


MAY_EVALUATE = (
    "import sys\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    "rows = load(sys.argv[1])\nmodel = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    "args = TrainingArguments('out', per_device_train_batch_size=1, per_device_eval_batch_size={batch}, bf16=True,\n"
    "    gradient_checkpointing=True, eval_strategy='steps' if rows else 'no', eval_steps={steps})\n"
    "tokenizer(texts, truncation=True, max_length=1024)\n"
    "Trainer(model, args, train_dataset=data, eval_dataset=rows, compute_metrics=score).train()\n"
)


@pytest.mark.parametrize(
    ("batch", "steps", "over"),
    [("1", "100", False), ("64", "100", True), ("1", "100 if rows else None", False), ("len(rows)", "100", None)],
)
def test_a_run_that_may_evaluate_is_predicted_as_one_that_does_and_says_so(
    tmp_path: Path, batch: str, steps: str, over: bool | None
) -> None:
    path = tmp_path / "train.py"
    path.write_text(MAY_EVALUATE.format(batch=batch, steps=steps), "utf-8")
    file = checked_file(path, "--gpu", "rtx-4090", "--gpus", "1")
    if over is None:  # what an evaluation takes is not known
        assert file["prediction"] is None
        return
    assumed = {each["name"]: each["reason"] for each in file["prediction"]["assumed"]}
    assert assumed["training.eval_strategy"] == "may_evaluate"
    found = {each["rule"]: each for each in file["findings"]}
    assert "training-peak-exceeds-gpu" not in found
    assert ("evaluation-peak-exceeds-gpu" in found) == over
    if over:
        said = found["evaluation-peak-exceeds-gpu"]
        assert said["severity"] == "warning" and "training.eval_strategy" in json.dumps(said["assumes"])
