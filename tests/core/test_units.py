"""Sizes: one rule for what is read, wherever a user writes one, and one for what is shown."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog_sample import load_catalog
from kb.core.text import UserError
from kb.core.units import BYTES_PER_UNIT, GIB, MIB, parse_bytes, read_size
from kb.knowledge import load_words
from kb.report.values import host_limit, host_size, is_of_host
from kb.report.words import Words
from warm_runs import run_text

CONFIG = "general: {model_name: google/mt5-base}\ntraining: {bf16: true}\n"
READ = [
    ("60GB", 60 * 10**9), ("5 gb", 5 * 10**9), ("60 GiB", 60 * GIB), ("59.5GiB", round(59.5 * GIB)),
    ("60G", 60 * 10**9), ("60Gi", 60 * GIB), (" 512 MiB ", 512 * MIB), ("64424509440B", 60 * GIB), ("1tib", 2**40),
]  # fmt: skip
REFUSED = [
    "", "GB", "-5GB", "+5GB", "1e3GiB", "６０GB", "60 기가", "5.GB", ".5GB", "1,000GB", "1_000GB", "60GBs", "6 0GB",
    "nanGB", "infGB", "0x10GB", "60GB ram",
]  # fmt: skip


@pytest.mark.parametrize(("text", "count"), READ)
def test_a_size_is_a_number_and_its_unit(text: str, count: int) -> None:
    assert read_size("--x", text) == parse_bytes(text) == count


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_size("--x", text)
    assert (caught.value.key, caught.value.values["text"]) == ("size.not_a_size", text)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("60", "60GB"),
        (60, "60GB"),
        ("59.5", "59.5GB"),
        (24.0, "24.0GB"),
        (24564, "24564MiB"),
        (64424509440, "64424509440B"),
    ],
)
def test_a_number_alone_is_refused_with_what_it_may_mean(value: object, meant: str) -> None:
    with pytest.raises(UserError) as caught:
        read_size("--x", value)
    assert (caught.value.key, caught.value.values["meant"]) == ("size.no_unit", meant)
    assert parse_bytes(meant) > 0


@pytest.mark.parametrize("text", ["0GB", "5B", "1KiB", "5000TB", True])
def test_what_no_memory_has_is_refused(text: object) -> None:
    with pytest.raises(UserError):
        read_size("--x", text)


@given(st.integers(1, 10**6), st.sampled_from(sorted(BYTES_PER_UNIT)), st.sampled_from(["", " ", "  "]), st.booleans())
def test_case_and_blanks_do_not_count(number: int, unit: str, blanks: str, small: bool) -> None:
    assert parse_bytes(f"{number}{blanks}{unit.lower() if small else unit}") == number * BYTES_PER_UNIT[unit]


# --- wherever a user writes one ---------------------------------------------------------------------------------


def kb(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_text("kb", *arguments, "--lang", "en", cwd=folder)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["check", "a.yaml", "--gpu", "t4", "--host-memory"], "--host-memory"),
        (["plan", "a.yaml", "--gpu", "t4", "--host-memory"], "--host-memory"),
        (["estimate", "a.yaml", "--simulate", "--memory-limit"], "--memory-limit"),
        (["probe", "smoke", "a.yaml", "--backend", "fake", "--fake-limit"], "--fake-limit"),
    ],
)
def test_an_options_number_without_a_unit_is_refused(tmp_path: Path, arguments: list[str], name: str) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    done = kb(tmp_path, *arguments, "60")
    assert done.returncode == 2 and done.stdout == ""
    assert f"{name} 60: a size needs its unit" in done.stderr and "Did you mean 60GB?" in done.stderr


def test_a_size_below_zero_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    done = kb(tmp_path, "check", "a.yaml", "--host-memory", "-5GB")
    assert done.returncode == 2 and "--host-memory -5GB is not a size" in done.stderr


@pytest.mark.parametrize("written", ["60", "60.5", '"60"'])
def test_the_projects_number_without_a_unit_is_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    (tmp_path / "kb.toml").write_text(f"host_memory = {written}\n")
    done = kb(tmp_path, "check", "a.yaml", "--gpu", "t4")
    number = written.strip('"')
    assert done.returncode == 2 and f"kb.toml: host_memory {number}: a size needs its unit" in done.stderr
    assert f"Did you mean {number}GB?" in done.stderr


def test_a_measurements_number_without_a_unit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG)
    (tmp_path / "b.yaml").write_text(CONFIG)
    (tmp_path / "m.yaml").write_text("a: 18.3\n")
    done = kb(tmp_path, "history", "a.yaml", "b.yaml", "--gpu", "t4", "--measured", "m.yaml")
    assert done.returncode == 2 and "m.yaml: a 18.3: a size needs its unit" in done.stderr


# --- what is shown ----------------------------------------------------------------------------------------------


def test_a_hosts_size_is_in_powers_of_ten() -> None:
    assert [host_size(0), host_size(900), host_size(64 * MIB), host_size(60 * 10**9)] == [
        "0 MB",
        "900 B",
        "67 MB",
        "60.0 GB",
    ]
    assert host_limit(60 * 10**9) == "60.0 GB (55.9 GiB)"


def test_a_fact_is_shown_in_the_unit_of_its_memory() -> None:
    catalog = load_catalog()
    words = Words("en", load_words("en"), catalog.facts)
    for name, fact in catalog.facts.items():
        if fact.type == "bytes":
            assert words.measured(name, 60 * GIB).rpartition(" ")[2] == ("GB" if is_of_host(name) else "GiB"), name


def test_no_rule_shows_a_fact_in_the_other_unit() -> None:
    catalog, seen = load_catalog(whole=True), set()

    def texts(data: Any) -> list[str]:
        if isinstance(data, dict):
            return [text for value in data.values() for text in texts(value)]
        return [text for each in data for text in texts(each)] if isinstance(data, list | tuple) else [str(data)]

    for rule in catalog.rules.values():
        for name, unit in re.findall(r"\{([a-z_.]+):([GM]i?B)\}", " ".join(texts((rule.wording(), rule.why)))):
            seen.add(rule.id)
            assert unit in (("GB", "MB") if is_of_host(name) else ("GiB", "MiB")), (rule.id, name, unit)
    assert "host-memory-over-limit" in seen


def test_a_history_shows_the_host_in_gb(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG)
    (tmp_path / "m.yaml").write_text("a: {gpu: 9.5GiB, host: 12GB}\n")
    machine = ("--gpu", "t4", "--host-memory", "60GB")
    done = kb(tmp_path, "history", "a.yaml", "b.yaml", *machine, "--measured", "m.yaml")
    assert "host memory limit 60.0 GB (55.9 GiB)" in done.stdout
    assert "host, range (GB)" in done.stdout and "GPU peak, range (GiB)" in done.stdout
    assert re.search(r"12GB.* GB", done.stdout) and "12GB (11.2 GiB)" not in done.stdout
