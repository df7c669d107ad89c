"""The parent's side of the measuring worker: start it, ask it, and tell how it died."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from collage.errors import MeasurementError
from collage.measure_db.candidate import looks_like_memory
from collage.measure_db.machine import worker_environment
from collage.measure_db.protocol import ChannelError, Failure, Init, Ready, read_message, write_message
from collage.measure_db.results import Rejection, RejectionKind

log = logging.getLogger(__name__)

# Not "-m": that puts the working directory first on the path, where a user's onnx.py would shadow ours.
_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[1:]; from collage.measure_db.worker import main; main()"
_START_LIMIT_S = 600.0
_TAIL_CHARS = 600


class WorkerDiedError(Exception):
    """The worker ended instead of answering; carries what that says of the candidate."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


class WorkerProcess:
    """A running worker that has imported the model."""

    def __init__(self, init: Init, *, start_limit_s: float = _START_LIMIT_S) -> None:
        """Start it and wait until it is ready.

        Raises MeasurementError, with the end of what it printed, when it does not get there.
        """
        self._errors = Path(init.folder) / "stderr.txt"
        search_path = [os.path.abspath(entry) for entry in sys.path]
        # Appending: the worker empties the file before each candidate and then writes at its start again.
        with self._errors.open("wb") as empty, self._errors.open("ab") as errors:
            empty.close()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, *search_path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=worker_environment(init.threads),
                start_new_session=True,  # Ctrl-C goes to us alone, and what it starts can be killed with it
                bufsize=0,
            )
        try:
            ready = self.ask(init, start_limit_s)
        except WorkerDiedError as died:
            raise MeasurementError(f"the measuring worker did not start: {died.rejection.message}") from None
        if not isinstance(ready, Ready):
            self.kill()
            raise MeasurementError(f"the measuring worker did not start: unexpected {type(ready).__name__}")

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def ask(self, message: object, limit_s: float) -> Any:
        """Send a message and wait for the reply.

        Raises WorkerDiedError when it crashes or takes more than ``limit_s`` seconds (it is killed then), and
        MeasurementError when the worker says that it failed and no candidate is to blame. Whatever is raised
        meanwhile (KeyboardInterrupt), the worker is killed.
        """
        source, sink = self._process.stdout, self._process.stdin
        if source is None or sink is None or source.closed:
            raise MeasurementError("the measuring worker has been closed")
        try:
            write_message(sink.fileno(), message)
            reply = read_message(source.fileno(), limit_s)
        except TimeoutError:
            self.kill()
            text = f"took more than {limit_s:g} s"
            raise WorkerDiedError(Rejection(RejectionKind.TIMEOUT, text + self._tail())) from None
        except (EOFError, BrokenPipeError):
            raise WorkerDiedError(self._post_mortem()) from None
        except ChannelError as error:
            self.kill()
            raise WorkerDiedError(Rejection(RejectionKind.CRASHED, f"{error}{self._tail()}")) from None
        except BaseException:
            self.kill()
            raise
        if isinstance(reply, Failure):
            self.kill()
            raise MeasurementError(f"measuring: {reply.message}")
        return reply

    def close(self) -> None:
        """End it; it has nothing to save."""
        self.kill()

    def kill(self) -> None:
        """Kill it and all it started, and wait for it.

        The pipes are closed last: a worker that sees them close believes its parent dead, and removes the
        folder that the next worker needs.
        """
        if self._process.returncode is None:  # not yet waited for, so its id is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _post_mortem(self) -> Rejection:
        """What its end says. It has closed its pipe, so it has ended, or does so in a moment."""
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return Rejection(RejectionKind.CRASHED, f"closed the worker's pipe{self._tail()}")
        self.kill()
        tail = self._tail()
        if code >= 0:
            return Rejection(RejectionKind.CRASHED, f"ended the process with status {code}{tail}")
        name = _signal_name(-code)
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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
