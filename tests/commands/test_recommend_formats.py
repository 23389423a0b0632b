"""A config that is written is one that ``kb check`` reads back and has nothing against."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from catalog_sample import shallow_catalog
from command_runs import ROOT
from effort import EXHAUSTIVE, few
from kb.advice.fit.estimator import Estimator
from kb.advice.fit.recommend_answer import answer
from kb.advice.question import Question
from kb.core.setup import TrainingSetup
from kb.core.text import UserError
from kb.report.recommend.formats import FORMATS, LOADS
from kb.report.recommend.text import config_file
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

sys.path.insert(0, str(ROOT / "bench"))
from recommend_check import CATALOG, GUIDE, WORDS, cases

from warm_runs import run_text

# Of the answer these come back from the file; an adapter's rank and a double quantization only where there is one.
READ_BACK = (
    "method",
    "max_source_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
    "weights",
    "optim",
    "gradient_checkpointing",
    "load_in_4bit",
)
SHALLOW = shallow_catalog()
GPUS = ("rtx-3060-12gb", "rtx-4090", "t4", "a100-80gb")
WAYS = (("llama-3.2-1b", "qlora"), ("qwen2.5-0.5b", "auto"), ("mt5-base", "lora"))


@pytest.mark.parametrize("seed", few(range(4)))
def test_check_says_nothing_of_what_recommend_writes(seed: int) -> None:
    """A sample; bench/recommend_check.py draws as many as one likes."""
    drawn = 9 if EXHAUSTIVE else 4
    found = [each for each in itertools.islice(cases(seed, SHALLOW), drawn) if each is not None]
    assert len(found) > drawn // 3
    for each in found:
        assert each.said == (), (each[:5], each.text)


@pytest.mark.parametrize(
    ("model", "method", "form"),
    [
        pytest.param(*way, form, marks=[pytest.mark.exhaustive] if (number - at) % len(WAYS) else [])
        for number, form in enumerate(FORMATS)
        for at, way in enumerate(WAYS)
    ],
)
def test_what_is_written_is_read_back(form: str, model: str, method: str) -> None:
    """Each format in one way by turns, on one GPU; with --exhaustive in every way, on two."""
    at = FORMATS.index(form) % 2  # one that computes in bf16 and, of every other format, one that does not
    two = (GPUS[at], GPUS[at + 2])
    for gpu in GPUS[:1] if method == "qlora" else two if EXHAUSTIVE else two[method == "lora" :][:1]:
        question = Question.of(gpu=gpu, host_memory="60GB", cpus="16", method=method, loads=LOADS.get(form, "usual"))
        checker = file_checker(SHALLOW, Project(), question)
        estimator = Estimator(SHALLOW.models[model], checker.machine, SHALLOW.constants)
        wanted = answer("train", question, estimator, SHALLOW, GUIDE)
        try:
            text = config_file(wanted, form, WORDS)
        except UserError as error:  # rows of one text alone, or weights under fp16
            assert error.key in ("recommend.not_in_format", "recommend.no_full_fp16")
            continue
        name = {"command": "r.sh", "python": "r.py"}.get(form, "r.yaml")
        assert text is not None and wanted.setup is not None
        (file,) = run([Input(name, raw=text.encode())], checker).files
        (result,) = file.results
        assert result.setup is not None
        for field in READ_BACK:
            if field != "weights" or not wanted.setup.load_in_4bit:
                assert getattr(result.setup, field) == getattr(wanted.setup, field), (gpu, field, text)


def written(model: str, gpu: str, **asked: object) -> TrainingSetup:
    question = Question.of(gpu=gpu, host_memory="200GB", cpus="16", **asked)
    checker = file_checker(CATALOG, Project(), question)
    estimator = Estimator(SHALLOW.models[model], checker.machine, SHALLOW.constants)
    setup = answer("train", question, estimator, CATALOG, GUIDE).setup
    assert setup is not None
    return setup


@pytest.mark.exhaustive
def test_checkpointing_comes_before_a_smaller_batch() -> None:
    setup = written("t5-base", "rtx-3060-12gb", effective_batch=128)  # 64 fit without
    assert setup.method == "full" and setup.gradient_checkpointing and setup.gradient_accumulation_steps == 1


def test_an_effective_batch_that_is_asked_for_is_held_by_accumulation() -> None:
    assert written("mt5-base", "rtx-3060-12gb", effective_batch=256).effective_batch_size == 256
    of_itself = written("mt5-base", "rtx-3060-12gb")  # its loss is not divided over accumulation steps
    assert of_itself.gradient_accumulation_steps == 1


@pytest.mark.exhaustive
def test_evaluation_and_inference_take_no_more_rows_than_the_gpu_gains_from() -> None:
    assert written("t5-small", "a100-80gb").per_device_eval_batch_size == 128
    assert written("t5-small", "a100-80gb", beams=4).per_device_eval_batch_size == 32
    assert written("t5-small", "a100-80gb", eval_batch=300).per_device_eval_batch_size == 300


def kb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_text("kb", "recommend", "--gpu", "rtx-4090", "--lang", "en", *arguments)


@pytest.mark.exhaustive
def test_a_shorter_input_is_taken_only_where_none_is_asked_for_and_said(tmp_path: Path) -> None:
    done = kb("--model", "gemma-2-9b", "--method", "lora", "--as", "trl", "--gpu", "rtx-a4500")
    assert done.returncode == 0 and "max_length: 256" in done.stdout
    assert "# inputs of 256 tokens: 1,024 do not fit" in done.stdout
    asked = kb("--model", "gemma-2-9b", "--method", "lora", "--seq-in", "1024", "--as", "trl", "--gpu", "rtx-a4500")
    assert asked.returncode == 1 and not asked.stdout and "fits on RTX A4500 at no batch" in asked.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "t5-base", "--as", "trl"), "is not trained from a config of trl"),
        (("--model", "t5-base", "--as", "toml"), "--as"),
        (("--model", "t5-base", "--as", "hf", "--task", "inference"), "writes a training run"),
    ],
)
def test_what_no_format_can_hold_is_said(arguments: tuple[str, ...], said: str) -> None:
    done = kb(*arguments)
    assert done.returncode == 2 and said in done.stderr and not done.stdout
