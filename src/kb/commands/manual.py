"""``kb.manual``: the manual page, written from the commands' own arguments."""

from collections.abc import Sequence

from kb import __version__
from kb.session import cli


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
    """Print kb(1) in roff: ``kb manual | man -l -``."""
    words = cli.load_words_or_none(language)
    build_parser(words).parse_args(arguments)
    cli.put(manual_page(words))
    return cli.CLEAN


def manual_page(words: cli.Words) -> str:
    """kb(1) in one language."""
    from kb.commands.completion import whole_parser
    from kb.report.manual import manual

    return manual(whole_parser(words), words, version=__version__)


def build_parser(words: cli.Words) -> cli.Parser:
    parser = cli.Parser(words=words, prog="kb manual", description=cli.said(words, "cli.about.manual"))
    parser.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    return parser
