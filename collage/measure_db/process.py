"""The parent's side of the measuring worker: start it, ask it, and tell how it died."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import weakref
from types import TracebackType
from typing import Any

from collage.core.child_process import ChannelError, ChildEndedError, ChildError, ChildProcess, signal_name
from collage.core.temporary import TemporaryFolder
from collage.errors import MeasurementError
from collage.measure_db.candidate import looks_like_memory
from collage.measure_db.machine import worker_environment
from collage.measure_db.protocol import Init, InitWhole, Ready
from collage.measure_db.results import Rejection, RejectionKind
from collage.measure_db.travel import pickle_message

_START_LIMIT_S = 600.0
_TAIL_CHARS = 600


class WorkerDiedError(Exception):
    """The worker ended instead of answering; carries what that says of the candidate."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


class WorkerProcess(ChildProcess):
    """A running worker; ``begin`` gives it a model, one after another."""

    def __init__(self, threads: int) -> None:
        """Start it, with the libraries' thread pools set to ``threads``."""
        self._carried: tuple[str, ...] = ()
        self._folder = TemporaryFolder(
            "worker"
        )  # its own, and what it leaves there when it is killed is removed
        environment = worker_environment(threads) | {"TMPDIR": str(self._folder.path)}
        with tempfile.TemporaryFile(buffering=0) as errors:
            # Appending: the worker empties the file before each candidate and then writes at its start again.
            fcntl.fcntl(errors, fcntl.F_SETFL, fcntl.fcntl(errors, fcntl.F_GETFL) | os.O_APPEND)
            self._errors = os.dup(errors.fileno())
            weakref.finalize(self, os.close, self._errors)
            super().__init__("collage.measure_db.worker", errors, environment)

    def begin(self, init: Init | InitWhole, *, start_limit_s: float = _START_LIMIT_S) -> None:
        """Give it a model, and wait until it has imported that.

        Raises MeasurementError, with the end of what it printed, when it does not get there.
        """
        self._carried = init.carried if isinstance(init, Init) else ()
        try:
            ready = self.ask(init, start_limit_s)
        except WorkerDiedError as died:
            raise MeasurementError(f"the measuring worker did not start: {died.rejection.message}") from None
        if not isinstance(ready, Ready):
            self.kill()
            raise MeasurementError(f"the measuring worker did not start: unexpected {type(ready).__name__}")

    def ask(self, message: object, limit_s: float) -> Any:
        """Send a message and wait for the reply.

        Raises WorkerDiedError when it crashes or takes more than ``limit_s`` seconds (it is killed then), and
        MeasurementError when the worker says that it failed and no candidate is to blame. Whatever is raised
        meanwhile (KeyboardInterrupt), the worker is killed.
        """
        try:
            return super().ask(message, limit_s)
        except TimeoutError:
            text = f"took more than {limit_s:g} s"
            raise WorkerDiedError(Rejection(RejectionKind.TIMEOUT, text + self._tail())) from None
        except ChildEndedError as ended:
            raise WorkerDiedError(self._post_mortem(ended.code)) from None
        except ChannelError as error:
            raise WorkerDiedError(Rejection(RejectionKind.CRASHED, f"{error}{self._tail()}")) from None
        except ChildError as error:
            self.kill()
            raise MeasurementError(f"measuring: {error}") from None

    def pickled(self, message: object) -> bytes:
        """With the code of classes that the worker cannot import."""
        return pickle_message(message, self._carried) if self._carried else super().pickled(message)

    def kill(self) -> None:
        """As for all children; its temporary files go with it."""
        super().kill()
        self._folder.remove()

    def _post_mortem(self, code: int | None) -> Rejection:
        """What its end says."""
        tail = self._tail()
        if code is None:
            return Rejection(RejectionKind.CRASHED, f"closed the worker's pipe{tail}")
        if code >= 0:
            return Rejection(RejectionKind.CRASHED, f"ended the process with status {code}{tail}")
        name = signal_name(-code)
        if -code == signal.SIGKILL:
            return Rejection(
                RejectionKind.MEMORY, f"killed by the system ({name}), most likely out of memory{tail}"
            )
        if -code == signal.SIGALRM:
            return Rejection(RejectionKind.TIMEOUT, f"hung beyond the worker's own limit{tail}")
        kind = RejectionKind.MEMORY if looks_like_memory(tail) else RejectionKind.CRASHED
        return Rejection(kind, f"{name}{tail}")

    def _tail(self) -> str:
        """The end of what it printed, as ``; it printed: ...``, or nothing."""
        size = os.fstat(self._errors).st_size
        start = max(0, size - 4 * _TAIL_CHARS)
        text = os.pread(self._errors, size - start, start).decode(errors="replace")
        text = " ".join(text.split())
        if len(text) > _TAIL_CHARS:
            text = "..." + text[-_TAIL_CHARS:]
        return f"; it printed: {text}" if text else ""


class Workers:
    """Starts workers, and keeps one of each number of threads for the next model: most of a start is importing TVM.

    A context manager. A worker that a candidate has brought down is not kept.
    """

    def __init__(self) -> None:
        self._idle: dict[int, WorkerProcess] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, init: Init | InitWhole) -> WorkerProcess:
        """A worker that has imported the model. Raises MeasurementError."""
        worker = self._idle.pop(init.threads, None)
        if worker is None or not worker.alive:
            worker = WorkerProcess(init.threads)
        worker.begin(init)
        return worker

    def release(self, worker: WorkerProcess, threads: int) -> None:
        """Take back a worker for ``threads`` that nobody needs now."""
        if worker.alive and threads not in self._idle:
            self._idle[threads] = worker
        else:
            worker.kill()

    def close(self) -> None:
        """End those that are kept. Closing twice does nothing."""
        while self._idle:
            self._idle.popitem()[1].kill()
