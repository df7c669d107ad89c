"""Ending a command cleanly on SIGTERM and SIGHUP, as on Ctrl-C."""

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
    """A signal asks this process to end. It is no Exception, so that it is not taken for a failure of a candidate."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal_name(number)}")
        self.exit_code = 128 + number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise Terminated inside the block when a signal arrives, unless it is ignored (as under nohup).

    Python runs a handler only between two of its own instructions. A library may run for minutes in one of them, or
    swallow the exception. So a process that has not ended five seconds later removes its temporary folders and exits.
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
        signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
    raise Terminated(number)


def _watch(reader: int, ended: threading.Event) -> None:
    """End the process some time after a signal arrived, unless the block has ended before."""
    while number := os.read(reader, 1):
        if number[0] in _SIGNALS and not ended.wait(_PATIENCE_S):
            remove_all()
            os._exit(128 + number[0])
    os.close(reader)
