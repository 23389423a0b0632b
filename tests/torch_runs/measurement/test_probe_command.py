"""``kb probe`` as a user runs it, on a scripted GPU: real processes, real signals, both languages."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from effort import few
from output_schemas import answers_to
from probe_sample import GIB, environment, eventually, marked, probe

ROOT = Path(__file__).parents[3]
RUN = "model_name_or_path: gpt2\ndataset_name: a/b\ndo_train: true\noutput_dir: o\n"
KOBART = ("max-batch", "--model", "kobart", "--backend", "fake", "--fake-limit", "8GiB")


def answered(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The command's JSON, held against its schema."""
    run = probe(folder, *arguments, "--format", "json")
    assert run.returncode == code, run.stderr
    data: dict[str, Any] = json.loads(run.stdout)
    answers_to("probe", data)
    return data


def script(folder: Path, **said: Any) -> tuple[str, str]:
    (folder / "script.yaml").write_text(yaml.safe_dump(said))
    return "--fake-script", "script.yaml"


@pytest.mark.parametrize("factor", few([0.93, 1.0, 1.07]))
def test_kobart_on_8_gib_is_found_in_three_trials(tmp_path: Path, factor: float) -> None:
    found = answered(tmp_path, *KOBART, *script(tmp_path, factor=factor))
    peaks = {trial["batch"]: trial["predicted"]["train"]["process_bytes"] * factor for trial in found["trials"]}
    assert len(found["trials"]) <= 3
    assert [peaks[trial["batch"]] <= 8 * GIB for trial in found["trials"]] == [
        trial["outcome"]["status"] == "ok" for trial in found["trials"]
    ]
    assert found["largest"]["batch"] == max(batch for batch, peak in peaks.items() if peak <= 8 * GIB)
    assert found["auto_find_batch_size"]["trials"] > 10
    assert found["measured"] is False


def test_of_a_run_on_several_gpus_a_trial_is_said_to_be_one_process(tmp_path: Path) -> None:
    train = "train.py --model_name_or_path google-t5/t5-small --output_dir out --do_train\n"
    (tmp_path / "run.sh").write_text(f"torchrun --nproc_per_node 2 {train}")
    (tmp_path / "one.sh").write_text(f"python {train}")
    asked = ("--backend", "fake", "--fake-limit", "16GiB")
    assert answered(tmp_path, "smoke", "run.sh", *asked)["notes"] == ["one_process"]
    assert answered(tmp_path, "smoke", "one.sh", *asked, "--no-journal")["notes"] == []


@pytest.mark.exhaustive
def test_the_batch_is_named_in_both_languages(tmp_path: Path) -> None:
    batch = answered(tmp_path, *KOBART)["largest"]["batch"]
    english = probe(tmp_path, *KOBART)
    korean = probe(tmp_path, *KOBART, language="ko")
    assert f"The largest batch that runs is {batch}, found in 2 trials." in english.stdout
    assert f"실행되는 가장 큰 배치는 {batch}개입니다(시도 2번)." in korean.stdout
    assert "Nothing here is measured" in english.stdout and "잰 값은 없습니다" in korean.stdout
    assert "trial 1: batch" in english.stderr and "시도 1: 배치" in korean.stderr


