"""Every command with its options, from the parsers that the commands themselves use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kb.commands import COMMANDS, command
from kb.guide.library import Library
from kb.guide.markup import fenced, filter_box, text
from kb.session import cli

WIDTH = "92"  # columns of the page's code blocks


def command_reference(library: Library) -> str:
    """A heading, what it is for, and its ``--help`` for each command."""
    words = cli.load_words_or_none(library.language)
    parts = [filter_box(library)]
    with _columns(WIDTH):
        # by name, as kb itself finds them: the commands stand above this floor, and are asked for their help alone
        for name in COMMANDS:
            parser = command(name).build_parser(words)
            parts += [
                f"## kb {name} {{ #{name} }}",
                text(cli.said(words, f"cli.about.{name}")),
                fenced(parser.format_help(), "text"),
            ]
    return "\n\n".join(parts)


@contextmanager
def _columns(width: str) -> Iterator[None]:
    """argparse asks the environment how wide a help may be."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = width
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
