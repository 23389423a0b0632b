"""The built site on a static host: below a path, on the loopback address, with a 404 page, and nothing else."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from site_html import ADDRESS

_TEXTS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".xml": "text/xml",
}
BELOW = urlsplit(ADDRESS).path


class Server(NamedTuple):
    """``address`` ends with ``/``; ``missing`` collects the paths that were asked for and are not there."""

    address: str
    folder: Path
    missing: list[str]


@cache
def _packed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), 6)


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *given: Any, missing: list[str], **options: Any) -> None:
        self.missing = missing
        super().__init__(*given, **options)

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.removeprefix(BELOW) if path.startswith(BELOW) else "/nothing/here")

    def do_GET(self) -> None:
        """Text goes packed, as static hosts send it."""
        path = Path(self.translate_path(self.path.partition("?")[0]))
        path = path / "index.html" if path.is_dir() and self.path.partition("?")[0].endswith("/") else path
        packed = path.suffix in _TEXTS and "gzip" in self.headers.get("Accept-Encoding", "") and path.is_file()
        if not packed:
            return super().do_GET()
        body = _packed(path)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _TEXTS[path.suffix])
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """What pages share is kept by the browser for a while, as static hosts let it."""
        if self.path.startswith(f"{BELOW}assets/"):
            self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        if code != HTTPStatus.NOT_FOUND:
            super().send_error(code, message, explain)
            return
        self.missing.append(self.path)
        page = Path(self.directory, "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *values: Any) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    missing: list[str] = []
    handler = partial(_Handler, directory=str(folder), missing=missing)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield Server(f"http://127.0.0.1:{http.server_port}{BELOW}", folder, missing)
        http.shutdown()
        thread.join()
