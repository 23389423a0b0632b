"""Trials on a Ray cluster of several nodes on this machine: custom resources stand for their GPUs."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from catalog_sample import load_catalog
from effort import EXHAUSTIVE
from kb.core.text import UserError
from kb.machine.detect import names_of
from kb.torch_runs.probe.ray_runner import accelerator_of, offered_by
from kb.torch_runs.probe.trial import Trial

T4, RTX = "accelerator_type:T4", "accelerator_type:GeForce-RTX-3090"
RAY = importlib.util.find_spec("ray") is not None and sys.platform != "win32"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that stands for a T4, and a node that stands for an RTX 3090; usually the head stands for both."""
    require_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    of_the_head = {T4: 1} if EXHAUSTIVE else {T4: 1, RTX: 1}
    made = Cluster()
    start_node(made, num_cpus=1, resources=of_the_head, include_dashboard=False, no_monitor=True)
    if EXHAUSTIVE:
        start_node(made, num_cpus=1, resources={RTX: 1})
    yield made
    made.shutdown()


def start_node(cluster: Any, **options: Any) -> None:
    """Ray gives a node 30 seconds to start, which a busy machine may not keep: then again, from nothing."""
    for tries_left in (4, 3, 2, 1, 0):
        before = set(psutil.Process().children(recursive=True))
        try:
            cluster.add_node(include_log_monitor=False, **options)
            return
        except Exception as error:
            if "timed out during startup" not in str(error) or not tries_left:
                raise
            for process in set(psutil.Process().children(recursive=True)) - before:
                with contextlib.suppress(psutil.Error):
                    process.kill()


@pytest.fixture(scope="module")
def runner(cluster: Any) -> Iterator[Any]:
    """A connection to it; a test that loses nodes sets ``told``."""
    from kb.torch_runs.probe.ray_runner import RayRunner

    gpus = load_catalog().gpus
    names = {name: names_of(gpus[name]) for name in ("t4", "rtx-3090", "a100-80gb")}
    made = RayRunner(cluster.address, names=names, gone_seconds=2, tell=lambda trial, nodes: made.told(trial, nodes))
    yield made
    made.close()


def require_ray() -> None:
    if not RAY:
        if os.environ.get("CI"):
            pytest.fail("this needs ray", pytrace=False)
        pytest.skip("this needs ray")


def trial(gpu: str, batch: int, seconds: float = 0.2) -> Trial:
    predicted = {"load": {"process_bytes": 1 << 30}, "train": {"process_bytes": batch << 30}}
    fake = {"limit_bytes": 8 << 30, "seconds": seconds}
    setup = {"per_device_train_batch_size": batch}
    return Trial("smoke", "fake", setup, config={}, model="tiny", gpu=gpu, fake=fake, predicted=predicted)


class Killer(threading.Thread):
    """Kills the node, with all of its processes, on which a trial is found running. ``killed`` is its name."""

    def __init__(self, cluster: Any, runner: Any) -> None:
        super().__init__(daemon=True)
        self._cluster, self.killed = cluster, ""
        self._names = {node.id: node.name for node in runner.cluster.alive()}

    def run(self) -> None:
        deadline = time.monotonic() + 90
        while not self.killed and time.monotonic() < deadline:
            for node in self._cluster.list_all_nodes():
                if node is not self._cluster.head_node and self._busy(node):
                    self._cluster.remove_node(node, allow_graceful=False)
                    self.killed = self._names[node.node_id]
                    break
            time.sleep(0.2)

    def _busy(self, node: Any) -> bool:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for process in raylet.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "kb.torch_runs.probe.fake_worker" in process.cmdline():
                    return True
        return False


def test_each_trial_runs_on_a_node_with_its_gpu_and_out_of_memory_is_an_outcome(runner: Any) -> None:
    trials = [trial("t4", 4), trial("rtx-3090", 4), trial("t4", 16)]
    found = {(each.gpu, each.batch): outcome for each, outcome in runner.run(trials)}
    assert found["t4", 4].status == found["rtx-3090", 4].status == "ok"
    assert found["t4", 16].status == "oom"
    assert found["t4", 4].node == found["t4", 16].node
    assert (found["t4", 4].node != found["rtx-3090", 4].node) == EXHAUSTIVE


def test_a_gpu_that_the_cluster_has_not_is_said_with_those_that_it_has(runner: Any) -> None:
    with pytest.raises(UserError) as fault:
        runner.check(["t4", "a100-80gb"])
    assert fault.value.key == "probe.ray_no_such_gpu"
    assert fault.value.values["known"] == "GeForce-RTX-3090, T4"


@pytest.mark.exhaustive
def test_the_matrix_is_one_table_and_its_journal_names_the_nodes(cluster: Any, tmp_path: Path) -> None:
    journal = tmp_path / "probe.jsonl"
    command = [
        *(sys.executable, "-m", "kb", "probe", "smoke", "--ray", cluster.address, "--gpus", "t4,rtx-3090"),
        *("--models", "kobart", "--batches", "4,64", "--backend", "fake", "--journal", str(journal), "--lang", "ko"),
    ]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=180, check=False)
    assert run.returncode == 1, run.stderr  # a trial ran out of memory
    rows = [line for line in run.stdout.splitlines() if " kobart " in line and "/" in line]
    assert len(rows) == 4
    assert "RTX 3090" in run.stdout
    assert "GPU 메모리" in run.stdout
    entries = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    nodes = {entry["trial"]["gpu"]: entry["outcome"]["node"] for entry in entries if "outcome" in entry}
    assert len(set(nodes.values())) == 2
    assert entries[-1] == {"finished": True}


