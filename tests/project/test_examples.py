"""The configs in examples/ end as their README says, for the faults they were written with."""

import json
import re
from pathlib import Path

import pytest

from kb.commands.check import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MACHINE = ("--gpu", "rtx-3090", "--host-memory", "60GB", "--cpus", "16")
FAULTS = {
    "kobart-clean.yaml": set(),
    "mt5-summary-team.yaml": {
        "effective-batch-not-as-said",
        "host-memory-over-limit",
        "lora-some-targets-match-nothing",
        "more-workers-than-cores",
        "t5-fp16-overflow",
        "yaml-number-is-text",
    },
    "t5-base-arguments.yaml": {
        "persistent-workers-without-workers",
        "t5-fp16-overflow",
        "unknown-key-near-known",
        "yaml-no-became-false",
    },
    "bart-large-arguments.json": {"load-best-save-not-multiple-of-eval"},
    "summarize.sh": {"comment-after-backslash", "inference-peak-exceeds-gpu"},
    "deepspeed-offload.json": {"deepspeed-fp16-and-bf16", "deepspeed-param-offload-below-zero3"},
}


def documented() -> dict[str, int]:
    """Exit codes as examples/README.md gives them."""
    rows = re.findall(r"^\| \[([^]]+)\].*\| (\d) \|$", (EXAMPLES / "README.md").read_text("utf-8"), re.M)
    return {name: int(code) for name, code in rows}


def test_every_example_is_documented_and_tested() -> None:
    elsewhere = {"README.md", "kb.toml", "kb.ipynb"}  # the notebook: tests/integrations/test_api.py
    files = {path.name for path in EXAMPLES.iterdir()} - elsewhere
    assert files == set(FAULTS) == set(documented())


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_an_example_ends_as_documented(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([str(EXAMPLES / name), *MACHINE, "--format", "json"])
    out, err = capsys.readouterr()
    assert code == documented()[name], err
    found = {finding["rule"] for unit in json.loads(out)["files"] for finding in unit["findings"]}
    if FAULTS[name]:
        assert FAULTS[name] <= found
    else:
        assert not found


@pytest.mark.long
def test_the_folder_is_checked_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    code = main([str(EXAMPLES), *MACHINE, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 1
    assert {Path(unit["path"]).name for unit in report["files"]} == set(FAULTS)
    assert all(unit["dialect"] for unit in report["files"])


@pytest.mark.parametrize("name", ["t5-base-arguments.yaml", "bart-large-arguments.json"])
def test_fixing_an_example_clears_what_was_fixable(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / name
    copy.write_bytes((EXAMPLES / name).read_bytes())
    (tmp_path / "kb.toml").write_bytes((EXAMPLES / "kb.toml").read_bytes())
    main([str(copy), *MACHINE, "--fix"])
    capsys.readouterr()
    main([str(copy), *MACHINE, "--format", "json"])
    (unit,) = json.loads(capsys.readouterr().out)["files"]
    errors = {finding["rule"] for finding in unit["findings"] if finding["severity"] == "error"}
    assert errors <= {"unknown-training-argument"}  # which of two spellings counts, its author knows
