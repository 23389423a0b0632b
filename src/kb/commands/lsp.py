"""``kb.lsp``: a language server over standard input and output, for any editor that speaks the protocol."""

import logging
import os
import sys
from collections.abc import Sequence

from kb.core.text import UserError
from kb.session import cli


def main(arguments: Sequence[str] | None = None) -> int:
    return cli.run(command, arguments)


def command(arguments: Sequence[str], language: str) -> int:
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
    from kb.integrations.editor.server import make_server
    from kb.integrations.editor.session import Session

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
    def say(key: str) -> str:
        return cli.said(words, f"cli.check.{key}")

    parser = cli.Parser(words=words, prog="kb lsp", description=cli.said(words, "cli.lsp.about"))
    parser.add_argument("--gpu", metavar="ID", help=say("gpu"))
    parser.add_argument("--gpus", type=int, metavar="N", help=say("gpus"))
    parser.add_argument("--host-memory", metavar="SIZE", help=say("host_memory"))
    parser.add_argument("--cpus", metavar="N", help=say("cpus"))
    parser.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
    # Clients are used to naming the transport; there is one.
    parser.add_argument("--stdio", action="store_true", help=cli.said(words, "cli.lsp.stdio"))
    return parser
