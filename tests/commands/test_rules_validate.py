"""`kb rules validate` on rules with one fault planted: where it is, and a sentence in each language."""

import io
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from effort import EXHAUSTIVE, few
from kb.commands.rules import main
from kb.memory.architecture import BART_TYPES, T5_TYPES
from kb.memory.architecture import decoder as architecture_decoder
from kb.memory.architecture import encoder as architecture_encoder
from rules_copy import copy_of_rules
from yaml_file import read_yaml

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
GPU, MODEL, RUNS = "hardware/rtx-3090.yaml", "models/t5-base.yaml", "measurements/fitcheck-t4-ladder.yaml"
RULE = "checks/batch/t5-learning-rate-too-low.yaml"
# file, what stands there, what is planted, what is said in English, and a word of the Korean sentence
FAULTS = {
    "a placeholder that one language has alone": (
        RULE,
        "is trained at learning rate {training.learning_rate}",
        "is trained at learning rate {training.optim}",
        "the placeholders differ: only ko has {training.learning_rate}; only en has {training.optim}",
        "en에만 있는 것: {training.optim}",
    ),
    "a rate in a unit of size": (
        GPU,
        "936, unit: GB/s",
        "936, unit: GiB",
        "memory_bandwidth.unit: 'GiB' is not one of GB/s",
        "쓸 수 없습니다",
    ),
    "a power in a unit of work": (
        GPU,
        "350, unit: W",
        "350, unit: TFLOP/s",
        "'TFLOP/s' is not one of W",
        "쓸 수 없습니다",
    ),
    "a GPU of five terabytes": (
        GPU,
        "24576",
        "5242880",
        "5242880 is more than 1048576",
        "큽니다",
    ),
    "a bandwidth of a disk": (
        GPU,
        "value: 936",
        "value: 0.936",
        "0.936 is less than 10",
        "작습니다",
    ),
    "a measured size in GB": (
        GPU,
        "unit: GiB",
        "unit: GB",
        "'GB' is not one of MiB, GiB",
        "쓸 수 없습니다",
    ),
    "CUDA offers more than there is": (
        GPU,
        "value: 23.7",
        "value: 24.7",
        "24.7 GiB cannot be the memory that is reported as 24576 MiB",
        "보고되는",
    ),
    "sold with half of it": (
        GPU,
        "value: 24, unit: GB, status: claimed, source: gpu-poor",
        "value: 12, unit: GB, status: claimed, source: gpu-poor",
        "12 GB cannot be the memory",
        "보고되는",
    ),
    "bf16 against the capability": (
        GPU,
        "native_bf16: {value: true",
        "native_bf16: {value: false",
        "compute capability 8.6 means true",
        "연산 능력",
    ),
    "a cited source that is not listed": (
        GPU,
        "nvidia-smi-listings, gpu-poor, cuda-oom-rtx-3090,",
        "nvidia-smi-listings, cuda-oom-rtx-3090,",
        "source 'gpu-poor' is cited and not in the file's own list",
        "인용한 출처",
    ),
    "a source that nobody knows": (
        MODEL,
        "source: t5-paper}",
        "source: t6-paper}",
        "'t6-paper' is not in sources.yaml or sources/",
        "출처",
    ),
    "a source of a constant": (
        "constants.yaml",
        "source: kb-traces",
        "source: kb-trace",
        "'kb-trace' is not in sources.yaml or sources/",
        "출처",
    ),
    "parameters beside the closed form": (
        MODEL,
        "value: 222903552",
        "value: 222903553",
        "222,903,553 is not the 222,903,552",
        "이 구조에서",
    ),
    "parameters in billions": (
        MODEL,
        "value: 222903552",
        "value: 0.22",
        "0.22 is less than 100000",
        "작습니다",
    ),
    "a campaign's parameters": (
        RUNS,
        "parameters: 1543714304",
        "parameters: 543714304",
        "543,714,304 parameters are not the",
        "이 구조에서",
    ),
    "reserved less than allocated": (
        RUNS,
        "reserved_bytes: 7952400384",
        "reserved_bytes: 795240038",
        "allocated_bytes 7,182,796,800 is larger than",
        "큽니다",
    ),
    "a figure in MiB for one in bytes": (
        RUNS,
        "allocated_bytes: 1727390720",
        "allocated_bytes: 1647",
        "1647 is less than 1048576",
        "작습니다",
    ),
    "a learning rate of 50": (
        RULE,
        "set: {training.learning_rate: 0.0001}",
        "set: {training.learning_rate: 50}",
        "training.learning_rate: 50 is outside of 0 to 1",
        "벗어납니다",
    ),
    "a default learning rate of 50": (
        "vocabulary.yaml",
        "default: 0.00005",
        "default: 50",
        "the default 50 is outside of 0 to 1",
        "벗어납니다",
    ),
    "a rule on a family that is none": (
        RULE,
        "and model.is_t5_like",
        'and model.family in ["t5", "longtfive"]',
        "model.family is never 'longtfive'; did you mean 'longt5'?",
        "longt5",
    ),
    "a rule on a method that is none": (
        RULE,
        'method == "full"',
        'method == "qlorra"',
        "method is never 'qlorra'; did you mean 'qlora'?",
        "qlora",
    ),
    "a rule on a format that is none": (
        RULE,
        'config.dialect != "team"',
        'config.dialect != "taem"',
        "config.dialect is never 'taem'; did you mean 'team'?",
        "team",
    ),
    "a default that is none of the values": (
        "vocabulary.yaml",
        "default: adamw_torch_fused",
        "default: adam_torch_fused",
        "the default 'adam_torch_fused' is not among its values",
        "values에 없습니다",
    ),
    "an optimizer that a remedy sets": (
        "remedies/nan-loss.yaml",
        "set: {training.fp16: false, training.bf16: true}",
        "set: {training.optim: adamw_torhc}",
        "training.optim: 'adamw_torhc' is not one of its values; did you mean 'adamw_torch'?",
        "쓸 수 없습니다",
    ),
    "types of models without a source": (
        "vocabulary.yaml",
        "sources: [transformers-5.23.0], ko: T5",
        "ko: T5",
        "model.is_t5_like",
        "model.is_t5_like",
    ),
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_rules(tmp_path_factory.mktemp("copy"))


class Run(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def kb_rules(*arguments: object, language: str = "en") -> Run:
    """As the command, in this process: test_rules_command has it in one of its own."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([*map(str, arguments), "--lang", language])
    return Run(code, out.getvalue(), err.getvalue())


# Of every other fault in one language and in the other; of each in both with --exhaustive.
SAID_IN = {fault: ("en", "ko") if EXHAUSTIVE else ("en", "ko")[at % 2 :][:1] for at, fault in enumerate(FAULTS)}


@pytest.mark.parametrize("fault", few(FAULTS, 4))
def test_a_planted_fault_is_said_at_its_place_in_both_languages(fault: str, rules: Path) -> None:
    name, old, new, english, korean = FAULTS[fault]
    path, whole = rules / name, (rules / name).read_text("utf-8")
    assert old in whole
    try:
        path.write_text(whole.replace(old, new, 1), "utf-8")
        runs = {
            language: kb_rules("validate", path, "--rules", rules, language=language) for language in SAID_IN[fault]
        }
    finally:
        path.write_text(whole, "utf-8")
    for language, run in runs.items():
        assert run.returncode == 2
        said = {"en": english, "ko": korean}[language]
        lines = [line for line in run.stderr.splitlines() if said in line]
        assert lines, run.stderr
        assert re.match(re.escape(str(path)) + r":\d+:\d+: ", lines[0])


def test_every_file_at_once_says_what_one_file_says(rules: Path) -> None:
    wholes = {}
    planted = ["a GPU of five terabytes", "a figure in MiB for one in bytes"]
    try:
        for name, old, new, *_ in (FAULTS[fault] for fault in planted):
            wholes[name] = (rules / name).read_text("utf-8")
            (rules / name).write_text(wholes[name].replace(old, new, 1), "utf-8")
        run = kb_rules("validate", "--rules", rules)
    finally:
        for name, whole in wholes.items():
            (rules / name).write_text(whole, "utf-8")
    assert run.returncode == 2
    assert all(FAULTS[fault][3] in run.stderr for fault in planted)


def test_the_place_is_that_of_the_figure(rules: Path) -> None:
    path = rules / GPU
    whole = path.read_text("utf-8")
    planted = whole.replace("936, unit: GB/s", "936, unit: GiB")
    line = next(at for at, text in enumerate(planted.splitlines(), 1) if "936, unit: GiB" in text)
    try:
        path.write_text(planted, "utf-8")
        run = kb_rules("validate", path, "--rules", rules)
    finally:
        path.write_text(whole, "utf-8")
    assert f"{GPU}:{line}:{planted.splitlines()[line - 1].index('GiB') + 1}: " in run.stderr


def test_the_templates_text_is_no_rule_yet(rules: Path) -> None:
    path = rules / "checks" / "batch" / "batch-past-reason.yaml"
    assert kb_rules("new", "batch-past-reason", "--area", "batch", "--rules", rules).returncode == 0
    try:
        english, korean = (kb_rules("validate", path, "--rules", rules, language=each) for each in ("en", "ko"))
    finally:
        path.unlink()
    assert english.returncode == korean.returncode == 1
    for part in ("title.ko", "title.en", "message.ko", "message.en", "why.ko", "why.en"):
        assert re.search(rf"batch-past-reason\.yaml:\d+:\d+: {part}: this is still the template's text", english.stderr)
        assert f"{part}: 틀의 문장이 그대로 있습니다" in korean.stderr


def test_a_korean_particle_does_not_follow_a_value(rules: Path) -> None:
    path = rules / RULE
    whole = path.read_text("utf-8")
    try:
        path.write_text(whole.replace("{model.family} 모델을", "{model.family}을"), "utf-8")
        english, korean = (kb_rules("validate", path, "--rules", rules, language=each) for each in ("en", "ko"))
    finally:
        path.write_text(whole, "utf-8")
    assert english.returncode == korean.returncode == 1
    assert "{model.family}을: which form of the particle" in english.stderr
    assert "{model.family}을: 값에 따라 조사의 꼴이" in korean.stderr


# --- one file --------------------------------------------------------------------------------------------------------


def test_one_file_is_said_to_be_valid_and_what_was_not_checked() -> None:
    run = kb_rules("validate", ROOT / "rules" / RULE)
    assert run.returncode == 0, run.stderr
    assert "was not checked" in run.stdout


def test_one_file_with_a_name_that_another_has_already(rules: Path) -> None:
    other = rules / "checks" / "loader" / Path(RULE).name
    shutil.copy(rules / RULE, other)
    try:
        run = kb_rules("validate", other, "--rules", rules)
    finally:
        other.unlink()
    assert run.returncode == 2 and "is also in" in run.stderr and "the file lies in loader/" in run.stderr


@pytest.mark.parametrize("name", ["t4", "l4"])  # read behind the other, and before it
def test_one_file_with_an_alias_of_another(rules: Path, name: str) -> None:
    path = rules / "hardware" / f"{name}.yaml"
    whole = path.read_text("utf-8")
    try:
        path.write_text(whole.replace("aliases: [", "aliases: [rtx3090, "), "utf-8")
        run = kb_rules("validate", path, "--rules", rules)
    finally:
        path.write_text(whole, "utf-8")
    assert run.returncode == 2 and "'rtx3090' already means" in run.stderr


@pytest.mark.parametrize(
    ("name", "said"), [("nothing.yaml", "there is no file"), ("README.md", "no YAML file of a rules folder")]
)
def test_what_is_no_file_of_the_rules_is_said(name: str, said: str) -> None:
    run = kb_rules("validate", ROOT / name)
    assert run.returncode == 2 and said in run.stderr


def test_every_type_with_a_memory_formula_is_a_value_of_the_vocabulary() -> None:
    facts = read_yaml(ROOT / "rules" / "vocabulary.yaml")["facts"]
    known = set(facts["model.model_type"]["values"])
    assert known >= {*T5_TYPES, *BART_TYPES, *architecture_decoder.TYPES, *architecture_encoder.TYPES}
    assert known >= {each for fact in facts.values() for each in fact.get("model_types", ())}
