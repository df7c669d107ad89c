"""A child process: its answers, and what is told of one that gives none."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from collage.core.child_process import (
    ChannelError,
    ChildEndedError,
    ChildError,
    ChildProcess,
    Failure,
    GoesOn,
    Waits,
    read_message,
    take_over_pipes,
    write_message,
)


def main() -> None:
    """The child: does what it is told."""
    source, sink = take_over_pipes()
    while True:
        what = read_message(source)
        print("a library's greeting", flush=True)
        if what == "exit":
            os._exit(3)
        elif what == "crash":
            signal.raise_signal(signal.SIGSEGV)
        elif what == "close":
            os.close(sink)
            time.sleep(60)
        elif what == "rubbish":
            os.write(sink, b"rubbish" * 9)
        elif what == "hang":
            time.sleep(60)
        elif what == "wait for ever":
            write_message(sink, Waits())
            time.sleep(60)
        elif what in ("wait", "wait and hang"):
            write_message(sink, Waits())
            time.sleep(1.5)
            write_message(sink, GoesOn())
            time.sleep(60 if what == "wait and hang" else 0)
        write_message(sink, Failure("cannot") if what == "fail" else what)


@pytest.fixture
def child() -> Iterator[ChildProcess]:
    started = ChildProcess("tests.slow.core.test_child_process", subprocess.DEVNULL)
    yield started
    started.kill()
    started.kill()  # killing twice does nothing
    assert not started.alive


def test_a_child_that_nobody_holds_is_killed() -> None:
    forgotten = ChildProcess("tests.slow.core.test_child_process", subprocess.DEVNULL)
    assert forgotten.ask("ready", 60) == "ready"
    number = forgotten._process.pid
    del forgotten  # also without a warning of pipes that are not closed
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_the_limit_does_not_run_while_the_child_waits_for_others(child: ChildProcess) -> None:
    assert child.ask("ready", 60) == "ready"
    assert child.ask("wait", 1.0) == "wait"
    with pytest.raises(TimeoutError):
        child.ask("wait and hang", 1.0)


def test_a_child_that_waits_for_ever_is_not_waited_for(child: ChildProcess) -> None:
    assert child.ask("ready", 60) == "ready"
    with pytest.raises(TimeoutError):
        child.ask("wait for ever", 60, most_s=0.2)
    assert not child.alive


def test_answers_and_lives_on_after_a_failure(child: ChildProcess) -> None:
    assert child.ask({"x": 1}, 60) == {"x": 1}
    with pytest.raises(ChildError, match="cannot"):
        child.ask("fail", 60)
    assert child.ask("still there", 60) == "still there"


@pytest.mark.parametrize(
    ("what", "code", "text"),
    [("exit", 3, "status 3"), ("crash", -signal.SIGSEGV, "SIGSEGV"), ("close", None, "it closed its pipe")],
)
def test_tells_how_it_ended(child: ChildProcess, what: str, code: int | None, text: str) -> None:
    with pytest.raises(ChildEndedError) as caught:
        child.ask(what, 60)
    assert (caught.value.code, str(caught.value)) == (code, f"its process ended ({text})")
    assert not child.alive


@pytest.mark.parametrize(("what", "error"), [("rubbish", ChannelError), ("hang", TimeoutError)])
def test_is_killed_when_it_is_of_no_more_use(child: ChildProcess, what: str, error: type[Exception]) -> None:
    assert child.ask("awake", 60) == "awake"
    with pytest.raises(error):
        child.ask(what, 1.0)
    assert not child.alive


def test_a_large_message_arrives_whole(child: ChildProcess) -> None:
    message = os.urandom(3 << 20)
    assert child.ask(message, 60) == message
    assert child.ask(message, 60) == message


@pytest.fixture
def stopped(child: ChildProcess) -> Iterator[ChildProcess]:
    """A child that reads nothing. It ends after 20 s, so that nobody waits for it for ever."""
    assert child.ask("awake", 60) == "awake"
    os.kill(child._process.pid, signal.SIGSTOP)
    timer = threading.Timer(20, child.end)
    timer.start()
    yield child
    timer.cancel()


def test_the_limit_runs_while_the_child_does_not_read(stopped: ChildProcess) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        stopped.ask(bytes(1 << 20), 60, most_s=0.3)
    assert 0.3 <= time.monotonic() - start < 10
    assert not stopped.alive


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_an_interrupt_ends_the_child_that_does_not_read(stopped: ChildProcess) -> None:
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stopped.ask(bytes(1 << 20), 60)
    timer.join()
    assert not stopped.alive
