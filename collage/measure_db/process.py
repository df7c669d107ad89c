"""The parent's side of the measuring worker: start it, ask it, and tell how it died."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from collage.child_process import ChannelError, ChildEndedError, ChildError, ChildProcess, signal_name
from collage.errors import MeasurementError
from collage.measure_db.candidate import looks_like_memory
from collage.measure_db.machine import worker_environment
from collage.measure_db.protocol import Init, Ready
from collage.measure_db.results import Rejection, RejectionKind

_START_LIMIT_S = 600.0
_TAIL_CHARS = 600


class WorkerDiedError(Exception):
    """The worker ended instead of answering; carries what that says of the candidate."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


class WorkerProcess(ChildProcess):
    """A running worker that has imported the model."""

    def __init__(self, init: Init, *, start_limit_s: float = _START_LIMIT_S) -> None:
        """Start it and wait until it is ready.

        Raises MeasurementError, with the end of what it printed, when it does not get there.
        """
        self._errors = Path(init.folder) / "stderr.txt"
        # Appending: the worker empties the file before each candidate and then writes at its start again.
        with self._errors.open("wb") as empty, self._errors.open("ab") as errors:
            empty.close()
            super().__init__("collage.measure_db.worker", errors, worker_environment(init.threads))
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
        try:
            with self._errors.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 4 * _TAIL_CHARS))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        text = " ".join(text.split())
        if len(text) > _TAIL_CHARS:
            text = "..." + text[-_TAIL_CHARS:]
        return f"; it printed: {text}" if text else ""
