"""Releases of the rules alone: the real one, built, and others made of it; and an index that serves them."""

import base64
import hashlib
import http.server
import json
import lzma
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kb.knowledge.rules_release import ARCHIVE, FOLDER, MANIFEST, PACKAGE

Texts = dict[str, str]


def remade(
    wheel: Path,
    target: Path,
    version: str,
    change: Callable[[Texts], object] = lambda texts: None,
    manifest: Mapping[str, Any] | None = None,
) -> Path:
    """The release with other texts or another manifest, under another version: a whole wheel."""
    with zipfile.ZipFile(wheel) as source:
        members = {name: source.read(name) for name in source.namelist()}
    texts = json.loads(lzma.decompress(members[f"{FOLDER}/{ARCHIVE}"]))
    change(texts)
    said = {**json.loads(members[f"{FOLDER}/{MANIFEST}"]), "version": version, **(manifest or {})}
    info = f"{FOLDER}-{version}.dist-info"
    made = {
        f"{FOLDER}/{MANIFEST}": json.dumps(said).encode(),
        f"{FOLDER}/{ARCHIVE}": lzma.compress(json.dumps(texts).encode(), preset=0),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in made.items()
    ]
    made[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = target / f"{FOLDER}-{version}-py3-none-any.whl"
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in made.items():
            archive.writestr(name, data)
    return path


@contextmanager
def index_of(*wheels: Path, as_json: bool = False, told_hash: str | None = None) -> Iterator[str]:
    """A package index on this machine, as HTML (PEP 503) or JSON (PEP 691): its address.

    Args:
        told_hash: what it says of every file instead of its SHA-256.
    """
    hashes = {path.name: told_hash or hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels}
    links = "".join(f'<a href="/files/{name}#sha256={digest}">{name}</a>' for name, digest in hashes.items())
    files = [{"filename": name, "url": f"/files/{name}", "hashes": {"sha256": hashes[name]}} for name in hashes]
    page = f"<!DOCTYPE html><html><body>{links}</body></html>"
    said = json.dumps({"meta": {"api-version": "1.0"}, "name": PACKAGE, "files": files})

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = next((path for path in wheels if self.path == f"/files/{path.name}"), None)
            if self.path == f"/simple/{PACKAGE}/":
                kind = "application/vnd.pypi.simple.v1+json" if as_json else "text/html"
                body = (said if as_json else page).encode()
            elif found is not None:
                kind, body = "application/octet-stream", found.read_bytes()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
