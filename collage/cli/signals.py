"""Ending a command cleanly on SIGTERM and SIGHUP, and stopping one that hands over what it has, as on Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from collage.core.child_process import signal_name
from collage.core.interrupts import is_own, outside_imports, put_off
from collage.core.temporary import remove_all

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE_S = 5.0


class Terminated(BaseException):
    """A signal asks this process to end. It is no Exception, so that it is not taken for a failure of a candidate."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal_name(number)}")
        self.exit_code = 128 + number


class Stopped(KeyboardInterrupt):
    """A signal asks for what there is by now, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


class _Stops:
    """How many signals the handler, and the thread that watches, still take as Ctrl-C."""

    handler = watcher = 0


@contextmanager
def stopping_first() -> Iterator[None]:
    """Raise Stopped for the first signal inside the block, and for those after it what is raised elsewhere.

    It is for work that hands over what it has when it is stopped, in as many seconds as that takes.
    """
    _Stops.handler = _Stops.watcher = 1
    try:
        yield
    finally:
        _Stops.handler = _Stops.watcher = 0


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise Terminated inside the block when a signal arrives, unless it is ignored (as under nohup).

    Inside ``stopping_first`` the first one raises Stopped. None interrupts an import.

    Python runs a handler only between two of its own instructions. A library may run for minutes in one of them, or
    swallow the exception. So a process that has not ended five seconds later removes its temporary folders and exits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGINT)}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    ended = threading.Event()
    threading.Thread(target=_watch, args=(reader, ended), daemon=True).start()
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in ours:
            signal.signal(number, _terminate)
        if before[signal.SIGINT] is signal.default_int_handler:
            signal.signal(signal.SIGINT, outside_imports)
            ours.append(signal.SIGINT)
        yield
    finally:
        ended.set()
        for number in ours:
            signal.signal(number, before[number])
        signal.set_wakeup_fd(wakeup)
        os.close(writer)


def _terminate(number: int, frame: FrameType | None) -> None:
    if put_off(number, frame):
        return
    if _Stops.handler:
        _Stops.handler = 0
        raise Stopped(number)
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
    raise Terminated(number)


def _watch(reader: int, ended: threading.Event) -> None:
    """End the process some time after a signal arrived, unless the block has ended before."""
    status, end_s = 0, float("inf")
    while True:
        left_s = None if end_s == float("inf") else max(0.0, end_s - time.monotonic())
        if not select.select([reader], [], [], left_s)[0] and not ended.is_set():
            remove_all()
            os._exit(status)
        found = os.read(reader, 1)
        if not found:
            break
        if is_own() or found[0] not in _SIGNALS:
            continue
        if _Stops.watcher:
            _Stops.watcher = 0
            continue
        status, end_s = 128 + found[0], min(end_s, time.monotonic() + _PATIENCE_S)
    os.close(reader)
