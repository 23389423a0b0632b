"""Writing a mended file in one step: a reader sees the old text or the new one, never half of either.

What the file is besides its text stays: its permissions, owner, group and extended attributes, the links that lead to
it, and its other names (hard links).
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

Unchanged = Callable[[bytes], bool]


class ChangedMeanwhileError(Exception):
    """The file is no longer the one that was read: someone has saved it, removed it or put another in its place."""


def save(path: str, content: bytes, unchanged: Unchanged | None = None) -> None:
    """Put ``content`` in place of the file at ``path``; a link is followed, not replaced.

    A file with one name is replaced by a complete new one. One with several names, or whose owner or folder does not
    allow that, is written where it lies, behind a copy of what it held.

    Args:
        unchanged: says of the bytes that are there whether they are those that were read; asked just before writing.

    Raises:
        ChangedMeanwhileError: they are not; nothing is written.
        OSError: the file cannot be written; it is then as it was.
    """
    target = os.path.realpath(path)
    old = os.stat(target)
    if not stat.S_ISREG(old.st_mode):
        raise _fault(errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL, path)
    if not os.access(target, os.W_OK):
        raise _fault(errno.EACCES, path)
    temporary = _like(target, old, content) if old.st_nlink == 1 else None
    if temporary is None or not _replaced(target, temporary, unchanged):
        _write_in_place(target, content, unchanged)


def _fault(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _replaced(target: str, temporary: str, unchanged: Unchanged | None) -> bool:
    """Put the new file in place of the old one; False where that is a mount of its own and stays."""
    try:
        _refuse_changed(target, unchanged)
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in (errno.EBUSY, errno.EXDEV):
            return False
        raise
    _sync_folder(os.path.dirname(target))
    return True


def _refuse_changed(target: str, unchanged: Unchanged | None) -> None:
    if unchanged is None:
        return
    try:
        with open(target, "rb", opener=_open_at_once) as file:
            opened = os.fstat(file.fileno())
            same = stat.S_ISREG(opened.st_mode) and unchanged(file.read())
            named = os.stat(target)
    except FileNotFoundError:
        raise ChangedMeanwhileError from None
    if not same or (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino):
        raise ChangedMeanwhileError


def _open_at_once(path: str, flags: int) -> int:
    """Of a pipe that was put there no writer is waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _like(target: str, old: os.stat_result, content: bytes) -> str | None:
    """A new file beside ``target`` with ``content`` and all else of it; None where this user may not make it."""
    import tempfile

    try:
        handle, temporary = tempfile.mkstemp(prefix=".kb-", dir=os.path.dirname(target))
    except PermissionError:
        return None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if not _dress(file.fileno(), old, target):
                os.unlink(temporary)
                return None
            os.fsync(file.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    return temporary


def _dress(handle: int, old: os.stat_result, target: str) -> bool:
    """Give a new file the owner, the permissions and the attributes of the old one; False where that is not allowed."""
    new = os.fstat(handle)
    if hasattr(os, "fchown") and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except OSError:
            return False
    if hasattr(os, "listxattr"):
        try:
            for name in os.listxattr(target):
                os.setxattr(handle, name, os.getxattr(target, name))
        except OSError as error:
            if error.errno != errno.ENOTSUP:  # where the file system knows none, there are none
                return False
    if hasattr(os, "fchmod"):
        os.fchmod(handle, old.st_mode & 0o7777)  # after the owner: a change of that drops some of them
    return True


def _write_in_place(target: str, content: bytes, unchanged: Unchanged | None) -> None:
    """Write over what ``target`` holds. Until the last byte is on the disk a copy of the old text lies beside it."""
    with open(target, "r+b", buffering=0) as file:
        before = file.read()
        _refuse_changed(target, unchanged)
        copy = _copy_of(before, target)
        try:
            _overwrite(file.fileno(), content)
        except BaseException:
            _overwrite(file.fileno(), before)
            os.unlink(copy)
            raise
        os.unlink(copy)


def _overwrite(handle: int, content: bytes) -> None:
    os.lseek(handle, 0, os.SEEK_SET)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]
    os.ftruncate(handle, len(content))
    os.fsync(handle)


def _copy_of(content: bytes, target: str) -> str:
    import tempfile

    name = os.path.basename(target)
    try:
        handle, path = tempfile.mkstemp(prefix=".kb-", suffix=f"-{name}", dir=os.path.dirname(target))
    except PermissionError:
        handle, path = tempfile.mkstemp(prefix=".kb-", suffix=f"-{name}")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def _sync_folder(folder: str) -> None:
    """Have the new name on the disk too, where folders can be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
