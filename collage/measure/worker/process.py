"""The parent's side of the measuring worker: it starts the worker, asks it, and tells how it died."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

from collage.check.stages import looks_like_memory
from collage.core.child_process import ChannelError, ChildEndedError, ChildError, ChildProcess, signal_name
from collage.core.deadline import BudgetOverError, Deadline
from collage.core.forked_process import ForkServers, fork_servers
from collage.core.no_room import no_room
from collage.core.temporary import TemporaryFolder
from collage.core.threads import in_thread
from collage.errors import MeasurementError
from collage.measure.worker.protocol import Init
from collage.measure.worker.serialisation import pickle_message
from collage.measure.worker.whole_protocol import InitWhole
from collage.measure_db.results import Rejection, RejectionKind, late

_WORKER = "collage.measure.worker.main"
_OF_MODELS = "collage.measure.worker.model_worker"
"""What a worker needs for kernels, and does not for engines: it imports TVM, which takes a second."""
_START_LIMIT_S = 600.0
_TAIL_CHARS = 600
_GRACE_S = 1.0
"""Seconds beyond the deadline that an answer may take. A worker that is killed has to import TVM again."""


class WorkerDiedError(Exception):
    """The worker ended instead of answering; ``rejection`` is what that says of the candidate."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


class WorkerProcess(ChildProcess):
    """A running worker. ``begin`` sends it a model; it can have several models, one after another.

    ``deadline`` is that of the compile that uses it.
    """

    def __init__(
        self,
        threads: int,
        servers: ForkServers | None = None,
        *,
        prepared: bool = False,
        imports: tuple[str, ...] = (),
        module: str = _WORKER,
    ) -> None:
        """Start the worker, with the libraries' thread pools set to ``threads``. It runs ``main`` of the ``module``.

        It is forked where there are ``servers`` that can do that. If it shall be ``prepared`` for kernels, it has
        imported TVM and these modules then. Raises MeasurementError where the system refuses.
        """
        self.deadline = Deadline()
        self.prepared = False
        """Whether it has imported TVM."""
        # The folder is the worker's own. What a killed worker leaves there is removed with it.
        with ExitStack() as stack:
            with no_room("the files of a measuring worker"):
                self._folder = TemporaryFolder("worker")
                errors = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            stack.enter_context(self._starting())
            environment = _environment(threads) | {"TMPDIR": str(self._folder.path)}
            # The file is opened for appending, since the worker empties it before each candidate, and then writes at
            # its start again.
            fcntl.fcntl(errors, fcntl.F_SETFL, fcntl.fcntl(errors, fcntl.F_GETFL) | os.O_APPEND)
            self._errors = os.dup(errors.fileno())
            weakref.finalize(self, os.close, self._errors)
            preload = (module, _OF_MODELS, *imports) if prepared else (module,)
            forked = None
            if servers is not None:
                forked = servers.fork(module, preload, errors.fileno(), environment)
            if forked is not None:
                self.prepared = _OF_MODELS in forked.preloaded
            super().__init__(module, errors, environment, forked)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Remove the folder where the start fails. Raises MeasurementError where the system refuses it."""
        try:
            yield
        except OSError as error:
            self._folder.remove()
            raise MeasurementError(
                f"a measuring worker cannot be started: {error.strerror or error}. Free memory, end other processes, "
                "or raise the limits of this one (ulimit)."
            ) from error
        except BaseException:
            self._folder.remove()
            raise

    def begin(self, init: Init | InitWhole) -> None:
        """Send the worker a model, and wait until it has imported that.

        Raises MeasurementError, with the end of what the worker printed, when it does not get there.
        """
        try:
            self.ask(init, _START_LIMIT_S)
        except WorkerDiedError as died:
            raise MeasurementError(f"the measuring worker did not start: {died.rejection.message}") from died
        self.prepared = self.prepared or isinstance(init, Init)

    def ask(self, message: object, limit_s: float, *, most_s: float = math.inf) -> Any:
        """Send a message and wait for the reply.

        Raises WorkerDiedError when the worker crashes or takes more than ``limit_s`` seconds (it is killed then), and
        MeasurementError when it says that it failed and no candidate is to blame. Raises BudgetOverError where the
        deadline is over: before anything is sent, or a moment after it has passed, also while the worker waits for the
        machine, and then it is killed. After any other exception, such as KeyboardInterrupt, it is killed, too.
        """
        self.deadline.check()
        try:
            most_s = min(most_s, self.deadline.remaining_s + _GRACE_S)
            return super().ask(message, limit_s, most_s=most_s)
        except TimeoutError as error:
            if self.deadline.over:
                raise BudgetOverError("the time is over, and a worker was busy") from error
            text = late(limit_s) + self._tail()
            raise WorkerDiedError(Rejection(RejectionKind.TIMEOUT, text)) from error
        except ChildEndedError as ended:
            raise WorkerDiedError(self._post_mortem(ended.code)) from ended
        except ChannelError as error:
            raise WorkerDiedError(Rejection(RejectionKind.CRASHED, f"{error}{self._tail()}")) from error
        except ChildError as error:
            self.kill()
            raise MeasurementError(f"measuring: {error}") from error

    def pickled(self, message: object) -> bytes:
        """The pickle of a message, with the code of classes that a script or notebook defines."""
        return pickle_message(message)

    def kill(self) -> None:
        """Kill the worker like any child, and remove its temporary files."""
        super().kill()
        self._folder.remove()

    def _post_mortem(self, code: int | None) -> Rejection:
        """The rejection that the worker's exit status means; ``code`` is as in ChildEndedError."""
        tail = self._tail()
        if code is None:
            return Rejection(RejectionKind.CRASHED, f"closed the worker's pipe{tail}")
        if code == 0:  # the worker ends so by itself where its pipe is closed
            return Rejection(
                RejectionKind.CRASHED, f"closed the worker's pipe, or ended the process with status 0{tail}"
            )
        if code >= 0:
            return Rejection(RejectionKind.CRASHED, f"ended the process with status {code}{tail}")
        name = signal_name(-code)
        if -code == signal.SIGKILL:
            return Rejection(RejectionKind.MEMORY, f"killed by the system ({name}), most likely out of memory{tail}")
        if -code == signal.SIGALRM:
            return Rejection(RejectionKind.TIMEOUT, f"hung beyond the worker's own limit{tail}")
        kind = RejectionKind.MEMORY if looks_like_memory(tail) else RejectionKind.CRASHED
        return Rejection(kind, f"{name}{tail}")

    def _tail(self) -> str:
        """The end of what the worker printed, as ``; it printed: ...``, or "" where it printed nothing."""
        size = os.fstat(self._errors).st_size
        start = max(0, size - 4 * _TAIL_CHARS)
        text = os.pread(self._errors, size - start, start).decode(errors="replace")
        text = " ".join(text.split())
        if len(text) > _TAIL_CHARS:
            text = "..." + text[-_TAIL_CHARS:]
        return f"; it printed: {text}" if text else ""


