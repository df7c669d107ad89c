"""The measuring worker's process: it imports a model, then answers messages about it until its pipe closes.

WorkerProcess starts it. Whatever a candidate does to this process, the parent survives it.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage.core import background
from collage.core.child_process import (
    Failure,
    GoesOn,
    Waits,
    parent_id,
    read_message,
    take_over_pipes,
    write_message,
)
from collage.core.cpu_time import Cpu
from collage.core.cuda_driver import lost_context
from collage.core.lean_imports import lean_imports
from collage.core.memory import limit_memory, memory_for_worker
from collage.core.quiet import Machine, use_machine
from collage.core.temporary import sweep
from collage.errors import CollageError, MeasurementError
from collage.measure.worker.protocol import (
    AskPlan,
    Init,
)
from collage.measure.worker.whole_protocol import InitWhole
from collage.measure.worker.whole_worker import WholeWorker

if TYPE_CHECKING:
    from collage.measure.worker.model_worker import ModelWorker

_ALL_GARBAGE = 64
"""Of so many answers about single kernels one is followed by a collection of all garbage, and the others by one of what
they have made. What networks leave may hold all weights, so it is collected at once."""


def main() -> None:
    """Serve one parent, until the pipe from it closes. So the parent's death ends the worker, too."""
    source, sink = take_over_pipes()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent handles these. If the worker did, a stopped service would look like a bad kernel.
        signal.signal(each, signal.SIG_IGN)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, messages), daemon=True).start()
    cpu = Cpu()  # libraries may pin this thread later
    reply: object
    worker: ModelWorker | WholeWorker | None = None
    # A collection would take milliseconds of what is timed. What an answer has made is young when it is collected,
    # which takes 0.2 ms instead of 6.
    gc.disable()
    answered = 0
    while True:
        message = messages.get()
        os.ftruncate(2, 0)  # what a candidate prints is kept until the next one
        # A kernel may hang with Python's lock held, and then nobody here notices that the parent is gone.
        signal.setitimer(signal.ITIMER_REAL, 2 * message.limit_s + 30 if hasattr(message, "limit_s") else 0)
        try:
            if isinstance(message, (Init, InitWhole)):
                waiting = partial(without_limits, sink)
                use_machine(Machine(message.threads, waiting, cpu))
                if worker is not None:
                    frozen, worker = not isinstance(worker, WholeWorker), None
                    if frozen:
                        # Else the model before this one would stay, where it is part of a cycle. After an engine there
                        # is none: to look at all that TVM has made takes 0.1 s, and copies what was forked.
                        gc.unfreeze()
                    gc.collect()
                    if frozen:
                        gc.freeze()
                worker, reply = _begin(message), None
            else:
                assert worker is not None
                reply = worker.answer(message)
                if reason := lost_context(ask=True):
                    # Nothing on the GPU works in this process any more. A fresh one measures the next candidate.
                    os.write(2, reason.encode())
                    os.abort()
        except CollageError as error:
            reply = Failure(str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answered += 1
        about_all = isinstance(worker, WholeWorker) or isinstance(message, (Init, AskPlan))
        gc.collect(2 if about_all or not answered % _ALL_GARBAGE else 0)
        if isinstance(message, Init):
            gc.freeze()  # the model stays, so that collections after each candidate need not look at it
        write_message(sink, reply)


@contextmanager
def without_limits(sink: int) -> Iterator[None]:
    """While this process waits for others, neither its own time limit runs nor that of its parent, who is told."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    write_message(sink, Waits())
    try:
        yield
    finally:
        write_message(sink, GoesOn())
        signal.setitimer(signal.ITIMER_REAL, left)


def _begin(init: Init | InitWhole) -> ModelWorker | WholeWorker:
    limit_memory(memory_for_worker(init.memory_bytes))
    if isinstance(init, InitWhole):
        return WholeWorker(init)
    if init.background:
        try:
            background.join(parent_id())
        except background.BackgroundError as error:
            raise MeasurementError(f"no work in the background: {error}") from error
    with lean_imports():
        from collage.measure.worker.model_worker import (
            ModelWorker,
        )  # imports TVM; engines do without these seconds

    # TVM's handler prints a page of stack, which would push what the library said out of the message.
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    worker = ModelWorker(init)
    worker.model  # noqa: B018  (imported before the parent's clock for the first candidate starts)
    return worker


def _receive(source: int, messages: queue.SimpleQueue[Any]) -> None:
    """Pass messages on. When the parent is gone, remove the files that nobody uses now, and end at once.

    A kernel may have closed the pipe instead. Then the parent lives on, and its next worker needs the files. The parent
    may be gone before this process asks who that is, so it was told.
    """
    parent = parent_id()
    place = Path(tempfile.gettempdir()).parent  # where the parent has its folders, this worker's among them
    while True:
        try:
            messages.put(read_message(source))
        except BaseException:  # the pipe has ended or is damaged; in both cases there is nobody to tell
            for _ in range(20):  # a dying process closes its files a moment before its children notice
                if os.getppid() != parent:
                    sweep(place)
                    break
                time.sleep(0.05)
            os._exit(0)


if __name__ == "__main__":
    main()
