"""The parent's side of a contender's process: it runs only while it is asked, so that it takes no time from others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from typing import Any

from collage.errors import CollageError
from scripts.lib import ROOT
from scripts.lib.end_group import end_group
from scripts.lib.serving.contender import MissingError, Setup
from scripts.lib.serving.record import Served
from scripts.lib.serving.trace import Arrival, as_message

_OPEN_S, LIMIT_S = 3600.0, 1800.0
_TAIL = 400


class ContenderError(CollageError):
    """A contender has failed. The message is one line."""


class ContenderProcess:
    """A contender in a process of its own, which is stopped by a signal while it is not asked."""

    def __init__(self, name: str, setup: Setup) -> None:
        """Start the process and open the model. Raises MissingError and ContenderError."""
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])),
            "OMP_NUM_THREADS": str(setup.threads),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.lib.serving.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        plain = {**asdict(setup), "folder": str(setup.folder), "module": str(setup.module)}
        try:
            opened = self.ask({"do": "open", "name": name, "setup": plain}, _OPEN_S)
        except BaseException:
            self.close()
            raise
        self.facts: Mapping[str, Any] = opened["facts"]

    def ask(self, message: Mapping[str, Any], limit_s: float = LIMIT_S) -> Mapping[str, Any]:
        """Let the process run until it has answered. Raises MissingError and ContenderError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        end_s = time.monotonic() + limit_s
        limit = Timer(limit_s, self._signal, [signal.SIGKILL])
        limit.start()
        line = b""
        try:
            self._signal(signal.SIGCONT)
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            self._signal(signal.SIGSTOP)
        finally:
            limit.cancel()
        if not line.endswith(b"\n"):
            late = time.monotonic() >= end_s
            raise ContenderError(
                f"{self.name}: {'it took too long' if late else f'its process has ended: {self._said()}'}"
            )
        answer: Mapping[str, Any] = json.loads(line)
        if "missing" in answer:
            raise MissingError(f"{self.name}: {answer['missing']}")
        if "error" in answer:
            raise ContenderError(f"{self.name}: {' '.join(answer['error'].split())[:_TAIL]}")
        return answer

    def serve(self, arrivals: Sequence[Arrival]) -> list[Served]:
        """Serve a trace. Raises ContenderError, also for answers that do not have the tokens asked for."""
        answer = self.ask({"do": "serve", "arrivals": as_message(arrivals)})
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

    def _said(self) -> str:
        self._errors.seek(0)
        text = " ".join(self._errors.read().decode(errors="replace").split())
        return text[-_TAIL:] or "it said nothing"
