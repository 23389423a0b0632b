"""This machine watched: alone, a process that runs already, or a command that is started here.

A session samples at an even pace; what one source cannot tell is unknown in the snapshot.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kb.advice.diagnosis import Diagnosis, diagnose, exit_cause
from kb.advice.watching import Watch
from kb.commands.monitor import code_of
from kb.commands.monitor.outputs import Outputs, Sink
from kb.commands.monitor.printed import Command, Diagnoser, LiveSpeed, LogFollower
from kb.core.record import NamedTuple
from kb.core.snapshot import GpuProcess, GpuState, HostState, ServerState, Snapshot, SpeedState, TreeState
from kb.core.text import UserError
from kb.machine import host
from kb.machine.host import HostWatch
from kb.machine.live_gpus import GpuReading, GpuWatch
from kb.machine.processes import ProcessTree
from kb.report.monitor.json_report import snapshot_json
from kb.report.monitor.screens import LiveScreen, PassedOn, PlainScreen, SilentScreen, choose_screen, reading_of
from kb.report.monitor.text import exit_text, reading_lines, summary_text
from kb.report.terminal import choose_style
from kb.report.words import Words
from kb.session import cli

MOST_BEHIND = 5.0  # intervals; a machine that slept is not read over and over to make up for it
Remedies = Mapping[str, Mapping[str, Any]]


Screen = SilentScreen | PlainScreen | LiveScreen


class Session:
    """Reads until it is told to stop.

    Args:
        read: one snapshot of everything.
        watch: judges and keeps what is kept.
        sinks: where each snapshot goes.
        screen: who shows it.
        needed: whether the watch goes on when nobody sees the screen any more.
    """

    def __init__(
        self, read: Callable[[], Snapshot], watch: Watch, sinks: Sequence[Sink], screen: Screen, needed: bool
    ) -> None:
        self._read, self._sinks, self._screen, self._needed = read, sinks, screen, needed
        self.watch = watch
        self.stop = threading.Event()

    def once(self) -> Snapshot:
        """One reading, through all that takes it."""
        snapshot = self._read()
        alerts = self.watch.add(snapshot)
        for sink in self._sinks:
            sink(snapshot)
        self._screen.show(snapshot, self.watch)
        for alert in alerts:
            self._screen.warn(alert)
        return snapshot

    def run(self, interval_seconds: float, ended: Callable[[], bool]) -> None:
        """Read every ``interval_seconds`` until ``stop`` is set, ``ended`` says so, or nobody is left to see it."""
        due = time.monotonic()
        while not self.stop.is_set():
            self.once()
            if ended() or (self._screen.off and not self._needed):
                return
            due = max(due + interval_seconds, time.monotonic() - MOST_BEHIND * interval_seconds)
            self.stop.wait(max(due - time.monotonic(), 0.0))


class Sources(NamedTuple):
    """Who is asked for what; what one cannot tell is unknown in the snapshot.

    ``foreign`` is true where the driver counts processes otherwise than this system does.
    """

    gpus: Callable[[], GpuReading]
    host: Callable[[], HostState]
    tree: Callable[[], TreeState | None] | None = None
    speed: Callable[[], SpeedState | None] | None = None
    foreign: bool = False
    server: Callable[[], ServerState] | None = None

    def read(self) -> Snapshot:
        """Everything now, one source after the other."""
        gpus, tree = self.gpus(), self.tree() if self.tree else None
        states = gpus.gpus
        if tree is not None and not self.foreign:
            states = attributed(states, {each.pid: each.name for each in tree.processes})
        return Snapshot(
            time=time.time(),
            gpus=states,
            host=self.host(),
            tree=tree,
            speed=self.speed() if self.speed else None,
            gpu_note=gpus.note,
            notes=gpus.notes,
            server=self.server() if self.server else None,
        )


def attributed(states: tuple[GpuState, ...], watched: Mapping[int, str]) -> tuple[GpuState, ...]:
    """The states with the watched tree's processes (number → name) marked and named."""
    return tuple(
        state._replace(
            processes=tuple(
                GpuProcess(each.pid, each.used_bytes, watched.get(each.pid, each.name), each.pid in watched)
                for each in state.processes
            )
        )
        for state in states
    )


def watch_live(options: argparse.Namespace, watch: Watch, words: Words, remedies: Remedies) -> int:
    """Watch this machine; the exit code that :func:`kb.commands.monitor.command` describes.

    Raises:
        UserError: an output cannot be written, there is no such process, the command cannot be started.
    """
    try:
        tree = ProcessTree(options.pid) if options.pid else None
    except ValueError:
        raise UserError("monitor.no_process", pid=str(options.pid)) from None
    if options.command and shutil.which(options.command[0]) is None:
        there = os.path.isfile(options.command[0])
        reason = words("monitor.not_executable" if there else "monitor.not_found")
        raise UserError("monitor.cannot_start", command=options.command[0], reason=reason)
    outputs = Outputs(options, words)
    try:
        if options.command:
            return _Run(options, watch, words, remedies, outputs).code()
        return _Watched(options, watch, words, outputs, tree).code()
    finally:
        outputs.close()


