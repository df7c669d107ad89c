"""The thread that runs iterations: it takes requests in, and hands events out after each iteration."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Any

from collage.core.library_text import library_text
from collage.serve.core import Core
from collage.serve.options import EngineOptions
from collage.serve.plan import IterationPlan
from collage.serve.request import Event, Finish, IterationRecord, RefusedError, Request, Stats, check_request
from collage.serve.runner import Runner, RunnerLostError, watch, workers_of
from collage.serve.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Deliver = Callable[[list[Event], "IterationRecord | None", Stats], None]
"""Takes the events of an iteration, its times, and the state after it. It is called in the engine's thread."""

_STUCK_S = 0.01


class _End(Enum):
    """How the engine ends: when all requests have their answers, or with what is in flight."""

    DRAIN = "drain"
    CANCEL = "cancel"


class ClosedError(Exception):
    pass


class Loop:
    """An engine that runs in a thread of its own. Its methods may be called from any thread."""

    def __init__(
        self,
        runner: Runner,
        options: EngineOptions,
        deliver: Deliver,
        tokenizer: Tokenizer | None = None,
        broken: Callable[[], None] = lambda: None,
    ) -> None:
        """``tokenizer`` has the end tokens, and texts for stop texts to be found in.

        ``broken`` is called when the thread ends by a fault of ours, after all requests have failed.
        """
        self._runner = runner
        self._deliver = deliver
        self._broken = broken
        self._core = Core(runner, options, tokenizer)
        self._workers = workers_of(runner)
        self._pool = ThreadPoolExecutor(self._workers) if self._workers > 1 else None
        self._flying: deque[tuple[IterationPlan, float, Future[Any]]] = deque()
        self.most_open = options.max_waiting + self._core.max_running * self._workers
        self._changed = threading.Condition()
        self._inbox: deque[tuple[Request | int, float]] = deque()
        self._open: set[int] = set()
        self._closing = self._drains = False
        self._stats = self._core.stats()
        self._scheduler_s = self._busy_s = 0.0
        self._lost = False
        watch(runner, self._runner_lost)
        self._thread = threading.Thread(target=self._run, name="collage-engine", daemon=True)
        self._thread.start()

    def submit(self, *requests: Request) -> None:
        """Send requests, which may begin in the same iteration: all of them or none.

        Raises InputError, RefusedError when too many wait, and ClosedError.
        """
        for each in requests:
            check_request(each, self._runner)
        with self._changed:
            if self._closing:
                raise ClosedError
            if len(self._open) + len(requests) > self.most_open:
                raise RefusedError
            now_s = time.monotonic()
            self._open.update(each.id for each in requests)
            self._inbox.extend((each, now_s) for each in requests)
            self._changed.notify()

    def cancel(self, id: int) -> None:
        """Let a request go, within one iteration. Unknown ids are those of requests that have ended."""
        with self._changed:
            self._inbox.append((id, 0.0))
            self._changed.notify()

    def stats(self) -> Stats:
        return self._stats

    def close(self, *, drain: bool) -> None:
        """Take no more requests, finish (``drain``) or cancel those that there are, and end the thread."""
        with self._changed:
            self._closing = True
            self._drains = drain
            self._changed.notify()
        self._thread.join()
        if self._pool is not None:
            self._pool.shutdown()

    def check(self) -> None:
        """Assert that no block has leaked; only for an engine that nobody uses at the moment."""
        self._core.check()

    def _runner_lost(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:
            logger.error("the engine has failed", exc_info=not isinstance(error, RunnerLostError))
            kind = "" if isinstance(error, RunnerLostError) else f"{type(error).__name__}: "
            message = f"the engine has failed: {kind}{library_text(error)}"
            with self._changed:
                self._closing = True
                left = [Event(id, finish=Finish.FAILED, error=message) for id in self._open]
                self._open.clear()
            self._deliver(left, None, self._stats)
            self._broken()

    def _turn(self) -> bool:
        """One turn: commands, then an iteration if there is anything to run. Returns False at the end."""
        events, ends = self._commands()
        core = self._core
        if ends is _End.CANCEL:
            self._send(events, None)
            if self._flying:
                self._land()
                return True
            self._send(core.end_all(Finish.CANCELLED), None)
            return False
        if not core.busy:
            self._send(events, None)
            return ends is None
        start = time.monotonic()
        plan = core.plan(start)
        steps, ended = core.begin(plan)
        now = time.monotonic()
        self._scheduler_s += now - start
        events += ended
        if plan.sequences and self._pool is None:
            events += self._finished(plan, lambda: core.run(steps, self._tell))
            self._send(events, IterationRecord(plan.tokens, time.monotonic() - now))
            return True
        self._send(events, None)
        if plan.sequences and self._pool is not None:
            self._flying.append((plan, now, self._pool.submit(core.run, steps)))
        if self._flying and (len(self._flying) == self._workers or not plan.sequences):
            self._land()
        elif not plan.sequences and not ended:
            time.sleep(_STUCK_S)  # nothing can run and nothing is in flight: a deadline will end this
        return True

    def _land(self) -> None:
        plan, start, future = self._flying.popleft()
        events = self._finished(plan, future.result)
        self._send(events, IterationRecord(plan.tokens, time.monotonic() - start))

    def _finished(self, plan: IterationPlan, result: Callable[[], Any]) -> list[Event]:
        start = time.monotonic()
        try:
            logits = result()
        except RunnerLostError:
            raise  # all requests have lost what the cache held of them
        except Exception as error:  # the runner's code is not ours
            logger.exception("an iteration has failed")
            return self._core.fail(plan, f"the model has failed: {type(error).__name__}: {library_text(error)}")
        end = time.monotonic()
        self._busy_s += end - start
        events = self._core.finish(plan, logits)
        self._scheduler_s += time.monotonic() - end
        return events

    def _commands(self) -> tuple[list[Event], _End | None]:
        """Take in what has been sent; wait for it where there is nothing else to do.

        Also tells whether the engine is to end: then nothing is sent after what was taken in.
        """
        with self._changed:
            while not (self._inbox or self._closing or self._core.busy or self._flying or self._lost):
                self._changed.wait()
            if self._lost and not (self._core.busy or self._flying):  # else an iteration will tell why
                raise RunnerLostError("a process that computes for it has ended")
            taken = list(self._inbox)
            self._inbox.clear()
            ends = (_End.DRAIN if self._drains else _End.CANCEL) if self._closing else None
        events: list[Event] = []
        for command, time_s in taken:
            if isinstance(command, Request):
                self._core.add(command, time_s)
            else:
                events += self._core.cancel(command)
        return events, ends

    def _send(self, events: list[Event], iteration: IterationRecord | None) -> None:
        self._stats = self._core.stats()._replace(scheduler_s=self._scheduler_s, busy_s=self._busy_s)
        if ended := [each.id for each in events if each.finish is not None]:
            with self._changed:
                self._open.difference_update(ended)
        if events or iteration is not None:
            self._deliver(events, iteration, self._stats)

    def _tell(self) -> None:
        """Tell whoever watches that the engine is at work, in an iteration of several steps, which may take minutes."""
        self._deliver([], None, self._stats)
