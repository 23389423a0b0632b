"""``kb.completion``: the script by which a shell completes kb's commands, options, GPUs, models and rules."""

import argparse
import os
from collections.abc import Mapping, Sequence

from kb import commands
from kb.commands.options import Options
from kb.knowledge import load_catalog
from kb.session import cli
from kb.session.knowledge import rules_of
from kb.session.project import find_project

SHELLS = ("bash", "zsh", "fish")


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Print the script."""
    import shtab

    words = cli.load_words_or_none(language)
    options = build_parser(words).parse_args(arguments)
    # the same parser, which now says what may stand where: ids of the knowledge, files, folders
    parser = whole_parser(words)
    catalog = load_catalog(rules_of(find_project(os.getcwd())))
    choices = {"gpu": tuple(catalog.gpus), "model": tuple(catalog.models), "dialect": tuple(catalog.dialects)}
    choices |= dict.fromkeys(("explain", "select", "ignore"), tuple(catalog.rules))
    _say(parser, choices)
    cli.put(shtab.complete(parser, shell=options.shell) + "\n")
    return cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "completion")
    made.parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=made.say("shell"))
    made.add(made.parser, "lang")
    return made.parser


def whole_parser(words: cli.Words) -> cli.Parser:
    """One parser of every command, as the commands themselves have them: for completion and the manual page."""
    whole = cli.Parser(words=words, prog="kb", description=cli.said(words, "cli.manual.about"))
    whole.add_argument("-V", "--version", action="store_true", help=cli.said(words, "cli.manual.version"))
    added = whole.add_subparsers(metavar="COMMAND")
    for name in commands.COMMANDS:
        own = commands.command(name).build_parser(words)
        added.add_parser(
            name,
            words=words,
            parents=[_without_help(own)],
            help=cli.said(words, f"cli.about.{name}"),
            description=own.description,
            epilog=own.epilog,
        )
    return whole


def _without_help(parser: cli.Parser) -> cli.Parser:
    """The parser without ``-h``, which the one that takes its options over brings itself."""
    action = parser._option_string_actions["-h"]
    for option in action.option_strings:
        del parser._option_string_actions[option]
    parser._remove_action(action)
    for group in parser._action_groups:
        if action in group._group_actions:
            group._group_actions.remove(action)
    return parser


def _say(parser: argparse.ArgumentParser, choices: Mapping[str, Sequence[str]]) -> None:
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _say(each, choices)
        elif action.dest in choices and action.choices is None:
            action.choices = choices[action.dest]
        elif action.metavar in ("PATH", "FILE", "LOG", "CONFIG"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
