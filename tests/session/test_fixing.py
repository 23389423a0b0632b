"""Fixes over whole files: which ones are chosen, what a run of them leaves, and how a report is told of them."""

from pathlib import Path
from typing import Any

import pytest

from catalog_sample import shallow_catalog
from kb.advice.question import Question
from kb.core.finding import Edit, Finding, Fix, Span
from kb.core.result import CheckResult
from kb.core.text import Text
from kb.session.file import FileChecker
from kb.session.fixing import FixedRun, fix_files, replacements_of
from kb.session.prepare import file_checker
from kb.session.project import Project, find_project
from kb.session.run import Input, run
from kb.session.settling import Choice, chosen_fix, effective

pytestmark = pytest.mark.long

TEXT = Text("", "")


def fix(safety: str, *, certain: bool = True) -> Fix:
    return Fix(safety=safety, title=TEXT, edits=(Edit("set", "training.fp16", False),), certain=certain)  # type: ignore[arg-type]


def finding(*fixes: Fix) -> Finding:
    return Finding(rule="r", severity="error", confidence="high", message=TEXT, span=Span(1, 1, 1, 1), fixes=fixes)


def test_a_safe_fix_is_preferred_and_an_unsafe_one_needs_leave() -> None:
    safe, unsafe = fix("safe"), fix("unsafe")
    assert chosen_fix(finding(unsafe, safe), unsafe=True) is safe
    assert chosen_fix(finding(unsafe), unsafe=False) is None
    assert chosen_fix(finding(unsafe), unsafe=True) is unsafe


def test_a_fix_whose_condition_is_not_known_is_only_offered() -> None:
    assert chosen_fix(finding(fix("safe", certain=False)), unsafe=True) is None


CONFIG = """\
general: {model_name: google/mt5-base}  # 값 🔥
training:
  fp16: true
  # between the two
  per_device_train_batch_size: 16
  learning_rate: 5e-5
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[FileChecker, CheckResult]:
    path = tmp_path_factory.mktemp("fixing") / "a.yaml"
    path.write_text(CONFIG, "utf-8")
    checker = file_checker(shallow_catalog(), Project(), Question.of(gpu="rtx-3090", host_memory="60GB", cpus="8"))
    return checker, run([Input(path=str(path))], checker).result(checker)


def test_each_edit_of_a_fix_is_a_replacement_of_its_own(checked: tuple[FileChecker, CheckResult]) -> None:
    checker, result = checked
    (unit,) = result.units
    replacements = replacements_of(result, checker)
    several = 0
    for found in unit.findings:
        for each in found.fixes:
            pieces = replacements(unit.unit, found, each)
            assert pieces, found.rule
            several += len(pieces) > 1
            assert all("between the two" not in CONFIG[span.start : span.end] for span, _ in pieces)
            lines = CONFIG.split("\n")
            for span, _ in pieces:
                assert sum(len(line) + 1 for line in lines[: span.line - 1]) + span.column - 1 == span.start
                assert sum(len(line) + 1 for line in lines[: span.end_line - 1]) + span.end_column - 1 == span.end
    assert several, "a fix of this config changes two settings"


def test_the_replacements_make_the_text_that_the_fixer_makes(checked: tuple[FileChecker, CheckResult]) -> None:
    checker, result = checked
    (unit,) = result.units
    found = next(one for one in unit.findings if one.rule == "t5-fp16-overflow")
    safe = found.ready("safe")
    assert safe is not None
    pieces = replacements_of(result, checker)(unit.unit, found, safe)
    assert pieces is not None
    text = CONFIG
    for span, new in reversed(pieces):
        text = text[: span.start] + new + text[span.end :]
    assert text == CONFIG.replace("  fp16: true\n", "  fp16: false\n  bf16: true\n")


# --- which fixes one pass makes ---------------------------------------------------------------------------------


def checker_for(gpu: str = "rtx-3090") -> FileChecker:
    return file_checker(shallow_catalog(), Project(), Question.of(gpu=gpu, versions={"transformers": "4.57"}))


@pytest.fixture(scope="module")
def checker() -> FileChecker:
    return checker_for()


TOO_LARGE = """\
general: {model_name: google/mt5-base}
tokenizer: {encoder_max_len: 1024, decoder_max_len: 200}
training:
  per_device_train_batch_size: 16
  bf16: true
