"""Python files as configs: literal calls read by their syntax tree, with places, and mended in place."""

import ast
import json
import subprocess
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.config.discovery import discover
from kb.config.files import CODE_SUFFIXES, ConfigError
from kb.config.marks import bears_marks
from kb.config.python.reader import MAX_RUNS, PythonReader
from kb.core.document import Unit
from kb.core.expression import is_unknown
from warm_runs import run_text

CATALOG = load_catalog()
READER = PythonReader(CATALOG.dialects, CATALOG.facts)
SCRIPT = """\
import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

MODEL = "google/mt5-base"
BATCH = 4 * 2  # effective 32

model = AutoModelForSeq2SeqLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
args = Seq2SeqTrainingArguments(
    "out",
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=4,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    fp16=True,
)
trainer = Seq2SeqTrainer(model=model, args=args)
"""


def only(text: str) -> Unit:
    (unit,) = READER.read(text, "train.py")
    return unit


def value(text: str, name: str = "training.per_device_train_batch_size") -> object:
    return only(text).settings[name].value


def kb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_text("kb", "check", "--lang", "en", "--gpu", "rtx-3090", *arguments)


def test_a_training_call_is_a_run_with_the_settings_of_the_calls_around_it():
    unit = only(SCRIPT)
    values = {name: setting.value for name, setting in unit.settings.items()}
    assert unit.dialect == "hf"
    assert values == {
        "model.name": "google/mt5-base",
        "model.loader": "transformers",
        "model.torch_dtype": "bfloat16",
        "training.output_dir": "out",
        "training.prediction_loss_only": True,  # the trainer is given no metric function
        "training.per_device_train_batch_size": 8,
        "training.gradient_accumulation_steps": 4,
        "training.gradient_checkpointing_kwargs.use_reentrant": False,
        "training.fp16": True,
    }


def test_a_value_behind_a_name_stands_at_its_assignment_with_the_comment_there():
    setting = only(SCRIPT).settings["training.per_device_train_batch_size"]
    assert (setting.span.line, setting.span.column, setting.span.end_column) == (5, 9, 14)
    assert setting.key_span.line == 10
    assert setting.comment == "effective 32"


def test_columns_count_characters_not_bytes():
    unit = only('이름 = "한국어"; args = TrainingArguments("아웃", per_device_train_batch_size=8)\n')
    text = '이름 = "한국어"; args = TrainingArguments("아웃", per_device_train_batch_size='
    assert unit.settings["training.per_device_train_batch_size"].span.column == len(text) + 1


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("4 * 2", 8),
        ("2 ** 3", 8),
        ("-(-8)", 8),
        ("int('8')", 8),
        ("16 // 2 if True else 1", 8),
        ("[8][0]", None),
        ("len(data)", None),
        ("args.batch", None),
        ("int(os.environ['BATCH'])", None),
        ("2 ** 2 ** 2 ** 2 ** 9", None),
        ("8 // 0", None),
        ("1e15 * 1e15", None),
        ("8 if gpus > 1 else 4", None),
        ("unassigned", None),
    ],
)
def test_expressions_of_literals_are_known_and_all_others_are_not(expression: str, meant: int | None):
    found = value(f"TrainingArguments('o', per_device_train_batch_size={expression})\n")
    assert is_unknown(found) if meant is None else found == meant


@pytest.mark.parametrize(
    "assignments",
    [
        "B = 8\nB += 1",
        "if big:\n    B = 8",
        "for B in (8, 16):\n    pass",
        "B = parse()",
        "from settings import B",
        "B = C\nC = B",
        "B = 8\ndef f():\n    global B\n    B = 9",
        "B, _ = load()",
    ],
)
def test_a_name_that_is_not_assigned_one_literal_for_certain_is_unknown(assignments: str):
    assert is_unknown(value(f"{assignments}\nTrainingArguments('o', per_device_train_batch_size=B)\n"))


