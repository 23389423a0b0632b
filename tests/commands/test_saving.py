"""``--fix`` writes over what it read and nothing else, and what a file is besides its text stays as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kb.config.fixing.saving import ChangedMeanwhileError, save
from warm_runs import run_module

FAULTY = "general: {model_name: google/mt5-small}\ntraining: {fp16: true}\n"
SAVED = FAULTY + "# written in an editor meanwhile\n"
MACHINE = ["--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "8", "--transformers", "4.57"]
OPTIONS = ["--fix", "--lang", "en", *MACHINE]
PIPE_BYTES = 1 << 18  # more than a pipe holds, and less than the largest config


def check(*paths: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return run_module("kb.check", [*paths, *OPTIONS], stdin=given)


def test_what_was_saved_meanwhile_is_left_alone_and_the_others_are_fixed(tmp_path: Path) -> None:
    first, last = tmp_path / "first.yaml", tmp_path / "last.yaml"
    for path in (first, last):
        path.write_text(FAULTY)
    command = [sys.executable, "-m", "kb.check", str(first), "-", str(last), *OPTIONS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as kb:  # type: ignore[call-overload]
        # once this much of standard input is taken, kb has read the file before it
        kb.stdin.write(b"training: {bf16: true}\n" + b"#" * PIPE_BYTES + b"\n")
        first.write_text(SAVED)
        _, said = kb.communicate()
    assert first.read_text() == SAVED
    assert "bf16: true" in last.read_text()
    assert kb.returncode == 2
    assert f"{first} was saved by something else" in said.decode()
    assert f"{last}: 1 fix applied" in said.decode()
    assert sorted(os.listdir(tmp_path)) == ["first.yaml", "last.yaml"]


def test_every_name_of_a_file_leads_to_its_fix(tmp_path: Path) -> None:
    file, other = tmp_path / "a.yaml", tmp_path / "other-name.txt"
    file.write_text(FAULTY)
    os.link(file, other)
    check(file)
    assert "bf16: true" in other.read_text() and other.samefile(file)
    assert sorted(os.listdir(tmp_path)) == ["a.yaml", "other-name.txt"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    file, link = tmp_path / "inside" / "a.yaml", tmp_path / "link.yaml"
    file.write_text(FAULTY)
    link.symlink_to("inside/a.yaml")
    check(link)
    assert link.is_symlink() and "bf16: true" in file.read_text()


def test_permissions_owner_and_attributes_stay(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(FAULTY)
    if os.geteuid() == 0:
        os.chown(file, 12345, 54321)
    file.chmod(0o640)
    attributes = False
    if hasattr(os, "setxattr"):
        try:
            os.setxattr(file, "user.kept", b"yes")
            attributes = True
        except OSError:
            pass  # a file system without them
    before = file.stat()
    check(file)
    after = file.stat()
    assert "bf16: true" in file.read_text()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert not attributes or os.getxattr(file, "user.kept") == b"yes"


def test_a_file_that_may_not_be_given_away_is_written_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")
    monkeypatch.setattr("kb.config.fixing.saving._dress", lambda *_: False)
    before = file.stat()
    save(str(file), b"a: 2\n")
    assert file.read_bytes() == b"a: 2\n" and file.stat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_a_write_that_fails_half_way_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1  # old\n")
    os.link(file, tmp_path / "b.yaml")
    real, calls = os.write, []

    def full(handle: int, content: bytes) -> int:
        calls.append(content)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(handle, content[:3] if len(calls) == 1 else content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        save(str(file), b"a: 2  # new text\n")
    assert file.read_text() == "a: 1  # old\n"
    assert sorted(os.listdir(tmp_path)) == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize("hard_link", [False, True])
def test_other_bytes_or_another_file_are_refused(tmp_path: Path, hard_link: bool) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\n")
    if hard_link:
        os.link(file, tmp_path / "b.yaml")
    with pytest.raises(ChangedMeanwhileError):
        save(str(file), b"a: 3\n", lambda raw: raw == b"a: 0\n")
    assert file.read_text() == "a: 1\n"
    save(str(file), b"a: 3\n", lambda raw: raw == b"a: 1\n")
    assert file.read_text() == "a: 3\n"


def test_a_pipe_in_the_files_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(OSError, match="Invalid argument"):
        save(str(tmp_path / "a.yaml"), b"a: 2\n")