@pytest.mark.exhaustive
def test_a_trial_whose_node_is_killed_runs_again_on_another_and_says_so(
    cluster: Any, runner: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from kb.torch_runs.probe.running import measure
    from kb.torch_runs.probe.trial import Journal

    told = []

    def replace(trial: Trial, nodes: tuple[str, ...]) -> None:
        told.append(nodes)
        start_node(cluster, num_cpus=1, resources={RTX: 1})

    runner.told = replace
    killer = Killer(cluster, runner)
    killer.start()
    journal = Journal.open(str(tmp_path / "probe.jsonl"), {}, resume=False)
    try:
        ((_, outcome),) = measure([trial("rtx-3090", 2, seconds=6)], runner, journal)
    finally:
        journal.close()
    assert outcome.status == "ok"
    assert outcome.machine["losses"] == 1
    assert outcome.machine["lost_nodes"] == [killer.killed]
    assert outcome.node != killer.killed
    assert told == [(killer.killed,)]
    assert "raylet" not in capfd.readouterr().out  # where the report goes
    assert killer.killed in (tmp_path / "probe.jsonl").read_text("utf-8")


def test_a_trial_that_no_node_can_run_is_given_up(runner: Any) -> None:
    ((_, outcome),) = runner.run([trial("a100-80gb", 3)])
    assert outcome.status == "lost"
    assert outcome.reason is not None and "a100-80gb" in outcome.reason


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("nowhere", "probe.ray_bad_address"),
        ("127.0.0.1:0", "probe.ray_bad_address"),
        ("local", "probe.ray_bad_address"),
    ],
)
def test_what_is_no_address_is_refused(address: str, key: str) -> None:
    from kb.torch_runs.probe.ray_runner import connect

    require_ray()
    with pytest.raises(UserError) as fault:
        connect(address)
    assert fault.value.key == key


def test_an_address_where_nothing_listens_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "kb",
            "probe",
            "smoke",
            "--ray",
            address,
            "--gpus",
            "t4",
            "--model",
            "kobart",
            "--no-journal",
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert run.returncode == 2
    assert address in run.stderr


def test_a_listener_that_is_no_ray_cluster_is_given_up_within_the_time() -> None:
    from kb.torch_runs.probe.ray_runner import connect

    require_ray()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(UserError) as fault:
            connect(f"127.0.0.1:{deaf.getsockname()[1]}", answer_seconds=2)
    assert fault.value.key in ("probe.ray_silent", "probe.ray_refused")


@pytest.mark.parametrize(
    ("gpu", "offered", "found"),
    [
        ("t4", ["T4", "L4"], "T4"),
        ("a100-40gb", ["A100", "A100-40G"], "A100-40G"),
        ("a100-80gb", ["A100", "A100-40G"], "A100"),
        ("rtx-3090", ["GeForce-RTX-3090", "GeForce-RTX-4090"], "GeForce-RTX-3090"),
        ("rtx-3090", ["rtx-3090", "GeForce-RTX-3090"], "rtx-3090"),
        ("rtx-a6000", ["RTX-6000", "RTX-A6000"], "RTX-A6000"),
        ("l4", ["L40S"], None),
        ("v100-16gb", ["V100"], "V100"),
    ],
)
def test_a_gpu_is_found_among_what_ray_calls_them(gpu: str, offered: list[str], found: str | None) -> None:
    assert accelerator_of(gpu, names_of(load_catalog().gpus[gpu]), offered) == found


def test_every_catalogued_gpu_is_found_under_the_name_that_ray_gives_it() -> None:
    require_ray()
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    for gpu in load_catalog().gpus.values():
        for name in (gpu.name, *(alias for alias in gpu.aliases if alias.startswith(("NVIDIA ", "Tesla ")))):
            offered = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(name)
            assert accelerator_of(gpu.id, names_of(gpu), [offered]) == offered, name


def test_other_resources_are_no_accelerators() -> None:
    assert offered_by(["CPU", "GPU", "node:10.0.0.1", "accelerator_type:T4"]) == ("T4",)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--ray", "127.0.0.1:6379", "--model", "kobart"], "--gpus"),
        (["--ray", "127.0.0.1:6379", "--gpus", "t4"], "--model"),
        (["--ray", "127.0.0.1:6379", "--gpus", "t5", "--model", "kobart"], "t5"),
        (["--ray", "127.0.0.1:6379", "--gpus", "t4", "--model", "kobart", "--batches", "0"], "--batches"),
        (["--ray", "127.0.0.1:6379", "--gpus", "t4", "--model", "kobart", "--backend", "cpu"], "--backend cpu"),
        (["--ray", "127.0.0.1:6379", "--gpus", "t4", "--model", "kobart", "--record", "x.yaml"], "--record"),
        (["--model", "kobart", "--batches", "4"], "--ray"),
    ],
)
def test_arguments_that_make_no_matrix_are_refused(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from kb.commands import probe

    assert probe.main(["smoke", *arguments, "--no-journal", "--lang", "en"]) == 2
    assert part in capsys.readouterr().err