@pytest.mark.parametrize(
    "assignments",
    [
        "B = 8",
        "B: int = 8",
        "A, B = 1, 8",
        "if __name__ == '__main__':\n    B = 8",
        "C = 8\nB = C",
        "class CFG:\n    batch = 8\nB = CFG.batch",
        "config = {'batch': 8}\nB = config['batch']",
    ],
)
def test_a_name_assigned_one_literal_is_that(assignments: str):
    indent = "    " if assignments.startswith("if") else ""
    assert value(f"{assignments}\n{indent}TrainingArguments('o', per_device_train_batch_size=B)\n") == 8


def test_a_processor_says_how_large_its_pictures_are():
    text = "TrainingArguments('o')\nAutoProcessor.from_pretrained('Qwen/Qwen2-VL-2B-Instruct', max_pixels={})\n"
    assert value(text.format("192 * 28 * 28"), "data.image_max_pixels") == 150_528
    assert "data.image_max_pixels" not in only(text.format("args.pixels")).settings


def test_parameters_hide_names_of_the_module():
    assert is_unknown(value("B = 8\ndef f(B):\n    TrainingArguments('o', per_device_train_batch_size=B)\n"))


def test_a_dictionary_that_is_written_out_is_unpacked_and_one_that_is_changed_is_not():
    text = "common = dict(fp16=True)\n{}TrainingArguments('o', per_device_train_batch_size=8, **common)\n"
    text += "model = AutoModel.from_pretrained('t5-small')\n"
    unit = only(text.format(""))
    assert unit.settings["training.fp16"].value is True
    assert unit.settings["training.fp16"].span.line == 1
    assert unit.hidden == ()
    changed = only(text.format("common.update(bf16=True)\n"))
    assert "training.fp16" not in changed.settings
    assert changed.hidden == ("training.", "trl.")


def test_what_unknown_arguments_may_hold_is_not_taken_for_the_default(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace("fp16=True", "**more"),
        encoding="utf-8",
    )
    shown = kb(str(path)).stdout
    assert "No prediction" in shown
    assert "cannot be told" in shown


def test_configs_of_trl_have_the_defaults_of_trl():
    unit = only("args = SFTConfig(output_dir='o', max_length=1024, packing=True)\n")
    assert unit.dialect == "trl"
    assert unit.settings["trl.max_length"].value == 1024


def test_lora_and_quantization_around_a_run_are_part_of_it():
    unit = only(
        "bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)\n"
        "peft = LoraConfig(r=16, target_modules=['q', 'v'], task_type=TaskType.CAUSAL_LM)\n"
        "SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=SFTConfig('o'), peft_config=peft)\n"
    )
    values = {name: setting.value for name, setting in unit.settings.items()}
    assert values["model.name"] == "Qwen/Qwen2.5-0.5B"
    assert values["quantization.load_in_4bit"] is True
    assert values["quantization.bnb_4bit_compute_dtype"] == "bfloat16"
    assert values["lora.enabled"] is True
    assert values["lora.target_modules"] == ("q", "v")
    assert values["lora.task_type"] == "CAUSAL_LM"


def test_a_call_that_may_not_happen_leaves_its_settings_unknown():
    unit = only("if use_lora:\n    peft = LoraConfig(r=16)\nTrainingArguments('o', fp16=True)\n")
    assert is_unknown(unit.settings["lora.enabled"].value)
    assert is_unknown(unit.settings["lora.r"].value)


def test_a_call_in_the_other_arm_of_an_if_is_no_part_of_the_run():
    unit = only("if full:\n    args = TrainingArguments('o', fp16=True)\nelse:\n    peft = LoraConfig(r=16)\n")
    assert not any(name.startswith("lora.") for name in unit.settings)


