"""Whether a text that cannot be read is a training config nevertheless, so that its fault is worth saying."""

import re
from collections.abc import Iterator

from kb.config.dialect.dialects import DOT, Entry
from kb.config.dialect.recognition import Recognition
from kb.config.marks import names_of_calls, starts_runs
from kb.config.text.nodes import MAPPING, SCALAR, Node, Place
from kb.core.catalog import Catalog

ENOUGH = 3  # known names; fewer stand by chance in other files too
LOOKED_AT = 1 << 20  # bytes
_WORD = r"[A-Za-z]\w*"
_LINE_KEY = re.compile(rf"""^([ \t]*)(-[ \t]+)?["']?({_WORD}(?:[.-]\w+)*)["']?[ \t]*:(?=\s|$)(.*)$""", re.M)
_JSON_KEY = re.compile(rf'"({_WORD})"\s*:')
_FLOW_KEY = re.compile(rf"[{{,]\s*({_WORD})\s*:(?=\s)")
_JSON_TOKEN = re.compile(r'"((?:[^"\\\n]|\\.)*+)"\s*(:?)|[{}\[\],]')
_OPENS = re.compile(r"(?:[&!]\S+[ \t]*)?(?:\{.*|#.*)?\Z", re.DOTALL)
_FLAG = re.compile(rf"(?<!\S)--({_WORD}(?:-\w+)*)")
_DEEP = 32
_NOWHERE = Place(0, 0, 0)


class ConfigNames:
    """The names and marks of every format, to look for in what no parser takes."""

    def __init__(self, catalog: Catalog) -> None:
        self._dialects = catalog.dialects
        self._recognition = Recognition(catalog.dialects, catalog.facts)
        names = {name.rpartition(".")[2] for name, fact in catalog.facts.items() if fact.setting}
        names.update(key.rpartition(".")[2] for dialect in catalog.dialects.values() for key in dialect.keys)
        # names of one word are everybody's
        self._names = frozenset(name for name in names if "_" in name)
        self._alone = re.compile(rf"""^[ \t]*(?:-[ \t]+)?["']?({"|".join(sorted(self._marks()))})\b""", re.M)

    def _marks(self) -> Iterator[str]:
        """Names that tell of a format all by themselves."""
        for dialect in self._dialects.values():
            for mark, weight in dialect.recognise.get("marks", {}).items():
                if weight >= dialect.recognise["least"] and "_" in mark and "." not in mark:
                    yield re.escape(mark)

    def belongs(self, raw: bytes, kind: str) -> bool:
        """Whether bytes that cannot be read as what they are say anything of a run."""
        return bool(self.familiar(raw, kind))

    def marked(self, raw: bytes) -> bool:
        """Whether the keys of such bytes are those of a format that kb knows."""
        return bool(self._recognition.matching(_outline(_text(raw))))

    def familiar(self, raw: bytes, kind: str) -> tuple[str, ...]:
        """The names in such bytes that belong to a run; none where they do not suffice to tell."""
        if kind in ("python", "notebook"):
            return names_of_calls(raw) or (("python",) if kind == "notebook" and starts_runs(raw) else ())
        text = _text(raw)
        if kind != "config":
            flags = {flag.replace("-", "_") for flag in _FLAG.findall(text)} & self._names
            return tuple(sorted(flags)) if len(flags) >= ENOUGH else ()
        names = self._names_in(text)
        if len(names) >= ENOUGH:
            return names
        if alone := self._alone.search(text):
            return (alone[1],)
        outline = _outline(text)
        return tuple(outline) if self._recognition.matching(outline) else ()

    def _names_in(self, text: str) -> tuple[str, ...]:
        """The known names among those that stand where a key may stand."""
        written = [match[3].rpartition(".")[2] for match in _LINE_KEY.finditer(text)]
        written += _JSON_KEY.findall(text)
        if not text.lstrip().startswith(('{"', "[")):
            written += _FLOW_KEY.findall(text)
        return tuple(dict.fromkeys(name for name in written if name in self._names))


def _text(raw: bytes) -> str:
    """What of the bytes is plain text, whatever their encoding: names are ASCII in all that matter."""
    return raw[:LOOKED_AT].replace(b"\x00", b"").decode("utf-8", "replace")


def _outline(text: str) -> dict[str, Entry]:
    """The keys with those they stand under, as indentation or brackets tell, without parsing values."""
    entries: dict[str, Entry] = {}
    for path, opens in _json_keys(text) if text.lstrip()[:1] in ("{", "[") else _yaml_keys(text):
        key = Node(SCALAR, path[-1], None, "", _NOWHERE, None)
        value = Node(MAPPING if opens else SCALAR, "", None, "", _NOWHERE, None)
        entries[".".join(name.replace(".", DOT) for name in path)] = (path, key, value)
    return entries


def _yaml_keys(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    above: list[tuple[int, str]] = []
    for match in _LINE_KEY.finditer(text):
        indent = len(match[1].expandtabs(8))
        while above and above[-1][0] >= indent:
            above.pop()
        if match[2]:  # what is in a list is no key of its own
            above.append((indent, "-"))
            indent += len(match[2])
        above = above[:_DEEP]
        yield (*(name for _, name in above), match[3]), _OPENS.match(match[4].strip()) is not None
        above.append((indent, match[3]))


def _json_keys(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    above: list[str] = []
    key = ""
    for match in _JSON_TOKEN.finditer(text):
        sign = match[0]
        if match[2]:
            key = match[1]
            yield (*(name for name in above[:_DEEP] if name), key), False
        elif sign in "{[":
            if sign == "{" and key:
                yield (*(name for name in above[:_DEEP] if name), key), True
            above.append(key if sign == "{" else "-")
            key = ""
        elif sign in "}]":
            del above[-1:]
            key = ""
        else:
            key = ""
