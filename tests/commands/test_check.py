"""`kb check` as a user meets it: a real process, real files, its output and its exit code."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rules_copy import few_rules
from warm_runs import ENVIRON, run_module

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "check"
BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "48")
# A key of i18n that reached the user as it is: its text is missing.
UNWORDED = re.compile(
    r"(?:^|\s)(?:cli|config|machine|project|rules|fix|note|report)\.[a-z][a-z_-]+(?:[.:\s]|$)", re.MULTILINE
)


def kb(
    *arguments: object, stdin: str | bytes = "", cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    run = run_module("kb.check", arguments, environ={**ENVIRON, **environ}, cwd=cwd, stdin=data)
    done = subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())
    assert "Traceback" not in done.stderr, done.stderr
    return done


def report(*arguments: object) -> dict[str, Any]:
    run = kb(*arguments, "--format", "json", "--lang", "en")
    assert run.returncode in (0, 1), run.stderr
    data: dict[str, Any] = json.loads(run.stdout)
    return data


def findings(data: dict[str, Any]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    for unit in data["files"]:
        for finding in unit["findings"]:
            yield unit["section"], finding


def rules(data: dict[str, Any]) -> set[str]:
    return {finding["rule"] for _, finding in findings(data)}


# --- what it must find ------------------------------------------------------------------------------------------


def test_the_effective_batch_is_set_against_its_comment() -> None:
    data = report(DATA / "summary_run.yaml", *BOX)
    finding = next(f for _, f in findings(data) if f["rule"] == "effective-batch-not-as-said")
    assert "40" in finding["message"] and "48" in finding["message"]
    line = (DATA / "summary_run.yaml").read_text("utf-8").splitlines()[finding["line"] - 1]
    assert line[finding["column"] - 1 : finding["end_column"] - 1] == "2"


def test_host_memory_over_the_limit_names_the_workers_that_fit() -> None:
    data = report(DATA / "summary_run.yaml", *BOX)
    host = data["files"][0]["prediction"]["host"]
    assert host["peak_bytes"] > host["limit_bytes"] == 60 * 10**9
    finding = next(f for _, f in findings(data) if f["rule"] == "host-memory-over-limit")
    assert finding["severity"] == "warning"  # over at the high end of the range only
    workers = finding["fix"]["set"]["training.dataloader_num_workers"]
    assert 0 < workers < 32
    assert str(workers) in finding["message"]


def test_the_verdict_names_the_deciding_phase_and_term() -> None:
    prediction = report(DATA / "summary_run.yaml", *BOX)["files"][0]["prediction"]
    assert {"train", "evaluate", "generate"} <= prediction["phases"].keys()
    verdict = prediction["verdict"]
    assert verdict["phase"] in prediction["phases"]
    assert verdict["term"] in {term["name"] for term in prediction["phases"][verdict["phase"]]["terms"]}
    for phase in prediction["phases"].values():
        assert sum(term["bytes"] for term in phase["terms"]) == phase["peak_allocated_bytes"]


def test_a_lora_target_that_matches_no_module_is_named() -> None:
    data = report(DATA / "summary_run.yaml", *BOX)
    finding = next(f for _, f in findings(data) if f["rule"] == "lora-some-targets-match-nothing")
    assert finding["facts"]["lora.unmatched_target_modules"] == ["wi"]


def test_every_section_is_read_and_inherits_from_the_top() -> None:
    data = report(DATA / "two_models.yaml", *BOX)
    units = {unit["section"]: unit for unit in data["files"]}
    assert units.keys() == {None, "t5", "mt5"}
    assert units["t5"]["setup"]["per_device_train_batch_size"] == 8
    assert units["mt5"]["setup"]["max_source_length"] == 512
    fp16 = {section: f["line"] for section, f in findings(data) if f["rule"] == "t5-fp16-overflow"}
    lines = (DATA / "two_models.yaml").read_text("utf-8").splitlines()
    assert fp16.keys() == {"t5", "mt5"}
    assert all("fp16" in lines[line - 1] for line in fp16.values())


def test_exit_codes_follow_the_findings() -> None:
    clean = "general: {model_name: google-t5/t5-small}\ntraining: {bf16: true, per_device_train_batch_size: 8}\n"
    assert kb("-", *BOX, stdin=clean).returncode == 0
    wrong = "general: {model_name: google-t5/t5-small}\ntraining: {fp16: true, bf16: true}\n"
    assert kb("-", *BOX, stdin=wrong).returncode == 1
    assert kb("-", *BOX, "--fail-on", "never", stdin=wrong).returncode == 0
    assert kb("-", *BOX, "--fail-on", "info", "--select", "no-dataloader-workers", stdin=clean).returncode in (0, 1)
    assert kb(DATA / "absent.yaml").returncode == 2


@pytest.mark.exhaustive
def test_without_a_gpu_it_lints_and_shows_where_the_config_fits() -> None:
    run = kb(DATA / "two_models.yaml", "--gpu", "none", "--lang", "en")
    assert run.returncode == 1
    assert "V100" in run.stdout and "RTX 4090" in run.stdout and "H200" in run.stdout
    data = report(DATA / "two_models.yaml", "--gpu", "none")
    undecided = {row["rule"]: row["needs"] for row in data["files"][0]["not_evaluated"]}
    assert any("gpu.memory_total" in needs for needs in undecided.values())


# --- languages and formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("environ", "korean"), [({"LC_ALL": "ko_KR.UTF-8"}, True), ({"LC_ALL": "en_US.UTF-8"}, False)])
def test_the_language_is_the_locales(environ: dict[str, str], korean: bool) -> None:
    run = kb(DATA / "two_models.yaml", *BOX, **environ)
    assert ("유효 배치" in run.stdout) is korean


def test_help_and_errors_are_in_the_users_language() -> None:
    assert "사용" in kb("--help", "--lang", "ko").stdout or "검사" in kb("--help", "--lang", "ko").stdout
    assert "없는 옵션" in kb("--lang", "ko", "--frobnicate").stderr
    assert "did you mean --gpu" in kb("--lang", "en", "--gppu", "t4").stderr


@pytest.mark.parametrize("name", ["text", "json", "sarif", "github", "gitlab", "junit"])
def test_every_format_is_written(name: str) -> None:
    run = kb(DATA / "two_models.yaml", *BOX, "--format", name)
    assert run.returncode == 1
    assert run.stdout.strip()
    assert run.stderr == ""


def test_colour_is_for_terminals_only() -> None:
    assert "\033[" not in kb(DATA / "two_models.yaml", *BOX).stdout
    assert "\033[" in kb(DATA / "two_models.yaml", *BOX, "--color", "always").stdout


def test_a_terminal_that_lacks_characters_still_gets_the_report() -> None:
    run = kb(DATA / "two_models.yaml", *BOX, "--lang", "en", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert run.returncode == 1
    assert "t5-fp16-overflow" in run.stdout


def test_a_rule_is_explained_with_the_configs_own_numbers() -> None:
    alone = kb("--explain", "effective-batch-not-as-said", "--lang", "ko")
    assert alone.returncode == 0 and len(alone.stdout) > 200
    run = kb(DATA / "summary_run.yaml", *BOX, "--explain", "effective-batch-not-as-said", "--lang", "en")
    assert "40" in run.stdout and "48" in run.stdout
    wrong = kb("--explain", "effective-batch-not-as-sad", "--lang", "en")
    assert wrong.returncode == 2 and "effective-batch-not-as-said" in wrong.stderr


def test_statistics_count_findings_by_rule() -> None:
    run = kb(DATA / "two_models.yaml", *BOX, "--statistics", "--lang", "en")
    assert "t5-fp16-overflow" in run.stdout and "2" in run.stdout


# --- where configs come from ------------------------------------------------------------------------------------


def test_standard_input_a_folder_and_a_glob_are_read(tmp_path: Path) -> None:
    text = (DATA / "two_models.yaml").read_text("utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.yaml").write_text(text, "utf-8")
    (tmp_path / "two.yml").write_text(text, "utf-8")
    (tmp_path / "compose.yaml").write_text("services: {web: {image: nginx}}\n")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    (tmp_path / "ignored").mkdir()
    (tmp_path / "ignored" / "three.yaml").write_text(text, "utf-8")
    paths = {unit["path"] for unit in report(tmp_path, *BOX)["files"]}
    assert {Path(path).name for path in paths} == {"one.yaml", "two.yml"}
    globbed = {unit["path"] for unit in report(f"{tmp_path}/**/*.yaml", *BOX)["files"]}
    assert "one.yaml" in {Path(path).name for path in globbed}
    assert kb("-", *BOX, stdin=text).returncode == 1


def test_a_command_line_is_checked() -> None:
    command = (
        "python infer.py --model_name digit82/kobart-summarization --batch_size 64 --num_beams 5 --max_new_tokens 120"
    )
    data = report("--command", command, "--gpu", "rtx-3090")
    setup = data["files"][0]["setup"]
    assert setup["inference_batch_size"] == 64
    assert "generate" in data["files"][0]["prediction"]["phases"]


def test_a_shell_script_with_a_comment_after_a_backslash(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python infer.py \\\n  --batch_size 16 \\   # 최적\n  --num_beams 5\n", "utf-8")
    data = report(script, *BOX)
    finding = next(f for _, f in findings(data) if f["rule"] == "comment-after-backslash")
    assert finding["line"] == 2
    assert kb(script, *BOX, "--fix").returncode in (0, 1)
    assert "comment-after-backslash" not in rules(report(script, *BOX))


def test_a_model_from_a_config_json(tmp_path: Path) -> None:
    config = {
        "model_type": "t5",
        "d_model": 64,
        "d_ff": 128,
        "d_kv": 16,
        "num_heads": 4,
        "num_layers": 2,
        "vocab_size": 1000,
    }
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    text = f"model_name_or_path: {folder}\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-4\nnum_train_epochs: 1\n"
    (tmp_path / "run.yaml").write_text(text)
    assert report(tmp_path / "run.yaml", *BOX)["files"][0]["prediction"]["phases"]["train"]["peak_allocated_bytes"] > 0
    named = report(DATA / "summary_run.yaml", *BOX, "--model-config", folder / "config.json")
    assert named["files"][0]["prediction"]["phases"]["train"]["peak_allocated_bytes"] < 2**31
    for content, words in (("[1]", "config.json"), ("{", "config.json"), ('{"model_type": "mamba"}', "mamba")):
        (tmp_path / "bad.json").write_text(content)
        run = kb(DATA / "summary_run.yaml", *BOX, "--model-config", tmp_path / "bad.json", "--lang", "en")
        assert run.returncode == 2 and words in run.stderr


# --- fixes, suppressions, baseline, project settings ------------------------------------------------------------


def test_fix_changes_only_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    before = (DATA / "two_models.yaml").read_text("utf-8")
    file.write_text(before, "utf-8")
    run = kb(file, *BOX, "--fix", "--select", "t5-fp16-overflow", "--lang", "en")
    assert run.returncode == 0, run.stdout
    after = file.read_text("utf-8").splitlines()
    changed = [line for line in before.splitlines() if line not in after]
    assert changed == ["    fp16:   true    # 50% 절약?", "    fp16: true  # 위와 같다"]
    assert "    fp16:   false    # 50% 절약?" in after
    assert after.count("    bf16: true") == 2
    assert len(after) == len(before.splitlines()) + 2


FP16 = "general: {model_name: google/mt5-small}\ntraining: {fp16: true}\n"
BF16 = FP16.replace("fp16: true", "fp16: false, bf16: true")


def test_fixed_text_stands_alone_on_standard_output() -> None:
    for form in ("text", "json"):
        run = kb("-", "--gpu", "h100-80gb", "--fix", "--format", form, "--lang", "en", stdin=FP16)
        assert run.stdout == BF16
        assert "1 fix applied" in run.stderr and "mt5-small" in run.stderr
    again = kb("-", "--gpu", "h100-80gb", "--fix", stdin=BF16)
    assert again.stdout == BF16, "a filter gives back what needs no fix"
    command = "python t.py --model_name_or_path google/mt5-small --fp16 --learning_rate 1e-4"
    run = kb("--command", command, "--gpu", "h100-80gb", "--fix")
    assert run.stdout == command.replace("--fp16", "--bf16") + "\n"


@pytest.mark.exhaustive
def test_unsafe_fixes_need_no_second_option(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = "general: {model_name: google/mt5-base}\ntraining: {per_device_train_batch_size: 64, bf16: true}\n"
    file.write_text(text)
    kb(file, *BOX, "--unsafe-fixes", "--diff")
    assert file.read_text() == text
    kb(file, *BOX, "--unsafe-fixes")
    assert "per_device_train_batch_size: 64" not in file.read_text()


def test_a_fix_that_waits_for_the_gpu_is_said_and_not_made(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(FP16)
    run = kb(file, "--gpu", "none", "--fix", "--lang", "en")
    assert file.read_text() == FP16
    assert "1 safe fix was left alone (t5-fp16-overflow)" in run.stderr and "--gpu" in run.stderr


def test_what_cannot_be_written_is_said_after_the_rest_is_done(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(FP16)
    run = kb("a.yaml", "b.yaml", "absent.yaml", "--gpu", "h100-80gb", "--fix", "--lang", "en", cwd=tmp_path)
    assert run.returncode == 2
    assert (tmp_path / "a.yaml").read_text() == (tmp_path / "b.yaml").read_text() == BF16
    assert run.stderr.count("absent.yaml") == 1, "a sentence that names the file needs no prefix"
    assert "a.yaml" in run.stdout


def test_a_diff_fails_while_there_is_something_to_fix(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(FP16)
    run = kb(file, "--gpu", "h100-80gb", "--diff", "--lang", "en", cwd=tmp_path)
    assert run.returncode == 1 and "with these changes: 1 file" in run.stderr
    patch = subprocess.run(["git", "apply", "-p1", "-"], input=run.stdout.encode(), cwd=tmp_path, check=False)
    assert patch.returncode == 0 and file.read_text() == BF16
    run = kb(file, "--gpu", "h100-80gb", "--diff")
    assert (run.returncode, run.stdout) == (0, "")
    file.write_text("general: {model_name: google/mt5-small}\ntraining: {per_device_train_batch_size: 0}\n")
    assert kb(file, "--gpu", "h100-80gb", "--diff").returncode == 1, "an error that no fix mends"
    assert kb("-", "--gpu", "h100-80gb", "--diff", stdin=FP16).stdout.startswith("--- a/stdin\n+++ b/stdin\n")


def test_diff_shows_and_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    before = (DATA / "two_models.yaml").read_text("utf-8")
    file.write_text(before, "utf-8")
    run = kb(file, *BOX, "--diff", "--select", "t5-fp16-overflow")
    assert "-    fp16:   true    # 50% 절약?" in run.stdout
    assert "+    fp16:   false    # 50% 절약?" in run.stdout
    assert file.read_text("utf-8") == before


def test_unsafe_fixes_hold_the_effective_batch(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "general: {model_name: google/mt5-base}\n"
        "tokenizer: {encoder_max_len: 1024, decoder_max_len: 200}\n"
        "training:\n  per_device_train_batch_size: 32\n  gradient_accumulation_steps: 2\n  bf16: true\n"
    )
    select = ("--select", "training-peak-exceeds-gpu,training-peak-near-gpu")
    assert kb(file, *BOX, *select).returncode == 1
    kb(file, *BOX, *select, "--fix")
    assert "per_device_train_batch_size: 32" in file.read_text()
    kb(file, *BOX, *select, "--fix", "--unsafe-fixes")
    setup = report(file, *BOX)["files"][0]["setup"]
    assert setup["per_device_train_batch_size"] < 32
    assert setup["per_device_train_batch_size"] * setup["gradient_accumulation_steps"] == 64
    assert kb(file, *BOX, *select).returncode == 0


def test_a_suppression_needs_a_reason_and_can_expire(tmp_path: Path) -> None:
    base = "general: {model_name: google/mt5-small}\ntraining:\n  fp16: true"
    file = tmp_path / "config.yaml"
    for comment, suppressed, said in (
        ("  # kb: ignore[t5-fp16-overflow] tested on this data", True, None),
        ("  # kb: ignore[t5-fp16-overflow]", False, "suppression-without-reason"),
        ("  # kb: ignore[t5-fp16-overflow] for now; until 2020-01-31", False, "suppression-expired"),
        ("  # kb: ignore[t5-fp16-overflow, zero-epochs] tested on this data", True, "suppression-unused"),
    ):
        file.write_text(base + comment + "\n")
        data = report(file, *BOX, "--notes")
        finding = next(f for _, f in findings(data) if f["rule"] == "t5-fp16-overflow")
        assert bool(finding["suppressed"]) is suppressed, comment
        assert said is None or said in rules(data), comment


def test_a_baseline_sets_aside_what_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("general: {model_name: google/mt5-small}\ntraining:\n  fp16: true\n")
    arguments = ("config.yaml", *BOX, "--select", "t5-fp16-overflow,fp16-and-bf16-both")
    assert kb(*arguments, "--write-baseline", "kb-baseline.json", cwd=tmp_path).returncode == 1
    assert kb(*arguments, "--baseline", "kb-baseline.json", cwd=tmp_path).returncode == 0
    file.write_text("# moved down\n" + file.read_text() + "  bf16: true\n")
    run = kb(*arguments, "--baseline", "kb-baseline.json", "--lang", "en", cwd=tmp_path)
    assert run.returncode == 1 and "fp16-and-bf16-both" in run.stdout
    file.write_text("general: {model_name: google/mt5-small}\ntraining:\n  bf16: true\n")
    kb(*arguments, "--baseline", "kb-baseline.json", "--prune-baseline", cwd=tmp_path)
    assert json.loads((tmp_path / "kb-baseline.json").read_text())["findings"] == []
    (tmp_path / "kb-baseline.json").write_text("{")
    broken = kb(*arguments, "--baseline", "kb-baseline.json", cwd=tmp_path)
    assert broken.returncode == 2 and "kb-baseline.json" in broken.stderr


def test_a_baseline_holds_from_every_working_folder(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text(FP16)
    arguments = ("--gpu", "h100-80gb", "--select", "t5-fp16-overflow")
    kb("configs/a.yaml", *arguments, "--write-baseline", "kb-baseline.json", cwd=tmp_path)
    assert json.loads((tmp_path / "kb-baseline.json").read_text())["findings"][0]["path"] == "configs/a.yaml"
    for cwd, path, baseline in (
        (tmp_path, "configs/a.yaml", "kb-baseline.json"),
        (tmp_path / "configs", "a.yaml", "../kb-baseline.json"),
        (Path("/"), tmp_path / "configs" / "a.yaml", tmp_path / "kb-baseline.json"),
    ):
        run = kb(path, *arguments, "--baseline", baseline, "--prune-baseline", cwd=cwd)
        assert run.returncode == 0, cwd
    assert len(json.loads((tmp_path / "kb-baseline.json").read_text())["findings"]) == 1


def test_project_settings_are_found_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "kb.toml").write_text(
        'gpu = "t4"\nhost_memory = "60GB"\nignore = ["renames"]\n'
        '[severity]\nt5-fp16-overflow = "info"\n[per-file-ignores]\n"old/*" = ["t5-fp16-overflow"]\n'
    )
    (tmp_path / "old").mkdir()
    text = "general: {model_name: google/mt5-small}\ntraining: {fp16: true}\n"
    for name in ("new.yaml", "old/one.yaml"):
        (tmp_path / name).write_text(text)
    data = report(tmp_path / "new.yaml", "--notes")
    assert data["machine"]["gpus"][0]["id"] == "t4"
    assert next(f for _, f in findings(data) if f["rule"] == "t5-fp16-overflow")["severity"] == "info"
    assert "t5-fp16-overflow" not in rules(report(tmp_path / "old" / "one.yaml"))
    assert report(tmp_path / "new.yaml", "--gpu", "l4")["machine"]["gpus"][0]["id"] == "l4"
    for content, words in (
        ("gpuu = 1\n", "gpu"),
        ("gpu = 1\n", "gpu"),
        ("gpu = [\n", "TOML"),
        ("zzz = 1\n", "settings: baseline"),
        ("cpus = 1.5\n", "integer, string"),
        ('fail-on = "bogus"\n', "error, warning, info, never"),
        ('lang = "fr"\n', "ko, en"),
        ('select = "precision"\n', "array"),
        ("select = [1]\n", "array of strings"),
        ('select = ["precison"]\n', "did you mean precision"),
        ('[per-file-ignores]\n"*" = "precision"\n', "per-file-ignores.*"),
        ('[versions]\nfoo = "5"\n', "transformers, torch"),
        ('[versions]\ntransformers = "latest"\n', "latest"),
        ('[severity]\nx = "loud"\n', "loud"),
        ('[severity]\nt5-fp16 = "info"\n', "did you mean t5-fp16-"),
        ('gpu = "rtx4909"\n', "rtx-4090"),
        ("gpus = 0\n", "number of GPUs"),
        ('host_memory = "lots"\n', "lots"),
        ('cpus = "many"\n', "many"),
    ):
        (tmp_path / "kb.toml").write_text(content)
        run = kb(tmp_path / "new.yaml", "--lang", "en")
        assert run.returncode == 2 and words in run.stderr and "kb.toml" in run.stderr


def test_a_fault_of_the_command_line_is_not_the_projects(tmp_path: Path) -> None:
    (tmp_path / "kb.toml").write_text('gpu = "t4"\nlang = "en"\n[severity]\nprecision = "info"\n')
    (tmp_path / "new.yaml").write_text(FP16)
    run = kb(tmp_path / "new.yaml", "--gpu", "rtx4909")
    assert run.returncode == 2 and "kb.toml" not in run.stderr
    run = kb(tmp_path / "new.yaml", "--select", "precision", LC_ALL="ko_KR.UTF-8")
    assert run.returncode == 0 and "note t5-fp16-overflow" in run.stdout, "an area's severity is its rules'"


# --- bad input --------------------------------------------------------------------------------------------------

BAD: dict[str, bytes] = {
    "empty.yaml": b"",
    "comments.yaml": b"# nothing here\n",
    "binary.yaml": bytes(range(256)),
    "list.yaml": b"- 1\n- 2\n",
    "scalar.yaml": b"just words\n",
    "unclosed.yaml": b"a: [1, 2\n",
    "deep.yaml": b"[" * 100_000,
    "deep_block.yaml": "\n".join(" " * depth + "a:" for depth in range(3000)).encode(),
    "big.yaml": b"a: 1\n" * 2_200_000,
    "tag.yaml": b"x: !!python/object/apply:os.system [id]\n",
    "laughs.yaml": b"a: &a [x,x]\n"
    + b"".join(
        b"b%d: &b%d [*%s,*%s]\n" % (i, i, b"a" if i == 0 else b"b%d" % (i - 1), b"a" if i == 0 else b"b%d" % (i - 1))
        for i in range(30)
    ),
    "utf16.yaml": "training: {fp16: true}\n".encode("utf-16-le"),
    "broken.json": b'{"a": 1,}',
    "null.json": b"null",
    "braces.json": b"{}",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("language", ["ko", "en"])
def test_bad_input_is_said_with_its_place_and_exit_2(name: str, language: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(BAD[name])
    run = kb(path, "--gpu", "t4", "--lang", language)
    assert run.returncode in ((1, 2) if name == "utf16.yaml" else (2,)), run.stdout
    said = run.stderr or run.stdout
    assert name in said
    assert len(said) < 1500
    assert not UNWORDED.search(said), said


def test_code_in_a_config_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "tag.yaml"
    path.write_text(f"x: !!python/object/apply:os.mkdir ['{tmp_path}/made']\ntraining: {{fp16: true}}\n")
    assert kb(path, "--gpu", "t4").returncode == 2
    assert not (tmp_path / "made").exists()


def test_an_unknown_gpu_gets_suggestions() -> None:
    run = kb(DATA / "two_models.yaml", "--gpu", "rtx4909", "--lang", "en")
    assert run.returncode == 2
    assert "rtx-4090" in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gpus", "0"),
        ("--gpus", "many"),
        ("--host-memory", "lots"),
        ("--cpus", "-3"),
        ("--format", "xml"),
        ("--select", "t5-fp16"),
        ("--dialect", "toml"),
        ("--transformers", "latest"),
        ("--baseline", "absent.json"),
        ("--rules", "absent"),
        ("--gpu",),
        ("",),
        ("--watch", "-"),
        ("--watch", "--command", "python t.py --fp16"),
    ],
)
@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_bad_argument_is_said_and_exit_2(arguments: tuple[str, ...], language: str) -> None:
    run = kb(DATA / "two_models.yaml", "--lang", language, *arguments)
    assert run.returncode == 2, run.stdout
    assert run.stderr.strip()
    assert not UNWORDED.search(run.stderr), run.stderr


def test_argparses_own_sentences_are_in_the_users_language() -> None:
    assert "정수" in kb(DATA / "two_models.yaml", "--lang", "ko", "--gpus", "many").stderr
    assert "invalid int" not in kb(DATA / "two_models.yaml", "--lang", "en", "--gpus", "many").stderr


def test_paths_and_options_may_take_turns() -> None:
    run = kb(DATA / "two_models.yaml", *BOX, DATA / "summary_run.yaml", "--format", "json")
    assert {Path(unit["path"]).name for unit in json.loads(run.stdout)["files"]} == {
        "two_models.yaml",
        "summary_run.yaml",
    }


def test_an_empty_command_is_not_standard_input() -> None:
    run = kb("--command", "", "--lang", "en", stdin=FP16)
    assert run.returncode == 2 and "no command" in run.stderr and run.stdout == ""


def test_an_empty_mapping_is_not_called_a_comment(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert "empty mapping" in kb(tmp_path / "a.json", "--lang", "en").stderr


def test_missing_and_unreadable_paths_are_said(tmp_path: Path) -> None:
    assert "absent.yaml" in kb(tmp_path / "absent.yaml").stderr
    (tmp_path / "empty").mkdir()
    run = kb(tmp_path / "empty")
    assert run.returncode == 2 and "empty" in run.stderr
    (tmp_path / "other.yaml").write_text("services: {web: {image: nginx}}\n")
    run = kb(tmp_path)
    assert run.returncode == 2 and run.stderr.strip()
    link = tmp_path / "loop.yaml"
    link.symlink_to(link)
    assert kb(link).returncode == 2


def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("training: {fp16: true}\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        # root reads everything: a folder where a file is meant fails alike, by the same way
        pytest.MonkeyPatch().undo()
        path = Path("/proc/self/mem")
    run = kb(path, "--gpu", "t4")
    assert run.returncode == 2 and str(path) in run.stderr


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    run = kb(tmp_path / "bad.yaml", DATA / "two_models.yaml", *BOX, "--lang", "en")
    assert run.returncode == 2
    assert "bad.yaml" in run.stderr and "t5-fp16-overflow" in run.stdout


def test_a_file_of_no_known_format_says_which_keys_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("settings: {fp16: true, depth: 3}\n")
    run = kb(path, "--gpu", "t4", "--lang", "en")
    assert "unknown-dialect" in run.stdout


def test_nothing_runs_on_a_broken_rules_folder(tmp_path: Path) -> None:
    rule = few_rules(tmp_path) / "checks" / "precision" / "t5-fp16-overflow.yaml"
    rule.write_text(rule.read_text("utf-8").replace("severity: error", "severity: fatal"), "utf-8")
    run = kb(DATA / "two_models.yaml", *BOX, "--rules", tmp_path / "rules")
    assert run.returncode == 2
    assert run.stdout == ""
    assert "t5-fp16-overflow.yaml:5:11:" in run.stderr


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m kb.check {DATA / 'two_models.yaml'} {' '.join(BOX)} --format json | head -c 10"
    run = subprocess.run(["bash", "-c", command], capture_output=True, env=ENVIRON, timeout=60, check=False)
    assert run.stderr == b""


def test_findings_keep_their_exit_code_when_the_reader_leaves() -> None:
    command = f"{sys.executable} -m kb.check {DATA / 'two_models.yaml'} {' '.join(BOX)} | true; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, env=ENVIRON, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (1, b"")


@pytest.mark.parametrize("where", [">&-", "> /dev/full"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_output_that_cannot_be_written_is_said(where: str, form: str) -> None:
    if where != ">&-" and not os.path.exists("/dev/full"):
        assert "CI" not in os.environ, "/dev/full is missing"
        pytest.skip("/dev/full is missing")
    command = f"{sys.executable} -m kb.check {DATA / 'two_models.yaml'} {' '.join(BOX)} --format {form} {where}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, env=ENVIRON, timeout=60, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith(b"kb: standard output") and run.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "start",
    [
        ("-m", "kb.check"),
        ("-m", "kb", "check"),
        ("-c", "import sys; sys.argv[1:1] = ['check']; from kb.__main__ import main; sys.exit(main())"),
    ],
)
def test_ctrl_c_while_it_starts_is_quiet(start: tuple[str, ...], tmp_path: Path) -> None:
    # argparse is the first thing that a command imports: this one presses Ctrl-C there
    (tmp_path / "argparse.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n1 / 0\n")
    environ = {**ENVIRON, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    command = [sys.executable, *start, str(DATA / "two_models.yaml")]
    run = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


@contextmanager
def watched(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended after a minute whatever happens, so that a fault fails the test and does not hang it."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            process.kill()


def test_a_watch_sees_files_that_come_later(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BF16)
    arguments = [sys.executable, "-u", "-m", "kb.check", str(tmp_path), *BOX, "--watch", "--lang", "en"]
    with watched(arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "watching 1 file;" in process.stderr.readline()
        (tmp_path / "b.yaml").write_text(FP16)
        assert any("t5-fp16-overflow" in line for line in iter(process.stdout.readline, ""))
        assert "watching 2 files;" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_ctrl_c_ends_a_watch_with_130(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("general: {model_name: google/mt5-small}\ntraining: {fp16: true}\n")
    arguments = [sys.executable, "-u", "-m", "kb.check", str(path), *BOX, "--watch", "--lang", "en"]
    with watched(arguments) as process:
        assert process.stdout is not None and process.stderr is not None
        assert any("t5-fp16-overflow" in line for line in iter(process.stdout.readline, ""))
        assert "watching" in process.stderr.readline()
        time.sleep(0.1)  # a file system may not tell two writes within one tick apart
        path.write_text("general: {model_name: google/mt5-small}\ntraining: {fp16: true, bf16: true}\n")
        assert any("fp16-and-bf16-both" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "Traceback" not in process.stderr.read()


def test_sections_of_which_there_is_nothing_to_say_are_counted(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}')
    (tmp_path / "run.yaml").write_text("model_name_or_path: t5-base\nper_device_train_batch_size: 1\noutput_dir: a\n")
    run = kb(tmp_path, *BOX, "--lang", "en")
    said = " ".join(run.stdout.split())
    assert "ds.json" not in said and "run.yaml" in said and "1 section names no model" in said, run.stdout
    assert "2 files" in said
    assert "ds.json" in kb(tmp_path, *BOX, "--lang", "en", "--verbose").stdout
    assert "ds.json" in kb(tmp_path / "ds.json", *BOX, "--lang", "en").stdout


def test_a_program_that_only_loads_a_model_is_left_out_of_a_folder_where_nothing_was_found(tmp_path: Path) -> None:
    loads = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    (tmp_path / "infer.py").write_text(loads)
    (tmp_path / "run.yaml").write_text("model_name_or_path: t5-base\nper_device_train_batch_size: 1\noutput_dir: a\n")
    assert "infer.py" not in kb(tmp_path, *BOX, "--lang", "en").stdout
    assert "infer.py" in kb(tmp_path / "infer.py", *BOX, "--lang", "en").stdout
