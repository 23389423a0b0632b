"""The lengths of a run: literals and constants of its own program, else what it would cut to, listed as assumed."""

import json

import pytest

from catalog_sample import load_catalog
from kb.advice.check import Checker
from kb.config.notebook.reader import read_cells
from kb.config.python.reader import PythonReader
from kb.config.shell.command import CommandReader, read_shell
from kb.core.document import Unit
from kb.core.setup import TrainingSetup
from kb.machine.detect import detect

CATALOG = load_catalog()
COMMANDS = CommandReader(CATALOG.dialects, CATALOG.facts)
PYTHON = PythonReader(CATALOG.dialects, CATALOG.facts)
MACHINE = detect(CATALOG.gpus, gpu="rtx-3090", gpu_count=None, host_memory="60GB", cpus="8")
T5 = "model = AutoModelForSeq2SeqLM.from_pretrained('google-t5/t5-small')\n"
BERT = "model = AutoModelForSequenceClassification.from_pretrained('bert-base-uncased')\n"
TRAINED = "args = TrainingArguments('out', per_device_train_batch_size=4)\nTrainer(model, args).train()\n"
RUN = "--model_name_or_path bert-base-uncased --do_train --per_device_train_batch_size 8"


def setup_of(unit: Unit) -> TrainingSetup:
    return Checker(CATALOG, MACHINE).check(unit).setup


def python(text: str) -> TrainingSetup:
    return setup_of(PYTHON.read(text + TRAINED, "train.py")[0])


def assumed(setup: TrainingSetup, name: str = "data.max_source_length") -> str | None:
    return next((each.reason for each in setup.assumed if each.name == name), None)


OF_CALLER = "def cut(row, n):\n    return tokenizer(row['a'], truncation=True, max_length=n)\n"


@pytest.mark.parametrize(
    "cuts",
    [
        "rows = rows.map(lambda row: tokenizer(row['a'], truncation=True, padding='max_length', max_length=48))\n",
        "LONGEST = 48\ndef cut(row):\n    return tok(row['a'], max_length=LONGEST, truncation=True)\n",
        "def cut(row):\n    return my.bert_tokenizer(row['a'], max_length=48, truncation='longest_first')\n",
        "encoded = t.batch_encode_plus(rows, max_length=48, truncation=True)\n",
        "def a(r):\n    return tokenizer(r, max_length=48, truncation=True)\n"
        "def b(r):\n    return tokenizer(r, max_length=48, truncation=True)\n",
        "for row in texts:\n    rows.append(tokenizer(row, max_length=48, truncation=True))\n"
        "for row in others:\n    held.append(tokenizer(row, max_length=48, truncation=True))\n",
        OF_CALLER + "a.map(lambda row: cut(row, 48))\nb.map(lambda row: cut(row, 48))\n",
        OF_CALLER + "rows.map(cut, fn_kwargs={'n': 48})\n",
        OF_CALLER + "collate = partial(cut, n=48)\n",
        "max_seq_length = 48\nrows = cut(rows, max_seq_length)\n",
        "block_size = 48\ndef group_texts(r):\n    return pieces(r, block_size)\nrows = rows.map(group_texts)\n",
    ],
)
def test_the_length_that_a_program_cuts_to_is_its_inputs(cuts: str) -> None:
    setup = python(BERT + cuts)
    assert (setup.max_source_length, assumed(setup)) == (48, None)


@pytest.mark.parametrize(
    "cuts",
    [
        "with tok.as_target_tokenizer():\n        x = tok(row['b'], max_length=20, truncation=True)",
        "row['labels'] = tok(text_target=row['b'], max_length=20, truncation=True)['input_ids']",
        "targets = tok(row['b'], max_length=20, truncation=True)",
    ],
)
def test_answers_are_cut_by_themselves(cuts: str) -> None:
    text = f"def cut(row):\n    inputs = tok(row['a'], max_length=96, truncation=True)\n    {cuts}\n    return inputs\n"
    setup = python(T5 + text)
    assert (setup.max_source_length, setup.max_target_length) == (96, 20)


