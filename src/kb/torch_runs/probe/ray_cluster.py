"""A connection to a Ray cluster that is there, or a clear answer that it is not, within a time.

Ray's own connection may wait for minutes, or end the process where something else answers on the port: a process of
its own tries first.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from kb.core.record import NamedTuple
from kb.core.text import UserError

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
