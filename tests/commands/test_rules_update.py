"""`kb rules update` in an installed kb: newer rules from an index, a folder or a file, whole or not, and back."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from effort import EXHAUSTIVE, few
from kb import __version__
from kb.commands.rules import main
from kb.core.text import UserError
from kb.knowledge.rules_release import ARCHIVE, FOLDER, FORMAT, PACKAGE, SPARED_SECONDS, read_release
from packages import ROOT, build, call, made_once
from rules_copy import FEW, few_rules
from rules_wheels import Texts, index_of, remade

NEW_GPU = "rtx-9990"
LATER = "2099-01-31"


class Installed(NamedTuple):
    """kb from its wheel, run by this Python, with data and cache folders of its own."""

    site: Path
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data" / "kb" / "rules"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        own = {"PYTHONPATH": str(self.site), "XDG_DATA_HOME": str(self.folder / "data"), "LANG": "C.UTF-8"}
        return {**kept, **own, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def __call__(self, *arguments: str | Path, code: int = 0) -> str:
        command = [sys.executable, "-m", "kb", *map(str, arguments)]
        run = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == code and "Traceback" not in run.stderr, f"{run.returncode}\n{run.stdout}{run.stderr}"
        return run.stdout + run.stderr

    def version(self) -> str:
        return self("--version").split("rules ")[1].split()[0]

    def begun(self, *arguments: str | Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "kb", *map(str, arguments)]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as built:
        built.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it is built from a checkout; of one whose rules are few, which are compiled soon, where not everything is
    looked at."""

    def make(folder: Path) -> None:
        root = ROOT
        if not EXHAUSTIVE:
            root = folder / "checkout"
            few_rules(root)
            shutil.copytree(ROOT / "packages", root / "packages")
            shutil.copy(ROOT / "hatch_build.py", root)
            (root / "src").symlink_to(ROOT / "src")
        build(root / "packages" / PACKAGE, folder / "built", "wheel")

    (built,) = (made_once(tmp_path_factory, "rules", make) / "built").glob("*.whl")
    return built


def left_few(texts: Texts) -> None:
    """Leave out what each update would read and check for long."""
    for name in list(texts):
        folder = name.removeprefix("rules/").partition("/")[0]
        if folder in FEW and Path(name).stem not in FEW[folder]:
            del texts[name]


def with_a_gpu(texts: Texts) -> None:
    text = texts["rules/hardware/rtx-3090.yaml"].replace("id: rtx-3090", f"id: {NEW_GPU}")
    texts[f"rules/hardware/{NEW_GPU}.yaml"] = text.replace("RTX 3090", "RTX 9990").replace(
        'rtx3090, rtx_3090, "3090"', "rtx9990, rtx_9990"
    )


def few_with_a_gpu(texts: Texts) -> None:
    left_few(texts)
    with_a_gpu(texts)


