"""What a run looks at beside its files: files that they name, those of models, programs that read them, commands that
start those.

Each look is remembered, so that a stored result is not taken for one of today.
"""

import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from kb.config.files import MAX_BYTES, SHELL, ConfigError, read_if_any, upwards
from kb.config.programs import DOCUMENTS, MAX_FILES, MAX_LOOKED, SCRIPTS, ProgramReader, files_below
from kb.config.text.encoding import decode
from kb.core.document import Unit, speaks_of_several_gpus
from kb.core.json_text import read, written
from kb.core.model import Model
from kb.core.program import Program
from kb.core.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kb.config.program_files import ProgramFiles, StartedFiles

Row = tuple[str, str, str, str]  # what was looked up, two arguments, and what it said
Lookup = Callable[[str, str], Any]
BESIDE = ("named", "beside")
SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".py", ".env")
_WRITES_TEXT = "<<"  # a here-document
MAX_FOLDERS = 8  # how far up a project's top may lie; runs are started there, and paths are relative to it
_NAME = r"[\w][\w.-]*(/[\w][\w.-]*)?\Z"
MAX_CANDIDATES = 20  # revisions looked at where no branch says which is current


class Seen:
    """Remembers each lookup that passes through it, with what it gave."""

    def __init__(self) -> None:
        self.rows: dict[Row, None] = {}
        self.also: dict[str, None] = {}  # files whose words are in rows of another form

    def text(self, kind: str, look: Lookup) -> Lookup:
        """``look``, remembered under ``kind``."""

        def remembered(one: str, other: str) -> Any:
            found = None
            try:
                found = look(one, other)
                return found
            finally:  # what cannot be looked up today may be mended tomorrow
                self.rows[(kind, one, other, said(found))] = None

        return remembered

    def model(self, kind: str, look: Callable[[str], Model | None], file: Callable[[str], str | None]) -> Any:
        """``look`` for a model, remembered by the bytes of the ``file`` that it comes from."""

        def remembered(name: str) -> Model | None:
            try:
                return look(name)
            finally:  # after it: the look-up may fetch the file, and one that cannot be used may be mended
                self.rows[(kind, name, "", said(contents(file(name))))] = None

        return remembered

    def files(self) -> list[str]:
        """The files that were looked up beside the checked ones, where they lie beside them."""
        found = [*self.also]
        found += [os.path.join(os.path.dirname(one), other) for kind, one, other, _ in self.rows if kind in BESIDE]
        return [path for path in found if os.path.isfile(path)]

    def take(self) -> list[Row]:
        """What was looked up since the last call."""
        rows = list(self.rows)
        self.rows.clear()
        return rows


def still(rows: Sequence[Sequence[str]], lookups: dict[str, Lookup]) -> bool:
    """Whether every lookup would give today what it gave then."""

    def now(look: Lookup, one: str, other: str) -> str:
        try:
            return said(look(one, other))
        except (OSError, ValueError):
            return said(None)

    return all(kind in lookups and now(lookups[kind], one, other) == then for kind, one, other, then in rows)


def said(found: Any) -> str:
    """A short form of a text or of bytes; empty for none."""
    if found is None:
        return ""
    raw = found if isinstance(found, bytes) else str(found).encode("utf-8", "surrogatepass")
    return f"{len(raw)}-{zlib.crc32(raw):08x}-{zlib.adler32(raw):08x}"


def from_here(path: str) -> str:
    """A path as the user would write it, from the working folder on."""
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):  # the working folder is gone, or the path lies on another drive
        return path


def contents(path: str | None) -> bytes | None:
    """A file's bytes; None where there is none, or none that can be read."""
    return None if path is None else read_if_any(path, MAX_BYTES)


def read_named(path: str, named: str) -> str | None:
    """The text of the file that the config at ``path`` names; None where there is none, or none that can be read.

    Of a file that a script writes itself what it writes counts: what lies there is of a run before.
    """
    if not named.endswith(SUFFIXES):
        return None
    named = os.path.expanduser(named)
    script = _text(path) if path.endswith(SHELL) else None
    own = _own_lines(script, named) if script is not None else []
    if script is not None and any(_WRITES_TEXT in line for line in own):
        return _written_by(script, named)
    sources = {_copied_from(line, named) for line in own}
    if len(sources) > 1 or None in sources:
        return None
    return _nearest(path, next(iter(sources), None) or named)


def _nearest(path: str, named: str) -> str | None:
    """The text of a file by its path from the folder of ``path`` on, or from one of those above."""
    for folder in islice(upwards(os.path.dirname(os.path.abspath(path))), MAX_FOLDERS):
        text = _text(os.path.join(folder, named))
        if text is not None or os.path.isabs(named):
            return text
    return None


def _file_pattern(named: str) -> str:
    return rf"""["']?(?:\./)?{re.escape(named.removeprefix("./"))}["']?"""


