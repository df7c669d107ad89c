"""Writing files so that no other process ever sees a half-written one."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from collage.core.temporary import locked, unused
from collage.errors import CollageError

_SUFFIX = ".part"
_NEW = 0o666
"""The permissions of a file that replaces none. The system takes the umask off them: who reads it must change it."""
_SECRET = 0o600


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file beside ``path`` that replaces it when the block ends, and is removed when the block fails.

    Symbolic links are followed. An older file's permissions are kept, also while the new one is written. What a killed
    process has left is removed by the next one. Raises CollageError if the system refuses, and for a path that is no
    regular file, such as a device.
    """
    try:
        path = path.resolve()
        refuse_special(path)
        _sweep(path)
        older = _permissions(path)
        handle, temporary = _begin(path, _NEW if older is None else _SECRET)
    except (OSError, RuntimeError) as error:  # RuntimeError is for links in a circle, until Python 3.12
        reason = error.strerror if isinstance(error, OSError) else error
        raise CollageError(f"cannot write {path}: {reason}.") from error
    lock = os.dup(handle)  # a second descriptor keeps the lock until the file is in its place
    try:
        with os.fdopen(handle, "w+b") as stream:
            yield stream
            stream.flush()
            os.fsync(handle)  # else a power cut after the renaming may leave a file with holes
        latest = _permissions(path)
        if (mode := older if latest is None else latest) is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise CollageError(f"cannot write {path}: {error.strerror or error}.") from error
        raise
    finally:
        os.close(lock)


def refuse_special(path: Path) -> None:
    """Raise CollageError for a device, a pipe or the like, which a new file would replace."""
    if path.exists() and not path.is_file():
        raise CollageError(f"cannot write {path}: it is no regular file. Give the name of a file.")


def _begin(path: Path, mode: int) -> tuple[int, Path]:
    """Make a new file with these permissions, less the umask, and lock it. Returns its descriptor and its path."""
    while True:
        temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}{_SUFFIX}")
        try:
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        except FileExistsError:
            continue
        if locked(handle):
            return handle, temporary
        os.close(handle)  # another process swept it away


def _sweep(path: Path) -> None:
    """Remove the files that killed processes have left beside ``path``."""
    for each in path.parent.glob(f".{glob.escape(path.name)}.????????{_SUFFIX}"):
        with suppress(OSError):
            handle = os.open(each, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if unused(handle):
                    each.unlink()
            finally:
                os.close(handle)


def _permissions(path: Path) -> int | None:
    """The permissions of the file, or None where there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None
