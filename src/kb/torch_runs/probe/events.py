"""What a trial's process tells while it runs: a line of JSON for each thing, so that a killed one has told its part."""

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any


class Teller:
    """The trial's side: appends to a file, each line at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.phase: str | None = None

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self.phase = phase
        self.tell("begin", phase=phase)

    def sizes(self, phase: str, sizes: Mapping[str, int]) -> None:
        """A phase's peaks, in bytes."""
        self.tell("sizes", phase=phase, sizes=dict(sizes))

    def fact(self, **values: Any) -> None:
        """Fields of the outcome."""
        self.tell("fact", **values)

    def fault(self, status: str, reason: str, resource: str | None = None) -> None:
        """Why there is nothing more to tell."""
        self.tell("fault", status=status, reason=reason, resource=resource, phase=self.phase)

    def done(self) -> None:
        self.tell("done")

    def tell(self, event: str, **values: Any) -> None:
        line = json.dumps({"event": event, "time": time.monotonic(), **values}, ensure_ascii=False)
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(line + "\n")


class Told:
    """The asking side: what was told until now."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, int]] = {}
        self.spans: dict[str, tuple[float, float | None]] = {}
        self.facts: dict[str, Any] = {}
        self.fault: Mapping[str, Any] | None = None
        self.finished = False
        self.phase: str | None = None

    @property
    def anything(self) -> bool:
        return bool(self.spans) or self.finished or self.fault is not None

    def span(self, phase: str, now: float) -> tuple[float, float] | None:
        """When a phase began and ended, by the monotonic clock."""
        if phase not in self.spans:
            return None
        begun, ended = self.spans[phase]
        return begun, now if ended is None else ended


def read_events(path: str) -> Told:
    """What a trial's process told; nothing where it never came so far."""
    told = Told()
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return told
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):
            _hear(told, json.loads(line))
    return told


def _hear(told: Told, event: dict[str, Any]) -> None:
    kind = event.pop("event")
    at = event.pop("time")
    if kind in ("begin", "fault", "done") and told.phase in told.spans:
        begun, ended = told.spans[told.phase]
        told.spans[told.phase] = (begun, at if ended is None else ended)
    if kind == "begin":
        told.phase = event["phase"]
        told.spans[event["phase"]] = (at, None)
    elif kind == "sizes":
        told.phases[event["phase"]] = event["sizes"]
    elif kind == "fact":
        told.facts.update(event)
    elif kind == "fault":
        told.fault = event
    elif kind == "done":
        told.finished = True
