"""The ticket lock is handed over in the order of arrival, and no interrupt loses it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collage.runtime.ticket_lock import TicketLock

ROOT = Path(__file__).parents[3]

in_main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)


def start(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def queue_up(turns: TicketLock, function: Callable[[], object]) -> threading.Thread:
    """Start a thread that calls the function in its turn, and wait until it is in the queue."""
    before = len(turns._queue)
    thread = start(lambda: turns.run(function))
    while len(turns._queue) == before:
        time.sleep(1e-4)
    return thread


def test_first_come_first_served() -> None:
    turns = TicketLock()
    served: list[int] = []
    threads: list[threading.Thread] = []

    def wait_for_all() -> None:
        for number in range(20):
            threads.append(queue_up(turns, lambda number=number: served.append(number)))  # type: ignore[misc]

    turns.run(wait_for_all)
    for each in threads:
        each.join()
    assert served == list(range(20))


@in_main_thread
def test_who_is_interrupted_while_waiting_leaves_the_queue() -> None:
    """The thread behind it waits for those that came earlier."""
    turns, held, leave = TicketLock(), threading.Event(), threading.Event()
    done: list[str] = []
    behind: list[threading.Thread] = []

    def hold() -> None:
        held.set()
        while len(turns._queue) == 1:
            time.sleep(1e-4)
        waiting = turns._queue[1]
        behind.append(queue_up(turns, lambda: done.append("behind")))
        end = time.monotonic() + 60.0
        while waiting.locked() and time.monotonic() < end:
            # A signal just before a thread falls asleep does not wake it.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            leave.wait(0.5)
        leave.wait(10)
        done.append("holder")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # TVM may have changed how it interrupts
    holder = start(lambda: turns.run(hold))
    held.wait(10)
    try:
        with pytest.raises(KeyboardInterrupt):
            turns.run(lambda: pytest.fail("the turn was not ours"))
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(0.01)
    assert not done
    leave.set()
    holder.join()
    behind[0].join()
    assert done == ["holder", "behind"]
    assert turns.run(lambda: 3) == 3


INTERRUPTED = """
import random, signal, sys, threading, time
from collage.runtime.ticket_lock import TicketLock

turns, work = TicketLock(), lambda: sum(range(50))
others = [threading.Thread(target=lambda: [turns.run(work) for _ in iter(int, 1)], daemon=True)
          for _ in range(int(sys.argv[1]))]
for each in others:
    each.start()
signal.signal(signal.SIGALRM, signal.default_int_handler)
end, chance = time.monotonic() + 1.5, random.Random(0)
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-5, 3e-4))
        while True:
            turns.run(work)
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
signal.alarm(10)
turns.run(lambda: print("free", flush=True))
import os; os._exit(0)
"""


@pytest.mark.parametrize("others", [0, 2])
def test_no_interrupt_loses_the_lock(others: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(others)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "free\n"), done.stderr


FORKED = """
import os, signal
from collage.runtime.ticket_lock import TicketLock

turns = TicketLock()
child = turns.run(os.fork)
if not child:
    signal.alarm(10)
    os._exit(turns.run(lambda: 3))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_turn_that_began_before_a_fork_ends_in_the_child() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