"""


def fixed(
    text: str, checker: FileChecker, tmp_path: Path, name: str = "a.yaml", *, unsafe: bool = True, write: bool = True
) -> tuple[FixedRun, str, list[tuple[str, dict[str, Any]]]]:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    said: list[tuple[str, dict[str, Any]]] = []
    done = fix_files(
        run([Input(path=str(path))], checker),
        checker,
        unsafe=unsafe,
        write=write,
        notice=lambda key, **values: said.append((key, values)),
    )
    return done, path.read_text("utf-8"), said


def test_of_rivals_for_the_same_memory_one_is_made_in_a_pass(checker: FileChecker, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TOO_LARGE, "utf-8")
    (file,) = run([Input(path=str(path))], checker).files
    rivals = [each for each in Choice(checker.catalog.facts, unsafe=True).candidates(file) if each.is_rival]
    assert [each.finding.rule for each in rivals] == ["training-peak-exceeds-gpu"]
    assert sum(bool(finding.fixes) for finding in file.results[0].findings) > 1, "others would save the same memory"


def test_a_batch_lowered_in_a_run_is_enough(checker: FileChecker, tmp_path: Path) -> None:
    _, text, _ = fixed(TOO_LARGE, checker, tmp_path)
    (unit,) = checker.check(text.encode(), "a.yaml").results
    assert unit.setup is not None and unit.prediction is not None and unit.gpu_limit_bytes is not None
    assert unit.setup.per_device_train_batch_size < 16
    assert unit.setup.effective_batch_size == 16
    assert not unit.setup.gradient_checkpointing, "what the smaller batch already made fit needs nothing more"
    train = next(phase for phase in unit.prediction.phases if phase.name == "train")
    assert train.process_used_bytes <= unit.gpu_limit_bytes


def test_what_a_pass_has_set_no_later_one_sets_again(checker: FileChecker, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(TOO_LARGE, "utf-8")
    (file,) = run([Input(path=str(path))], checker).files
    choice = Choice(checker.catalog.facts, unsafe=True)
    first = next(each for each in choice.candidates(file) if each.is_rival)
    choice.made(first)
    names = {place.name for place in first.sets()}
    assert "training.per_device_train_batch_size" in names
    for each in choice.candidates(file):
        assert not names & {place.name for place in each.sets()}


def test_an_edit_that_changes_nothing_is_dropped(checker: FileChecker) -> None:
    (result,) = checker.check(TOO_LARGE.encode(), "a.yaml").results
    facts = checker.catalog.facts

    def names(*edits: Edit) -> list[str] | None:
        kept = effective(Fix(safety="unsafe", title=TEXT, edits=edits), result.unit, facts)
        return [edit.name for edit in kept.edits] if kept else None

    batch, steps = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"
    assert names(Edit("set", batch, 16)) is None
    assert names(Edit("set", batch, 8), Edit("set", steps, 1)) == [batch], "1 is the default"
    assert names(Edit("set", steps, 1)) == [steps], "to write the default out is what this fix is for"
    assert names(Edit("set", "training.bf16", 1)) == ["training.bf16"], "1 is not true"


@pytest.mark.exhaustive
def test_a_fix_that_cannot_be_made_gives_way_to_the_next_rival(checker: FileChecker, tmp_path: Path) -> None:
    text = TOO_LARGE.replace("training:", "size: &size 16\ntraining:").replace("size: 16", "size: *size")
    _, after, said = fixed(text, checker, tmp_path)
    assert "per_device_train_batch_size: *size" in after
    assert "gradient_checkpointing: true" in after
    assert [key for key, _ in said] == ["fix.refused", "fix.applied"], "it is near the limit still"
    assert said[0][1]["rule"] == "training-peak-near-gpu", "the finding whose fix was in the way is gone"


@pytest.mark.exhaustive
def test_a_fix_that_cannot_be_made_is_said(checker: FileChecker, tmp_path: Path) -> None:
    text = "general: {model_name: google/mt5-base}\nhalf: &half true\ntraining: {fp16: *half}\n"
    _, after, said = fixed(text, checker, tmp_path, unsafe=False)
    assert after == text
    ((key, values),) = said
    assert (key, values["rule"], values["line"]) == ("fix.refused", "t5-fp16-overflow", 3)
    assert values["reason"].startswith("config.fix.")


RECIPE = """\
rows: {train: 512}
model: {_component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_attn_modules: [q_proj], lora_rank: 8}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 2048}
optimizer: {_component_: torch.optim.AdamW, lr: 3.0e-4}
batch_size: ${rows.train}
gradient_accumulation_steps: 1
dtype: bf16
"""


def test_what_is_filled_in_from_elsewhere_is_neither_written_over_nor_a_quoted_number(
    checker: FileChecker, tmp_path: Path
) -> None:
    done, after, said = fixed(RECIPE, checker, tmp_path, "lora_single_device.yaml")
    assert "batch_size: ${rows.train}" in after
    assert "config.fix.unresolved" in {values.get("reason") for _, values in said}
    composed = RECIPE.replace("${rows.train}", "${rows.train}4")
    done, after, _ = fixed(composed, checker, tmp_path, "lora_single_device.yaml")
    assert after == composed and not {"quoted-number", "training-peak-exceeds-gpu"} & {
        each.rule for unit in done.run.result(checker).units for each in unit.findings
    }


LOADS = """\
import yaml
from transformers import AutoModelForSeq2SeqLM, Trainer, TrainingArguments
cfg = yaml.safe_load(open("conf.yaml"))
model = AutoModelForSeq2SeqLM.from_pretrained("google/mt5-base")
args = TrainingArguments(learning_rate=3e-5, **cfg["train"])
Trainer(model=model, args=args).train()
"""


def test_what_a_loaded_file_says_is_not_written_into_the_call(checker: FileChecker, tmp_path: Path) -> None:
    """An argument that stands in ``**cfg["train"]`` was written a second time, which Python refuses."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "conf.yaml").write_text("train: {output_dir: o, fp16: true, per_device_train_batch_size: 4096}\n")
    question = Question.of(gpu="rtx-3090", host_memory="60GB", cpus="8")
    own = file_checker(shallow_catalog(), find_project(str(tmp_path)), question)
    _, after, said = fixed(LOADS, own, tmp_path, "train.py")
    assert "fp16=" not in after and "per_device_train_batch_size=" not in after
    assert ("fix.refused", "config.fix.by-name") in {(key, values.get("reason")) for key, values in said}