def test_unsloth_loads_in_4_bits_unless_told_otherwise():
    text = (
        "model, tokenizer = FastLanguageModel.from_pretrained('unsloth/llama-3-8b', max_seq_length=2048{})\n"
        "model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing='unsloth')\n"
        "SFTTrainer(model=model, args=TrainingArguments('o', bf16=is_bfloat16_supported()))\n"
    )
    values = {name: setting.value for name, setting in only(text.format("")).settings.items()}
    assert values["quantization.load_in_4bit"] is True
    assert values["training.gradient_checkpointing"] is True
    assert values["data.max_source_length"] == 2048
    told = only(text.format(", load_in_4bit=False"))
    assert told.settings["quantization.load_in_4bit"].value is False


@pytest.mark.parametrize(("gpu", "status"), [("t4", "fp16"), ("rtx-3090", "bf16")])
def test_what_code_asks_of_the_gpu_is_answered_by_the_gpu_that_is_named(gpu: str, status: str, tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(
        "model = AutoModelForSeq2SeqLM.from_pretrained('google/mt5-small')\n"
        "args = TrainingArguments('o', fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported())\n"
        "Trainer(model=model, args=args)\n",
        encoding="utf-8",
    )
    shown = kb(str(path), "--gpu", gpu).stdout
    assert ("t5-fp16-overflow" in shown) == (status == "fp16")
    assert "No prediction" not in shown


def test_lengths_come_from_the_tokenizer_where_they_are_literal():
    unit = only(
        "LIMIT = 512\n"
        "def prepare(rows):\n"
        "    inputs = tokenizer(rows['text'], max_length=LIMIT, truncation=True)\n"
        "    labels = tokenizer(text_target=rows['summary'], max_length=128, truncation=True)\n"
        "    tokenizer(rows['text'], max_length=64)\n"
        "TrainingArguments('o', fp16=True)\n"
    )
    assert unit.settings["data.max_source_length"].value == 512
    assert unit.settings["data.max_target_length"].value == 128


def test_several_runs_are_sections_named_by_their_variable_or_line():
    units = READER.read(
        "first = TrainingArguments('a', fp16=True)\nsecond = TrainingArguments('b', fp16=True)\n"
        "Trainer(args=TrainingArguments('c', fp16=True))\n_ = TrainingArguments('.', fp16=True)\n",  # of no trainer
        "train.py",
    )
    assert [unit.section for unit in units] == ["first", "second", "line 3"]


def test_of_two_models_the_one_that_is_given_to_the_trainer_counts():
    unit = only(
        "reward_model = AutoModelForSequenceClassification.from_pretrained('gpt2')\n"
        "policy = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        "judge = AutoModelForCausalLM.from_pretrained('gpt2-xl')\n"
        "args = DPOConfig('o', fp16=True)\n"
        "DPOTrainer(model=policy, ref_model=judge, args=args)\n"
    )
    assert unit.settings["model.name"].value == "Qwen/Qwen2.5-0.5B"


def test_slips_and_quoted_values_are_events_as_in_yaml():
    unit = only("TrainingArguments('o', per_device_train_batchsize=8, learning_rate='2e-5', fp16='False')\n")
    assert {event.kind for event in unit.events} == {"unknown-key", "quoted-number", "quoted-boolean"}
    boolean = next(event for event in unit.events if event.kind == "quoted-boolean")
    assert boolean.edits[0].value == "False"


def test_a_file_without_a_literal_call_has_no_runs():
    assert READER.read("parser = HfArgumentParser(TrainingArguments)\nTrainingArguments(**vars(x))\n", "a.py") == []


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("x = 1\ndef f(:\n    pass\n", "config.python-syntax", 2),
        ("TrainingArguments(fp16=True,\n  fp16=False)\n", "config.python-syntax", 2),
        ("x = " + "(" * 250 + "1" + ")" * 250, "config.python-too-deep", 1),
        ("x = " + "-" * 100_000 + "1", "config.python-too-deep", 1),
        ("x = " + "1+" * 100_000 + "1", "config.python-too-deep", 1),
        ("if 1:\n\tx = 1\n        y = 2\n", "config.python-syntax", 3),
        ("TrainingArguments('o', fp16=True)\n" * (MAX_RUNS + 1), "config.python-too-many", None),
        ("#" + "x" * (1 << 20), "config.too-large", None),
    ],
)
def test_what_cannot_be_read_is_said_at_its_place(text: str, key: str, line: int | None):
    with pytest.raises(ConfigError) as raised:
        READER.read(text, "train.py")
    assert (raised.value.key, raised.value.line) == (key, line)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_line_end_of_python_counts_lines_alike(newline: str):
    units = READER.read(SCRIPT.replace("\n", newline), "train.py")
    start = units[0].settings["training.fp16"].span.start
    assert SCRIPT.replace("\n", newline)[start:].startswith("True")


