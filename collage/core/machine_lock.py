"""One lock for the machine, which is held while something is timed: processes that measure at once take turns.

The lock is two locked files (``flock``). The system releases them when their process ends, however it ends. Who wants
the machine waits for the first file, which makes it the next one, and then for the second one, which is the machine.
Who has had the machine begins at the first file again, so nobody has it twice while another one waits.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

LOCK_VARIABLE = "COLLAGE_MACHINE_LOCK"
"""Environment variable with the path of the lock's file. Where it is set to nothing there is no lock."""

_PLACE = Path("/tmp")
"""It is not TMPDIR, since that differs between the processes of one user, and workers have one of their own."""

log = logging.getLogger(__name__)

Waiting = Callable[[], AbstractContextManager[None]]
"""Makes a context that is open while the lock is waited for."""

_open: set[int] = set()
"""The descriptors of the files that this process has open."""


class _Mine(threading.local):
    """What the current thread has: whether the machine, and the descriptors of the files that are open."""

    def __init__(self) -> None:
        self.has_it = False
        self.files: list[int] = []


_mine = _Mine()


def lock_path() -> Path | None:
    """The lock's file: that of the environment variable, or else this user's; None where there is no lock."""
    given = os.environ.get(LOCK_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    return _PLACE / f"collage-{os.geteuid()}.lock"


@contextmanager
def machine_lock(waiting: Waiting = nullcontext) -> Iterator[None]:
    """Have the machine inside the block. ``waiting`` is entered only when others have it and are waited for.

    A thread that has it already goes on at once. Where the files cannot be made or locked, nothing is locked.
    """
    path = lock_path()
    if path is None or _mine.has_it:
        yield
        return
    try:
        _close_all()  # what an interrupt in the middle of an earlier release has left
        _take(path, waiting)
        _mine.has_it = True
        yield
    finally:
        _mine.has_it = False
        _close_all()


def _take(path: Path, waiting: Waiting) -> None:
    """Lock the machine's file, unless the system refuses."""
    try:
        queue, machine = _opened(path.with_name(f"{path.name}.next")), _opened(path)
        if not (_locked_at_once(queue) and _locked_at_once(machine)):
            with waiting():
                fcntl.flock(queue, fcntl.LOCK_EX)
                fcntl.flock(machine, fcntl.LOCK_EX)
        _close(queue)
    except OSError as error:
        log.info("measurements are not kept apart from those of other processes: %s: %s", path, error)
        _close_all()


def _opened(path: Path) -> int:
    """A descriptor of the file, which is made where there is none. It needs no more than to be readable.

    Raises OSError for a file in the default place that is another user's, who could keep it locked.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for a writer
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o644)
    _open.add(fd)
    _mine.files.append(fd)
    if LOCK_VARIABLE not in os.environ and os.fstat(fd).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is another user's")
    return fd


def _locked_at_once(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_all() -> None:
    """Close the files that the current thread has open."""
    for fd in [*_mine.files]:
        _close(fd)


def _close(fd: int) -> None:
    """Release the lock, also where a child that was forked still has the file open."""
    if fd in _open:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        _open.discard(fd)
        os.close(fd)
    _mine.files.remove(fd)


def _forget() -> None:
    """A forked child has no part in its parent's lock."""
    for fd in _open:
        os.close(fd)
    _open.clear()
    _mine.files.clear()
    _mine.has_it = False


os.register_at_fork(after_in_child=_forget)
