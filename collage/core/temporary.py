"""Temporary folders that are always removed, however the process that made them ends.

Each folder has a file that its process holds a lock on (``flock``) for as long as it lives. The next process that needs
a folder removes those without a lock; so does a worker whose parent was killed. Users and containers may share the
place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

_LOCK = "owner.lock"
_SUFFIX = ".tmp"
_NAME = re.compile(r"collage-[a-z]+-[a-z0-9_]{8}\.tmp")

_held: dict[Path, int | None] = {}
"""The folders of this process, each with the descriptor of its locked file."""


class TemporaryFolder:
    """A new folder in ``place``, by default the system's folder for temporary files.

    It is named after its purpose (lower-case letters). It is a context manager that gives the path. A folder that is
    not removed before is removed when this process ends. Before a process makes its first folder in a place, it removes
    those that are unused.
    """

    def __init__(self, purpose: str, place: Path | None = None) -> None:
        within = tempfile.gettempdir() if place is None else str(place)
        _sweep_once(within)
        self.path = _make(purpose, within)
        self._remove = weakref.finalize(self, _release, self.path, os.getpid())

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *about: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with its content. A second call does nothing, nor does a call in a forked process."""
        self._remove()


def sweep(place: Path | None = None) -> None:
    """Remove the unused folders in ``place``, by default the system's folder for temporary files."""
    with suppress(OSError), os.scandir(place or tempfile.gettempdir()) as entries:
        for entry in entries:
            with suppress(OSError):  # another process removed it first
                if not _NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                    continue
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _sweep_one(Path(entry.path))


@cache
def _sweep_once(place: str) -> None:
    sweep(Path(place))


def remove_all() -> None:
    """Remove all folders of this process. It is called when the process is about to end."""
    for path in [*_held]:
        _release(path, os.getpid())


def locked(fd: int) -> bool:
    """Take the lock of an open file; it is held until the file is closed.

    False when another process has the lock, or has removed the file.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # On a file system without locks no process can take one, so none removes a folder that is in use.
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return os.fstat(fd).st_nlink > 0


def unused(fd: int) -> bool:
    """Whether no other process holds the lock of an open file. If so, this process holds it now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _make(purpose: str, within: str) -> Path:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"collage-{purpose}-", suffix=_SUFFIX, dir=within))
        _held[path] = None
        try:
            lock = _held[path] = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:  # another process removed it, since it had no lock yet
            del _held[path]
            continue
        except OSError:
            _release(path, os.getpid())
            raise
        if locked(lock):
            return path
        os.close(lock)
        del _held[path]


def _sweep_one(path: Path) -> None:
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # It is removed only if it is empty: its process was killed before it made the lock, or makes another folder.
        os.rmdir(path)
        return
    try:
        if unused(lock):
            _clear(path)
    finally:
        os.close(lock)


def _release(path: Path, owner: int) -> None:
    if os.getpid() != owner or path not in _held:
        return
    lock = _held.pop(path)
    with suppress(OSError):
        _clear(path)
    if lock is not None:
        os.close(lock)


def _clear(path: Path) -> None:
    """Remove a folder, the lock's file last, so that another process can finish when this one is killed meanwhile."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _LOCK:
                os.unlink(entry.path)
    if os.listdir(path) == [_LOCK]:
        os.unlink(path / _LOCK)
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:  # a worker whose parent was killed has just written something
            with suppress(OSError):
                (path / _LOCK).touch(0o600)  # so that the next sweep finds it
        raise


def _forget() -> None:
    """A forked child must not keep its parent's locks, nor remove its parent's folders."""
    for lock in _held.values():
        if lock is not None:
            os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
