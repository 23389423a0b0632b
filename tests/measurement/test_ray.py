"""Trials on a Ray cluster of several nodes on this machine: custom resources stand for their GPUs."""

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

import pytest

from kb.core.errors import UserError
from kb.knowledge import load_catalog
from kb.machine.match import names_of
from kb.measurement.ray_types import accelerator_of, offered_by
from kb.measurement.trial import Outcome, Trial

T4, RTX = "accelerator_type:T4", "accelerator_type:GeForce-RTX-3090"
RAY = importlib.util.find_spec("ray") is not None and sys.platform != "win32"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that stands for a T4, and a node that stands for an RTX 3090."""
    if not RAY:
        if os.environ.get("CI"):
            pytest.fail("a cluster needs ray", pytrace=False)
        pytest.skip("a cluster needs ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "resources": {T4: 1}, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(num_cpus=1, resources={RTX: 1})
    yield made
    made.shutdown()


def trial(gpu: str, batch: int, seconds: float = 0.2) -> Trial:
    predicted = {"load": {"process_bytes": 1 << 30}, "train": {"process_bytes": batch << 30}}
    fake = {"limit_bytes": 8 << 30, "seconds": seconds}
    setup = {"per_device_train_batch_size": batch}
    return Trial("smoke", "fake", setup, config={}, model="tiny", gpu=gpu, fake=fake, predicted=predicted)


def runner_on(cluster: Any, **options: Any) -> Any:
    from kb.measurement.ray_runner import RayRunner

    gpus = load_catalog().gpus
    names = {name: names_of(gpus[name]) for name in ("t4", "rtx-3090", "a100-80gb")}
    return RayRunner(cluster.address, names=names, **options)


def when_busy(runner: Any, resource: str, then: Any) -> threading.Thread:
    """Call ``then`` once a task holds a share of the resource and has had time to begin its trial."""

    def look() -> None:
        ray = runner.cluster.ray
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if ray.available_resources().get(resource, 1) < 1:
                break
            time.sleep(0.1)
        time.sleep(2)
        then()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread


def worker_of(cluster: Any) -> Any:
    return next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)


def test_each_trial_runs_on_a_node_with_its_gpu_and_out_of_memory_is_an_outcome(cluster: Any) -> None:
    runner = runner_on(cluster)
    try:
        assert runner.offered() == ("GeForce-RTX-3090", "T4")
        found = {(each.gpu, each.batch): outcome for each, outcome in runner.run([
            trial("t4", 4), trial("rtx-3090", 4), trial("t4", 16)])}  # fmt: skip
        with pytest.raises(UserError) as fault:
            runner.check(["t4", "a100-80gb"])
    finally:
        runner.close()
    assert found["t4", 4].status == found["rtx-3090", 4].status == "ok"
    assert found["t4", 16].status == "oom"
    assert found["t4", 4].node == found["t4", 16].node != found["rtx-3090", 4].node
    assert fault.value.key == "probe.ray_no_such_gpu"
    assert fault.value.values["known"] == "GeForce-RTX-3090, T4"


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


def test_a_trial_whose_node_is_killed_runs_again_on_another_and_says_so(cluster: Any, tmp_path: Path) -> None:
    from kb.measurement.journal import Journal
    from kb.measurement.running import measure

    told: list[tuple[str, ...]] = []
    runner = runner_on(cluster, tell=lambda _, nodes: told.append(nodes))
    doomed = worker_of(cluster)
    names = {node.id: node.name for node in runner.cluster.alive()}

    def kill() -> None:
        cluster.add_node(num_cpus=1, resources={RTX: 1})
        cluster.remove_node(doomed, allow_graceful=False)

    killer = when_busy(runner, RTX, kill)
    journal = Journal.open(str(tmp_path / "probe.jsonl"), {}, resume=False)
    try:
        ((_, outcome),) = measure([trial("rtx-3090", 2, seconds=12)], runner, journal)
        killer.join(60)
    finally:
        journal.close()
        runner.close()
    assert outcome.status == "ok"
    assert outcome.machine["losses"] == 1
    assert outcome.machine["lost_nodes"] == [names[doomed.node_id]]
    assert outcome.node not in outcome.machine["lost_nodes"]
    assert told == [(names[doomed.node_id],)]
    assert "lost_nodes" in (tmp_path / "probe.jsonl").read_text("utf-8")


def test_a_trial_that_no_node_can_run_any_more_is_given_up(cluster: Any) -> None:
    runner = runner_on(cluster, gone_seconds=2)
    doomed = worker_of(cluster)
    killer = when_busy(runner, RTX, lambda: cluster.remove_node(doomed, allow_graceful=False))
    try:
        found: list[tuple[Trial, Outcome]] = list(runner.run([trial("rtx-3090", 2, seconds=30)]))
        killer.join(60)
    finally:
        runner.close()
    assert [outcome.status for _, outcome in found] == ["lost"]
    assert found[0][1].machine["losses"] == 1


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("nowhere", "probe.ray_bad_address"),
        ("127.0.0.1:0", "probe.ray_bad_address"),
        ("local", "probe.ray_bad_address"),
    ],
)
def test_what_is_no_address_is_refused(address: str, key: str) -> None:
    from kb.measurement.ray_cluster import connect

    if not RAY:
        pytest.skip("a cluster needs ray")
    with pytest.raises(UserError) as fault:
        connect(address)
    assert fault.value.key == key


def test_an_address_where_nothing_listens_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{}".format(free.getsockname()[1])
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
    from kb.measurement.ray_cluster import connect

    if not RAY:
        pytest.skip("a cluster needs ray")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(UserError) as fault:
            connect("127.0.0.1:{}".format(deaf.getsockname()[1]), answer_seconds=6)
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
    if not RAY:
        pytest.skip("a cluster needs ray")
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    for gpu in load_catalog().gpus.values():
        offered = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(gpu.name)
        assert accelerator_of(gpu.id, names_of(gpu), [offered]) == offered, gpu.id


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
    from kb import probe

    assert probe.main(["smoke", *arguments, "--no-journal", "--lang", "en"]) == 2
    assert part in capsys.readouterr().err
