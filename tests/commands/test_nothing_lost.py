"""Nothing is lost on the way: what cannot be read is said in every format, and one file's fault is that file's."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from effort import few
from kb.commands import check
from kb.core.result import CheckResult
from kb.integrations import api
from kb.session import output, tree
from kb.session.file import FileChecker
from kb.session.run import FileResult
from warm_runs import ENVIRON, run_text

GOOD = "model_name_or_path: google/mt5-small\nper_device_train_batch_size: 8\noutput_dir: out\nlearning_rate: 1.0e-4\n"
BROKEN = "model_name_or_path: google/mt5-small\nper_device_train_batch_size: 8\nfp16: true\noutput_dir: 'out\n"
FORMATS = ("text", "json", "sarif", "github", "gitlab", "junit", "markdown")
# Texts that no parser takes and that are training configs all the same.
CONFIGS = {
    "quote.yaml": BROKEN,
    "indent.yml": "base_model: a/b\n micro_batch_size: 2\nsequence_len: 2048\n",
    "merge.yaml": "<<<<<<< a\nlearning_rate: 1.0e-4\n=======\nlearning_rate: 2.0e-4\n>>>>>>> b\nnum_train_epochs: 3\n",
    "flow.yaml": "{model_name_or_path: a/b, per_device_train_batch_size: 8, output_dir: out\nseed: 1\n",
    "few.yaml": "gradient_accumulation_steps: 4\neval_strategy: steps\nbad: [1, 2\n",
    "equals.yaml": "per_device_train_batch_size = 8\nlearning_rate = 1e-4\n",
    "comma.json": '{"model_name_or_path": "a/b", "per_device_train_batch_size": 8, "fp16": true,}\n',
    "comment.json": '{\n  // ours\n  "zero_optimization": {"stage": 2},\n  "train_batch_size": 8\n}\n',
    "cut.json": '{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "output',
    "mark.yaml": "\ufeffmodel_name_or_path: a/b\nper_device_train_batch_size: [8\n",
    "train.py": "args = TrainingArguments('o', fp16=True\ndef f(:\n",
    "train.ipynb": '{"cells": [{"cell_type": "code", "source": ["TrainingArguments(\'o\')"], }',
}
# Texts that no parser takes and that say nothing of a run.
OTHERS = {
    "chart.yaml": "name: {{ .Values.name }}\nimage: {{ .Values.image }}\nmax_length: 3\n",
    "job.yaml": "args:\n  - --per_device_train_batch_size={{ .Values.batch }}\n  - {{ .Values.x }}\n",
    "tsconfig.json": '{\n  // a comment\n  "compilerOptions": {"strict": true},\n}\n',
    "rows.json": '{"text": "learning_rate: 1"}\n{"text": "b"}\n',
    ".gitlab.yml": "test:\n  stage: test\n  template: [a\n",
    "empty.yaml": "",
    "list.json": '[{"learning_rate": 1, "eval_loss": 2}]\n',
    "old.py": "print 'TrainingArguments'\n",
}


def kb(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRON, **environ}
    return run_text("kb", "check", "--lang", "en", "--gpu", "rtx-3090", *arguments, environ=environment, cwd=cwd)


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command in this process: its exit code and what it wrote."""
    code = check.main(["--lang", "en", "--gpu", "rtx-3090", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD, "utf-8")
    return tmp_path


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_cannot_be_read_is_said_named_found_and_with_skip_unknown(name, folder, capsys):
    path = folder / name
    path.write_text(CONFIGS[name], "utf-8")
    for arguments in ([str(folder)], ["--skip-unknown", str(path)]):
        code, _, said = here(capsys, *arguments)
        assert code == 2 and said.count(name) == 1, (arguments, said)


@pytest.mark.parametrize("name", OTHERS)
def test_what_says_nothing_of_a_run_is_passed_over_in_a_folder_and_by_a_hook(name, folder, capsys):
    path = folder / name
    path.write_text(OTHERS[name], "utf-8")
    for arguments in ([str(folder)], ["--skip-unknown", str(path)]):
        code, shown, said = here(capsys, *arguments)
        assert code == 0 and name not in shown + said, (arguments, shown, said)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_what_cannot_be_read(form, folder, capsys):
    (folder / "broken.yaml").write_text(BROKEN, "utf-8")
    code, shown, said = here(capsys, "--format", form, "--skip-unknown", str(folder))
    assert code == 2 and "broken.yaml" in said
    assert form == "text" or "broken.yaml" in shown
    assert "good.yaml" in shown or form in ("sarif", "github", "gitlab")


def test_a_text_in_no_unicode_encoding_is_said_in_a_folder_too(folder, capsys):
    (folder / "bytes.yaml").write_bytes(GOOD.encode() + b"seed: \xb0\x80\xff\n")
    code, shown, _ = here(capsys, str(folder))
    assert code == 1 and "bytes.yaml" in shown and "not-utf8" in shown


def test_a_config_larger_than_any_is_said_in_a_folder_and_data_is_not(folder, capsys):
    (folder / "data.json").write_text('{"rows": [' + "1, " * (1 << 19) + "1]}", "utf-8")
    assert here(capsys, str(folder))[0] == 0
    (folder / "large.yaml").write_text(GOOD + "# x\n" * (1 << 18), "utf-8")
    code, _, said = here(capsys, str(folder))
    assert code == 2 and "large.yaml" in said and "data.json" not in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_nobody_may_read_is_said(folder, capsys):
    closed = folder / "closed"
    closed.mkdir()
    (folder / "secret.yaml").write_text(GOOD, "utf-8")
    (folder / "secret.yaml").chmod(0)
    closed.chmod(0)
    code, _, said = here(capsys, str(folder))
    closed.chmod(0o700)
    assert code == 2 and "secret.yaml" in said and "closed" in said


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bug in kb that only files with one name meet."""
    real = FileChecker.check

    def broken(self: FileChecker, raw: bytes, path: str, kind: object = None) -> FileResult:
        if os.path.basename(path) == "bug.yaml":
            raise TypeError("as good as any")
        if os.path.basename(path) == "dies.yaml":
            os._exit(9)
        return real(self, raw, path, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(FileChecker, "check", broken)
    yield


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("form", FORMATS)
def test_a_bug_in_kb_over_one_file_is_that_file_s_in_every_format(form, folder, capsys):
    (folder / "bug.yaml").write_text(GOOD, "utf-8")
    (folder / "worse.yaml").write_text(GOOD.replace("1.0e-4", "1e-4"), "utf-8")
    code, shown, said = here(capsys, "--format", form, str(folder))
    assert code == 3
    assert "bug.yaml" in said and "a bug in kb" in said and "report it" in said and "Traceback" not in said
    assert form == "text" or "bug.yaml" in shown
    assert "worse.yaml" in shown and "yaml-number-is-text" in shown + ("yaml-number-is-text" if form == "text" else "")
    if form == "json":
        (fault,) = json.loads(shown)["unusable"]
        assert fault["fault"] == "kb" and fault["path"].endswith("bug.yaml")
    if form == "sarif":
        (invocation,) = json.loads(shown)["runs"][0]["invocations"]
        (notification,) = invocation["toolExecutionNotifications"]
        assert not invocation["executionSuccessful"] and "a bug in kb" in notification["message"]["text"]
    if form == "junit":
        assert ET.fromstring(shown).get("errors") == "1"


@pytest.mark.usefixtures("faulty")
def test_the_traceback_is_shown_to_who_asks_for_it(folder, capsys, monkeypatch):
    monkeypatch.setenv("KB_DEBUG", "1")
    (folder / "bug.yaml").write_text(GOOD, "utf-8")
    code, shown, said = here(capsys, str(folder))
    assert code == 3 and "good.yaml" in shown and "TypeError: as good as any" in said and "Traceback" in said


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("name", ["bug.yaml", "dies.yaml"])
@pytest.mark.parametrize("form", few(["text", "json"]))
def test_among_many_files_in_several_processes_the_others_are_told(name, form, folder, capsys):
    for number in range(40):
        (folder / f"run{number:02}.yaml").write_text(GOOD, "utf-8")
    (folder / name).write_text(GOOD, "utf-8")
    code, shown, said = here(capsys, "--jobs", "2", "--no-cache", "--format", form, str(folder))
    assert code == 3 and said.count(name) == 1 and "a bug in kb" in said
    assert all(f"run{number:02}.yaml" in shown for number in range(40))
    if form == "json":
        whole = json.loads(shown)
        assert len(whole["files"]) == 41 and len(whole["unusable"]) == 1


@pytest.mark.parametrize("form", ["text", "junit"])
def test_a_bug_in_wording_one_file_leaves_the_others_their_report(form, folder, capsys, monkeypatch):
    # told as they come, and all in one
    module, name = (tree, "units_text") if form == "text" else (output, "render")
    real = getattr(module, name)

    def broken(*arguments, **named):
        result = next(each for each in arguments if isinstance(each, CheckResult))
        if any(unit.unit.path.endswith("bug.yaml") for unit in result.units):
            raise KeyError("no such word")
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, broken)
    (folder / "bug.yaml").write_text(GOOD, "utf-8")
    code, shown, said = here(capsys, "--jobs", "1", "--no-cache", "--format", form, str(folder))
    assert code == 3 and "good.yaml" in shown and "bug.yaml" in said
    assert ("bug.yaml" in shown) == (form == "junit")  # which lists what could not be checked


def test_a_fault_of_the_whole_report_is_still_one(folder, capsys, monkeypatch):
    calls = []

    def broken(*arguments, **named):
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("once")
        return ""

    monkeypatch.setattr(output, "render", broken)
    code, _, said = here(capsys, str(folder))
    assert code == 3 and "KeyError" in said


@pytest.mark.usefixtures("faulty")
def test_the_python_interface_says_it_too(folder):
    (folder / "bug.yaml").write_text(GOOD, "utf-8")
    result = api.lint(folder, "rtx-3090")
    assert [fault.internal for fault in result.unusable] == [True] and result.units


@pytest.mark.parametrize("line", ["!", "\\", "foo\\", "!\\", "[z-a]"])
def test_gitignore_lines_that_mean_nothing_are_passed_over_and_the_others_hold(line, folder, capsys):
    (folder / ".git").mkdir()
    (folder / "left_out.yaml").write_text(GOOD, "utf-8")
    (folder / ".gitignore").write_text(f"{line}\nleft_*.yaml\n", "utf-8")
    code, shown, said = here(capsys, str(folder))
    assert code == 0 and "good.yaml" in shown and "left_out" not in shown + said


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_a_gitignore_a_baseline_or_a_group_file_that_is_no_file_ends_nothing(make, folder):
    (folder / ".git").mkdir()
    (folder / "model").mkdir()
    (folder / "config.yaml").write_text("defaults:\n  - model: t5\n  - _self_\ntraining:\n  learning_rate: 1.0e-4\n")
    (folder / "deepspeed.yaml").write_text(GOOD + "deepspeed: ds.json\n")
    for name in (".gitignore", "baseline.json", "model/t5.yaml", "ds.json", "kb.toml"):
        make(str(folder / name))
    ran = kb(str(folder))
    assert ran.returncode in (0, 1) and "good.yaml" in ran.stdout, ran.stderr
    with_baseline = kb("--baseline", str(folder / "baseline.json"), str(folder))
    assert with_baseline.returncode == 2 and "baseline.json" in with_baseline.stderr


def test_a_baseline_that_is_not_there_is_said_before_anything_is_fixed(folder, capsys):
    path = folder / "text.yaml"
    path.write_text(wrong := GOOD + "warmup_ratio: 3e-2\n", "utf-8")
    code, _, said = here(capsys, "--fix", "--baseline", str(folder / "absent.json"), str(path))
    assert code == 2 and "absent.json" in said and path.read_text("utf-8") == wrong
    here(capsys, "--fix", str(path))
    assert path.read_text("utf-8") != wrong


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "/proc/cpuinfo", "/proc/kmsg", "/proc/self/pagemap"])
def test_what_is_no_file_is_said_at_once(path, capsys):
    if not os.path.exists(path):
        pytest.skip(f"no {path} here")
    code, _, said = here(capsys, path)
    assert code == 2 and path in said and len(said.splitlines()) == 1


def test_a_pipe_is_said_at_once(tmp_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    ran = kb(str(pipe))
    assert ran.returncode == 2 and "pipe" in ran.stderr and "name -" in ran.stderr


LORA = GOOD + "use_peft: true\nlora_r: 8\nlora_target_modules: {targets}\n"
HOSTILE = ["'" + ".*" * 40 + "X'", "'(.|.)*X'", "'((.*)*)*X'", "'(?=(.*)*X)q'", "'" + "(a?){60}" * 30 + "'"]


@pytest.mark.parametrize("targets", HOSTILE)
def test_a_pattern_with_more_ways_than_time_ends_the_check_and_the_editor_s(targets, folder, capsys):
    from kb.integrations.editor.session import Session

    text = LORA.format(targets=targets)
    (folder / "lora.yaml").write_text(text, "utf-8")
    code, shown, _ = here(capsys, str(folder / "lora.yaml"))
    assert code in (0, 1) and "LoRA" in shown
    assert Session("en", {"gpu": "rtx-3090"}).check(text, str(folder / "lora.yaml")).units()


@pytest.mark.parametrize("key", ["(.|.)*X", ".*" * 40 + "X", "(a+)+$", "(?P<a>.*)*(?P=a)"])
def test_a_rank_pattern_with_more_ways_than_time_ends(key, folder, capsys):
    path = folder / "train.py"
    path.write_text(
        'model = AutoModelForSeq2SeqLM.from_pretrained("google/mt5-small")\n'
        f'model = get_peft_model(model, LoraConfig(r=8, target_modules=["q", "v"], rank_pattern={{{key!r}: 32}}))\n'
        'args = TrainingArguments("o", per_device_train_batch_size=8)\n',
        "utf-8",
    )
    code, shown, _ = here(capsys, str(path))
    assert code in (0, 1) and "LoRA" in shown


def test_a_rank_pattern_that_matches_nothing_is_still_said_and_one_that_does_is_not(folder, capsys):
    path = folder / "train.py"
    path.write_text(
        'model = AutoModelForSeq2SeqLM.from_pretrained("google/mt5-small")\n'
        'lora = LoraConfig(r=8, target_modules=["q"], rank_pattern={"(.*)decoder.*q": 4, "(.|.)*nowhere": 2, "x": 1})\n'
        'model = get_peft_model(model, lora)\nargs = TrainingArguments("o", per_device_train_batch_size=8)\n',
        "utf-8",
    )
    _, shown, _ = here(capsys, str(path))
    assert "lora-rank-pattern-unmatched" in shown and "nowhere" in shown and "x" in shown


def test_a_gitignore_pattern_with_more_ways_than_time_ends_and_holds(folder, capsys):
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("*a" * 30 + "b*\n" + "**/" * 12 + "x*/b\n" + "le*ft*out*or*no*.yaml\n")
    (folder / ("a" * 120 + ".yaml")).write_text(GOOD)
    (folder / "left_out_or_not.yaml").write_text(GOOD)
    code, shown, said = here(capsys, str(folder))
    assert code == 0 and "aaaa.yaml" in shown and "left_out" not in shown + said


@pytest.mark.parametrize(
    "command",
    ["check a.yaml", "doctor", "estimate --model mt5-base", "plan a.yaml", "diagnose a.log", "rules validate"],
)
def test_a_working_folder_that_is_gone_is_said(command, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = " ".join([sys.executable, "-m", "kb", command, "--lang", "en"])
    ran = subprocess.run(
        ["bash", "-c", f"cd {gone} && rmdir {gone} && exec {words}"],
        input="",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 2 and "the working folder is gone" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr and not ran.stdout


@pytest.mark.parametrize("command", ["diagnose /dev/zero", "runtime --log /dev/zero", "monitor --replay /dev/zero"])
def test_a_log_that_is_a_device_is_said_at_once(command):
    ran = subprocess.run(
        [sys.executable, "-m", "kb", *command.split(), "--lang", "en"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2 and "/dev/zero is a device" in ran.stderr, ran.stderr


def test_settings_of_a_project_that_are_brackets_alone_are_said(folder, capsys):
    (folder / "kb.toml").write_text("a = " + "[" * 100_000)
    code, _, said = here(capsys, str(folder))
    assert code == 2 and "kb.toml" in said and "is not TOML" in said
