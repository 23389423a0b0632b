"""``kb.site``: build the published guide from a checkout, or serve it while writing."""

import os
import sys
from collections.abc import Sequence

from kb.core.text import UserError
from kb.session import cli

PORT = 8000


@cli.program
def main(arguments: Sequence[str], language: str) -> int:
    words = cli.load_words_or_none(language)
    options = build_parser(words).parse_args(arguments)
    root = _checkout()

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    from kb.guide.build import build_site  # it stands on MkDocs, which may be absent

    site = build_site(root, say, preview=options.preview)
    cli.put(cli.said(words, "site.built", path=os.path.relpath(site)) + "\n")
    if options.action == "serve":
        _serve(site, options.port, words)
    return cli.CLEAN


def build_parser(words: cli.Words) -> cli.Parser:
    def say(key: str) -> str:
        return cli.said(words, f"cli.site.{key}")

    parser = cli.Parser(words=words, prog="kb site", description=say("about"))
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name in ("build", "serve"):
        made: cli.Parser = actions.add_parser(name, words=words, help=say(name), description=say(name))
        made.add_argument("--lang", choices=("ko", "en"), help=cli.said(words, "cli.option.lang"))
        made.add_argument("--preview", action="store_true", help=say("preview"))
        if name == "serve":
            made.add_argument("--port", type=cli.number(words), default=PORT, metavar="N", help=say("port"))
    return parser


def _checkout() -> str:
    """The site is made from a checkout: an installed package has no prose.

    Raises:
        UserError: this is none, or what builds the site is not installed.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if not os.path.isfile(os.path.join(root, "mkdocs.yml")):
        raise UserError("site.no_checkout", path=root)
    try:
        import mkdocs  # noqa: F401
    except ImportError:
        raise UserError("site.no_mkdocs") from None
    return root


def _serve(site: str, port: int, words: cli.Words) -> None:
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=site))
    except OSError as error:
        raise UserError("site.port", port=port, reason=error.strerror or str(error)) from None
    with server:
        cli.put(cli.said(words, "site.serving", address=f"http://127.0.0.1:{server.server_port}/") + "\n")
        server.serve_forever()
