"""A contender's process: it runs only while it is asked, so that it takes no time from others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

from collage.core.child_process import (
    ChildEndedError,
    ChildError,
    ChildProcess,
    Failure,
    read_message,
    take_over_pipes,
    write_message,
)
from collage.errors import CollageError
from scripts.lib.serving.trace import Arrival, Served

OURS, STATIC, GENAI = "collage", "shortest-first", "openvino-genai"
DEFAULTS = f"{GENAI} at its defaults"
CONTENDERS = {
    OURS: "collage_engine:CollageEngine",
    STATIC: "shortest_first:ShortestFirst",
    GENAI: "openvino_genai:OpenVinoGenAi",
    DEFAULTS: "openvino_genai:AtItsDefaults",
}
"""The contenders' classes. Each is called with a ``Setup``. Its objects have ``facts``, the version and settings, and
``serve(arrivals, note)``, which serves requests as they arrive, in seconds from the call, and calls ``note`` with the
number of a request and its next token.

None uses more threads than it is given, ends an answer at an end token, or keeps prefixes of prompts: requests that
are measured again would find themselves in the cache.
"""
FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"

Parts: TypeAlias = "tuple[list[list[int]], list[list[float]]]"

_OPEN_S, _LIMIT_S = 3600.0, 1800.0
_TAIL = 400


class ContenderError(CollageError):
    """A contender is not installed, cannot take the model, or has failed. The message is one line."""


@dataclass(frozen=True)
class Setup:
    """A contender's files and limits.

    ``folder`` is the model in the form of Hugging Face, in which a contender keeps its own form. ``module`` is
    Collage's file. ``running`` is the most requests at a time. ``precision`` is that of products and of the cache, or
    INT8, which is that of weights only.
    """

    folder: Path
    module: Path
    threads: int
    running: int
    precision: str = FLOAT32

    @property
    def cache(self) -> str:
        """The precision of keys and values."""
        return FLOAT32 if self.precision == INT8 else self.precision


class ContenderProcess:
    """A contender in a process of its own, which is stopped by a signal while it is not asked."""

    def __init__(self, name: str, setup: Setup) -> None:
        """Start the process and open the model. Raises ContenderError."""
        self.name = name
        self._errors = TemporaryFile()  # noqa: SIM115  (closed with the process)
        environment = os.environ | {
            "OMP_NUM_THREADS": str(setup.threads),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self._child = ChildProcess(__name__, self._errors, environment)
        try:
            self.facts = self.ask((name, setup), _OPEN_S)
        except BaseException:
            self.close()
            raise

    def ask(self, message: object, limit_s: float = _LIMIT_S) -> Any:
        """Let the process run until it has answered. Raises ContenderError."""
        self._signal(signal.SIGCONT)
        try:
            answer = self._child.ask(message, limit_s)
        except TimeoutError as error:
            raise ContenderError(f"{self.name}: it took too long") from error
        except ChildEndedError as error:
            self._errors.seek(0)
            text = " ".join(self._errors.read().decode(errors="replace").split())
            raise ContenderError(f"{self.name}: {error}: {text[-_TAIL:]}") from error
        except ChildError as error:
            raise ContenderError(f"{self.name}: {' '.join(str(error).split())[:_TAIL]}") from error
        self._signal(signal.SIGSTOP)
        return answer

    def serve(self, arrivals: Sequence[Arrival]) -> list[Served]:
        """Serve a trace. Raises ContenderError, also for answers that do not have the tokens asked for."""
        found = [
            Served(arrival, tuple(tokens), tuple(times))
            for arrival, tokens, times in zip(arrivals, *self.ask(("serve", arrivals)), strict=True)
        ]
        for number, each in enumerate(found):
            if len(each.tokens) != each.arrival.tokens:
                raise ContenderError(
                    f"{self.name}: request {number} got {len(each.tokens)} of {each.arrival.tokens} tokens"
                )
        return found

    def close(self) -> None:
        """End the process and all that it has started."""
        self._child.kill()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child._process.pid, number)


def main() -> None:
    """Be the process: open the contender of the first message, and call its methods by the names in the others."""
    source, sink = take_over_pipes()
    contender: Any = None
    while True:
        try:
            name, argument = read_message(source)
        except EOFError:
            return
        try:
            if contender is None:
                module, _, kind = CONTENDERS[name].partition(":")
                contender = getattr(import_module(f"scripts.lib.serving.{module}"), kind)(argument)
                answer: object = contender.facts
            else:
                answer = _served(contender, argument) if name == "serve" else getattr(contender, name)(argument)
        except Exception as error:  # the contender's code is not ours
            answer = Failure(str(error) if isinstance(error, CollageError) else f"{type(error).__name__}: {error}")
        write_message(sink, answer)


def _served(contender: Any, arrivals: Sequence[Arrival]) -> Parts:
    """The tokens of each answer, and the seconds at which they came."""
    tokens: list[list[int]] = [[] for _ in arrivals]
    times: list[list[float]] = [[] for _ in arrivals]
    start = time.monotonic()

    def note(number: int, token: int) -> None:
        tokens[number].append(token)
        times[number].append(time.monotonic() - start)

    contender.serve(arrivals, note)
    return tokens, times