def test_a_byte_order_mark_shifts_no_place():
    text = "\ufeff" + SCRIPT
    start = only(text).settings["training.fp16"].span.start
    assert text[start:].startswith("True")


def test_a_file_that_does_not_parse_is_exit_2_with_its_place_named_or_found_in_a_tree(tmp_path: Path):
    broken, good = tmp_path / "broken.py", tmp_path / "train.py"
    broken.write_text("args = TrainingArguments('o',\n  fp16==True)\ndef f(:\n", encoding="utf-8")
    good.write_text("args = TrainingArguments('o', fp16=True, bf16=True)\n", encoding="utf-8")
    named = kb(str(broken))
    assert named.returncode == 2
    assert f"{broken}:3:7:" in named.stderr
    tree = kb(str(tmp_path))
    assert tree.returncode == 2
    assert "train.py" in tree.stdout and f"{broken}:3:7:" in tree.stderr


def test_a_file_in_the_encoding_that_it_declares_is_read_and_written_in_it(tmp_path: Path):
    path = tmp_path / "train.py"
    text = "# -*- coding: euc-kr -*-\n# 학습\nargs = TrainingArguments('출력', learning_rate='2e-5')\n"
    path.write_bytes(text.encode("euc-kr"))
    assert kb(str(path), "--fix").returncode == 0
    assert path.read_bytes().decode("euc-kr") == text.replace("'2e-5'", "2.0e-5")


