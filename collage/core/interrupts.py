"""Ctrl-C that interrupts what waits, also after TVM has scheduled a kernel in this process, and no import."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_IMPORTLIB = "<frozen importlib"
_AGAIN_S, _PATIENCE_S = 0.02, 5.0


class _Waits:
    """When a signal was put off first, and how many signals of our own have not been noted yet."""

    since_s: float | None = None
    own = 0


def outside_imports(number: int, frame: FrameType | None) -> None:
    """An action for SIGINT: KeyboardInterrupt, but a bit later within an import."""
    if not put_off(number, frame):
        raise KeyboardInterrupt


def put_off(number: int, frame: FrameType | None) -> bool:
    """Whether a signal's action comes too early, within an import, whose locks would stay held forever.

    The signal is sent again then. An import that takes more than five seconds is interrupted.
    """
    now, each = time.monotonic(), frame
    while each is not None and not each.f_code.co_filename.startswith(_IMPORTLIB):
        each = each.f_back
    if each is not None and (_Waits.since_s is None or now - _Waits.since_s < _PATIENCE_S):
        _Waits.since_s = _Waits.since_s or now
        again = threading.Timer(_AGAIN_S, _send, (number,))
        again.daemon = True
        again.start()
        return True
    _Waits.since_s = None
    return False


def _send(number: int) -> None:
    _Waits.own += 1
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def is_own() -> bool:
    """Whether a signal that has come is one of those that were sent again. To be called once for each that may be."""
    own = _Waits.own > 0
    _Waits.own -= own
    return own


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt waiting again when the block ends.

    TVM proves things by Z3, which sets the action of SIGINT for a while and puts the old one back by ``signal(2)``.
    From then on the system goes on waiting after the signal, and Python does not get to raise KeyboardInterrupt in a
    thread that waits for a lock. Other actions than Python's own and ``outside_imports`` are left as they are.
    """
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, outside_imports):
            signal.siginterrupt(signal.SIGINT, True)