@pytest.mark.exhaustive
def test_killed_in_the_second_trial_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    slow = script(cut, factor=1.07, seconds=3)
    script(whole, factor=1.07, seconds=3)
    expected = answered(whole, *KOBART, *slow)
    journal = cut / "kb-probe.jsonl"
    command = [sys.executable, "-m", "kb.probe", *KOBART, *slow]
    process = subprocess.Popen(
        command, cwd=cut, env=environment(TMPDIR=str(tmp_path)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(lambda: journal.exists() and len(journal.read_text("utf-8").splitlines()) == 2, 60)
        assert eventually(lambda: len(marked(f"{tmp_path}/kb-probe-")) >= 2)  # the second trial runs: keeper and worker
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert eventually(lambda: marked(f"{tmp_path}/kb-probe-") == [])
    refused = probe(cut, *KOBART, *slow)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    resumed = answered(cut, *KOBART, *slow, "--resume")
    assert (resumed["largest"], resumed["recommended"]) == (expected["largest"], expected["recommended"])
    assert [trial["batch"] for trial in resumed["trials"]] == [trial["batch"] for trial in expected["trials"]]
    first = json.loads(journal.read_text("utf-8").splitlines()[1])["outcome"]
    assert resumed["trials"][0]["outcome"]["seconds"] == first["seconds"]  # taken from the journal, not run again


def test_ctrl_c_ends_the_trial_and_leaves_the_journal(tmp_path: Path) -> None:
    arguments = [*KOBART, *script(tmp_path, seconds=60)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kb.probe", *arguments], cwd=tmp_path, env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert eventually(lambda: len(marked(f"{tmp_path}/kb-probe-")) >= 2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "kb-probe.jsonl" in said and "--resume" in said
    assert marked(f"{tmp_path}/kb-probe-") == []
    assert (tmp_path / "kb-probe.jsonl").exists()


@pytest.mark.exhaustive
def test_a_hang_and_a_crash_on_the_way_are_said_and_worked_around(tmp_path: Path) -> None:
    start = answered(tmp_path, *KOBART)["trials"][0]["batch"]
    odd = script(tmp_path, hang_at=[start], crash_at=[start - 1])
    found = answered(tmp_path, *KOBART, *odd, "--time-limit", "8", "--journal", "other.jsonl")
    ends = {trial["batch"]: trial["outcome"]["status"] for trial in found["trials"]}
    assert (ends[start], ends[start - 1]) == ("hang", "crash")
    assert found["largest"]["batch"] == max(batch for batch, end in ends.items() if end == "ok") < start - 1


def test_the_recommended_setting_is_inside_the_target_and_holds_the_effective_batch(tmp_path: Path) -> None:
    found = answered(tmp_path, *KOBART, "--effective-batch", "48", "--precision", "bf16", "--seq-in", "512")
    recommended = found["recommended"]
    assert 0.70 <= recommended["share"] <= 0.85 and recommended["reason"] == "inside_target"
    training = yaml.safe_load(recommended["yaml"])["training"]
    assert training["per_device_train_batch_size"] * training["gradient_accumulation_steps"] == 48
    assert training["per_device_train_batch_size"] <= recommended["batch"] and training["bf16"] is True


def test_the_ramp_climbs_by_a_quarter_until_the_target(tmp_path: Path) -> None:
    found = answered(tmp_path, "ramp", *KOBART[1:])
    shares = [trial["outcome"]["peak_bytes"] / (8 * GIB) for trial in found["trials"]]
    assert [trial["batch"] for trial in found["trials"]] == [4, 5, 6, 7, 9]
    assert shares[-2] < 0.70 <= shares[-1] <= 0.85
    assert (found["recommended"]["batch"], found["recommended"]["reason"]) == (9, "inside_target")


def test_the_ramp_stops_where_the_gpu_is_busy_enough(tmp_path: Path) -> None:
    busy = script(tmp_path, utilisation={4: 0.6, 5: 0.93})
    found = answered(tmp_path, "ramp", *KOBART[1:], *busy)
    assert [trial["outcome"]["utilisation"] for trial in found["trials"]] == [0.6, 0.93]
    assert (found["recommended"]["batch"], found["recommended"]["reason"]) == (5, "utilised")


def test_a_smoke_run_sets_the_peak_beside_its_prediction(tmp_path: Path) -> None:
    run = probe(tmp_path, "smoke", *KOBART[1:], "--batch", "4", *script(tmp_path, factor=1.05))
    assert run.returncode == 0
    assert "(+5.0%)" in run.stdout
    failed = probe(tmp_path, "smoke", *KOBART[1:], "--batch", "64", "--journal", "other.jsonl", language="ko")
    assert failed.returncode == 1
    assert "GPU 메모리 부족" in failed.stdout and "kb plan" in failed.stdout


def test_a_config_is_tried_with_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "general: {model_name: google/mt5-base}\n"
        "training: {per_device_train_batch_size: 4, gradient_accumulation_steps: 2, bf16: true}\n"
        "tokenizer: {encoder_max_len: 512, decoder_max_len: 64}\n"
    )
    found = answered(tmp_path, "max-batch", "config.yaml", "--backend", "fake", "--fake-limit", "24GiB")
    training = yaml.safe_load(found["recommended"]["yaml"])["training"]
    assert found["name"] == "mt5-base"
    assert training["per_device_train_batch_size"] * training["gradient_accumulation_steps"] == 8
    assert set(found["trials"][0]["predicted"]) == {"load", "train"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("max-batch", "--model", "google/mt5-base", "--backend", "fake", "--fake-limit", "4GiB"),
         "mt5-base does not fit at batch 1"),
        (("max-batch", "--model", "kobart", "--backend", "fake"), "--fake-limit 8GiB"),
        (("max-batch", "--model", "kobart", "--fake-limit", "8GiB", "--backend", "cpu"), "only with --backend fake"),
        (("max-batch", "--backend", "fake", "--fake-limit", "8GiB"), "name a model with --model"),
        (("max-batch", "--model", "kobrat", "--backend", "fake", "--fake-limit", "8GiB"), "kobart"),
        ((*KOBART, "--phases", "train,evalute"), "evalute"),
        ((*KOBART, "--seq-in", "4000"), "1026"),
        ((*KOBART, "--most", "0"), "--most 0"),
        ((*KOBART, "--journal", "/dev/full"), "No space left on device"),
        ((*KOBART, "--journal", "/proc/nowhere/x"), "--no-journal"),
        ((*KOBART, "--record", "rows.yaml"), "measures nothing"),
        ((*KOBART, "--batch-flag", "--batch {batch}"), "only with a command"),
        ((*KOBART, "--fake-script", "nowhere.yaml"), "nowhere.yaml"),
        (("host", "--backend", "fake", "--fake-limit", "8GiB"), "need a real machine"),
        (("host", "--workers", "many"), "0,2,4"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    run = probe(tmp_path, *arguments)
    assert run.returncode == 2, run.stdout
    assert said in run.stderr and "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("run.sh", "trl dpo --model_name_or_path gpt2 --dataset_name a/b --output_dir o\n", "a DPO run"),
        ("run.yaml", f"{RUN}use_liger_kernel: true\n", "(Liger, Unsloth)"),
        ("run.yaml", f"{RUN}deepspeed: {{zero_optimization: {{stage: 3}}}}\n", "without DeepSpeed ZeRO-3"),
        ("run.yaml", f"{RUN}deepspeed: {{zero_optimization: {{stage: 0}}}}\n", "without DeepSpeed ZeRO-0"),
    ],
)
def test_a_run_that_a_trial_would_not_be_is_refused(tmp_path: Path, path: str, content: str, said: str) -> None:
    (tmp_path / "kb.toml").write_text('[facts]\n"launch.num_processes" = 2\n')
    (tmp_path / path).write_text(content)
    run = probe(tmp_path, "smoke", path, "--backend", "fake", "--fake-limit", "24GiB")
    assert run.returncode == 2 and said in run.stderr and "after --" in run.stderr, run.stderr


@pytest.mark.parametrize("content", ["factor: fast", "hang_at: 4", "unknown: 1", "[1, 2]", "factor: [", "factor: -1"])
def test_a_script_that_means_nothing_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "script.yaml").write_text(content)
    run = probe(tmp_path, *KOBART, "--fake-script", "script.yaml")
    assert run.returncode == 2 and "script.yaml" in run.stderr


def test_without_a_gpu_the_ways_that_need_none_are_named(tmp_path: Path) -> None:
    for language in ("en", "ko"):
        run = probe(tmp_path, "max-batch", "--model", "kobart", language=language,
                    environ=environment(CUDA_VISIBLE_DEVICES=""))  # fmt: skip
        assert run.returncode == 2
        assert "--backend fake --fake-limit 8GiB" in run.stderr and "--backend cpu" in run.stderr
        assert "CUDA_VISIBLE_DEVICES" in run.stderr  # why there is none