def _own_lines(script: str, named: str) -> list[str]:
    """The lines of a script that write a file or change it."""
    if os.path.basename(named) not in script:
        return []
    by = r">[ \t]*|\btee[ \t]+(?:-a[ \t]+)?|\b(?:cp|mv)[ \t]+\S+[ \t]+|\b(?:sed|yq)[ \t]+-i\b.*[ \t]"
    changes = rf"(?:{by}){_file_pattern(named)}(?=[\s;&|)]|$)"
    return [line for line in script.splitlines() if re.search(changes, line) and not line.lstrip().startswith("#")]


def _copied_from(line: str, named: str) -> str | None:
    """The file whose text a script puts there as it is, but for names of variables; None where it is not known."""
    source = r"""["']?(?P<source>[^\s"'$<>|;&-][^\s"'$<>|;&]*)["']?"""
    copied = rf"\b(?:cp[ \t]+|envsubst[ \t]*<[ \t]*){source}[ \t]*(?:>[ \t]*)?{_file_pattern(named)}"
    found = re.search(copied, line)
    return found["source"] if found is not None else None


def _written_by(script: str, named: str) -> str | None:
    """The text of a file that a script writes itself before it names it; None where its text is made of variables."""
    written = rf"""(?:cat[ \t]*>|(?:sudo[ \t]+)?tee)[ \t]*{_file_pattern(named)}"""
    body = r"""<<-?[ \t]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote)[ \t]*\n(?P<body>(?s:.*?))^[ \t]*(?P=end)[ \t]*$"""
    found = re.search(rf"(?m)^[ \t]*{written}[ \t]*(?:>[ \t]*/dev/null[ \t]*)?{body}", script)
    if found is None or (not found["quote"] and "$" in found["body"]):
        return None
    return found["body"]


def read_below(primary: str, name: str) -> bytes | None:
    """A group file's bytes; None where there is none below the primary config's folder that may be read."""
    return read_if_any(group_path(primary, name), MAX_BYTES)


def group_path(primary: str, name: str) -> str:
    """The path of a group file by its name below the primary config's folder."""
    return os.path.join(os.path.dirname(primary), *name.split("/"))


class ProjectPrograms:
    """The programs that read a unit, from its project's folder; looked for only when a finding depends on them.

    Args:
        top: the top of the project that a path belongs to; None where it belongs to none.
        seen: remembers what was looked at, so that a stored result is not taken for one of today.
    """

    def __init__(self, top: Callable[[str], str | None], seen: Seen) -> None:
        self._top = top
        self.lookups: dict[str, Lookup] = {
            "programs": lambda path, named: self._programs.digest(path, named),
            "module": lambda path, named: self._file("module", path, named),
            "loaded": lambda path, named: self._file("loaded", path, named),
            "imports": lambda path, library: self._kinds_of_files[0].importing(self._top(path), library),
            "scripts": lambda path, _: written(self._scripts_naming(path)),
            "several": lambda path, _: self._several_beside(path),
            "meant": lambda script, named: self._meant_files().meant(script, named),
        }
        self._look = {kind: seen.text(kind, look) for kind, look in self.lookups.items()}
        self.forget()

    def forget(self) -> None:
        """Read every source anew: for a session that goes on while files change."""
        self._programs = ProgramReader(self._top)
        self._texts: dict[str, list[tuple[str, str]]] = {}  # of scripts, by the project's top
        self._by_commands: StartedFiles | None = None

    def __call__(self, unit: Unit) -> tuple[Program, ...]:
        path = unit.path if os.path.isabs(unit.path) else os.path.join(os.curdir, unit.path)
        try:
            self._look["programs"](path, unit.program)
            return self._programs.programs(path, unit.program)
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return ()

    def scripts_naming(self, path: str) -> list[tuple[str, str]]:
        """The project's scripts that name the file at ``path``, each with its text, and behind them the code blocks of
        its Markdown that do."""
        try:
            return read(self._look["scripts"](path, "")) or []
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return []

    def several_beside(self, path: str) -> bool:
        """Whether a script of the project, or its Markdown, starts a program beside ``path`` on several GPUs."""
        try:
            return bool(self._look["several"](path, ""))
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return False

    def means(self, script: str, folder: str | None, named: str, path: str, *, perhaps: bool = False) -> bool:
        """Whether a command that a script of the project runs in a folder, None where that is not told, means the file
        at a path by a name; with ``perhaps`` whether it may, where several have that."""
        whole = os.path.abspath(path).replace(os.sep, "/")
        try:
            for name, end in self._meant_files().names(folder, named):
                if perhaps and end is not None and whole.endswith(f"/{end}"):
                    return True
                found = self._look["meant"](script, name)
                if found is not None:
                    return os.path.realpath(str(found)) == os.path.realpath(path)
        except (OSError, ValueError):  # the working folder is gone, or the name is none
            pass
        return False

    def _scripts_naming(self, path: str) -> list[tuple[str, str]]:
        name = os.path.basename(path)
        found = [(each, text) for each, text in self._scripts_of(path) if name in text]
        if not any(each.endswith(DOCUMENTS) for each, _ in found):
            return found
        blocks_of = self._kinds_of_files[1].blocks_of
        return [(each, part) for each, text in found for part in blocks_of(each, text, name) if name in part]

    def _scripts_of(self, path: str) -> list[tuple[str, str]]:
        top = self._top(path)
        if top is None:
            return []
        if top not in self._texts:
            self._texts[top] = [*_texts_of(top, SCRIPTS), *_texts_of(top, DOCUMENTS)]
        return self._texts[top]

    def _several_beside(self, path: str) -> str:
        beside = os.path.dirname(os.path.abspath(path)).replace(os.sep, "/")
        for _, text in self._scripts_of(path):
            for line in re.sub(r"\\\r?\n", " ", text).splitlines():
                if line.lstrip().startswith("#") or not speaks_of_several_gpus(line):
                    continue
                for folder, name in re.findall(r"(?<![\w./-])(?:\.{0,2}/)*((?:[\w.-]+/)*)([\w-]+\.py)\b", line):
                    if f"{beside}/".endswith(f"/{folder}") and os.path.isfile(f"{beside}/{name}"):
                        return line
        return ""

    def files(self) -> "ProgramFiles":
        """What the programs of the project import and load."""
        return self._kinds_of_files[0](self._look["module"], self._look["loaded"], self._look["imports"])

    @property
    def _kinds_of_files(self) -> "tuple[type[ProgramFiles], type[StartedFiles]]":
        from kb.config import program_files as kinds  # most runs meet no Python file and no script

        return kinds.ProgramFiles, kinds.StartedFiles

    def _file(self, kind: str, path: str, named: str) -> str | None:
        path = path if os.path.isabs(path) else os.path.join(os.curdir, path)
        files = self._kinds_of_files[0]
        look = files.module_text if kind == "module" else files.data_text
        try:
            return look(self._top(path), path, named)
        except (OSError, ValueError):  # the working folder is gone, or the path is none
            return None

    def _meant_files(self) -> "StartedFiles":
        if self._by_commands is None:
            self._by_commands = self._kinds_of_files[1](self._top)
        return self._by_commands


