"""The parent's side of the suite: tests in children with a time limit, results on disk as they come."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from collage.core.child_process import ChildEndedError, ChildError, ChildProcess
from collage.core.forked_process import fork_servers
from scripts.lib.conformance.child import CASES, Outcome, Serve, Tests

CHILD = "scripts.lib.conformance.child"
_START_LIMIT_S = 300.0


@dataclass(frozen=True)
class Result:
    """The result of a test on a backend. ``status`` is that of Outcome, or "crashed" or "hung"."""

    backend: str
    test: str
    status: str
    message: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the backend gave the right outputs."""
        return self.status == "passed"


@dataclass(frozen=True)
class Shard:
    """The share ``number`` (from 1) of ``count`` equal shares. A test's share depends only on its name."""

    number: int = 1
    count: int = 1

    def __contains__(self, test: str) -> bool:
        digest = hashlib.sha256(test.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.number - 1


class Results:
    """Results by backend and test. With a path they are kept in a file of JSON lines, which is read first."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Result] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._keep(Result(**json.loads(line)))

    def add(self, result: Result) -> None:
        """Write a result to the file, and keep it."""
        with self._lock:
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            self._keep(result)

    def _keep(self, result: Result) -> None:
        self._found[result.backend, result.test] = result

    def of(self, backend: str) -> Mapping[str, Result]:
        """The backend's results by test, in order of the names."""
        return {test: each for (name, test), each in sorted(self._found.items()) if name == backend}


class Runner:
    """Runs tests of one backend in a child, with a new one after each that crashed or hung."""

    def __init__(self, backend: str, limit_s: float) -> None:
        self._backend = backend
        self._limit_s = limit_s
        self._servers, self._owns_servers = fork_servers()
        self._child: ChildProcess | None = None
        self._folder: TemporaryDirectory[str] | None = None

    def tests(self) -> Sequence[str]:
        """The names of all tests."""
        return self._start()[1]

    def run(self, test: str) -> Result:
        """The result of one test, which may kill the child."""
        if self._child is None:
            self._start()
        assert self._child is not None
        try:
            found: Outcome = self._child.ask(test, self._limit_s)
        except TimeoutError:
            self._end_child()
            found = Outcome("hung", f"took more than {self._limit_s:g} s", self._limit_s)
        except ChildEndedError as ended:
            self._end_child()
            found = Outcome("crashed", str(ended), 0.0)
        except ChildError as error:
            self._end_child()
            found = Outcome("crashed", str(error), 0.0)
        return Result(self._backend, test, found.status, found.message, found.seconds)

    def end(self) -> None:
        """End the child while another thread waits for its result, which says nothing then."""
        if self._child is not None:
            self._child.end()

    def close(self) -> None:
        """End the child and what it is forked from, and remove its temporary files, as a killed child cannot."""
        self._end_child()
        if self._owns_servers:
            self._servers.close()

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
        if self._folder is not None:
            self._folder.cleanup()
        self._child = self._folder = None

    def _start(self) -> tuple[ChildProcess, Sequence[str]]:
        self._end_child()
        self._folder = TemporaryDirectory(prefix="collage-suite-", ignore_cleanup_errors=True)
        environment = {**os.environ, "TMPDIR": self._folder.name}
        with open(os.devnull, "wb") as nowhere:
            forked = self._servers.fork(CHILD, (CHILD, CASES), nowhere.fileno(), environment)
            self._child = ChildProcess(CHILD, nowhere, environment, forked)
        tests: Tests = self._child.ask(Serve(self._backend), _START_LIMIT_S)
        return self._child, tests.names


def select(tests: Iterable[str], shard: Shard, only: str = "") -> list[str]:
    """The tests of the shard whose names match the regular expression, in order."""
    return [test for test in sorted(tests) if test in shard and re.search(only, test)]


def run_all(
    backend: str,
    choose: Callable[[Sequence[str]], Sequence[str]],
    results: Results,
    limit_s: float,
    jobs: int,
    show: Callable[[Result, int, int], None],
) -> None:
    """Run the tests that ``choose`` picks of all names and ``results`` does not hold yet, in ``jobs`` children."""
    runners = [Runner(backend, limit_s) for _ in range(jobs)]
    try:
        chosen = choose(runners[0].tests())
        known = results.of(backend)
        waiting = [test for test in chosen if test not in known]
        total, errors, stopped = len(waiting), [], False
        waiting.reverse()

        def work(runner: Runner) -> None:
            try:
                while waiting:
                    test = waiting.pop()
                    result = runner.run(test)
                    if stopped:  # its child was killed, which says nothing of the test
                        return
                    results.add(result)
                    show(result, total - len(waiting), total)
            except IndexError:  # another thread took the last one
                return
            except BaseException as error:  # raised again below, in the thread that waits
                errors.append(error)
                waiting.clear()

        threads = [threading.Thread(target=work, args=(runner,)) for runner in runners]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            stopped = True
            waiting.clear()
            for runner in runners:
                runner.end()
            for thread in threads:
                thread.join()
            raise
        if errors:
            raise errors[0]
    finally:
        for runner in runners:
            runner.close()