def test_what_does_not_cut_gives_no_length() -> None:
    for text in (
        "tokenizer('a', max_length=48)\n",
        "tokenizer('a', max_length=48, truncation=False)\n",
        "block_size = 48\nread(block_size)\n",
        "text = model.generate(ids, max_length=48)\n",
        "max_seq_length = 48\nmax_seq_length = 64\nrows = cut(rows, max_seq_length)\n",
    ):
        assert assumed(python(BERT + text)) == "longest_of_model", text


CUT = "def cut(row):\n    ids = tok(row['a'])['input_ids']\n    {}\n    return {{'input_ids': ids}}\n"


OF = "def of(n):\n    def cut(row):\n        return {'input_ids': tok(row['a'])['input_ids'][:n]}\n    return cut\n"


@pytest.mark.parametrize(
    ("cuts", "length"),
    [
        ("LONGEST = 48\n" + CUT.format("ids = ids[:LONGEST]"), 48),
        (CUT.format("row['input_ids'] = torch.tensor(ids[-48:])"), 48),
        ("def cut(row):\n    if len(row['input_ids']) > 48:\n        return None\n    return row\n", 48),
        ("rows = rows.filter(lambda row: len(row['input_ids']) <= 48)\nof = dict(train_dataset=rows)\n", 48),
        (OF + "of(48)\n", 48),
        ("LONGEST = 48\ndef cut(row, LONGEST):\n    return {'input_ids': row['a'][:LONGEST]}\n", None),
        (CUT.format("ids = ids[:config.max_length]"), None),
        (CUT.format("ids = ids[:48]\n    ids = ids + tok(row['b'])['input_ids']"), None),
        (CUT.format("row['input_ids'] = ids[:48] + ids[-48:]"), None),
        (CUT.format("ids = ids[:48]\n    ids.extend(tok(row['b'])['input_ids'])"), None),
        ("small = rows.filter(lambda row: len(row['input_ids']) <= 48)\nshow(small)\n", None),
        ("def keep(row):\n    if len(row['input_ids']) > 48:\n        return True\nrows.filter(keep)\n", 512),
        (CUT.format("print(ids[:48])\n    assert len(row['input_ids']) > 8"), 512),
        (CUT.format("if len(row['input_ids']) < 48:\n        return None"), 512),
        (CUT.format("row['labels'] = row['labels'][:48]\n    words = row['a'].split()[:48]"), 512),
    ],
)
def test_rows_that_a_program_cuts_itself(cuts: str, length: int | None) -> None:
    setup = python(BERT + cuts)
    assert (None if "data.max_source_length" in setup.unresolved else setup.max_source_length) == length


@pytest.mark.parametrize(
    ("trainer", "length"),
    [
        ("of = dict(model=model, args=args, max_seq_length=48)\nSFTTrainer(**of)", 48),
        ("SFTTrainer(model=model, **trainers.of(max_seq_length=48))", None),
        ("Trainer(**trainers.of(model))", 512),
    ],
)
def test_a_trainer_given_its_arguments_by_a_dictionary(trainer: str, length: int | None) -> None:
    (unit,) = PYTHON.read(BERT + TRAINED.replace("Trainer(model, args)", trainer), "train.py")
    setup = setup_of(unit)
    unknown = {"data.max_source_length", "trl.max_seq_length"} & set(setup.unresolved)
    assert (None if unknown else setup.max_source_length) == length


def test_calls_that_cut_differently_leave_it_open() -> None:
    two = "def a(r):\n    return tokenizer(r, max_length=48, truncation=True)\n"
    setup = python(BERT + two + two.replace("48", "96").replace("def a", "def b"))
    assert "data.max_source_length" in setup.unresolved
    setup = python(BERT + OF_CALLER + "a.map(lambda row: cut(row, 48))\nb.map(lambda row: cut(row, 64))\n")
    assert "data.max_source_length" in setup.unresolved


