"""The sources of an installed kb: unpacked once, whole or not at all, and a sentence where that cannot be."""

import json
import lzma
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kb.core.text import UserError
from kb.knowledge import packed
from kb.knowledge.bundle import encoded, read_data
from kb.knowledge.locations import Location, opened

TEXTS = {"rules/checks/batch/one.yaml": "id: one\r\n", "rules/vocabulary.yaml": "뜻: 하나\n", "i18n/ko.yaml": "k: 말\n"}


def archive(sources: str, cold: str = "", guide: str = "") -> bytes:
    """What a package holds packed."""
    parts = [part.encode() for part in (cold, guide, sources)]
    return lzma.compress(b" ".join(str(len(part)).encode() for part in parts) + b"\n" + b"".join(parts))


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A place as in an installed package, and no cache yet."""
    data = tmp_path / "data"
    data.mkdir()
    (data / packed.ARCHIVE).write_bytes(archive(json.dumps(TEXTS)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed.unpacked.cache_clear()
    return Location(str(data / "rules"), str(data / "i18n"), True)


def held(location: Location) -> dict[str, str]:
    root = Path(location.rules).parent
    return {path.relative_to(root).as_posix(): path.read_bytes().decode() for path in root.rglob("*") if path.is_file()}


def test_files_are_as_they_were_packed_and_unpacked_once(sealed: Location) -> None:
    first = opened(sealed)
    assert held(first) == TEXTS
    made = os.stat(first.rules).st_ino
    packed.unpacked.cache_clear()  # as another run
    assert opened(sealed) == first and os.stat(first.rules).st_ino == made
    assert opened(first) == first, "what is open stays as it is"


def test_a_checkout_is_used_as_it_lies(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "rules"), str(tmp_path / "i18n"), False)
    assert opened(location) is location


def test_another_kb_s_sources_lie_beside(sealed: Location) -> None:
    first = opened(sealed)
    kept = Path(sealed.rules).parent / packed.ARCHIVE
    kept.write_bytes(archive(json.dumps({**TEXTS, "rules/new.yaml": "id: new\n"})))
    packed.unpacked.cache_clear()
    assert "rules/new.yaml" in held(opened(sealed)) and held(first) == TEXTS


def test_runs_at_once_leave_one_whole_folder(sealed: Location, tmp_path: Path) -> None:
    code = "import sys; from kb.knowledge.packed import unpacked; print(unpacked(*sys.argv[1:]))"
    archive = str(Path(sealed.rules).parent / packed.ARCHIVE)
    command = [sys.executable, "-c", code, archive, str(tmp_path / "cache" / "kb")]
    path = os.pathsep.join(filter(None, sys.path))
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
        for _ in range(4)
    ]
    folders = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [path.name for path in (tmp_path / "cache" / "kb").iterdir()] == [Path(folder).name for folder in folders]
    assert held(opened(sealed)) == TEXTS


@pytest.mark.parametrize("damage", [b"", b"no archive", archive(json.dumps(TEXTS))[:-20]])
def test_a_damaged_archive_is_named_and_nothing_is_left(sealed: Location, tmp_path: Path, damage: bytes) -> None:
    kept = Path(sealed.rules).parent / packed.ARCHIVE
    kept.write_bytes(damage)
    with pytest.raises(UserError) as caught:
        opened(sealed)
    assert caught.value.key == "rules.not_unpacked" and caught.value.values["path"] == str(kept)
    assert not (tmp_path / "cache").exists()


def test_what_no_run_has_used_for_a_month_is_cleared(sealed: Location, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "kb"
    ages = {"sources-old": 40, "sources-used": 3, "sources-ended.tmp": 2, "sources-begun.tmp": 0, "simulation": 400}
    for name, days in ages.items():
        (cache / name / "rules").mkdir(parents=True)
        os.utime(cache / name, (time.time() - days * 86400,) * 2)
    kept = Path(opened(sealed).rules).parent
    assert {path.name for path in cache.iterdir()} == {kept.name, "sources-used", "sources-begun.tmp", "simulation"}
    os.utime(kept, (time.time() - 40 * 86400,) * 2)
    packed.unpacked.cache_clear()
    opened(sealed)
    assert time.time() - kept.stat().st_mtime < 86400, "it is in use"


def test_a_part_that_a_package_holds_packed_is_read_and_one_that_is_damaged_is_told(tmp_path: Path) -> None:
    bundle, holder = tmp_path / "rules/.bundle", tmp_path / packed.ARCHIVE
    bundle.mkdir(parents=True)
    cold, guide = {"rules": {"왜": ["메모리"] * 5000}}, {"presets": {"하나": 1}}
    whole = archive("{}", encoded(cold), encoded(guide))
    holder.write_bytes(whole)
    assert read_data(str(bundle / "cold.json")) == cold and read_data(str(bundle / "guide.json")) == guide
    for damaged in (whole[:-60], whole[: len(whole) // 2], b"", b"nothing", lzma.compress(b"3 4\n12")):
        holder.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(packed.ARCHIVE)):
            read_data(str(bundle / "guide.json"))
    holder.unlink()
    for name in ("cold.json", "guide.json", "hot.json"):
        with pytest.raises(OSError):
            read_data(str(bundle / name))
