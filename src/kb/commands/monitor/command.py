"""``kb.monitor``: watch a run's GPU and host memory against the guide's targets; record, replay, run a command."""

import argparse
from collections.abc import Sequence
from typing import Any

from kb import __version__
from kb.core.text import UserError
from kb.knowledge import load_catalog, load_guide
from kb.report.words import Words
from kb.session import cli

SEPARATOR = "--"
LOOPBACK = "127.0.0.1"
SHORTEST, LONGEST = 0.1, 3600.0  # seconds between readings


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Watch until Ctrl-C, or the watched process ends. 1 where a replay or a single reading is beyond a target; with a
    command, its own exit code (128 + N for signal N).
    """
    messages = cli.load_words_or_none(language)
    at = list(arguments).index(SEPARATOR) if SEPARATOR in arguments else len(arguments)
    options = build_parser(messages).parse_args(arguments[:at])
    options.command = list(arguments[at + 1 :])
    _check(options, given=at < len(arguments))
    guide = load_guide(options.rules)
    catalog = load_catalog(options.rules)
    words = Words(language, messages, catalog.facts)
    options.versions = {"kb": __version__, "rules": catalog.version}

    from kb.advice.watching import Watch

    watch = Watch(guide["formulas"]["targets"], options.scope)
    if options.replay:
        from kb.commands.monitor.replay import replay

        return replay(options, watch, words)
    from kb.commands.monitor.live import watch_live

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
    if options.replay and (options.prometheus is not None or options.log):
        raise UserError("monitor.one_source", names=f"--replay, {'--log' if options.log else '--prometheus'}")
    if options.format == "json" and not (options.once or options.replay):
        raise UserError("monitor.json_when")
    if options.fields and not options.replay:
        raise UserError("monitor.fields_when")


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.monitor.{key}")

    parser = cli.Parser(words=words, prog="kb monitor", usage=say("usage"), description=say("about"))
    parser.epilog = say("examples")
    what = parser.add_argument_group(say("group_what"))
    what.add_argument("--pid", type=_whole(1, 2**31 - 1), metavar="PID", help=say("pid"))
    what.add_argument("--log", metavar="FILE", help=say("log"))
    what.add_argument("--baseline-sec-per-step", type=_seconds(1e-6, 1e6), metavar="S", help=say("baseline"))
    what.add_argument("--scope", choices=("training", "inference"), help=say("scope"))
    what.add_argument("--interval", type=_seconds(SHORTEST, LONGEST), default=1.0, metavar="S", help=say("interval"))
    what.add_argument("--once", action="store_true", help=say("once"))
    records = parser.add_argument_group(say("group_records"))
    records.add_argument("--csv", metavar="FILE", help=say("csv"))
    records.add_argument("--json-lines", metavar="FILE", help=say("json_lines"))
    records.add_argument("--prometheus", type=_whole(0, 65535), metavar="PORT", help=say("prometheus"))
    records.add_argument("--prometheus-host", default=LOOPBACK, metavar="HOST", help=say("prometheus_host"))
    records.add_argument("--replay", metavar="FILE|-", help=say("replay"))
    records.add_argument("--fields", metavar="LIST", help=say("fields"))
    output = parser.add_argument_group(cli.said(words, "cli.check.group_output"))
    output.add_argument("--format", choices=("text", "json"), default="text", help=say("format"))
    output.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    output.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help=cli.said(words, "cli.check.color")
    )
    output.add_argument("--rules", metavar="DIR", help=cli.said(words, "cli.option.rules"))
    return parser


def _whole(least: int, most: int) -> Any:
    """argparse says which option a refused value was for."""

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: {least} … {most}")
        return number

    return read


def _seconds(least: float, most: float) -> Any:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: {least:g} … {most:g}")
        return number

    return read
