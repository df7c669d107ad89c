"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it has begun is cleaned up first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from collage.core.child_process import signal_name
from collage.core.temporary import remove_all

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 5.0


class Terminated(BaseException):
    """A signal asks this process to end. No Exception: nobody is to take it for a failure of what was tried."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal_name(number)}")
        self.exit_code = 128 + number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise Terminated where the block is when a signal arrives that is not ignored (as under nohup).

    Python runs a handler only between two of its own steps, and a library may take minutes for one, or swallow what
    is raised: a process that has not ended after five seconds removes its temporary folders and ends where it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(reader, ended), daemon=True).start()
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in ours:
            signal.signal(number, _terminate)
        yield
    finally:
        ended.set()
        for number in ours:
            signal.signal(number, before[number])
        signal.set_wakeup_fd(wakeup)
        os.close(writer)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # cleaning up is not to be interrupted
    raise Terminated(number)


def _watch(reader: int, ended: threading.Event) -> None:
    """End the process some time after a signal arrived, unless it has ended."""
    while number := os.read(reader, 1):
        if number[0] in _SIGNALS and not ended.wait(_PATIENCE_S):
            remove_all()
            os._exit(128 + number[0])
    os.close(reader)