def test_safe_fixes_that_wait_for_a_fact_are_named(tmp_path: Path) -> None:
    checker = checker_for("none")
    text = "general: {model_name: google/mt5-base}\ntraining: {fp16: true}\n"
    done, after, said = fixed(text, checker, tmp_path, unsafe=False)
    assert after == text and not done.changed
    ((key, values),) = said
    assert (key, values["n"], values["rules"]) == ("fix.waiting", 1, ["t5-fp16-overflow"])
    assert "gpu.native_bf16" in values["needs"]


# --- what is written --------------------------------------------------------------------------------------------

FP16 = "general: {model_name: google/mt5-base}  # 값\ntraining: {fp16: true}\n"


PROGRAM = """\
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
arguments = TrainingArguments("out", per_device_train_batch_size=4, evaluation_strategy="epoch")
Trainer(model=model, args=arguments).train()
"""


def test_a_file_that_cannot_be_written_does_not_stop_the_others(checker: FileChecker, tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text(FP16, "utf-8")
    before = run([Input(path=str(tmp_path / name)) for name in ("a.yaml", "b.yaml", "c.yaml")], checker)
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "b.yaml").mkdir()  # a folder in its place: even root, who may write anywhere, cannot write here
    done = fix_files(before, checker, unsafe=False, write=True, notice=lambda key, **values: None)
    assert [Path(path).name for path in done.changed] == ["a.yaml", "c.yaml"]
    ((path, key),) = [(fault.path, fault.key) for fault in done.run.unusable]
    assert Path(path).name == "b.yaml" and key == "fix.unwritable"
    assert "bf16: true" in (tmp_path / "c.yaml").read_text("utf-8")
    assert done.run.files[1].text == FP16


