"""Processes that work in the background: they stand still while a process of the same user times something.

Each one holds a lock (``flock``) on a file that is named after its process id, for as long as it lives. The files are
in a folder beside the machine's lock (``machine_lock``). Who has the machine stops these processes, and lets them go on
afterwards. One that was left stopped goes on when the next timing has ended, or ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collage.core.machine_lock import lock_path
from collage.core.temporary import locked, unused

_NICE = 10
_STOP_LIMIT_S, _LOOK_S = 0.005, 0.0002
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

_still = False
"""Whether this process has stopped the others already."""


class BackgroundError(Exception):
    """A process cannot work in the background; the message says why."""


def folder() -> Path | None:
    """The folder of the files, which may not exist; None where there is no lock for the machine."""
    path = lock_path()
    return None if path is None else path.with_name(f"{path.name}.background")


def join(parent: int) -> None:
    """Let this process work in the background until it ends, which it does when the ``parent`` (a process id) ends.

    It is called by a process whose parent's thread that started it lives on: Linux takes the end of that thread for the
    end of the parent. Raises BackgroundError where others could not stop it.
    """
    place, space = folder(), _id_space()
    if place is None or space is None:
        raise BackgroundError("there is no lock for the machine, or no Linux")
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        os.nice(_NICE)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        if place.is_symlink() or place.stat().st_uid != os.geteuid():
            raise BackgroundError(f"{place} is another user's")
        file = os.open(place / f"{os.getpid()}.{space}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except (OSError, AttributeError) as error:
        raise BackgroundError(str(error)) from error
    if not locked(file):
        raise BackgroundError(f"{place} takes no locks")
    if os.getppid() != parent:  # it ended before this process asked to end with it
        raise BackgroundError("the parent has ended")


@contextmanager
def standing_still() -> Iterator[None]:
    """Stop the processes in the background inside the block. Who enters it has the machine's lock."""
    global _still
    if _still:
        yield
        return
    stopped: list[int] = []
    _still = True
    try:
        for process in _processes():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGSTOP)
                stopped.append(process)
        end = time.monotonic() + _STOP_LIMIT_S
        while any(_runs(each) for each in stopped) and time.monotonic() < end:
            time.sleep(_LOOK_S)
        yield
    finally:
        for process in stopped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGCONT)
        _still = False


def _processes() -> Iterator[int]:
    """The ids of the processes in the background. Files of those that have ended are removed."""
    place, space = folder(), _id_space()
    if place is None or space is None:
        return
    try:
        names = os.listdir(place)
    except OSError:  # there was none yet
        return
    for name in names:
        process, _, its_space = name.partition(".")
        if its_space != space or not process.isdecimal():
            continue  # the id of another container's process is nobody's here, or somebody else's
        with suppress(OSError):
            file = os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if unused(file):
                    os.unlink(place / name)
                elif int(process) != os.getpid():
                    yield int(process)
            finally:
                os.close(file)


def _runs(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "TtZX"


def _id_space() -> str | None:
    """What tells spaces of process ids apart (``pid_namespaces(7)``), or None where the system does not say."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return None
