"""`kb estimate --plot` and `--timeline`: the run over time as the memory engine follows it, without torch."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from command_runs import run_kb as kb
from estimate_sample import T5, estimate

MIB = 2**20
ROLES = ("weights", "optimizer", "gradients", "activations", "logits", "workspace")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, str]:
    folder = tmp_path_factory.mktemp("timeline")
    drawn, line = folder / "memory.svg", folder / "memory.json"
    made = estimate(*T5, "--gpu", "rtx-3090", "--eval-batch", 16, "--plot", drawn, "--timeline", line)
    return made, json.loads(line.read_text("utf-8")), drawn.read_text("utf-8")


def test_the_timeline_holds_the_peak_that_is_reported(timed: tuple[dict, dict, str]) -> None:
    made, line, _ = timed
    assert (made["level"], made["simulation"]) == ("engine", None)
    assert line["columns"] == ["event", "allocated_bytes", "reserved_bytes", *(f"{role}_bytes" for role in ROLES)]
    peak = max(line["points"], key=lambda point: point[1])
    assert peak[1] == made["phases"]["train"]["peak_allocated_bytes"]
    assert peak[1] / MIB == pytest.approx(11148, abs=1)  # level 1 says as much
    assert max(point[2] for point in line["points"]) == made["phases"]["train"]["peak_reserved_bytes"]
    (train,) = {span["name"] for span in line["phases"] if span["start"] <= peak[0] < span["end"]}
    assert train == "train:forward"


def test_roles_are_all_that_is_allocated(timed: tuple[dict, dict, str]) -> None:
    _, line, _ = timed
    assert all(sum(roles) == allocated and min(roles) >= 0 for _, allocated, _, *roles in line["points"])
    last = dict(zip(line["columns"], line["points"][-1], strict=True))
    assert (last["gradients_bytes"], last["logits_bytes"]) == (0, 0)
    assert last["optimizer_bytes"] == pytest.approx(2 * last["weights_bytes"], rel=0.01)


def test_the_largest_tensors_at_a_peak_are_named(timed: tuple[dict, dict, str]) -> None:
    made, line, _ = timed
    tops = made["tops"]["train"]
    assert tops == line["tops"]["train"]
    assert "encoder.block.*.layer.*.SelfAttention" in {top["module"] for top in tops}
    known = sum(top["bytes"] * top["number"] for top in made["tops"]["load"])
    assert known <= made["phases"]["load"]["peak_allocated_bytes"]
    (shared,) = [top for top in made["tops"]["load"] if top["module"] == "shared.weight"]
    assert (shared["bytes"], shared["number"], shared["term"]) == (32128 * 768 * 4, 1, "parameters")


def test_the_drawing_is_valid_and_names_the_tensors_over_the_peak(timed: tuple[dict, dict, str]) -> None:
    made, _, drawn = timed
    tree = ElementTree.fromstring(drawn)
    titles = [node.text or "" for node in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert any(made["tops"]["train"][0]["module"] in title for title in titles)
    assert "the GPU's memory" in drawn


@pytest.mark.parametrize(("language", "said"), [("en", "does not follow"), ("ko", "따라가지 못하는")])
def test_a_run_that_is_not_followed_keeps_its_answer_without_a_drawing(
    tmp_path: Path, language: str, said: str
) -> None:
    drawn = tmp_path / "memory.svg"
    run = ("--model", "deberta-v3-small", "--gpu", "t4", "--gradient-checkpointing", "--reentrant", "--lang", language)
    made = kb(*run, "--plot", drawn, module="kb.estimate")
    assert made.returncode == 0, made.stderr
    assert said in made.stdout
    assert "--simulate" in made.stdout
    assert not drawn.exists()


def test_every_run_of_a_file_has_its_own_files(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    section = "{general: {model_name: google-t5/t5-small}, training: {per_device_train_batch_size: 2, bf16: true}}"
    config.write_text(f"first: {section}\nsecond: {section}\n", "utf-8")
    run = kb(config, "--gpu", "rtx-3090", "--timeline", tmp_path / "line.json", "--lang", "en", module="kb.estimate")
    assert run.returncode == 0, run.stderr
    assert {path.name for path in tmp_path.glob("*.json")} == {"line.json", "line-2.json"}