def test_a_fix_that_another_makes_needless_is_not_made(checker: FileChecker, tmp_path: Path) -> None:
    text = "model_name_or_path: t5-small\nper_device_train_batch_size: 4\neval_steps: 50\noutput_dir: o\n"
    _, after, _ = fixed(f"{text}load_best_model_at_end: true\n", checker, tmp_path, unsafe=True)
    assert "eval_strategy: steps" in after  # what load_best_model_at_end lacks, too
    assert "load_best_model_at_end: true" in after


def test_what_is_told_after_the_fixes_is_of_the_fixed_program(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.sh").write_text("python train.py --model_name_or_path gpt2\n", "utf-8")
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    names = [Input(path=str(tmp_path / name)) for name in ("run.sh", "train.py")]
    checker = file_checker(
        shallow_catalog(), Project(), Question.of(gpu="rtx-3090", versions={"transformers": "5.0.0"})
    )
    done = fix_files(run(names, checker), checker, unsafe=True, write=True, notice=lambda key, **values: None)
    assert [Path(path).name for path in done.changed] == ["train.py"]
    rules = {each.rule for file in done.run.files for unit in file.results for each in unit.findings}
    assert "evaluation-strategy-removed" not in rules


def test_a_diff_names_the_file_as_patch_wants_it(
    checker: FileChecker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done, text, _ = fixed(FP16, checker, tmp_path, unsafe=False, write=False)
    assert text == FP16 and done.changed
    assert done.output.decode().startswith("--- a/a.yaml\n+++ b/a.yaml\n")
    monkeypatch.chdir("/")
    done, _, _ = fixed(FP16, checker, tmp_path, unsafe=False, write=False)
    assert done.output.decode().startswith(f"--- a{tmp_path}/a.yaml\n")
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done, _, _ = fixed(FP16, checker, tmp_path, unsafe=False, write=False)
    assert done.output.decode().startswith(f"--- a{tmp_path}/a.yaml\n")


def test_a_byte_order_mark_stands_in_the_diff(checker: FileChecker, tmp_path: Path) -> None:
    done, _, _ = fixed("\ufeff" + FP16, checker, tmp_path, unsafe=False, write=False)
    assert "\n \ufeffgeneral:" in done.output.decode()  # it does no harm to YAML, and stays
    path = tmp_path / "a.json"
    path.write_text('\ufeff{"training": {"fp16": true, "learning_rate": 0.001}}\n', "utf-8")
    done = fix_files(run([Input(str(path))], checker), checker, unsafe=False, write=False, notice=lambda key, **_: None)
    assert "\n-\ufeff{" in done.output.decode() and "\n+{" in done.output.decode()


def test_standard_inputs_text_is_given_back_whether_it_changed_or_not(checker: FileChecker) -> None:
    for raw, changed in (
        (FP16.encode(), True),
        (b"training:\n  bf16: true", False),
        ("학습: 값\n".encode("cp949"), False),
    ):
        outcome = run([Input(path="-", raw=raw)], checker)
        done = fix_files(outcome, checker, unsafe=False, write=True, notice=lambda key, **values: None)
        assert bool(done.changed) is changed
        assert (done.output == raw) is not changed
