"""The condition of a fix that is only offered, as a sentence: never the expression of the rule."""

import json
import re
from pathlib import Path

import pytest

from catalog_sample import load_catalog
from kb.commands.check import main
from kb.commands.diagnose import main as diagnose
from kb.core.finding import Fix
from kb.core.grammar import parse
from kb.core.text import Text
from kb.knowledge import load_words
from kb.report.condition import condition_text, sentence
from kb.report.words import Words

CATALOG = load_catalog(whole=True)
WORDS = {language: Words(language, load_words(language), CATALOG.facts) for language in ("ko", "en")}
# What only an expression has: quotes, signs, brackets of lists, names with dots.
RAW = re.compile(r"[=<>\"\[\]]|\b(?:written|training|config|gpu|model)\.|\bnot written\.")


def said(expression: str, language: str = "en") -> str:
    return sentence(parse(expression, CATALOG.fact_types(), "bool"), WORDS[language])


@pytest.mark.parametrize(
    ("expression", "english", "korean"),
    [
        ("training.adafactor", "adafactor is on", "adafactor 설정이 켜져 있음"),
        ("not gpu.native_bf16", "the GPU does not compute in bf16", "GPU가 bf16을 하드웨어로 지원하지 않음"),
        ('config.dialect != "team"', "the config's format is not team", "설정의 형식: team 아님"),
        ("gpu.count > 1", "the number of GPUs is over 1", "GPU 수: 1 초과"),
        (
            'versions.transformers < "4.41"',
            "the transformers version is older than 4.41",
            "transformers 버전: 4.41 미만",
        ),
        (
            'training.bf16 and not model.family in ["t5", "mt5"]',
            "bf16 is on and the model family is none of t5, mt5",
            "bf16 설정이 켜져 있음 그리고 모델 계열: t5, mt5 제외",
        ),
        (
            "(not training.group_by_length or written.training.seed) and training.bf16",
            "(group_by_length is off or seed is written) and bf16 is on",
            "(group_by_length 설정이 꺼져 있음 또는 seed 설정이 적혀 있음) 그리고 bf16 설정이 켜져 있음",
        ),
        ('"wi" in lora.unmatched_target_modules', "wi is among LoRA targets that match no module", None),
    ],
)
def test_a_condition_is_a_sentence(expression: str, english: str, korean: str | None) -> None:
    assert said(expression) == english
    assert korean is None or said(expression, "ko") == korean


def test_no_rules_condition_reads_as_an_expression() -> None:
    for rule in CATALOG.rules.values():
        for fix in rule.fixes:
            for words in WORDS.values():
                assert fix.when is None or not RAW.search(sentence(fix.when, words)), rule.id


def test_only_what_is_open_is_said() -> None:
    tree = parse('training.adafactor and config.dialect != "team"', CATALOG.fact_types(), "bool")
    fix = Fix(safety="safe", title=Text("", ""), edits=(), certain=False, when=tree, needs=("training.adafactor",))
    assert condition_text(fix, WORDS["en"]) == "adafactor is on"


def test_a_report_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("general: {model_name: google/mt5-base}\ntraining: {fp16: true}\n")
    main([str(path), "--gpu", "none", "--lang", "en", "--select", "t5-fp16-overflow"])
    out = " ".join(capsys.readouterr().out.split())
    assert "if the GPU computes in bf16:" in out and "gpu.native_bf16" not in out


TWO_GENERATIONS = """\
general: {model_name: google/mt5-base}
tokenizer: {encoder_max_len: 512, decoder_max_len: 64}
training: {do_eval: true, eval_strategy: epoch, predict_with_generate: true, per_device_eval_batch_size: 4}
inference: {batch_size: BATCH, num_beams: 4}
"""


@pytest.mark.long
@pytest.mark.parametrize(("batch", "use", "label"), [(1, "evaluation", "generate"), (256, "inference", "inference")])
def test_the_two_generations_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch: int, use: str, label: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TWO_GENERATIONS.replace("BATCH", str(batch)))
    main([str(path), "--gpu", "a100-80gb", "--lang", "en"])
    assert re.search(rf"^ +{label} +\S", capsys.readouterr().out, re.MULTILINE)
    main([str(path), "--gpu", "a100-80gb", "--lang", "en", "--format", "json"])
    phase = json.loads(capsys.readouterr().out)["files"][0]["prediction"]["phases"]["generate"]
    assert (phase["use"], phase["batch"]) == (use, 4 if use == "evaluation" else batch)


@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_step_whose_condition_is_a_sum_says_its_own_words_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str
) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the "
        "estimated maximum model length is 34734. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine.\n",
        "utf-8",
    )
    diagnose([str(log), "--lang", language])
    steps = capsys.readouterr().out.partition("1. ")[2]
    assert "max_model_len: 34734" in steps
    assert "gpu_memory_utilization" in steps
    assert not re.search(r"[*/] |\bneeded\b", steps)


@pytest.mark.parametrize(
    ("language", "begins"), [("en", "With datasets 3.0 or newer"), ("ko", "datasets 3.0 이상이면")]
)
def test_a_librarys_name_stays_as_it_is_where_a_sentence_begins_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, begins: str
) -> None:
    (tmp_path / "requirements.txt").write_text("datasets>=2.0\n")
    program = tmp_path / "train.py"
    program.write_text("from datasets import load_metric\n")
    main([str(program), "--gpu", "none", "--lang", language, "--no-cache"])
    assert f"  {begins}" in capsys.readouterr().out
