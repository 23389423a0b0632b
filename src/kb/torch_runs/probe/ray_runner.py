"""Trials as tasks on a Ray cluster: each on a node with its GPU, tried again elsewhere where the node is lost.

Ray's own connection may wait for minutes, or end the process where something else answers on the port: a process of
its own tries first.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.torch_runs.probe.running import run_trial
from kb.torch_runs.probe.trial import Outcome, Trial, as_json, outcome_from, trial_from

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 45.0  # Ray itself takes three to five to connect
_TRY = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)"


class Node(NamedTuple):
    """A node that is alive: where, and its resources by name."""

    id: str
    name: str
    resources: dict[str, float]


class Cluster:
    """An open connection; :meth:`close` ends it, and with it what this program runs there."""

    def __init__(self, ray: Any, address: str) -> None:
        self.ray = ray
        self.address = address

    def alive(self) -> tuple[Node, ...]:
        return tuple(
            Node(node["NodeID"], node_name(node["NodeManagerHostname"], node["NodeID"]), dict(node["Resources"]))
            for node in self.ray.nodes()
            if node["Alive"]
        )

    def close(self) -> None:
        with contextlib.suppress(Exception):  # a cluster that went away is closed
            self.ray.shutdown()


def node_name(host: str, node: str) -> str:
    """``gpu-host-3/1a2b3c``: several nodes may stand on one host."""
    return f"{host}/{node[:6]}"


def connect(address: str, *, answer_seconds: float = ANSWER_SECONDS) -> Cluster:
    """Connect to ``HOST:PORT``, ``ray://HOST:PORT`` or ``auto``.

    Raises:
        UserError: Ray is not installed, nothing answers, what answers is no Ray cluster or one of other versions.
    """
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise UserError("probe.ray_missing")
    _reach(address)
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, address],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=answer_seconds,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError("probe.ray_silent", address=address, seconds=answer_seconds) from None
    if tried.returncode != 0:
        raise UserError("probe.ray_refused", address=address, reason=_last_line(tried.stderr))
    return Cluster(_initialized(address), address)


def _initialized(address: str) -> Any:
    """The connection itself. The nodes get this very package, so that they need none of their own."""
    import logging

    import ray

    import kb

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    package = os.path.dirname(os.path.abspath(kb.__file__))
    ray.init(
        address=address,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        ignore_reinit_error=True,
        runtime_env={"py_modules": [package], "excludes": ["**/__pycache__", "rules", "i18n"]},
    )
    _hush()
    return ray


def _hush() -> None:
    """Ray prints what nodes complain of on standard output, which is the report's, and takes no word against it.

    What matters of a lost node comes with the outcome of its trial.
    """
    with contextlib.suppress(Exception):  # Ray's own: where it has moved, its lines show
        from ray._private import worker

        worker.print_to_stdstream = lambda *given, **named: None


def _reach(address: str) -> None:
    """Raises: UserError: the address is none, or nothing listens there."""
    place = address.removeprefix("ray://")
    if place in ("auto", "local"):
        if place == "local":
            raise UserError("probe.ray_bad_address", address=address)
        return
    host, colon, port = place.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise UserError("probe.ray_bad_address", address=address[:100])
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError("probe.ray_unreachable", address=address, reason=reason) from None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "?"


PREFIX = "accelerator_type:"
# As Ray reads a driver's name (ray._private.accelerators.nvidia_gpu, 2.60): words in capitals up to the model's number;
# of a name that has none such the whole, without its vendor.
_MODEL = re.compile(r"(?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*")
_BRANDS = ("NVIDIA ", "Tesla ")


def labels(gpu: str, names: Iterable[str]) -> tuple[str, ...]:
    """What Ray may call a GPU, the most exact first: kb's id as an administrator may have named it, Ray's own names.

    Args:
        gpu: kb's id.
        names: the GPU's name and aliases.
    """
    found = {gpu.casefold(): None, gpu.casefold().removesuffix("b"): None}  # Ray writes A100-40G for a100-40gb
    models: dict[str, None] = {}
    for name in names:
        product = _without_brand(name)
        found |= dict.fromkeys("-".join(each.split()).casefold() for each in (product, name.removeprefix("NVIDIA ")))
        if match := _MODEL.match(product):
            models["-".join(match[0].split()).casefold()] = None
    return tuple(dict.fromkeys((*found, *models)))


def accelerator_of(gpu: str, names: Iterable[str], offered: Iterable[str]) -> str | None:
    """The one of the ``offered`` accelerator types that is the GPU; None where the cluster has none such."""
    by_label = {each.casefold(): each for each in offered}
    return next((by_label[label] for label in labels(gpu, names) if label in by_label), None)


def offered_by(resources: Iterable[str]) -> tuple[str, ...]:
    """The accelerator types among a cluster's resources."""
    return tuple(sorted({name.removeprefix(PREFIX) for name in resources if name.startswith(PREFIX)}))


