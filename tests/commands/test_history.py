"""`kb history`: a config's versions side by side, from files, from git and from a field note (S16)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import warm_runs
from catalog_sample import load_guide
from kb.advice.history import (
    Version,
    change,
    distinct,
    held_against,
    noted_versions,
    unit_of,
    with_measured,
    with_notes,
)
from kb.commands.history import labels_of
from kb.core.memory_report import HostLedger
from kb.core.text import UserError
from kb.integrations.git_files import GitError, file_history
from kb.report.history_report import percent
from output_schemas import answers_to
from warm_runs import run_text

ROOT = Path(__file__).parents[2]
ENVIRON = {
    **{name: value for name, value in warm_runs.ENVIRON.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}
BOX = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "48")
ROWS = load_guide()["histories"]
CONFIG = """\
general: {{model_name: google/mt5-base}}
tokenizer: {{encoder_max_len: 512, decoder_max_len: 64}}
training:
  evaluation_strategy: steps
  per_device_train_batch_size: {0}
  per_device_eval_batch_size: {1}
  gradient_accumulation_steps: 2
  dataloader_num_workers: {2}
  bf16: true
  predict_with_generate: true
  report_to: {3}
"""
STAGES = ((20, 32, 32), (16, 32, 16), (12, 16, 16))


def config(*values: object, report_to: str = "wandb") -> str:
    return CONFIG.format(*values, report_to)


def history(*arguments: object, code: int = 0, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    run = run_text("kb.history", *arguments, cwd=folder)
    assert "Traceback" not in run.stderr
    assert run.returncode == code, run.stderr
    return run


def history_json(*arguments: object, code: int = 0) -> Any:
    data = json.loads(history(*arguments, "--format", "json", code=code).stdout)
    answers_to("history", data)
    return data


def matrix(data: Any) -> dict[str, tuple[list[Any], float | None]]:
    return {row["setting"]: (row["values"], row["change"]) for row in data["matrix"]}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = []
    for name, values in zip(("a0", "b1", "c2"), STAGES, strict=True):
        path = tmp_path / f"train.{name}.yaml"
        path.write_text(config(*values), "utf-8")
        paths.append(path)
    return paths


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.email", "someone@example.com")
        self.git("config", "user.name", "Someone")
        self.git("config", "commit.gpgSign", "false")

    def git(self, *arguments: str) -> str:
        run = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=ENVIRON, capture_output=True, text=True, timeout=60, check=True
        )
        return run.stdout.strip()

    def commit(self, path: str, text: str, message: str) -> str:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return self.record(message)

    def record(self, message: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def stages(repository: Repository) -> Repository:
    for number, values in enumerate(STAGES):
        repository.commit("conf/train.yaml", config(*values), f"stage {number}")
    return repository


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_matrix_of_three_versions(files: list[Path]) -> None:
    rows = matrix(history_json(*files, *BOX))
    assert rows["training.per_device_train_batch_size"] == ([20, 16, 12], -0.4)
    assert rows["training.per_device_eval_batch_size"] == ([32, 32, 16], -0.5)
    assert rows["training.dataloader_num_workers"] == ([32, 16, 16], -0.5)
    assert rows["batch.effective"] == ([40, 32, 24], -0.4)
    assert rows["training.gradient_accumulation_steps"] == ([2, 2, 2], 0)


def test_the_same_in_both_languages(files: list[Path]) -> None:
    english, korean = (history(*files, *BOX, "--lang", language).stdout for language in ("en", "ko"))
    for text in (english, korean):
        assert re.search(r"per_device_train_batch_size +20 +16 \(−20%\) +12 \(−25%\) +−40%", text)
        assert re.search(r"dataloader_num_workers +32 +16 \(−50%\) +16 +−50%", text)
    assert re.search(r"effective batch +40 +32 \(−20%\) +24 \(−25%\) +−40%", english)
    assert re.search(r"유효 배치 +40 +32 \(−20%\) +24 \(−25%\) +−40%", korean)
    assert not re.search("[가-힣]", english)


def test_both_memories_are_predicted_for_each_version(files: list[Path]) -> None:
    data = history_json(*files, *BOX)
    train = [version["prediction"]["phases"]["train"]["process_used_bytes"] for version in data["versions"]]
    host = [version["prediction"]["host"]["peak_bytes"] for version in data["versions"]]
    assert train == sorted(train, reverse=True) and len(set(train)) == 3
    # the second cut leaves the workers alone: of the host's memory only the batches in flight change
    assert host[0] > 1.3 * host[1]
    assert host[1] == pytest.approx(host[2], rel=0.001)
    assert data["versions"][0]["verdicts"]["host"] in ("tight", "oom")
    assert data["versions"][2]["verdicts"]["host"] == "fits"


def test_without_a_gpu_there_is_no_verdict_but_a_prediction(files: list[Path]) -> None:
    data = history_json(*files, "--gpu", "none", "--host-memory", "none")
    assert [version["verdicts"] for version in data["versions"]] == [{"gpu": "unknown", "host": "unknown"}] * 3
    assert all(version["prediction"] for version in data["versions"])
    assert "--gpu" in history(*files, "--gpu", "none", "--lang", "en").stdout


def test_a_setting_that_is_not_written_shows_the_librarys_default(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("general: {model_name: t5-small}\ntraining: {fp16: false}\n", "utf-8")
    (tmp_path / "new.yaml").write_text(
        "general: {model_name: t5-small}\ntraining: {per_device_train_batch_size: 4, learning_rate: 1.0e-4}\n", "utf-8"
    )
    data = history_json(tmp_path / "old.yaml", tmp_path / "new.yaml", *BOX)
    row = next(row for row in data["matrix"] if row["setting"] == "training.per_device_train_batch_size")
    assert (row["values"], row["defaults"], row["change"]) == ([8, 4], [True, False], -0.5)
    assert "8 (default)" in history(tmp_path / "old.yaml", tmp_path / "new.yaml", *BOX, "--lang", "en").stdout


def test_an_unknown_model_has_a_matrix_and_no_prediction(tmp_path: Path) -> None:
    for name, batch in (("old", 8), ("new", 4)):
        text = f"general: {{model_name: nobody/nothing}}\ntraining: {{per_device_train_batch_size: {batch}}}\n"
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    data = history_json(tmp_path / "old.yaml", tmp_path / "new.yaml", *BOX)
    assert matrix(data)["batch.effective"] == ([8, 4], -0.5)
    assert all(version["prediction"] is None and "nobody/nothing" in version["note"] for version in data["versions"])


def test_a_section_is_chosen(tmp_path: Path) -> None:
    for name, batch in (("old", 8), ("new", 4)):
        general = "general: {model_name: t5-small}"
        text = "".join(
            f"{section}:\n  {general}\n  training: {{per_device_train_batch_size: {batch * factor}}}\n"
            for section, factor in (("one", 1), ("two", 10))
        )
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    paths = (tmp_path / "old.yaml", tmp_path / "new.yaml")
    assert matrix(history_json(*paths, *BOX))["batch.effective"][0] == [8, 4]
    assert matrix(history_json(*paths, *BOX, "--section", "two"))["batch.effective"][0] == [80, 40]
    assert "one, two" in history(*paths, "--section", "three", "--lang", "en", code=2).stderr


@pytest.mark.exhaustive
def test_more_versions_than_fit_stand_under_one_another(tmp_path: Path) -> None:
    paths = []
    for batch in range(1, 13):
        paths.append(tmp_path / f"v{batch}.yaml")
        paths[-1].write_text(config(batch, 8, 4), "utf-8")
    text = history(*paths, *BOX, "--lang", "en").stdout
    assert text.count("per_device_train_batch_size") > 1
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "mt5-qlora"),
        (("only.yaml",), "two or more"),
        (("a.yaml", "b.yaml"), "a.yaml"),
        (("a.yaml", "--git", "b.yaml"), "not both"),
        (("a.yaml", "b.yaml", "--rev", "HEAD"), "--git"),
        (("--git", "a.yaml", "--last", "0"), "--last 0"),
        (("a.yaml", "b.yaml", "--gpu", "rtx-3091"), "rtx-3090"),
        (("a.yaml", "b.yaml", "--plot", "history.pdf"), ".svg"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in history(*arguments, "--lang", "en", code=2, folder=tmp_path).stderr


def test_a_named_file_that_cannot_be_read_fails_and_the_others_show(files: list[Path]) -> None:
    files[1].write_text("training: [\n", "utf-8")
    run = history(*files, *BOX, "--lang", "en", code=2)
    assert f"{files[1]}:" in run.stderr
    assert re.search(r"effective batch +40 +– +24 \(−40%\) +−40%", run.stdout)


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (("a/train.743d281.yaml", "a/train.58f3c99.yaml"), ["743d281", "58f3c99"]),
        (("old.yaml", "new.yaml"), ["old", "new"]),
        (("v1/train.yaml", "v2/train.yaml"), ["v1", "v2"]),
        (("train.yaml", "train_2.yaml"), ["train", "train_2"]),
        (("one.yaml", "two.json"), ["one.yaml", "two.json"]),
        (("same.yaml", "same.yaml"), ["same.yaml #1", "same.yaml #2"]),
    ],
)
def test_versions_get_short_names_that_differ(paths: tuple[str, ...], labels: list[str]) -> None:
    assert labels_of(paths) == labels


# --- measurements -----------------------------------------------------------------------------------------------------


def test_measurements_are_held_against_the_prediction(files: list[Path], tmp_path: Path) -> None:
    measured = tmp_path / "measured.yaml"
    measured.write_text("a0: 60GiB\nc2: {gpu: 1GiB, host: 40GB}\n", "utf-8")
    versions = history_json(*files, *BOX, "--measured", measured)["versions"]
    assert versions[0]["measured"]["gpu_against_prediction"] == "above"
    assert versions[1]["measured"] is None
    assert versions[2]["measured"]["gpu_against_prediction"] == "below"
    assert versions[2]["measured"]["host_bytes"] == 40_000_000_000
    said = history(*files, *BOX, "--measured", measured, "--lang", "en").stdout
    assert "40GB" in said and "60GiB" in said and "37.3 GiB" not in said, "each in the unit that it was written in"


def test_measurements_as_json(files: list[Path], tmp_path: Path) -> None:
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({files[0].name: {"gpu": "17179869184B"}}), "utf-8")
    assert history_json(*files, *BOX, "--measured", measured)["versions"][0]["measured"]["gpu_bytes"] == 2**34


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("d4: 1GB\n", "a0, b1, c2"),
        ("a0: much\n", "a0"),
        ("a0: {gpus: 1GB}\n", "a0"),
        ("a0: true\n", "a0"),
        ("- a0\n", "18.3GB"),
        ("a0: [\n", "measured.yaml:"),
    ],
)
def test_a_measurement_that_means_nothing_is_refused(files: list[Path], tmp_path: Path, text: str, said: str) -> None:
    measured = tmp_path / "measured.yaml"
    measured.write_text(text, "utf-8")
    assert said in history(*files, *BOX, "--measured", measured, "--lang", "en", code=2).stderr


# --- a field note's history -------------------------------------------------------------------------------------------


def test_the_field_notes_own_history() -> None:
    data = history_json("mt5-qlora", *BOX)
    rows = matrix(data)
    assert rows["training.per_device_train_batch_size"] == ([20, 16, 12], -0.4)
    assert rows["training.per_device_eval_batch_size"][0] == [48, 32, 16]
    assert round(rows["training.per_device_eval_batch_size"][1] or 0, 2) == -0.67
    assert rows["training.dataloader_num_workers"] == ([32, 16, 16], -0.5)
    assert rows["batch.effective"] == ([40, 32, 24], -0.4)
    assert [version["when"] for version in data["versions"]] == [
        "2025-08-01 06:00",
        "2025-08-01 06:25",
        "2025-08-01 06:33",
    ]
    assert [version["commit"] for version in data["versions"]] == [None, "743d281", "58f3c99"]
    last = data["versions"][-1]
    assert (last["measured"]["gpu_said"], last["measured"]["host_said"]) == ("18.3 GB", "~40 GB")
    assert last["claimed"] == {"gpu": "~18 GB", "host": "~57 GB", "mixed": "39 GB"}
    assert "06:50" in history("mt5-qlora", *BOX, "--lang", "ko").stdout


def test_a_notes_figures_go_with_the_commit_they_are_about() -> None:
    plain = Version(label="58f3c99", path="train.58f3c99.yaml")
    longer = Version(label="x", path="x", commit="743d281" + "0" * 33)
    other = Version(label="8263cec", path="train.8263cec.yaml")
    first, second, third = with_notes([plain, longer, other], ROWS)
    assert first.measured is not None and first.measured.gpu_bytes == 18_300_000_000
    assert second.claimed["gpu"] == "~22 GB" and second.measured is None
    assert third == other


def test_ones_own_measurement_wins_over_a_notes() -> None:
    from kb.advice.history import Measured

    versions = noted_versions(ROWS["mt5-qlora"], "en")
    own = Measured(gpu_bytes=1)
    assert with_measured(versions, {"58f3c99": own})[-1].measured == own
    with pytest.raises(UserError):
        with_measured(versions, {"1234567": own})


# --- git --------------------------------------------------------------------------------------------------------------


def test_versions_from_git(stages: Repository) -> None:
    data = history_json("--git", stages.folder / "conf" / "train.yaml", *BOX)
    assert matrix(data)["batch.effective"] == ([40, 32, 24], -0.4)
    assert [version["subject"] for version in data["versions"]] == ["stage 0", "stage 1", "stage 2"]
    commits = stages.git("log", "--reverse", "--format=%H").split()
    assert [version["commit"] for version in data["versions"]] == commits


def test_renames_are_followed(stages: Repository) -> None:
    stages.git("mv", "conf/train.yaml", "mt5 설정.yaml")
    stages.record("renamed")
    stages.commit("mt5 설정.yaml", config(8, 16, 16), "smaller")
    data = history_json("--git", stages.folder / "mt5 설정.yaml", *BOX)
    assert matrix(data)["batch.effective"][0] == [40, 32, 24, 16]
    assert data["versions_left_out"] == 1
    assert [version["path"] for version in data["versions"]] == ["conf/train.yaml"] * 3 + ["mt5 설정.yaml"]


def test_a_file_that_is_gone_still_has_its_history(stages: Repository) -> None:
    stages.git("rm", "--quiet", "-r", "conf")
    stages.record("gone")
    data = history_json("--git", stages.folder / "conf" / "train.yaml", *BOX)
    assert matrix(data)["batch.effective"][0] == [40, 32, 24]


def test_the_file_on_disk_is_the_last_version_where_it_differs(stages: Repository) -> None:
    path = stages.folder / "conf" / "train.yaml"
    path.write_text(config(10, 16, 16), "utf-8")
    data = history_json("--git", path, *BOX, "--lang", "en")
    assert matrix(data)["batch.effective"][0] == [40, 32, 24, 20]
    assert (data["versions"][-1]["label"], data["versions"][-1]["commit"]) == ("on disk", None)
    path.write_bytes(config(*STAGES[2]).replace("\n", "\r\n").encode())
    assert len(history_json("--git", path, *BOX)["versions"]) == 3


def test_a_range_and_the_last_versions(stages: Repository) -> None:
    path = stages.folder / "conf" / "train.yaml"
    (stages.folder / "conf" / "train.yaml").write_text("not: asked\n", "utf-8")
    assert matrix(history_json("--git", path, "--rev", "HEAD~1..HEAD", *BOX))["batch.effective"][0] == [24]
    assert matrix(history_json("--git", path, "--rev", "HEAD", "--last", 2, *BOX))["batch.effective"][0] == [32, 24]


def test_commits_that_change_no_setting_that_matters_are_left_out(stages: Repository) -> None:
    stages.commit("conf/train.yaml", "# why\n" + config(*STAGES[2]), "a comment")
    stages.commit("conf/train.yaml", config(*STAGES[2], report_to="none"), "elsewhere")
    data = history_json("--git", stages.folder / "conf" / "train.yaml", *BOX)
    assert (len(data["versions"]), data["versions_left_out"]) == (3, 2)


def test_a_version_that_cannot_be_read_keeps_its_place(stages: Repository) -> None:
    stages.commit("conf/train.yaml", "training: [\n", "broken")
    stages.commit("conf/train.yaml", config(8, 16, 16), "mended")
    data = history_json("--git", stages.folder / "conf" / "train.yaml", *BOX)
    row = next(row for row in data["matrix"] if row["setting"] == "batch.effective")
    assert (row["values"], row["changes"][3:]) == ([40, 32, 24, None, 16], [None, pytest.approx(-1 / 3)])
    assert "conf/train.yaml:" in data["versions"][3]["note"]


def test_what_a_merge_made_is_a_version(stages: Repository) -> None:
    stages.git("checkout", "--quiet", "-b", "side")
    stages.commit("conf/train.yaml", config(10, 16, 16), "side")
    stages.git("checkout", "--quiet", "main")
    stages.commit("conf/train.yaml", config(6, 16, 16), "main")
    subprocess.run(
        ["git", "merge", "--quiet", "side"], cwd=stages.folder, env=ENVIRON, capture_output=True, check=False
    )
    merge = stages.commit("conf/train.yaml", config(9, 16, 16), "merged")
    found = file_history(str(stages.folder / "conf" / "train.yaml"))
    assert found.versions[-1].commit == merge
    assert found.versions[-1].content == config(9, 16, 16).encode()
    assert found.working is None


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda repo: "conf", "git.is_folder"),
        (lambda repo: "nothing.yaml", "git.unknown_path"),
        (lambda repo: (repo.folder / "new.yaml").write_text("a: 1\n", "utf-8") and "new.yaml", "git.not_committed"),
    ],
)
def test_a_path_without_history_is_said(stages: Repository, make: Any, key: str) -> None:
    with pytest.raises(GitError) as fault:
        file_history(str(stages.folder / make(stages)))
    assert fault.value.key == key


def test_no_repository_no_commits_no_revision(stages: Repository, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("a: 1\n", "utf-8")
    assert "no git repository" in history("--git", tmp_path / "train.yaml", "--lang", "en", code=2).stderr
    empty = Repository(tmp_path / "empty")
    (empty.folder / "train.yaml").write_text("a: 1\n", "utf-8")
    assert "no commits" in history("--git", empty.folder / "train.yaml", "--lang", "en", code=2).stderr
    path = stages.folder / "conf" / "train.yaml"
    assert "no revision v9" in history("--git", path, "--rev", "v9", "--lang", "en", code=2).stderr
    refused = history("--git", path, "--rev=--output=made", "--lang", "en", code=2, folder=tmp_path)
    assert "--output=made" in refused.stderr
    assert not (tmp_path / "made").exists()
    with pytest.raises(GitError) as fault:
        file_history(str(path), "HEAD..HEAD")
    assert fault.value.key == "git.not_in_range"


def test_a_repositorys_own_programs_are_not_run(stages: Repository, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n", "utf-8")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "gpg.program", "diff.external"):
        stages.git("config", name, str(program))
    stages.git("config", "log.showSignature", "true")
    history_json("--git", stages.folder / "conf" / "train.yaml", *BOX)
    assert not mark.exists()


def test_nothing_in_the_repository_changes(stages: Repository) -> None:
    def everything() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in stages.folder.rglob("*")}

    before = everything()
    history_json("--git", stages.folder / "conf" / "train.yaml", *BOX)
    assert everything() == before


def test_a_blob_too_large_for_a_config_is_not_read(stages: Repository) -> None:
    stages.commit("conf/train.yaml", config(8, 16, 16) + "# " + "x" * (1 << 20), "huge")
    assert file_history(str(stages.folder / "conf" / "train.yaml")).versions[-1].content is None
    data = history_json("--git", stages.folder / "conf" / "train.yaml", "--rev", "HEAD", *BOX)
    assert data["versions"][-1]["settings"] is None and data["versions"][-1]["note"]


def test_a_shallow_clone_says_that_versions_may_be_missing(stages: Repository, tmp_path: Path) -> None:
    command = ["git", "clone", "--quiet", "--depth", "1", stages.folder.as_uri(), str(tmp_path / "clone")]
    subprocess.run(command, env=ENVIRON, capture_output=True, timeout=60, check=True)
    path = tmp_path / "clone" / "conf" / "train.yaml"
    assert history_json("--git", path, *BOX)["shallow"]
    assert "--unshallow" in history("--git", path, *BOX, "--lang", "en").stdout


# --- the plot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("language", "words"), [("en", ("train", "limit 24.0")), ("ko", ("학습", "한도 24.0"))])
def test_the_plot_is_an_svg_in_the_readers_language(files: list[Path], language: str, words: tuple[str, ...]) -> None:
    plot = files[0].parent / "history.svg"
    history(*files, *BOX, "--lang", language, "--plot", plot)
    root = ElementTree.fromstring(plot.read_text("utf-8"))
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    assert root.tag.endswith("svg") and {"a0", "b1", "c2", *words} <= set(texts)
    described = next(element for element in root.iter() if element.tag.endswith("desc"))
    assert "a0" in (described.text or "")
    width = float(root.attrib["width"])
    assert all(0 <= float(element.attrib["x"]) <= width for element in root.iter() if "x" in element.attrib)


def test_names_in_the_plot_are_escaped(tmp_path: Path) -> None:
    paths = [tmp_path / "a<b>&.yaml", tmp_path / "c.yaml"]
    for path in paths:
        path.write_text(config(8, 8, 4), "utf-8")
    history(*paths, *BOX, "--plot", tmp_path / "history.svg")
    assert "a<b>&" in "".join(ElementTree.parse(tmp_path / "history.svg").getroot().itertext())


def test_a_png_needs_a_converter_and_says_which(files: list[Path]) -> None:
    plot = files[0].parent / "history.png"
    command = [sys.executable, "-m", "kb.history", *map(str, files), *BOX, "--lang", "en", "--plot", str(plot)]
    run = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=120, check=False)
    if run.returncode == 0:
        assert plot.read_bytes().startswith(b"\x89PNG")
    else:
        assert run.returncode == 2 and "cairosvg" in run.stderr and "rsvg-convert" in run.stderr


# --- the pure parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "ratio"),
    [(20, 12, -0.4), (0, 5, None), (-2, -1, 0.5), (True, False, None), ("a", 1, None), (None, 1, None), (2, 2, 0)],
)
def test_a_change_is_told_of_numbers_only(before: Any, after: Any, ratio: float | None) -> None:
    assert change(before, after) == ratio


@pytest.mark.parametrize(
    ("ratio", "shown"), [(-0.4, "−40%"), (0.08, "+8%"), (0.0, "0%"), (-0.666, "−67%"), (0.002, "+0.2%"), (None, "")]
)
def test_percentages_as_people_write_them(ratio: float | None, shown: str) -> None:
    assert percent(ratio) == shown


@pytest.mark.parametrize(
    ("low", "peak", "limit", "status"),
    [(5, 9, 10, "fits"), (5, 11, 10, "tight"), (11, 12, 10, "oom"), (5, 9, None, "unknown")],
)
def test_the_hosts_verdict(low: int, peak: int, limit: int | None, status: str) -> None:
    assert HostLedger((), low, peak, limit).status == status


def test_a_measurement_lies_in_a_range_or_beside_it() -> None:
    assert [held_against(value, 5, 9) for value in (4, 5, 9, 10)] == ["below", "inside", "inside", "above"]


def test_distinct_versions_are_told_by_their_settings() -> None:
    def version(batch: int | None) -> Version:
        settings = {"training.per_device_train_batch_size": batch, "training.run_name": str(id(object()))}
        return Version("v", "v", unit_of("v", settings) if batch else None)

    kept, left_out = distinct([version(8), version(8), version(None), version(8), version(4), version(8)])
    assert [each.unit is not None for each in kept] == [True, False, True, True]
    assert left_out == 2


def test_a_noted_history_follows_the_projects_code_and_says_that_it_is_an_inference() -> None:
    said = " ".join(history("mt5-qlora", *BOX, "--lang", "en").stdout.split())
    assert "this is an inference: predictions follow the project's code" in said
    assert "prepared=true" not in said, "nothing is assumed that the code does not do"
    assert "bf16 false" in said