def _texts_of(top: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The scripts of a project or its Markdown, each with its text: a shell reads one whatever its bytes are."""
    looked = 0
    for path in islice(files_below(top, suffixes), MAX_FILES):
        raw = read_if_any(path, MAX_BYTES)
        if raw is not None and b"\0" not in raw and looked <= MAX_LOOKED:
            looked += len(raw)
            yield path, raw.decode("utf-8", "replace")


def _text(path: str) -> str | None:
    """A file's text; None where there is none, or none that can be read."""
    raw = read_if_any(path, MAX_BYTES)
    try:
        return None if raw is None else decode(raw).text
    except ConfigError:  # bytes that are no text
        return None


def is_hub_name(name: str) -> bool:
    """Whether a name can be one of the hub's: ``owner/model`` or ``model``."""
    return len(name) <= 96 and ".." not in name and re.match(_NAME, name) is not None


def hub_folder(environ: Mapping[str, str]) -> str:
    """Where huggingface_hub keeps what it fetched: HF_HUB_CACHE, else ``hub`` in HF_HOME, else in the user's cache."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return os.path.expanduser(named)
    home = environ.get("HF_HOME")
    if not home:
        base = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        home = os.path.join(base, "huggingface")
    return os.path.join(os.path.expanduser(home), "hub")


def cached_config(name: str, environ: Mapping[str, str]) -> str | None:
    """The path of a hub model's ``config.json`` in the cache; None where it holds none that can be read.

    The revision of ``main`` is taken; where no branch says which that is, the newest of those that are there.
    """
    if not is_hub_name(name):
        return None
    folder = os.path.join(hub_folder(environ), "models--" + name.replace("/", "--"))
    snapshots = os.path.join(folder, "snapshots")
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as stream:
            revisions = [stream.read(200).strip()]
    except (OSError, ValueError):
        revisions = _newest_first(snapshots)
    for revision in revisions:
        path = os.path.join(snapshots, revision, "config.json")
        if revision and os.sep not in revision and ".." not in revision and os.path.isfile(path):
            return path
    return None


def folder_config(name: str) -> str | None:
    """The ``config.json`` of a model that is a local folder."""
    path = os.path.join(name, "config.json")
    return path if os.path.isfile(path) else None


def cached_config_of(name: str) -> str | None:
    """The ``config.json`` of a hub model in the Hugging Face cache."""
    return cached_config(name, os.environ)


# Where the files of models are looked up, for a stored result to be held against.
LOOKUPS: dict[str, Lookup] = {
    "folder": lambda name, _: contents(folder_config(name)),
    "hub": lambda name, _: contents(cached_config_of(name)),
}


def _newest_first(snapshots: str) -> list[str]:
    try:
        with os.scandir(snapshots) as entries:
            found = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)[:MAX_CANDIDATES]]