def _without_brand(name: str) -> str:
    for brand in _BRANDS:
        name = name.removeprefix(brand)
    return name


RETRIES = 2  # after the first loss of a node
GONE_SECONDS = 30.0  # how long a trial waits for a node that could run it, once there is none
POLL_SECONDS = 1.0
_ONE = 0.001  # of an accelerator type: it says where, not how much


class Attempt(NamedTuple):
    """A trial under way: how often it was lost, on which nodes, and the nodes alive when it was sent."""

    trial: Trial
    wanted: Mapping[str, float]  # the resources that it takes
    alive: Mapping[str, str]  # names by id
    losses: int = 0
    lost_nodes: tuple[str, ...] = ()


class RayRunner:
    """Runs trials on a cluster, as many at a time as it has room for.

    Args:
        address: as :func:`kb.torch_runs.probe.ray_runner.connect` takes it.
        names: of each GPU its name and aliases, by kb's id.
        tell: hears of a node that was lost: the trial, and the nodes' names.
        gone_seconds: how long a trial waits for a node that could run it, once there is none.

    Raises:
        UserError: there is no such cluster.
    """

    def __init__(
        self,
        address: str,
        *,
        names: Mapping[str, Sequence[str]] = {},
        tell: Callable[[Trial, tuple[str, ...]], None] | None = None,
        gone_seconds: float = GONE_SECONDS,
    ) -> None:
        self._names, self._tell = names, tell
        self._gone_seconds = gone_seconds
        self._pending: dict[Any, Attempt] = {}
        self._waiting_since: dict[Any, float] = {}
        self.cluster: Cluster = connect(address)

    def offered(self) -> tuple[str, ...]:
        """The accelerator types that the cluster has now."""
        return offered_by(name for node in self.cluster.alive() for name in node.resources)

    def check(self, gpus: Sequence[str]) -> None:
        """Raises: UserError: the cluster has none of a GPU."""
        offered = self.offered()
        for gpu in gpus:
            if accelerator_of(gpu, self._names.get(gpu, ()), offered) is None:
                raise UserError("probe.ray_no_such_gpu", gpu=gpu, known=", ".join(offered) or "-")

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, Outcome]]:
        """Each trial with its outcome as soon as it ended.

        Raises:
            UserError: the cluster went away as a whole.
        """
        ray = self.cluster.ray
        for trial in trials:
            wanted: dict[str, float] = {"GPU": 1} if trial.backend == "cuda" else {}
            if trial.gpu is not None:
                found = accelerator_of(trial.gpu, self._names.get(trial.gpu, ()), self.offered())
                wanted[f"{PREFIX}{found or trial.gpu}"] = _ONE
            self._send(Attempt(trial, wanted, self._alive()))
        while self._pending:
            try:
                done, _ = ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
                ended = [self._ended(ref) for ref in done] if done else self._given_up()
            except (ray.exceptions.RaySystemError, ConnectionError) as error:
                raise UserError("probe.ray_gone", address=self.cluster.address, reason=_line(error)) from None
            yield from (pair for pair in ended if pair is not None)

    def close(self) -> None:
        """End what still runs: a task that is killed takes its trial's processes with it."""
        for ref in self._pending:
            with contextlib.suppress(Exception):
                self.cluster.ray.cancel(ref, force=True)
        self._pending.clear()
        self.cluster.close()

    def _alive(self) -> dict[str, str]:
        return {node.id: node.name for node in self.cluster.alive()}

    def _send(self, attempt: Attempt) -> None:
        wanted = dict(attempt.wanted)
        # kb sends a lost trial again itself: the journal names the nodes that were lost
        task = self.cluster.ray.remote(max_retries=0)(work).options(
            num_cpus=1, num_gpus=wanted.pop("GPU", 0), resources=wanted, name=f"kb {attempt.trial.model}"
        )
        self._pending[task.remote(as_json(attempt.trial))] = attempt

    def _ended(self, ref: Any) -> tuple[Trial, Outcome] | None:
        """A task's result; None where its node was lost and it was sent again."""
        errors, attempt = self.cluster.ray.exceptions, self._pending.pop(ref)
        self._waiting_since.pop(ref, None)
        try:
            outcome = outcome_from(self.cluster.ray.get(ref))
        except errors.OutOfMemoryError as error:  # the node's memory ran low, and Ray ended the task
            return attempt.trial, Outcome("oom", 0.0, resource="host", reason=_line(error))
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            return attempt.trial, Outcome("crash", 0.0, reason=_line(error))
        except errors.RayError as error:
            return self._lost(attempt, error)
        if attempt.losses:
            told = {"losses": attempt.losses, "lost_nodes": list(attempt.lost_nodes)}
            outcome = outcome._replace(machine={**outcome.machine, **told})
        return attempt.trial, outcome

    def _lost(self, attempt: Attempt, error: Exception) -> tuple[Trial, Outcome] | None:
        """Send it again, or give it up. Ray says which node it was, before its list of nodes says that it is dead."""
        text = str(error)
        gone = tuple(name for node, name in attempt.alive.items() if node in text)
        nodes = tuple(dict.fromkeys((*attempt.lost_nodes, *gone)))
        attempt = attempt._replace(losses=attempt.losses + 1, lost_nodes=nodes, alive=self._alive())
        if self._tell is not None:
            self._tell(attempt.trial, gone)
        if attempt.losses <= RETRIES:
            self._send(attempt)
            return None
        return attempt.trial, _given_up(attempt, _line(error))

    def _given_up(self) -> list[tuple[Trial, Outcome] | None]:
        """The trials that no node could run any more, for so long that none will come."""
        nodes, now = self.cluster.alive(), time.monotonic()
        found: list[tuple[Trial, Outcome] | None] = []
        for ref, attempt in list(self._pending.items()):
            wanted = attempt.wanted.items()
            if any(all(node.resources.get(name, 0) >= most for name, most in wanted) for node in nodes):
                self._waiting_since.pop(ref, None)
            elif now - self._waiting_since.setdefault(ref, now) >= self._gone_seconds:
                with contextlib.suppress(Exception):
                    self.cluster.ray.cancel(ref, force=True)
                del self._pending[ref]
                found.append((attempt.trial, _given_up(attempt, f"{attempt.trial.gpu}: 0")))
        return found


def _given_up(attempt: Attempt, reason: str) -> Outcome:
    told = {"losses": attempt.losses, "lost_nodes": list(attempt.lost_nodes)}
    return Outcome("lost", 0.0, reason=reason, machine=told)


def _line(error: BaseException) -> str:
    """The telling line of an error that Ray may have put many around."""
    cause = getattr(error, "cause", None)
    text = f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]


def work(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a node does: the trial in processes of its own, as anywhere."""
    import ray

    outcome = run_trial(trial_from(data))
    node = node_name(socket.gethostname(), ray.get_runtime_context().get_node_id())
    return as_json(outcome._replace(node=node))
