"""Files read within bounds, and the faults of the config room."""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator

from kb.core.text import UserError, nearest
from kb.core.typed import Any

MAX_BYTES = 1 << 20  # of a config
MAX_NOTEBOOK_BYTES = 64 << 20  # outputs and all; of its code, MAX_BYTES
# zsh is read as bash is, and so are the job scripts of SLURM, PBS, LSF and others
SHELL = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".slrm", ".job", ".pbs", ".lsf")
TABLES = ".toml"  # in folders only those with a table of a run: most are of packages and tools
CODE_SUFFIXES = (".py", ".ipynb")  # in folders only those that name a call which describes a run

_DOCKERFILE = r"(?i)(?:docker|container)file(?:[._-][\w.-]+)?\Z|.+\.(?:docker|container)file\Z"
_WRITTEN_ABOUT = (".md", ".txt", ".rst", ".py", ".yaml", ".yml", ".json", *SHELL)


def is_dockerfile(path: str) -> bool:
    """Whether a file is one by its name: ``Dockerfile``, ``Dockerfile.serve``, ``serve.dockerfile``."""
    if "file" not in path.lower() or path.endswith(_WRITTEN_ABOUT):
        return False
    return re.match(_DOCKERFILE, re.split(r"[\\/]", path)[-1]) is not None


class ConfigError(UserError):
    """A text that cannot be read as a config, or a path that leads to none.

    ``key`` is the message's key in i18n (``config.…``) and ``values`` fills its placeholders. ``line`` and ``column``
    count from 1, in characters; None where the fault has no place in a text.
    """

    def __init__(self, key: str, line: int | None = None, column: int | None = None, **values: Any) -> None:
        super().__init__(key, **values)
        self.line, self.column = line, column

    def __str__(self) -> str:
        place = "" if self.line is None else f"{self.line}:{self.column}: "
        told = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{place}{self.key}{' (' + told + ')' if told else ''}"


def unknown_dialect(name: str, known: Iterable[str]) -> ConfigError:
    """The fault of a ``--dialect`` that there is none of, with the nearest that there is."""
    names = sorted(known)
    meant = nearest(name, names)
    if meant:
        return ConfigError("config.unknown-dialect-meant", name=name[:100], meant=meant[0], known=", ".join(names))
    return ConfigError("config.unknown-dialect-id", name=name[:100], known=", ".join(names))


def most_bytes(path: str) -> int:
    """The size that a file of this name may have: the outputs of a notebook are read past."""
    return MAX_NOTEBOOK_BYTES if path.lower().endswith(".ipynb") else MAX_BYTES


def too_large(size_bytes: int, limit_bytes: int = MAX_BYTES) -> ConfigError:
    """The error for a file of this size."""
    return ConfigError("config.too-large", size=size_bytes, limit=limit_bytes)


def unreadable(path: str, error: OSError | ValueError) -> ConfigError:
    """The error for a path that cannot be read, for the reason that the system gives; a ValueError is of a path that
    is none."""
    if isinstance(error, NotAFileError):
        return ConfigError("config.not-a-file", path=path)
    key = "config.missing" if isinstance(error, FileNotFoundError) else "config.unreadable"
    return ConfigError(key, path=path, reason=getattr(error, "strerror", None) or str(error))


_MADE_UP = ("/proc/", "/sys/")  # the kernel makes these up while they are read: some never end, some wait


class NotAFileError(OSError):
    """A device, a pipe, a socket, or something that the kernel makes up: no file of anybody's."""


def read_at_most(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file.

    Raises:
        NotAFileError: it is no regular file.
        OSError: it is missing, a folder, or cannot be read.
    """
    try:
        # a pipe would wait for its writer
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a zero byte in the path
        raise OSError(errno.EINVAL, str(error), path) from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if is_no_file(path, status):
            raise NotAFileError(errno.EINVAL, "not a regular file", path)
        pieces: list[bytes] = []
        left = limit
        while left > 0 and (piece := os.read(handle, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(handle)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def upwards(folder: str) -> Iterator[str]:
    """A folder, and those above it, the nearest first."""
    parent = os.path.dirname(folder)
    yield folder
    while parent != folder:
        folder, parent = parent, os.path.dirname(parent)
        yield folder


def is_no_file(path: str, status: os.stat_result) -> bool:
    """Whether something that is no folder is no regular file either."""
    if not stat.S_ISREG(status.st_mode):
        return True
    return status.st_size == 0 and os.path.realpath(path).startswith(_MADE_UP)


def is_device(path: str) -> bool:
    """Whether it is a device, some of which never end; a pipe does, and a log may come through one."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def read_if_any(path: str, limit: int) -> bytes | None:
    """A whole file; None where there is none, none that can be read, or one that is longer."""
    try:
        raw = read_at_most(path, limit + 1)
    except OSError:
        return None
    return raw if len(raw) <= limit else None
