"""The Content-Security-Policy of each page: this site's scripts only, the theme's few inline ones by their hash."""

import base64
import hashlib
import re

_INLINE = re.compile(r"<script(?![^>]*\bsrc=)(?P<about>[^>]*)>(?P<body>.*?)</script>", re.DOTALL)
_DATA = re.compile(r"""type=["']?application/(?:json|ld\+json)""")
# Material sets colours by style attributes, Mermaid and KaTeX too; Pyodide is WebAssembly
_REST = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-src 'none'"
)


def with_policy(html: str) -> str:
    """The page with a policy at the head of its ``<head>``; inline scripts that are not data go by their hash."""
    hashes = dict.fromkeys(_hash(match["body"]) for match in _INLINE.finditer(html) if not _DATA.search(match["about"]))
    scripts = " ".join(["script-src 'self' 'wasm-unsafe-eval'", *hashes])
    meta = f'<meta http-equiv="Content-Security-Policy" content="{scripts}; {_REST}">'
    return re.sub(r"(<head[^>]*>)", rf"\1{meta}", html, count=1)


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
