"""Runs cases in child processes that may die. Each thread of the pool has one, and starts a new one when it is gone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from collage.core.child_process import ChildEndedError, ChildError, ChildProcess
from scripts.lib.fuzzing.child import ERROR, OK, Case, Outcome, Start

SIGNAL, HANG = "signal", "hang"
CLEAN = frozenset({OK, ERROR})
_FRESH_AFTER = 200
"""The number of cases after which a child is replaced, since libraries keep some memory of each case."""


@dataclass(frozen=True)
class Changed:
    """A changed file: its number (the seed that made it), what was changed, and its bytes."""

    number: int
    what: str
    data: bytes
    suffix: str


@dataclass(frozen=True)
class Result:
    """What became of a changed file: ``status`` is that of Outcome, or SIGNAL or HANG."""

    changed: Changed
    status: str
    message: str

    @property
    def clean(self) -> bool:
        """Whether the case ran, or ended in a CollageError."""
        return self.status in CLEAN


def run_all(
    start: Start,
    cases: Iterable[Changed],
    folder: Path,
    jobs: int,
    limit_s: float,
    tell: Callable[[Result], None],
) -> list[Result]:
    """The results of all cases in order. Files of cases that are not clean are kept in ``folder``.

    After an interrupt no case begins, and those that run are killed and leave no files.
    """
    waiting: queue.SimpleQueue[Changed | None] = queue.SimpleQueue()
    found: list[Result] = []
    children: set[_Child] = set()
    stopped = False
    lock = threading.Lock()

    def work() -> None:
        child, served = None, 0
        while (case := waiting.get()) is not None and not stopped:
            if child is None or served >= _FRESH_AFTER:
                if child is not None:
                    child.kill()
                child, served = _Child(start), 0
            children.add(child)
            result = child.run(case, folder, limit_s)
            children.discard(child)
            served += 1
            if stopped:
                file_of(case, folder).unlink(missing_ok=True)
                break
            if result.status in (SIGNAL, HANG):
                child = None
            with lock:
                found.append(result)
                tell(result)
        if child is not None:
            child.kill()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for case in cases:
            waiting.put(case)
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join()
    except BaseException:
        stopped = True
        for child in list(children):
            child.stop()
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join()
        raise
    return sorted(found, key=lambda result: result.changed.number)


def file_of(case: Changed, folder: Path) -> Path:
    """Where the file of a case is while it runs, and stays where the case is not clean."""
    return folder / f"{case.number:05d}{case.suffix}"


class _Child:
    """A child process, and the file that it prints to."""

    def __init__(self, start: Start) -> None:
        self._errors = TemporaryFile()  # noqa: SIM115 - closed by kill
        self._process = ChildProcess("scripts.lib.fuzzing.child", self._errors)
        self._start: Start | None = start

    def run(self, case: Changed, folder: Path, limit_s: float) -> Result:
        """The result of the case. The child is gone afterwards where that is SIGNAL or HANG."""
        path = file_of(case, folder)
        path.write_bytes(case.data)
        self._errors.truncate(0)
        limit = limit_s
        try:
            if self._start is not None:  # it imports for the first case
                limit += 120.0
                self._ask_start()
            outcome: Outcome = self._process.ask(Case(str(path), case.number), limit)
            result = Result(case, outcome.status, outcome.message)
        except TimeoutError:
            result = Result(case, HANG, f"took more than {limit:g} s")
        except ChildEndedError as ended:
            result = Result(case, SIGNAL, f"{ended}; {self._tail()}")
        except ChildError as error:
            result = Result(case, SIGNAL, str(error))
        if result.clean:
            path.unlink()
        return result

    def _ask_start(self) -> None:
        from collage.core.child_process import write_message

        pipe = self._process._process.stdin
        assert pipe is not None
        write_message(pipe.fileno(), self._start)
        self._start = None

    def stop(self) -> None:
        """Kill the child while another thread waits for its result, which is SIGNAL then."""
        self._process.end()

    def kill(self) -> None:
        """End the child."""
        self._process.kill()
        self._errors.close()

    def _tail(self) -> str:
        self._errors.seek(0)
        return " ".join(self._errors.read()[-2000:].decode(errors="replace").split())
