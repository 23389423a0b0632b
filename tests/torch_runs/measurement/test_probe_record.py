"""``--record``: measured rows as a file that rules/measurements takes; nothing that was not measured on a GPU."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from kb.commands.probe.campaign import SOURCE, check_recordable, record, recorded
from kb.commands.probe.request import ProbeRequest
from kb.core.setup import TrainingSetup
from kb.core.setup_json import setup_json
from kb.core.text import UserError
from kb.torch_runs.probe.campaign import Probed
from kb.torch_runs.probe.trial import Outcome, Trial
from probe_sample import GIB, TINY_T5, scripted
from yaml_file import read_yaml

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "rules/schema/measurement.json").read_text("utf-8"))
SETUP = TrainingSetup(
    bf16=True, do_eval=True, predict_with_generate=True, generation_num_beams=4, generation_max_length=32,
    per_device_train_batch_size=8, per_device_eval_batch_size=4,
)  # fmt: skip
TRIAL = Trial("max-batch", "cuda", setup_json(SETUP), TINY_T5, "t5-tiny", ("train", "evaluate", "generate"), 4)
SIZES = {"allocated_bytes": GIB, "reserved_bytes": 2 * GIB, "process_bytes": 3 * GIB}
RAN = Outcome(
    "ok", 9.5, phases=dict.fromkeys(("load", "forward", "backward", "step", "train", "evaluate", "generate"), SIZES),
    step_seconds=0.25, trainable=45696, machine={"gpu_name": "NVIDIA L4", "gpu_memory_bytes": 23 * GIB, "cpus": 4,
    "driver": "570.86.10"}, stack={"torch": "2.13.0+cu130", "transformers": "5.23.0"},
)  # fmt: skip


def test_a_trial_gives_a_row_for_each_phase_it_passed() -> None:
    short = RAN._replace(status="oom", resource="gpu", phase="generate", phases={"load": SIZES, "train": SIZES})
    larger = TRIAL._replace(setup={**TRIAL.setup, "per_device_train_batch_size": 16})
    probed = Probed("max-batch", "cuda", "google/T5_tiny", ((TRIAL, RAN), (larger, short)))
    document = yaml.safe_load(recorded("t5-tiny-l4", probed, "kb probe max-batch --record t5-tiny-l4.yaml") or "")
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    rows = document["rows"]
    assert [(row["task"], row["batch"], row.get("outcome")) for row in rows] == [
        ("train", 8, None), ("evaluate", 4, None), ("generate", 4, None), ("train", 16, None), ("generate", 4, "oom"),
    ]  # fmt: skip
    assert (rows[2]["beams"], rows[2]["target_length"], rows[0]["precision"]) == (4, 32, "bf16")
    assert rows[0]["phases"]["train"] == SIZES and rows[0]["step_seconds"] == 0.25
    assert document["machine"]["driver"] == "570.86.10" and document["stack"]["torch"] == "2.13.0+cu130"
    assert document["models"] == {"t5-tiny": {"architecture": TINY_T5}}


def test_the_source_that_rows_name_exists() -> None:
    assert SOURCE in read_yaml(ROOT / "rules/sources.yaml")["sources"]


def test_scripted_trials_give_no_row(tmp_path: Path) -> None:
    probed = Probed("max-batch", "fake", "kobart", ((scripted(), RAN._replace(machine={}, stack={})),))
    assert recorded("kobart", probed, "kb probe") is None
    with pytest.raises(UserError, match=r"probe\.record_nothing"):
        record(str(tmp_path / "kobart.yaml"), probed, "kb probe")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "name", "key"),
    [
        (ProbeRequest("smoke", backend="fake"), "a.yaml", "record_not_measured"),
        (ProbeRequest("smoke", backend="cpu"), "a.yaml", "record_needs_gpu"),
        (ProbeRequest("host"), "a.yaml", "record_needs_gpu"),
        (ProbeRequest("smoke", command=("true",)), "a.yaml", "record_needs_gpu"),
        (ProbeRequest("smoke"), "My rows.yml", "record_bad_name"),
        (ProbeRequest("smoke"), "there.yaml", "record_exists"),
        (ProbeRequest("smoke"), "nowhere/a.yaml", "record_unwritable"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_anything_runs(
    tmp_path: Path, asked: ProbeRequest, name: str, key: str
) -> None:
    (tmp_path / "there.yaml").write_text("rows: []\n")
    with pytest.raises(UserError) as raised:
        check_recordable(str(tmp_path / name), asked)
    assert raised.value.key == f"probe.{key}"