class _Watched:
    """A watch without a command: of the machine, or of a process that runs already."""

    def __init__(
        self, options: argparse.Namespace, watch: Watch, words: Words, outputs: Outputs, tree: ProcessTree | None
    ) -> None:
        self.options, self.watch, self.words, self.outputs, self.tree = options, watch, words, outputs, tree
        self.stream = sys.stderr if options.command else sys.stdout
        self.style = choose_style(self.stream, options.color)
        self.speed = LiveSpeed(options.baseline_sec_per_step)
        self.follower = LogFollower(options.log, self.speed.feed) if options.log else None
        self.gpus = GpuWatch(os.environ)
        self.screen: Screen = SilentScreen()

    def code(self) -> int:
        """Watch to the end."""
        if self.options.once:
            return self._once()
        self.open_screen()
        try:
            with ended_by_signals():
                self.session(self.tree).run(self.options.interval, self._over)
        finally:
            self.screen.close()
            self.gpus.close()
        if not self.screen.off:
            self.report()
        return cli.CLEAN

    def open_screen(self) -> None:
        """From here on something is shown."""
        self.screen = choose_screen(self.stream, self.words, self.style, self.options.log, os.environ)
        self.outputs.say = self.screen.say
        if self.outputs.address:
            self.screen.say(self.words("monitor.serving", address=self.outputs.address))

    def session(self, tree: ProcessTree | None) -> Session:
        """The watch, of ``tree`` where there is one."""
        pid = self.options.pid
        sources = Sources(
            gpus=self.gpus.read,
            host=HostWatch(pid=pid).read,
            tree=None if tree is None else tree.read,
            speed=self._read_speed if self.follower or self.options.command else None,
            foreign=not host.sees_host_processes(),
            server=self.options.server.read if self.options.server else None,
        )
        needed = bool(self.options.command or self.outputs.sinks)
        return Session(sources.read, self.watch, self.outputs.sinks, self.screen, needed)

    def report(self) -> None:
        """The summary, where the watch was shown."""
        notes = self.outputs.lost()
        text = summary_text(self.watch.summary(), self.words, self.style, notes, self.options.log)
        with contextlib.suppress(OSError, ValueError):
            self.stream.write("\n" + text)
            self.stream.flush()

    def _read_speed(self) -> Any:
        if self.follower is not None:
            self.follower.read()
        return self.speed.read()

    def _over(self) -> bool:
        return self.tree is not None and not self.tree.alive

    def _once(self) -> int:
        """One reading, printed as a whole."""
        try:
            snapshot = self.session(self.tree).once()
        finally:
            self.gpus.close()
        reading = reading_of(snapshot, self.watch)
        if self.options.format == "json":
            cli.put(snapshot_json(snapshot, reading.judged, self.options.versions))
        else:
            cli.put("\n".join(reading_lines(reading, self.words, self.style)) + "\n")
        return code_of(self.watch.summary().alert_counts)


class _Run(_Watched):
    """A command, started here and watched to its end."""

    def __init__(
        self, options: argparse.Namespace, watch: Watch, words: Words, remedies: Remedies, outputs: Outputs
    ) -> None:
        super().__init__(options, watch, words, outputs, None)
        self._remedies = remedies
        self._asked = False

    def code(self) -> int:
        """Start the command, watch it, and say why it ended; its exit code as a shell gives it."""
        self.open_screen()
        passed = PassedOn(self.screen)
        diagnoser: Diagnoser[Diagnosis] = Diagnoser(lambda rows: diagnose(rows, self._remedies))

        def take(line: int, text: str) -> None:
            self.speed.feed(line, text)
            diagnoser.feed(line, text)

        with self._signals() as going_to:
            try:
                command = Command(self.options.command, os.environ, passed.put, take)
            except BaseException:
                self.screen.close()
                raise
            going_to(command)
            try:
                self._watch(command)
                code = command.wait()
            finally:
                command.wait()  # a fault of the watch is no reason to leave the run behind
                passed.end()
                self.screen.close()
                self.gpus.close()
        if command.fault is not None:
            raise command.fault
        kills = self.watch.summary().oom_kills
        cause = exit_cause(code, kills, diagnoser.result(), self._asked)
        self.report()
        with contextlib.suppress(OSError, ValueError):
            self.stream.write("\n" + exit_text(cause, self.words, self.style))
            self.stream.flush()
        return cause.code

    def _watch(self, command: Command) -> None:
        try:
            tree: ProcessTree | None = ProcessTree(command.pid)
        except ValueError:  # it has ended already
            tree = None
        session = self.session(tree)
        session.stop = command.done
        session.run(self.options.interval, lambda: False)
        session.once()  # what the kernel killed last is counted only now

    @contextlib.contextmanager
    def _signals(self) -> Iterator[Callable[[Command], None]]:
        """Signals go on to the command; the watch ends when it does. A terminal's Ctrl-C reaches it by itself.

        One that comes while the command starts waits until it is known: what is yielded makes it known.
        """
        asked_by_terminal = sys.stdin is not None and sys.stdin.isatty()
        known: list[Command] = []
        waiting: list[int] = []

        def hand_on(number: int, _frame: Any) -> None:
            if self._asked or number != signal.SIGINT or not asked_by_terminal:
                waiting.append(number)
                send()
            self._asked = True

        def send() -> None:
            while known and waiting:
                known[0].send(waiting.pop(0))

        def going_to(command: Command) -> None:
            known.append(command)
            send()

        before = {number: signal.signal(number, hand_on) for number in _handled()}
        try:
            yield going_to
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _handled() -> list[signal.Signals]:
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Ctrl-C, and what a service manager or a closing terminal sends, end the watch, which then reports.

    An exception and no flag: the watch may sleep for an hour between two readings.
    """

    def stop(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _handled()}
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