def test_binary_data_under_the_name_of_a_python_file_is_said(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_bytes(b"TrainingArguments('o', fp16=True)\x00\x01")
    shown = kb(str(path))
    assert shown.returncode == 2 and "no text" in shown.stderr


def test_a_comment_sets_a_finding_aside_and_a_text_does_not(tmp_path: Path):
    path = tmp_path / "train.py"
    said = "# kb: ignore[quoted-number] the trainer casts it"
    path.write_text(f"args = TrainingArguments(\n    'o',\n    learning_rate='2e-5',  {said}\n)\n", encoding="utf-8")
    assert kb(str(path)).returncode == 0
    path.write_text(f"{said}\nargs = TrainingArguments(\n    'o',\n    learning_rate='2e-5',\n)\n", encoding="utf-8")
    assert kb(str(path)).returncode == 0
    path.write_text(f"x = '''\n{said}\n'''; args = TrainingArguments('o', learning_rate='2e-5')\n", encoding="utf-8")
    assert kb(str(path)).returncode == 1


def test_folders_give_the_files_that_name_a_call_and_never_those_of_environments(tmp_path: Path):
    call = "args = TrainingArguments('o', fp16=True)\n"
    files = {
        "train.py": call,
        "other.py": "print('hello')\n",
        "ignored.py": call,
        "site-packages/a.py": call,
        "my-env/pyvenv.cfg": "",
        "my-env/lib/a.py": call,
        ".gitignore": "ignored.py\n",
        "deep/er/sft.py": "SFTConfig('o')\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = [Path(each.path).relative_to(tmp_path).as_posix() for each in discover([str(tmp_path)]).files]
    assert found == ["train.py", "deep/er/sft.py"]


def test_the_marks_that_folders_are_searched_for_are_the_calls_of_the_dialect():
    for name, row in CATALOG.dialects["python"].calls.items():
        if "as" in row or row["group"] in ("lora", "quantization"):
            assert bears_marks(b"import vllm\n" + name.replace("*", "Language").encode() + b"(") or name.endswith(
                "get_peft_model"
            ), name
    assert CODE_SUFFIXES == (".py", ".ipynb")


FIXED = {
    "in its place": ("LR = '2e-5'\nargs = TrainingArguments('o', learning_rate=LR)\n", ("'2e-5'", "2.0e-5")),
    "in the call": ("args = TrainingArguments('o', learning_rate=\"2e-5\")\n", ('"2e-5"', "2.0e-5")),
}


@pytest.mark.parametrize("case", FIXED)
def test_fix_changes_the_literal_where_it_stands(case: str, tmp_path: Path):
    text, (old, new) = FIXED[case]
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    assert kb(str(path), "--fix").returncode == 0
    assert path.read_text(encoding="utf-8") == text.replace(old, new)


def test_fix_puts_a_new_keyword_beside_the_finding_in_the_style_of_the_call(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("torch_dtype=torch.bfloat16", "dtype=torch.float32"), encoding="utf-8")
    kb(str(path), "--fix")
    text = path.read_text(encoding="utf-8")
    assert "    fp16=False,\n    bf16=True,\n)" in text
    ast.parse(text)


def test_fix_writes_over_no_value_that_other_code_uses_too(tmp_path: Path):
    path = tmp_path / "train.py"
    text = "LR = '2e-5'\nargs = TrainingArguments('o', learning_rate=LR)\nprint(LR)\n"
    path.write_text(text, encoding="utf-8")
    shown = kb(str(path), "--fix")
    assert shown.returncode == 1
    assert path.read_text(encoding="utf-8") == text


def test_fix_keeps_the_constants_of_torch(tmp_path: Path):
    path = tmp_path / "train.py"
    path.write_text(
        "model = AutoModelForSeq2SeqLM.from_pretrained('google/mt5-small', dtype=torch.float16)\n"
        "args = TrainingArguments('o', fp16=True)\nTrainer(model=model, args=args)\n",
        encoding="utf-8",
    )
    kb(str(path), "--fix", "--unsafe-fixes", "--select", "fp16-amp-on-fp16-weights")
    assert "dtype=torch.float32" in path.read_text(encoding="utf-8")


def test_a_choice_by_the_gpu_s_abilities_is_unknown_or_waits_for_the_gpu(tmp_path):
    path = tmp_path / "sft.py"
    path.write_text(
        "from trl import SFTConfig\nimport torch\nok = torch.cuda.is_bf16_supported()\n"
        'a = SFTConfig(output_dir="x", optim="adamw_torch" if ok else "adafactor", bf16=True if ok else False,\n'
        "              per_device_train_batch_size=4 if ok else 4)\n"
    )
    run = kb(str(path))
    assert run.returncode == 0 and "format trl" in run.stdout, run.stdout + run.stderr
    settings = only(path.read_text()).settings
    assert is_unknown(settings["training.optim"].value)
    assert is_unknown(settings["training.bf16"].value) and settings["training.bf16"].value.needs
    assert settings["training.per_device_train_batch_size"].value == 4


@pytest.mark.parametrize(
    "before",
    [
        "class C:\n    size = 8\n    def run(self):\n        {call}\n",
        "size = 8\nruns = [{call} for size in (1, 2)]\n",
        "size = 8\nmake = lambda size: {call}\n",
        "size = 8\ntry:\n    pass\nexcept ValueError as size:\n    pass\n{call}\n",
        "size = 8\nmatch x:\n    case [size, *_]:\n        pass\n{call}\n",
        "class CFG:\n    size = 8\nsetattr(CFG, 'size', 4)\nsize = CFG.size\n{call}\n",
        "def run():\n    size = 8\nopts = {{'k': size}}\n{call}\n",
    ],
)
def test_a_name_that_another_may_give_a_value_is_unknown(before):
    call = 'TrainingArguments("out", per_device_train_batch_size=size, seed=1)'
    assert is_unknown(value(before.format(call=call)))


def test_a_dictionary_s_values_are_those_of_where_it_is_written():
    text = 'size = 4\nopts = {"per_device_train_batch_size": size}\ndef run():\n    size = 8\n'
    assert value(text + "    TrainingArguments('out', **opts)\n") == 4


def test_names_that_double_with_every_line_end_at_a_bound():
    rows = "".join(f"x{n + 1} = {{'a': x{n}, 'b': x{n}}}\n" for n in range(40))
    lists = "".join(f"y{n + 1} = [y{n}, y{n}]\n" for n in range(22))
    text = (
        f"x0 = 1\ny0 = 1\n{rows}{lists}TrainingArguments('out', seed=1, generation_config=x40, debug=y22, optim=x20)\n"
    )
    assert only(text).settings["training.seed"].value == 1


def test_a_long_chain_of_choices_is_read_to_its_end():
    chain = "if a == 0:\n    b = 4\n" + "".join(f"elif a == {each}:\n    b = {each}\n" for each in range(1, 600))
    call = "TrainingArguments('o', per_device_train_batch_size={})\n"
    text = "from transformers import TrainingArguments\n" + chain
    assert is_unknown(value(text + call.format("b")))
    assert value(text + "b = 8\n" + call.format("b")) == 8


def test_a_call_in_a_function_with_a_run_of_its_own_is_no_part_of_other_runs():
    function = """
def {name}():
    args = TrainingArguments(output_dir="{name}", per_device_train_batch_size=2)
    {call}
"""
    loads = 'model = AutoModelForCausalLM.from_pretrained("gpt2", load_in_4bit=True)'
    code = "from transformers import AutoModelForCausalLM, TrainingArguments\n"
    code += function.format(name="one", call=loads) + function.format(name="two", call="pass")
    first, second = READER.read(code, "train.py")
    assert first.settings["quantization.load_in_4bit"].value is True
    assert "quantization.load_in_4bit" not in second.settings


@pytest.mark.parametrize(
    ("library", "read"),
    [
        ("trl", True),
        ("trlx.models", False),
        ("ray.rllib.algorithms.ppo", False),
        ("setfit", False),
        ("predibase", False),
    ],
)
def test_a_class_of_another_library_is_no_namesakes(library: str, read: bool) -> None:
    text = f"from {library} import PPOConfig\nargs = PPOConfig(learning_rate=1e-5, scale_reward='running')\n"
    assert bool(READER.read(text, "train.py")) is read


LATER = """
from transformers import Trainer, TrainingArguments
def main(flag):
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, learning_rate=1e-4)
    {before}
    trainer = Trainer(model=model, args=args)
    trainer.train()
    {after}
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("args.per_device_train_batch_size = 8", "", 8),
        ("args.per_device_train_batch_size = 8; args.per_device_train_batch_size = 2", "", 2),
        ("args.per_device_train_batch_size = rows(args)", "", None),
        ("if flag: args.per_device_train_batch_size = 8", "", None),
        ("for n in (1, 2): args.per_device_train_batch_size = n", "", None),
        ("if False: args.per_device_train_batch_size = 8", "", 4),
        ("other.per_device_train_batch_size = 8", "", 4),
        ("args = Other(); args.per_device_train_batch_size = 8", "", 4),
        ("", "args.per_device_train_batch_size = 8", 4),
    ],
)
def test_what_arguments_are_given_before_training_goes_over_their_call(
    before: str, after: str, expected: int | None
) -> None:
    value = only(LATER.format(before=before, after=after)).settings["training.per_device_train_batch_size"].value
    assert (None if is_unknown(value) else value) == expected


def test_an_attribute_that_is_no_setting_says_nothing() -> None:
    unit = only(LATER.format(before="args.model_config = config; args.gradient_checkpointing = True", after=""))
    assert unit.settings["training.gradient_checkpointing"].value is True and not unit.unknown_keys


def test_a_loss_of_its_own_leaves_open_whether_unsloths_counts():
    run = """
from transformers import Trainer, TrainingArguments
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen2.5-0.5B", load_in_4bit=True)
{trainer}
Own(model=model, args=TrainingArguments(output_dir="out", per_device_train_batch_size=2)).train()
"""
    own = "class Own(Trainer):\n    def compute_loss(self, model, inputs): ..."
    assert only(run.format(trainer="Own = Trainer")).settings["model.fused_loss"].value is True
    assert is_unknown(only(run.format(trainer=own)).settings["model.fused_loss"].value)


@pytest.mark.parametrize("line", ["config.max_position_embeddings = 4096", "resize_position_embeddings(4096)"])
def test_a_model_with_more_positions_than_its_checkpoint_is_not_the_checkpoints(line: str):
    assert is_unknown(only(SCRIPT + f"model.{line}\n").settings["model.max_positions"].value)
    assert "model.max_positions" not in only(SCRIPT).settings


def test_a_server_in_a_trainers_file_says_nothing_of_training():
    text = "from vllm import LLM\nclass Own(Trainer):\n    def serve(self): self.llm = LLM(model='Qwen/Qwen3-4B')\n"
    assert not [name for name in only(text).settings if name.startswith(("training.", "lora."))]


EVALUATING = """
from datasets import load_dataset
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments
SAMPLES = 8
{data}
model = AutoModelForSeq2SeqLM.from_pretrained("facebook/bart-large")
args = Seq2SeqTrainingArguments("o", per_device_train_batch_size=1, per_device_eval_batch_size=256,
                                eval_strategy="epoch", max_steps=10)
trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=rows["train"], eval_dataset={given})
trainer.train()
"""
SPLIT = 'rows = load_dataset("csv", data_files="d.csv")["train"].train_test_split(test_size={size})'
TAKEN = 'rows = load_dataset("a/b")\nheld = rows["validation"].shuffle(seed=1).select(range({of})).map(prepare)'


@pytest.mark.parametrize(
    ("data", "given", "rows"),
    [
        (SPLIT.format(size="SAMPLES, seed=1"), 'rows["test"]', 8),
        (SPLIT.format(size="SAMPLES") + "\ntokens = rows.map(prepare)", 'tokens["test"]', 8),
        (SPLIT.format(size="0.1"), 'rows["test"]', None),
        (SPLIT.format(size="SAMPLES") + "\ntokens = rows.map(prepare, batched=True)", 'tokens["test"]', None),
        (TAKEN.format(of="20"), "held", 20),
        (TAKEN.format(of="min(20, len(rows))"), "held", 20),
        (TAKEN.format(of="len(rows)"), "held", None),
        ('rows = load_dataset("a/b")\nheld = load_dataset("a/b", split="test[:30]")', "held", 30),
        ('rows = load_dataset("a/b")\nheld = load_dataset("a/b", split="test[:30%]")', "held", None),
        ('rows = load_dataset("a/b")\nheld = rows["test"]\nif small:\n    held = held.select(range(5))', "held", None),
    ],
)
def test_what_is_evaluated_is_as_long_as_the_code_cuts_it(
    tmp_path: Path, data: str, given: str, rows: int | None
) -> None:
    path = tmp_path / "train.py"
    path.write_text(EVALUATING.format(data=data, given=given), encoding="utf-8")
    said = json.loads(kb(str(path), "--format", "json").stdout)["files"][0]
    assert said["setup"]["eval_samples"] == rows
    assert said["setup"]["per_device_eval_batch_size"] == (rows or 256)