class Workers:
    """Starts workers, and keeps one for each number of threads for the next model.

    It is a context manager that ends the workers. A worker that a candidate has brought down is not kept. ``deadline``
    is that of the compile that workers are started for. Most of a start is importing TVM, so workers are forked from a
    process that has done so.
    """

    def __init__(self) -> None:
        self.deadline = Deadline()
        self._servers, self._owns_servers = fork_servers()
        self._idle: dict[int, WorkerProcess] = {}
        self._coming: tuple[int, Future[WorkerProcess]] | None = None
        self.imports: tuple[str, ...] = ()
        """The modules that kernels need, see ``Backend.worker_imports``."""

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, init: Init | InitWhole) -> WorkerProcess:
        """A worker that has imported the model. Raises MeasurementError when it cannot be started."""
        worker = self.lend(init.threads, prepared=isinstance(init, Init))
        try:
            worker.begin(init)
        except BaseException:  # nobody else knows of it yet
            worker.kill()
            raise
        return worker

    def prefetch(self, threads: int) -> None:
        """Begin to start a prepared worker for ``threads``, which the next ``lend`` of one waits for."""
        if self._coming is None and self._servers.possible and threads not in self._idle:
            self._coming = threads, in_thread(partial(self.another, threads, prepared=True))

    def lend(self, threads: int, *, prepared: bool = False) -> WorkerProcess:
        """A worker for ``threads`` without a model. Raises MeasurementError when it cannot be started.

        One that is ``prepared`` has imported TVM, or has yet to do so where processes are not forked.
        """
        worker = self._came(threads) if prepared else None
        worker = worker or self._idle.pop(threads, None)
        # What a worker that is not prepared would import, the server imports once for all.
        unprepared = prepared and self._servers.possible and worker is not None and not worker.prepared
        if worker is not None and (unprepared or not worker.alive):
            worker.kill()
            worker = None
        if worker is None:
            worker = self.another(threads, prepared=prepared)
        worker.deadline = self.deadline
        return worker

    def another(self, threads: int, *, prepared: bool) -> WorkerProcess:
        """A new worker, which is the caller's to end. Raises MeasurementError when it cannot be started."""
        worker = WorkerProcess(threads, self._servers, prepared=prepared, imports=self.imports)
        worker.deadline = self.deadline
        return worker

    def _came(self, threads: int) -> WorkerProcess | None:
        """The worker that was begun for ``threads``, if there is one."""
        if self._coming is None or self._coming[0] != threads:
            return None
        (_, coming), self._coming = self._coming, None
        return coming.result()

    def release(self, worker: WorkerProcess, threads: int) -> None:
        """Take back a worker for ``threads`` that nobody needs now."""
        if worker.alive and threads not in self._idle:
            self._idle[threads] = worker
        else:
            worker.kill()

    def close(self) -> None:
        """End the workers that are kept. Closing twice does nothing."""
        if self._coming is not None:
            (_, coming), self._coming = self._coming, None
            with suppress(MeasurementError):
                coming.result().kill()
        while self._idle:
            self._idle.popitem()[1].kill()
        if self._owns_servers:
            self._servers.close()


def _environment(threads: int) -> dict[str, str]:
    """The environment of this process with every library's thread pool set to ``threads``.

    Idle threads of Intel's OpenMP runtime must sleep at once. When they spin they slow down the next library's kernel
    by 2x or more (269 us became 777 us for MKL between others).
    """
    names = (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "TVM_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
    return os.environ | dict.fromkeys(names, str(threads)) | {"KMP_BLOCKTIME": "0", "PYTHONUNBUFFERED": "1"}
