"""The lock that is handed over in the order of arrival."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from collage.runtime.ticket_lock import TicketLock


def start(function: object) -> threading.Thread:
    thread = threading.Thread(target=function)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_first_come_first_served() -> None:
    turns, served = TicketLock(), []
    threads = []

    def take(number: int) -> None:
        with turns:
            served.append(number)

    with turns:
        for number in range(20):
            threads.append(start(lambda number=number: take(number)))
            while len(turns._waiting) <= number:
                time.sleep(1e-4)
    for each in threads:
        each.join()
    assert served == list(range(20))


def test_one_at_a_time() -> None:
    turns = TicketLock()
    inside = 0

    def work() -> None:
        nonlocal inside
        for _ in range(2000):
            with turns:
                inside += 1
                found = inside
                inside -= 1
                assert found == 1

    threads = [start(work) for _ in range(8)]
    for each in threads:
        each.join()
    assert inside == 0
    assert not turns._held


def test_an_error_inside_gives_the_turn_back() -> None:
    turns = TicketLock()
    with pytest.raises(ValueError, match="inside"), turns:
        raise ValueError("inside")
    with turns:
        pass


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)
def test_who_is_interrupted_while_waiting_leaves_the_queue() -> None:
    turns, held, done = TicketLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            held.set()
            while not turns._waiting:
                time.sleep(1e-4)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            done.wait(10)

    thread = start(hold)
    held.wait(10)
    with pytest.raises(KeyboardInterrupt), turns:
        pytest.fail("the turn was not ours")
    assert not turns._waiting
    done.set()
    thread.join()
    with turns:
        pass
