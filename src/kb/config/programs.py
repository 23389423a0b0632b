"""The programs that read a config or that a command starts, as far as the project's folder holds them. Never run."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from kb.config.files import SHELL, read_if_any, upwards
from kb.core.program import Program

MAX_BYTES = 1 << 20  # of one source
MAX_READ = 4 << 20  # of all sources of a project that are read for one answer
MAX_LOOKED = 16 << 20  # of all sources that are looked into for what they name
MAX_FILES = 400  # sources of a project that are looked into
MAX_ENTRIES = 20_000  # names that are looked at on the way
MAX_IMPORTED = 40  # modules of the project that a program brings in
SKIPPED = frozenset((
    "__pycache__", "bench", "benchmark", "benchmarks", "build", "dist", "docs", "env", "node_modules", "site-packages",
    "tests", "venv", "wandb",
))  # fmt: skip
# Names that programs of other projects have as well: a command in a copy of one starts that.
_COMMON = ("train.py", "main.py", "run.py", "finetune.py", "fine_tune.py", "test.py", "eval.py", "app.py", "demo.py")
_IMPORT = r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+\(?([^\n#]*)|import[ \t]+([\w., \t]+))"
# What a source that reads training configs names, where it starts no training itself; and by which it reads them.
_TRAINS = (
    b"ArgumentParser(", b"TrlParser(", b"Config(", b"hydra.main(", b"axolotl.cli", b"run_exp(",
)  # fmt: skip
_STARTS = (b"TrainingArguments", b"Trainer(", b".backward(")
_LOADS = (b"yaml", b"OmegaConf", b"hydra", b"json.load", b"toml", b"parse_json_file", b"parse_args")

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # kb's own sources are nobody's training program
# A folder that holds one of these is a project: its configs are read by its own programs. Of the first, by no others.
_PACKAGED = ("kb.toml", "setup.py", "pyproject.toml", "setup.cfg")
_PROJECT = (*_PACKAGED, "requirements.txt", "environment.yml")

Top = Callable[[str], str | None]
"""The top of the project that a path belongs to; None where the path is none."""


class ProgramReader:
    """Looks each program up once.

    Args:
        top: the project's top above a path; nothing above it is looked at.
    """

    def __init__(self, top: Top) -> None:
        self._top = top
        self._found: dict[tuple[str, str], tuple[Program, ...]] = {}
        self._digests: dict[int, str] = {}  # by the programs, which are kept as long as this is

    def programs(self, path: str, named: str) -> tuple[Program, ...]:
        """The sources of what reads the file at ``path``; none where they are not to be found.

        Args:
            named: of a command, the program that it starts, as it is written; empty where no one says which it is.
        """
        top = self._top(path)
        if top is None:
            return ()
        folder = os.path.dirname(os.path.abspath(path))
        if not named:
            return self._near(folder, top)
        if (folder, named) not in self._found:
            self._found[folder, named] = tuple(_named(folder, top, named))
        return self._found[folder, named]

    def _near(self, folder: str, top: str) -> tuple[Program, ...]:
        """The programs of the innermost project around a folder that has any, up to the top."""
        if (folder, "") not in self._found:
            parent = os.path.dirname(folder)
            last = folder == top or parent == folder
            held = _PROJECT if last else tuple(each for each in _PROJECT if os.path.exists(os.path.join(folder, each)))
            found = tuple(_of_project(folder)) if held else ()
            outward = not found and not last and not (held and held[0] in _PACKAGED)
            self._found[folder, ""] = self._near(parent, top) if outward else found
        return self._found[folder, ""]

    def digest(self, path: str, named: str) -> str:
        """What there is, in short: another text where one of the sources has changed."""
        import zlib

        found = self.programs(path, named)
        if id(found) not in self._digests:
            self._digests[id(found)] = "\n".join(
                f"{each.path}:{len(each.text)}:{zlib.crc32(each.text.encode('utf-8', 'replace')):08x}" for each in found
            )
        return self._digests[id(found)]


def _named(folder: str, top: str, named: str) -> Iterator[Program]:
    """The program that a command names, beside its script or in a folder above.

    A script is often written for where its author's copy lies: ``/workspace/project/src/train.py``. The end of such a
    path counts where the project has it.
    """
    if "$" in named:
        return
    for end in _ends(named):
        path = upward(folder, top, end)
        text = None if path is None else _text(path)
        if path is not None and text is not None:
            yield _with_modules(path, text, _imported(path, text, top))
            return
    if "/" in named or named in _COMMON:
        return
    alike = [each for each in files_below(top, (".py",)) if os.path.basename(each) == named]
    text = _text(alike[0]) if len(alike) == 1 else None
    if text is not None:  # the command is run in a folder that its script does not say
        yield _with_modules(alike[0], text, _imported(alike[0], text, top))


def _with_modules(path: str, text: str, modules: Iterable[str]) -> Program:
    """The program with the texts of the project's modules that it brings in, behind its own. Lines of comments are
    left empty: what is switched off in them (``# args.per_device_train_batch_size = 4``) sets nothing."""
    own, *others = (re.sub(r"(?m)^[ \t]*#[^\n]*", "", each) for each in (text, *modules))
    return Program(path, "\n".join((own, *others)), len(own))


def _ends(named: str) -> Iterator[str]:
    """A relative path, and then what is left of any path without its first folders, of one folder more than a name:
    many programs have the same name."""
    parts = named.replace(os.sep, "/").split("/")
    if not os.path.isabs(named):
        yield named
    yield from ("/".join(parts[at:]) for at in range(1, len(parts) - 1) if ".." not in parts[at:])


def upward(folder: str, top: str, named: str) -> str | None:
    """Where a relative path lies: from a folder, from its ``src``, or from those above it up to the top."""
    for above in upwards(folder):
        for start in (above, os.path.join(above, "src")):  # a module of a package lies below src as often as not
            path = os.path.normpath(os.path.join(start, named))
            if os.path.isfile(path):
                return path
        if above == top:
            break
    return None


def _imported(path: str, text: str, top: str) -> Iterator[str]:
    """The texts of the project's own modules that a source imports, and of those that they import."""
    seen, waiting = {path}, [(path, text)]
    while waiting and len(seen) <= MAX_IMPORTED:
        at, source = waiting.pop(0)
        for candidate in _modules(os.path.dirname(at), source, top):
            if candidate in seen:
                continue
            found = _text(candidate)
            if found is not None:
                seen.add(candidate)
                waiting.append((candidate, found))
                yield found


def _modules(folder: str, text: str, top: str) -> Iterator[str]:
    """Where the modules that a source imports would lie, were they the project's own."""
    for match in re.finditer(_IMPORT, text, re.M):
        origin, names, plain = match.groups()
        inner = [each.split()[0] for each in (names or "").strip("() ").split(",") if each.split()]
        for module in [each.split()[0] for each in plain.split(",") if each.split()] if plain else [origin]:
            for base in module_bases(module, folder, (folder, top, os.path.join(top, "src"))):
                yield base + ".py"
                yield os.path.join(base, "__init__.py")
                yield from (os.path.join(base, name + ".py") for name in inner if name.isidentifier())


def module_bases(module: str, folder: str, tops: Iterable[str]) -> list[str]:
    """Where a module that a source in a folder imports would lie, without its ending: below each of ``tops``; with dots
    before its name, below that folder or one above it."""
    dots = len(module) - len(module.lstrip("."))
    starts = [os.path.normpath(os.path.join(folder, *[".."] * (dots - 1)))] if dots else dict.fromkeys(tops)
    return [os.path.join(start, *filter(None, module.split("."))) for start in starts]


def _of_project(top: str) -> Iterator[Program]:
    """Every source below the project's top that may read a training config; what starts a training comes first, so that
    of a large project what is left out are its other tools.
    """
    read, found = 0, []
    for path in islice(files_below(top, (".py",)), MAX_FILES):
        raw = read_if_any(path, MAX_BYTES)
        if raw is None or read > MAX_LOOKED:
            continue
        read += len(raw)
        starts = any(each in raw for each in _STARTS)
        if not starts and not any(each in raw for each in _TRAINS):
            continue
        text = raw.decode("utf-8", "replace")
        if any(each in raw for each in _LOADS) or (starts and _brings_a_loader(path, text, top)):
            found.append((not starts, path, text))
    read, counted = 0, set[str]()
    for _, path, text in sorted(found, key=lambda each: each[0]):
        if read > MAX_READ:
            return
        brought = list(_imported(path, text, top))
        read += sum(map(len, {text, *brought} - counted))  # what several bring in counts once
        counted.update((text, *brought))
        yield _with_modules(path, text, brought)


def _brings_a_loader(path: str, text: str, top: str) -> bool:
    """Whether a module that a source imports loads configs for it: ``from src.utils import load_config``."""
    if "config" not in text.casefold() and "cfg" not in text.casefold():
        return False
    words = [each.decode() for each in _LOADS]
    return any(word in brought for brought in _imported(path, text, top) for word in words)


def files_below(top: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Files of these names below a folder, those near the top first; links to folders are not followed."""
    entries, waiting = 0, [top]
    while waiting:
        folder = waiting.pop(0)
        try:
            with os.scandir(folder) as listed:
                rows = sorted(listed, key=lambda row: row.name)
        except OSError:
            continue
        for row in rows:
            entries += 1
            if entries > MAX_ENTRIES:
                return
            if row.name.endswith(suffixes):
                yield row.path
            elif (
                row.name not in SKIPPED
                and row.name[:1] != "."
                and row.path != _OWN
                and row.is_dir(follow_symlinks=False)
            ):
                waiting.append(row.path)


def _text(path: str) -> str | None:
    """A source's text; None where there is none, or none that can be read."""
    return None if (raw := read_if_any(path, MAX_BYTES)) is None else raw.decode("utf-8", "replace")


SCRIPTS = (*SHELL, "Makefile")
DOCUMENTS = (".md", ".markdown")
OF_A_HOST = ("//", "\\\\")  # of an address, or a file that another computer would be asked for


def written_out(path: str) -> str:
    """The end of a path that holds no variable: ``${HOME}/recipes/dpo.yaml``, ``../recipes/dpo.yaml``."""
    folders = path.split("/")
    unknown = [at for at, folder in enumerate(folders[:-1]) if folder in ("", ".", "..") or set("$}~") & set(folder)]
    return "/".join(folders[unknown[-1] + 1 if unknown else 0 :])
