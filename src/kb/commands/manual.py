"""`kb manual`: a manual page for each command, from its own parser."""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from kb import __version__
from kb.commands.completion import whole_parser
from kb.session import cli

ENVIRONMENT = ("LC_ALL", "NO_COLOR", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "CXX", "KB_DEBUG")
FILES = ("kb.toml", "pyproject.toml")
EXIT_CODES = (0, 1, 2, 3, 130)


def manual(parser: argparse.ArgumentParser, words: Mapping[str, str], *, version: str) -> str:
    """The whole page. It carries no date, so that the same sources always make the same page."""
    lines = [f'.TH KB 1 "" "kb {version}" "{_text(words["manual.title"])}"']
    lines += [_heading(words["manual.name"]), _text(f"kb - {words['manual.whatis']}")]
    lines += [_heading(words["manual.synopsis"]), r"\fBkb\fR \fICOMMAND\fR [\fIOPTION\fR …]"]
    lines += [_heading(words["manual.description"]), _text(parser.description or "")]
    lines.append(_heading(words["manual.commands"]))
    for command in _commands(parser):
        lines += _command(command)
    said = {str(code): words[f"manual.exit.{code}"] for code in EXIT_CODES}
    lines += _listed(words["manual.exit"], said)
    lines += _listed(words["manual.environment"], {name: words[f"manual.environment.{name}"] for name in ENVIRONMENT})
    lines += _listed(words["manual.files"], {name: words[f"manual.files.{name}"] for name in FILES})
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every parser below this one, each before its own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from _commands(each)


def _command(parser: argparse.ArgumentParser) -> list[str]:
    lines = [f'.SS "{_text(parser.prog)}"', _text(parser.description or "")]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        lines += [".TP", _label(action), _text(action.help or "")]
    if parser.epilog:
        lines += [".PP", ".nf", *(_text(line) for line in parser.epilog.splitlines()), ".fi"]
    return lines


def _label(action: argparse.Action) -> str:
    """``--gpu ID`` as it is typed: the option bold, its value slanted."""
    value = "" if action.nargs == 0 else rf"\fI{_text(_value(action))}\fR"
    if not action.option_strings:
        return value
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
    return f"{names} {value}".rstrip()


def _value(action: argparse.Action) -> str:
    if action.choices and action.metavar is None:
        return "|".join(map(str, action.choices))
    name = action.metavar or action.dest.upper()
    return name if isinstance(name, str) else " ".join(name)


def _listed(heading: str, said: Mapping[str, str]) -> list[str]:
    lines = [_heading(heading)]
    for name, text in said.items():
        lines += [".TP", rf"\fB{_text(name)}\fR", _text(text)]
    return lines


def _heading(text: str) -> str:
    return f'.SH "{_text(text)}"'


def _text(text: str) -> str:
    """Text that roff takes as it stands: hyphens that can be copied, and no line that begins a request."""
    lines = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq").split("\n")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Print kb(1) in roff: ``kb manual | man -l -``."""
    words = cli.load_words_or_none(language)
    build_parser(words).parse_args(arguments)
    cli.put(manual_page(words))
    return cli.CLEAN


def manual_page(words: cli.Words) -> str:
    """kb(1) in one language."""
    return manual(whole_parser(words), words, version=__version__)


def build_parser(words: cli.Words) -> cli.Parser:
    parser = cli.Parser(words=words, prog="kb manual", description=cli.said(words, "cli.about.manual"))
    parser.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    return parser