def test_a_length_that_only_a_condition_cuts_to_leaves_it_open() -> None:
    setup = python(BERT + "for row in texts:\n    if long:\n        tokenizer(row, max_length=48, truncation=True)\n")
    assert "data.max_source_length" in setup.unresolved


LOOP = "for row in rows:\n    ids = tokenizer(row, max_length=48, truncation=True)\n    {}\n"


@pytest.mark.parametrize("use", ["model.generate(ids.input_ids)", "scores.append(net(**ids))", "base_model(ids)"])
def test_a_loop_that_hands_its_texts_to_the_model_leaves_it_open(use: str) -> None:
    assert "data.max_source_length" in python(BERT + LOOP.format(use)).unresolved


def test_a_loop_behind_the_training_leaves_it_open() -> None:
    (unit,) = PYTHON.read(BERT + TRAINED + LOOP.format("held.append(ids)"), "train.py")
    assert "data.max_source_length" in setup_of(unit).unresolved


def test_a_tokenizer_told_its_longest_is_assumed_to_reach_it() -> None:
    setup = python(BERT + "tokenizer = AutoTokenizer.from_pretrained('bert-base-uncased', model_max_length=200)\n")
    assert (setup.max_source_length, assumed(setup)) == (200, "longest_of_tokenizer")


def test_a_notebook_is_read_with_the_length_of_its_map() -> None:
    cells = [
        "max_length = 64",
        BERT,
        "def prepare(row):\n    return tokenizer(row['text'], truncation=True, max_length=max_length)",
        "rows = dataset.map(prepare, batched=True)",
        TRAINED,
    ]
    book = {"cells": [{"cell_type": "code", "metadata": {}, "source": each} for each in cells], "nbformat": 4}
    (unit,) = read_cells(json.dumps(book), "a.ipynb", PYTHON, COMMANDS)
    setup = setup_of(unit)
    assert (setup.max_source_length, assumed(setup)) == (64, None)


@pytest.mark.parametrize(
    ("flags", "length", "reason"),
    [
        ("--max_seq_length 72", 72, None),
        ("--max_seq_len 72", 72, None),
        ("--model_max_length 72", 72, None),
        ("--cutoff_len 72", 72, None),
        ("--max_length 72", 72, None),
        ("", 128, "script_default"),
    ],
)
def test_a_commands_length_goes_by_many_names(flags: str, length: int, reason: str | None) -> None:
    setup = setup_of(read_shell(f"python run_glue.py {RUN} {flags}\n", "run.sh", COMMANDS)[0])
    assert (setup.max_source_length, assumed(setup)) == (length, reason)


def test_accelerates_own_flags_say_what_its_file_would() -> None:
    line = "accelerate launch --num_processes 4 --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu train.py"
    setup = setup_of(read_shell(f"{line} {RUN}\n", "run.sh", COMMANDS)[0])
    assert (setup.world_size, setup.zero_stage, setup.offload_optimizer) == (4, 3, True)


def test_a_deepspeed_file_that_may_be_given_leaves_the_stage_open() -> None:
    for script in (
        f'if [ "$DS" ]; then X="--deepspeed ds_zero3.json"; fi\ntorchrun --nproc_per_node 2 run_glue.py {RUN} $X\n',
        f"torchrun --nproc_per_node 2 run_glue.py {RUN} --deepspeed $1\n",
    ):
        assert "deepspeed.zero_stage" in setup_of(read_shell(script, "run.sh", COMMANDS)[0]).unresolved, script
    written = f"torchrun --nproc_per_node 2 run_glue.py {RUN}\n"
    assert setup_of(read_shell(written, "run.sh", COMMANDS)[0]).unresolved == ()
