"""What a running inference server says of itself: the Prometheus metrics that it serves."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from kb.core.record import NamedTuple
from kb.core.snapshot import ServerState
from kb.core.text import UserError

SECONDS = 2.0  # a server that is busy answers late; one that hangs must not stop the watch
MOST_BYTES = 16 << 20
_FULLEST = "kv_usage"  # of several ranks the fullest counts; requests are added up


class _Sample(NamedTuple):
    name: str
    value: float


class ServerWatch:
    """Reads one server again and again.

    Args:
        url: ``http://host:port``; ``/metrics`` where no path is given.
        engines: ``rules/serving``: by engine, under ``metrics``, the names that each value has had.

    Raises:
        UserError: the address cannot be one, or prometheus_client is not installed.
    """

    def __init__(self, url: str, engines: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            raise UserError("monitor.needs_prometheus") from None
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise UserError("monitor.bad_server", value=url[:200])
        self.url = url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
        self._families = text_string_to_metric_families
        self._engines = {name: engine["metrics"] for name, engine in engines.items() if "metrics" in engine}

    def read(self) -> ServerState:
        """The server now; where it cannot be read, why."""
        try:
            with urllib.request.urlopen(self.url, timeout=SECONDS) as answer:
                text = answer.read(MOST_BYTES).decode("utf-8", "replace")
        except urllib.error.HTTPError:
            return ServerState(reason="without_metrics")
        except (OSError, http.client.HTTPException, ValueError):
            return ServerState(reason="silent")
        try:
            samples = [_Sample(one.name, one.value) for family in self._families(text) for one in family.samples]
        except (ValueError, KeyError, IndexError):
            return ServerState(reason="without_metrics")
        return self._state(samples)

    def _state(self, samples: Iterable[_Sample]) -> ServerState:
        values: dict[str, list[float]] = {}
        for sample in samples:
            values.setdefault(sample.name, []).append(sample.value)
        for engine, names in self._engines.items():
            found = {field: _first(values, known, field) for field, known in names.items()}
            if any(value is not None for value in found.values()):
                return ServerState(engine, **found)  # type: ignore[arg-type]
        return ServerState(reason="without_metrics")


def _first(values: Mapping[str, list[float]], names: Iterable[str], field: str) -> float | None:
    """The value under the first name that the server has: an old name may stay beside the new one for a release."""
    rows = next((values[name] for name in names if name in values), None)
    if rows is None:
        return None
    return max(rows) if field == _FULLEST else round(sum(rows))
