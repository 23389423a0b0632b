"""Writing a mended file in one step: a reader sees the old text or the new one, never half of either."""

import os


def save(path: str, content: bytes) -> None:
    """Put ``content`` in place of the file at ``path``, with its permissions; a link is followed, not replaced.

    Raises:
        OSError: the file or its folder cannot be written; the file is then as it was.
    """
    import tempfile

    target = os.path.realpath(path)
    mode = os.stat(target).st_mode & 0o7777
    if not os.access(target, os.W_OK):
        raise PermissionError(13, os.strerror(13), path)
    handle, temporary = tempfile.mkstemp(prefix=".kb-", dir=os.path.dirname(target))
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
