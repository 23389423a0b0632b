"""``kb probe serve``: a server started, the lines of its start held against the prediction, and stopped."""

import argparse
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb import __version__
from kb.advice.diagnosis import ExitCause, diagnose, exit_cause
from kb.advice.facts.unit_facts import SERVERS
from kb.advice.question import NamedMachine, Question
from kb.commands import estimate_serving
from kb.commands.estimate_serving import SaidOptions, options_said
from kb.commands.options import Options
from kb.commands.probe.own_command import check_startable
from kb.config.files import ConfigError
from kb.core.catalog import Catalog
from kb.core.record import NamedTuple
from kb.core.text import UserError
from kb.core.units import GIB, MIB
from kb.knowledge import load_guide
from kb.report.serving_probe_report import ServeProbe, serve_json, serve_text
from kb.report.serving_report import Answer
from kb.report.terminal import choose_style
from kb.session import cli
from kb.session.knowledge import open_knowledge
from kb.session.prepare import file_checker
from kb.session.project import find_project

_UNITS = {"GiB": GIB, "MiB": MIB}
_FOLD = {"most": max, "least": min, "sum": sum}
_TOO_LONG = 1 << 16  # characters of a line that are read
_KEPT = 4000  # lines kept for a diagnosis
_GRACE = 30.0  # seconds that a server has to stop by itself


class Started(NamedTuple):
    """What came of the start: whether it came up, after how long, what its lines say, and how it ended otherwise."""

    ready: bool
    seconds: float
    measured: Mapping[str, float]  # bytes, tokens or requests, by what rules/serving calls them
    lines: Sequence[str]
    release: str | None  # of the engine, where it prints it
    code: int | None  # of a command that ended by itself; None where kb stopped it


def command(options: argparse.Namespace, command_words: Sequence[str], messages: cli.Words, language: str) -> int:
    """Start the server and compare; 0 where it came up, 1 where it did not.

    Raises:
        UserError: the words start no server that kb knows, or the program is not there.
    """
    if not command_words:
        raise UserError("probe.serve_without_command")
    if os.name == "nt":
        raise UserError("probe.not_on_windows")
    catalog, words = open_knowledge(options, find_project(os.getcwd()), language, messages)
    said = _server_of(command_words, options, catalog)
    check_startable(command_words[0])
    engine = catalog.serving()[said.engine]
    print(words("probe.serve_starting", command=shlex.join(command_words)[:300]), file=sys.stderr, flush=True)
    started = start(command_words, engine["log"], options.time_limit)
    answer, reason = _predicted(said, started.release, options, catalog, messages)
    cause = _cause(started, options) if not started.ready else None
    unpredicted = cli.worded(reason, language) if reason is not None else None
    probed = ServeProbe(engine, answer, unpredicted, started.ready, started.seconds, dict(started.measured), cause)
    if options.format == "json":
        cli.put(serve_json(probed, __version__, catalog.version))
    else:
        cli.put(serve_text(probed, words, choose_style(sys.stdout, options.color)))
    return cli.CLEAN if started.ready else cli.FINDINGS


def _server_of(command_words: Sequence[str], options: argparse.Namespace, catalog: Catalog) -> SaidOptions:
    """The server that the words start, as a line of a script would."""
    question = Question(machine=NamedMachine(options.gpu, None))
    checker = file_checker(catalog, find_project(os.getcwd()), question)
    text = shlex.join(command_words) + "\n"
    try:
        units = [result.unit for result in checker.check(text.encode(), "command.sh").results]
    except ConfigError:  # no command with options at all
        units = []
    unit = next((unit for unit in units if unit.dialect in SERVERS), None)
    if unit is None:
        raise UserError("probe.serve_no_server", command=text.strip()[:300])
    return options_said(unit, checker.facts(unit))


def _predicted(
    said: SaidOptions, release: str | None, options: argparse.Namespace, catalog: Catalog, messages: cli.Words
) -> tuple[Answer | None, UserError | None]:
    """The estimate, with the defaults of the release that the server printed; where there is none, why."""
    made = Options(messages, "estimate")
    estimate_serving.add_options(made.parser, messages)
    made.add(made.parser, "model", "model_config", "gpu", "gpus")
    wanted = made.parser.parse_args([])
    for name, value in said.values.items():
        setattr(wanted, name, value)
    wanted.engine, wanted.gpu = said.engine, options.gpu
    wanted.engine_version = release or wanted.engine_version
    try:
        if not wanted.model:
            raise UserError("serving.no_model")
        return estimate_serving.answer_of(wanted, catalog), None
    except UserError as fault:
        return None, fault


def start(command_words: Sequence[str], log: Sequence[Mapping[str, Any]], seconds: float) -> Started:
    """Start a server, read what it prints until it is up, ends or takes longer than ``seconds``, and stop it.

    Args:
        log: the lines that its engine prints (``log`` of ``rules/serving``).
    """
    patterns = [(row, re.compile(row["match"])) for row in log]
    began = time.monotonic()
    process = subprocess.Popen(
        list(command_words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={"PYTHONUNBUFFERED": "1", **os.environ},
        start_new_session=True,  # so that what it starts is stopped with it
    )
    lines: list[str] = []
    found: dict[str, list[float]] = {}
    ready, release = False, None
    try:
        for line in _printed(process, began + seconds):
            lines.append(line)
            del lines[:-_KEPT]
            print(line, file=sys.stderr, flush=True)
            for row, pattern in patterns:
                match = pattern.search(line)
                if match is not None and row["measures"] == "ready":
                    ready = True
                elif match is not None and row["measures"] == "release":
                    release = match[1]
                elif match is not None and (value := _value(match[1], row["unit"])) is not None:
                    found.setdefault(row["measures"], []).append(value)
            if ready:
                break
    finally:
        code = process.poll()
        _stop(process)
    folds = {row["measures"]: _FOLD[row["several"]] for row in log}
    measured = {name: float(folds[name](values)) for name, values in found.items()}  # type: ignore[operator]
    return Started(ready, time.monotonic() - began, measured, lines, release, code)


def _value(text: str, unit: str) -> float | None:
    try:
        return float(text.replace(",", "")) * _UNITS.get(unit, 1)
    except ValueError:
        return None


def _printed(process: "subprocess.Popen[str]", until: float) -> Iterator[str]:
    """The lines as they come, until the command ends or the time is up."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        while text := process.stdout.readline(_TOO_LONG):
            lines.put(text.rstrip("\r\n"))
        lines.put(None)

    threading.Thread(target=read, name="server", daemon=True).start()
    while (left := until - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except queue.Empty:
            return
        if line is None:
            process.wait()
            return
        yield line


def _stop(process: "subprocess.Popen[str]") -> None:
    """Ask the server to stop as Ctrl-C does; what is still there after its time is killed, with all that it started."""
    for number, patience in ((signal.SIGINT, _GRACE), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def _cause(started: Started, options: argparse.Namespace) -> ExitCause:
    """Why it did not come up, from what it printed."""
    remedies = load_guide(options.rules).get("remedies", {})
    found = diagnose(enumerate(started.lines, 1), remedies)
    return exit_cause(1 if started.code in (0, None) else started.code, 0, found)
