"""The same config on the same machine has the same numbers wherever they are asked for."""

import json
from pathlib import Path

import pytest

from test_recommend import kb

RUN = """\
general:
  model_name: google-t5/t5-base
training:
  per_device_train_batch_size: 4
  dataloader_num_workers: 64
"""
BOX = ("--gpu", "rtx-3090", "--cpus", "16", "--host-memory")


# where not even the process alone stays within the share to use; where one worker does; where the cores decide
@pytest.mark.parametrize("memory", ["4GB", "9GB", "60GB"])
def test_the_workers_that_a_fix_writes_are_those_recommended_and_planned(memory: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    recommended = json.loads(kb("--model", "t5-base", *BOX, memory, "--format", "json").stdout)
    workers = recommended["config"]["training.dataloader_num_workers"]
    steps = json.loads(kb(path, *BOX, memory, "--format", "json", module="kb.plan").stdout)["plans"][0]["host"]["steps"]
    assert steps[-1]["set"]["training.dataloader_num_workers"]["after"] == workers
    kb(path, *BOX, memory, "--fix", module="kb.check")
    assert f"dataloader_num_workers: {workers}\n" in path.read_text()