@pytest.fixture(scope="module")
def newer(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("newer")
    return remade(release, target, f"{FORMAT}.20990131.1", few_with_a_gpu, {"released": LATER})


@pytest.fixture(scope="module")
def newer_whole(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every file, as a release is."""
    target = tmp_path_factory.mktemp("newer-whole")
    return remade(release, target, f"{FORMAT}.20990131.1", with_a_gpu, {"released": LATER})


@pytest.fixture(scope="module")
def other_format(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("other-format")
    return remade(release, target, f"{FORMAT + 1}.20990201.1", left_few, {"format": FORMAT + 1, "released": LATER})


@pytest.fixture(scope="module")
def once(site: Path, newer: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Updated from an index, once for all tests: the folder, and what was said before and then."""
    kb = Installed(site, tmp_path_factory.mktemp("once"))
    before = kb.version()
    with index_of(newer) as url:
        said = kb("rules", "update", "--index-url", url.replace("//", "//user:secret@"))
    return kb.folder, before, said


@pytest.fixture
def fresh(site: Path, tmp_path: Path) -> Installed:
    return Installed(site, tmp_path)


@pytest.fixture
def updated(once: tuple[Path, str, str], site: Path, tmp_path: Path) -> Installed:
    shutil.copytree(once[0], tmp_path / "copy")
    return Installed(site, tmp_path / "copy")


def test_newer_rules_of_an_index_count_until_the_shipped_ones_are_asked_back(
    once: tuple[Path, str, str], updated: Installed
) -> None:
    _, before, said = once
    after = updated.version()
    assert before in said and after in said and after.startswith(LATER) and after != before
    assert f"id: {NEW_GPU}" in updated("rules", "show", NEW_GPU)
    (updated.folder / "c.yaml").write_text("model_name_or_path: google/mt5-base\nper_device_train_batch_size: 8\n")
    assert "9990" in updated("check", "c.yaml", "--gpu", NEW_GPU, "--fail-on", "never")
    assert str(updated.data) in updated("--version")
    doctor = json.loads(updated("doctor", "--format", "json"))["rules"]
    assert doctor["version"] == after and doctor["folder"].startswith(str(updated.data))
    assert doctor["update"]["source"].startswith("http://127.0.0.1:"), "no password is kept"
    assert doctor["update"]["sha256"] in (updated.data / f"current-{__version__}.json").read_text()
    assert after in updated("doctor") and "release 1.20990131.1" in updated("doctor")
    assert before in updated("rules", "update", "--shipped")
    assert updated.version() == before and "unknown GPU" in updated("check", "c.yaml", "--gpu", NEW_GPU, code=2)
    assert json.loads(updated("doctor", "--format", "json"))["rules"]["update"] is None
    assert "already" in updated("rules", "update", "--shipped")


@pytest.mark.parametrize("as_json", few([True, False]))
def test_an_index_in_json_or_html_gives_the_newest_of_this_kb_s_format(
    updated: Installed, newer: Path, release: Path, other_format: Path, as_json: bool
) -> None:
    updated("rules", "update", "--shipped")
    with index_of(release, other_format, newer, as_json=as_json) as url:
        assert "1.20990131" not in updated("rules", "show", "rtx-3090")
        assert LATER in updated("rules", "update", "--index-url", url)
        assert "nothing changed" in updated("rules", "update", "--index-url", url)
    assert updated.version().startswith(LATER)


@pytest.mark.exhaustive
def test_a_folder_of_wheels_is_as_good_and_an_older_one_changes_nothing(
    updated: Installed, newer: Path, release: Path, tmp_path: Path
) -> None:
    after = updated.version()
    folder = tmp_path / "wheels"
    folder.mkdir()
    shutil.copy(release, folder)
    assert "older" in updated("rules", "update", folder) and updated.version() == after
    shutil.copy(newer, folder)
    assert "nothing changed" in updated("rules", "update", folder)
    updated("rules", "update", "--shipped")
    assert after in updated("rules", "update", folder) and updated.version() == after


def contents(kb: Installed) -> dict[str, bytes | None]:
    """What lies among its updates: a start reads nothing else of them."""
    found = kb.data.parent.rglob("*")
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def same(kb: Installed, arguments: list[str | Path], *words: str) -> None:
    """The command ends with 2 and says these words; the rules, and what lies beside them, are as they were."""
    before = contents(kb)
    said = kb("rules", "update", *arguments, code=2)
    assert all(word in said for word in words), said
    assert contents(kb) == before


def test_another_hash_than_the_index_or_the_user_gives_changes_nothing(fresh: Installed, newer: Path) -> None:
    with index_of(newer, told_hash="0" * 64) as url:
        same(fresh, ["--index-url", url], "HASH")
    same(fresh, [newer, "--sha256", "1" * 64], "1" * 64, hashlib.sha256(newer.read_bytes()).hexdigest())


@pytest.mark.exhaustive
def test_a_newer_format_is_named_and_changes_nothing(updated: Installed, other_format: Path) -> None:
    words = (other_format.name, f"format {FORMAT + 1}", f"reads format {FORMAT}", "pip install --upgrade")
    same(updated, [other_format], *words)
    with index_of(other_format) as url:
        same(updated, ["--index-url", url], *words)


@pytest.mark.exhaustive
def test_no_release_no_index_no_file(fresh: Installed, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    same(fresh, [tmp_path / "empty"], str(tmp_path / "empty"), "No matching distribution")
    with index_of() as url:
        same(fresh, ["--index-url", url], url, "No matching distribution")
    same(fresh, [tmp_path / "nowhere"], "nowhere", "--index-url")


def faulty(texts: Texts) -> None:
    left_few(texts)
    rule = "rules/checks/precision/t5-fp16-overflow.yaml"
    texts[rule] = texts[rule].replace("training.fp16", "training.fp61")


def lacking(texts: Texts) -> None:
    left_few(texts)
    texts["rules/constants.yaml"] = texts["rules/constants.yaml"].replace("worker_low_bytes:", "worker_least_bytes:")


@pytest.mark.parametrize(
    ("change", "words"),
    few(
        [(faulty, ["rules/checks/precision/t5-fp16-overflow.yaml:", "training.fp61"]), (lacking, ["worker_low_bytes"])]
    ),
)
def test_rules_that_this_kb_cannot_use_are_told_and_change_nothing(
    fresh: Installed, release: Path, tmp_path: Path, change: Callable[[Texts], None], words: list[str]
) -> None:
    wheel = remade(release, tmp_path, f"{FORMAT}.20990301.1", change, {"released": LATER})
    before = fresh.version()
    said = fresh("rules", "update", wheel, code=2)
    assert all(word in said for word in words) and "Nothing changed" in said
    assert fresh.version() == before and list(fresh.data.iterdir()) == []


@pytest.mark.parametrize("moment", few([".new-*/rules/vocabulary.yaml", ".new-*/rules/.bundle/hot.json"]))
def test_an_update_that_is_killed_leaves_the_rules_that_counted(
    fresh: Installed, newer: Path, newer_whole: Path, moment: str
) -> None:
    before = fresh.version()
    run = fresh.begun("rules", "update", newer_whole)
    while run.poll() is None and not list(fresh.data.glob(moment)):
        time.sleep(0.001)
    assert run.poll() is None, "it was not stopped half-way"
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert list(fresh.data.glob(moment))
    assert fresh.version() == before and "id: rtx-3090" in fresh("rules", "show", "rtx-3090")
    if "hot.json" not in moment:
        return
    (left,) = fresh.data.iterdir()
    long_ago = time.time() - SPARED_SECONDS - 60
    os.utime(left, (long_ago, long_ago))
    fresh("rules", "update", newer)
    assert fresh.version().startswith(LATER) and not left.exists()


@pytest.mark.exhaustive
def test_what_another_kb_s_record_names_is_kept_and_does_not_count_here(
    updated: Installed, release: Path, tmp_path: Path
) -> None:
    record = updated.data / f"current-{__version__}.json"
    record.rename(updated.data / "current-0.0.9.json")  # of the kb that was here before
    (kept,) = (path for path in updated.data.iterdir() if path.is_dir())
    assert not updated.version().startswith(LATER)
    long_ago = time.time() - SPARED_SECONDS - 60
    os.utime(kept, (long_ago, long_ago))
    updated("rules", "update", remade(release, tmp_path, f"{FORMAT}.20990301.1", left_few, {"released": LATER}))
    assert kept.exists()


def test_a_folder_that_cannot_be_written_is_named(fresh: Installed, newer: Path) -> None:
    (fresh.folder / "data").write_text("")
    before = fresh.version()
    assert str(fresh.data) in fresh("rules", "update", newer, code=2) and fresh.version() == before


def test_a_python_without_pip_is_told_of_the_file(installed: Path, tmp_path: Path) -> None:
    call(["sh", "-c", f"{installed / 'kb'} rules update --lang en 2> said.txt"], tmp_path, codes=(2,))
    assert "kb rules update FILE" in (tmp_path / "said.txt").read_text()


def test_a_checkout_is_left_to_git(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["update", "--lang", "en"]) == 2
    assert "git pull" in capsys.readouterr().err


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def other_bytes(path: Path) -> None:
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    members[f"{FOLDER}/{ARCHIVE}"] += b"\0"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def no_wheel(path: Path) -> None:
    path.write_text("404 not found")


@pytest.mark.parametrize("damage", [cut, other_bytes, no_wheel])
def test_a_damaged_wheel_is_named(newer: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = Path(shutil.copy(newer, tmp_path))
    damage(path)
    with pytest.raises(UserError) as caught:
        read_release(str(path))
    assert caught.value.key == "rules.update_damaged" and caught.value.values["name"] == path.name


@pytest.mark.parametrize("name", ["../evil.yaml", "rules/../../evil.yaml", "/rules/evil.yaml", "rules\\..\\evil.yaml"])
def test_a_release_that_would_write_elsewhere_is_refused(newer: Path, tmp_path: Path, name: str) -> None:
    wheel = remade(newer, tmp_path, f"{FORMAT}.20990401.1", lambda texts: texts.update({name: "x"}))
    with pytest.raises(UserError, match="update_damaged"):
        read_release(str(wheel))
