"""``kb recommend --as``: the config that is written is one that ``kb check`` reads back and has nothing against."""

import subprocess
import sys
from pathlib import Path

import pytest

from kb.advice.answer import Answer, answer, answer_easier
from kb.advice.estimator import Estimator
from kb.advice.question import Question
from kb.core.result import UnitResult
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.report.recommend.formats import FORMATS, OF_DECODERS
from kb.report.recommend.text import config_file
from kb.report.words import Words
from kb.session import cli
from kb.session.file import FileChecker
from kb.session.prepare import file_checker
from kb.session.project import Project
from kb.session.run import Input, run

CATALOG, GUIDE = load_catalog(), load_guide()
WORDS = Words("en", cli.load_words_or_none("en"), CATALOG.facts)
MODELS = ("llama-3.1-8b", "qwen2.5-0.5b", "t5-base", "kobart", "mt5-xlsum")
METHODS = ("auto", "full", "lora", "qlora")
# What is true of the run whatever the config says, and no fault of its own making.
TRUE_OF_ANY = {
    "seq2seq-grad-accumulation-inflates-loss",
    "t5-quantization-keeps-wo-unquantized",
    "t5-learning-rate-too-low",
    "lora-base-loaded-in-fp32",
    "gradient-checkpointing-renamed",
    "under-the-target-range",
}
READ_BACK = (
    "method",
    "max_source_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
    "optim",
    "gradient_checkpointing",
    "lora_r",
    "load_in_4bit",
)


def recommended(model: str, method: str, checker: FileChecker) -> Answer:
    estimator = Estimator(CATALOG.models[model], checker.machine, CATALOG.constants)
    asked = Question.of(method=method)

    def ask(other: Question) -> Answer:
        return answer("train", other, estimator, CATALOG, GUIDE)

    return answer_easier(asked, ask(asked), ask)


def read_back(text: str, form: str, checker: FileChecker) -> UnitResult:
    (file,) = run([Input("r.sh" if form == "command" else "r.yaml", raw=text.encode())], checker).files
    (result,) = file.results
    return result


@pytest.mark.parametrize("gpu", ["rtx-4090", "t4", "a100-80gb"])
def test_what_is_written_is_read_back_and_fits(gpu: str) -> None:
    checker = file_checker(CATALOG, Project(), Question.of(gpu=gpu, host_memory="60GB", cpus="16"))
    written = 0
    for model in MODELS:
        family = CATALOG.models[model].architecture.family
        for method in METHODS:
            found = recommended(model, method, checker)
            for form in FORMATS:
                if form in OF_DECODERS and family != "decoder":
                    continue
                try:
                    text = config_file(found, form, WORDS)
                except UserError as error:  # Axolotl's weights under fp16
                    assert error.key == "recommend.no_full_fp16"
                    continue
                if text is None:
                    assert found.setup is None
                    continue
                written += 1
                result = read_back(text, form, checker)
                said = {each.rule for each in result.findings} - TRUE_OF_ANY
                assert not said, (model, method, form, said, text)
                assert result.prediction is not None, (model, method, form, result.note)
                assert result.prediction.verdict.status == "fits", (model, method, form)
                setup, wanted = result.setup, found.setup
                assert setup is not None and wanted is not None
                of_adapters = ("lora_r",) if wanted.method == "full" else ()
                for name in READ_BACK:
                    if name not in of_adapters:
                        assert getattr(setup, name) == getattr(wanted, name), (model, method, form, name)
    assert written > 50


def kb(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kb", "recommend", "--gpu", "rtx-4090", "--lang", "en", *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8")


def test_a_shorter_input_is_taken_only_where_none_is_asked_for_and_said(tmp_path: Path) -> None:
    done = kb("--model", "llama-3.1-8b", "--method", "lora", "--as", "trl")
    assert done.returncode == 0 and "max_length: 512" in done.stdout
    assert "# inputs of 512 tokens: 1,024 do not fit" in done.stdout
    asked = kb("--model", "llama-3.1-8b", "--method", "lora", "--seq-in", "8192", "--as", "trl")
    assert asked.returncode == 1 and not asked.stdout and "fits on RTX 4090 at no batch" in asked.stderr


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
