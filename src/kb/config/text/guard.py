"""Bounds on what a config may be, checked while the text is read and before anything is built from it.

A real config has some 300 nodes, 6 levels and no alias; these bounds leave room and still end every known bomb early.
"""

from kb.config.files import MAX_BYTES, ConfigError, too_large
from kb.config.text.nodes import CORE, SCALAR_TAGS, Mark, Node

MAX_EVENTS = 20_000
MAX_DEPTH = 32
MAX_ALIASES = 20
MAX_EXPANDED = 50_000  # nodes, those behind an alias counted at every use
COLLECTION_TAGS = {False: CORE + "seq", True: CORE + "map"}


def check_size(text: str) -> None:
    """Refuse a text of more than 1 MiB as UTF-8 before it is parsed."""
    bytes_at_most = len(text) * 4
    if bytes_at_most > MAX_BYTES:
        size_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size_bytes > MAX_BYTES:
            raise too_large(size_bytes)


def at(mark: Mark, key: str, **values: object) -> ConfigError:
    """A :class:`ConfigError` at a parser's mark."""
    return ConfigError(key, mark.line + 1, mark.column + 1, **values)


def check_depth(depth: int, mark: Mark) -> None:
    if depth > MAX_DEPTH:
        raise at(mark, "config.too-deep", limit=MAX_DEPTH)


def check_expanded(node: Node, mark: Mark) -> None:
    if node.size > MAX_EXPANDED:
        raise at(mark, "config.too-large-expanded", limit=MAX_EXPANDED)


def check_scalar_tag(tag: str | None, mark: Mark) -> None:
    """Only YAML's own scalar types: ``!!python/object`` and its like never reach anything that could act on them."""
    if tag is not None and tag not in SCALAR_TAGS:
        raise at(mark, "config.tag", tag=_short(tag))


def check_collection_tag(tag: str | None, mapping: bool, mark: Mark) -> None:
    if tag is not None and tag != "!" and tag != COLLECTION_TAGS[mapping]:
        raise at(mark, "config.tag", tag=_short(tag))


def _short(tag: str) -> str:
    name = "!!" + tag[len(CORE) :] if tag.startswith(CORE) else tag
    return name if len(name) <= 60 else name[:57] + "…"
