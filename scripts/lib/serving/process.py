"""The parent's side of a contender's process: it runs only while it is asked, so that it takes no time from others."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from collage.errors import CollageError
from scripts.lib import ROOT
from scripts.lib.end_group import end_group
from scripts.lib.serving.contender import MissingError, Setup
from scripts.lib.serving.record import Served
from scripts.lib.serving.trace import Arrival, as_message

_OPEN_S = 3600.0
_TAIL = 400


class ContenderError(CollageError):
    """A contender has failed. The message is one line."""


class ContenderProcess:
    """A contender in a process of its own, which is stopped by a signal while it is not asked."""

    def __init__(self, name: str, python: Path, setup: Setup) -> None:
        """Start the process and open the model. Raises MissingError and ContenderError."""
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        # Packages on this process's path are for its own interpreter, and not for that of a peer.
        paths = [str(ROOT), *(sys.path if python == Path(sys.executable) else [])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": str(setup.threads),
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._process = subprocess.Popen(
            [str(python), "-m", "scripts.lib.serving.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        self._rest = b""
        try:
            self.facts: Mapping[str, Any] = self.ask(
                {
                    "do": "open",
                    "name": name,
                    "folder": str(setup.folder),
                    "module": str(setup.module),
                    "threads": setup.threads,
                    "running": setup.running,
                    "precision": setup.precision,
                    "defaults": setup.defaults,
                },
                _OPEN_S,
            )["facts"]
        except BaseException:
            self.close()
            raise

    def ask(self, message: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        """Let the process run until it has answered. Raises MissingError and ContenderError."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            answer: Mapping[str, Any] = json.loads(self._line(time.monotonic() + limit_s))
        except (BrokenPipeError, EOFError) as error:
            raise ContenderError(f"{self.name}: its process has ended: {self._said()}") from error
        self._signal(signal.SIGSTOP)
        if "missing" in answer:
            raise MissingError(f"{self.name}: {answer['missing']}")
        if "error" in answer:
            raise ContenderError(f"{self.name}: {' '.join(answer['error'].split())[:_TAIL]}")
        return answer

    def serve(self, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        """Serve a trace. Raises ContenderError, also for answers that do not have the tokens asked for."""
        answer = self.ask({"do": "serve", "arrivals": as_message(arrivals)}, limit_s)
        found = [
            Served(arrival, tuple(tokens), tuple(times))
            for arrival, tokens, times in zip(arrivals, answer["tokens"], answer["token_s"], strict=True)
        ]
        for number, each in enumerate(found):
            if len(each.tokens) != each.arrival.tokens:
                raise ContenderError(
                    f"{self.name}: request {number} got {len(each.tokens)} of {each.arrival.tokens} tokens"
                )
        return found

    def close(self) -> None:
        """End the process and all that it has started."""
        end_group(self._process, self._errors)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise ContenderError(f"{self.name}: it took too long")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise EOFError
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _said(self) -> str:
        self._errors.seek(0)
        text = " ".join(self._errors.read().decode(errors="replace").split())
        return text[-_TAIL:] or "it said nothing"
