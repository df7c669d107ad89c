"""Ctrl-C that interrupts what waits, also after TVM has scheduled a kernel in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt waiting again when the block ends.

    TVM proves things by Z3, which sets the action of SIGINT for a while and puts the old one back by ``signal(2)``.
    From then on the system goes on waiting after the signal, and Python does not get to raise KeyboardInterrupt in a
    thread that waits for a lock. Another action than Python's own is left as it is.
    """
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.siginterrupt(signal.SIGINT, True)
