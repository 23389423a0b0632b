"""``kb.lsp``: a language server over standard input and output, for any editor that speaks the protocol."""

import logging
import os
import sys
from collections.abc import Sequence

from kb.commands.options import MACHINE, Options
from kb.core.text import UserError
from kb.integrations.editor.session import Session
from kb.session import cli


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    """Serve until the client says exit.

    Raises:
        UserError: pygls is not installed.
    """
    words = cli.load_words_or_none(language)
    options = build_parser(words).parse_args(arguments)
    try:
        import pygls  # noqa: F401
    except ImportError:
        raise UserError("cli.needs_package", package="pygls", extra="lsp") from None
    from kb.integrations.editor.server import make_server  # it stands on pygls, which may be absent

    level = logging.INFO if os.environ.get("KB_DEBUG") else logging.CRITICAL
    logging.basicConfig(stream=sys.stderr, level=level)
    wanted = {"gpu": options.gpu, "gpus": options.gpus, "hostMemory": options.host_memory, "cpus": options.cpus}
    session = Session(language, {name: value for name, value in wanted.items() if value is not None})
    # The protocol has standard output to itself: what a library prints goes to the log. pygls closes what it gets.
    heard, spoken = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    make_server(session).start_io(heard, spoken)
    return cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    made = Options(words, "lsp")
    made.add(made.parser, *MACHINE, "lang")
    # Clients are used to naming the transport; there is one.
    made.parser.add_argument("--stdio", action="store_true", help=made.say("stdio"))
    return made.parser
