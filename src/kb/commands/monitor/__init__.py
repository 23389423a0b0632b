"""``kb.monitor``: watch a run's GPU and host memory against the guide's targets; record, replay, run a command."""

import argparse
import os
from collections.abc import Iterable, Sequence

from kb import __version__
from kb.advice.watching import Watch
from kb.commands.options import Options
from kb.core.text import UserError
from kb.knowledge import load_guide
from kb.machine.processes import ServerWatch
from kb.session import cli
from kb.session.knowledge import open_knowledge
from kb.session.project import find_project

SEPARATOR = "--"
LOOPBACK = "127.0.0.1"
OF_A_DRIVER = frozenset(("driver_gone", "driver_back"))  # warnings that tell of a driver, and not of a limit
SHORTEST, LONGEST = 0.1, 3600.0  # seconds between readings


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Watch until Ctrl-C, or the watched process ends. 1 where a replay or a single reading is beyond a target; with a
    command, its own exit code (128 + N for signal N).
    """
    messages = cli.load_words_or_none(language)
    at = list(arguments).index(SEPARATOR) if SEPARATOR in arguments else len(arguments)
    options = build_parser(messages).parse_args(arguments[:at])
    options.command = list(arguments[at + 1 :])
    _check(options, given=at < len(arguments))
    catalog, words = open_knowledge(options, find_project(os.getcwd()), language, messages)
    guide = load_guide(options.rules)
    options.versions = {"kb": __version__, "rules": catalog.version}

    watch = Watch(guide["formulas"]["targets"], options.scope)
    if options.server:
        options.server = ServerWatch(options.server, catalog.serving())
    if options.replay:
        from kb.commands.monitor.replay import replay  # a watch does without

        return replay(options, watch, words)
    from kb.commands.monitor.live import watch_live  # a replay does without psutil

    return watch_live(options, watch, words, guide.get("remedies", {}))


def _check(options: argparse.Namespace, given: bool) -> None:
    """Raises: UserError: options that contradict each other."""
    if given and not options.command:
        raise UserError("monitor.no_command")
    sources = [
        name
        for name, value in (("--pid", options.pid), (SEPARATOR, options.command), ("--replay", options.replay))
        if value
    ]
    if len(sources) > 1:
        raise UserError("monitor.one_source", names=", ".join(sources))
    if options.once and (options.command or options.replay):
        raise UserError("monitor.one_source", names=f"--once, {sources[0]}")
    live = (("--log", options.log), ("--prometheus", options.prometheus), ("--server", options.server))
    with_replay = next((name for name, value in live if value is not None), None)
    if options.replay and with_replay:
        raise UserError("monitor.one_source", names=f"--replay, {with_replay}")
    if options.format == "json" and not (options.once or options.replay):
        raise UserError("monitor.json_when")
    if options.fields and not options.replay:
        raise UserError("monitor.fields_when")


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "monitor")
    parser, say = made.parser, made.say
    parser.usage = say("usage")
    what = made.group("what")
    pace = cli.number(words, whole=False, low=1e-6, high=1e6)
    interval = cli.number(words, whole=False, low=SHORTEST, high=LONGEST)
    what.add_argument("--pid", type=cli.number(words, low=1, high=2**31 - 1), metavar="PID", help=say("pid"))
    what.add_argument("--log", metavar="FILE", help=say("log"))
    what.add_argument("--server", metavar="URL", help=say("server"))
    what.add_argument(
        "--baseline-sec-per-step",
        type=pace,
        metavar="S",
        help=say("baseline"),
    )
    what.add_argument("--scope", choices=("training", "inference"), help=say("scope"))
    what.add_argument("--interval", type=interval, default=1.0, metavar="S", help=say("interval"))
    what.add_argument("--once", action="store_true", help=say("once"))
    records, port = made.group("records"), cli.number(words, low=0, high=65535)
    records.add_argument("--csv", metavar="FILE", help=say("csv"))
    records.add_argument("--json-lines", metavar="FILE", help=say("json_lines"))
    records.add_argument("--prometheus", type=port, metavar="PORT", help=say("prometheus"))
    records.add_argument("--prometheus-host", default=LOOPBACK, metavar="HOST", help=say("prometheus_host"))
    records.add_argument("--replay", metavar="FILE|-", help=say("replay"))
    records.add_argument("--fields", metavar="LIST", help=say("fields"))
    made.output()
    return parser


def code_of(alerts: Iterable[str]) -> int:
    """The exit code: 1 where a limit was passed."""
    return cli.CLEAN if OF_A_DRIVER.issuperset(alerts) else cli.FINDINGS
