"""What serves a trace, and the two ways of driving what has no queue of its own: step by step, or batch by batch."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scripts.lib.serving.trace import Arrival

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"
PRECISIONS = FLOAT32, BFLOAT16, INT8
REQUEST_LEVEL_BATCH = 8
"""The requests of a batch without iteration-level scheduling, as many as an unscheduled system may wait for."""
NO_TARGET_MS = 1e9
"""With that time between tokens, prompts are computed in iterations that are as large as they can be."""


def cache_precision(precision: str) -> str:
    """The precision of keys and values in a run of that precision: with weights in 8 bits, float32."""
    return FLOAT32 if precision == INT8 else precision


Note = Callable[[int, int], None]
"""Takes the number of a request and its next token, when that has come."""


class MissingError(Exception):
    """What the contender needs is not installed, or cannot take the model. The message is one line."""


@dataclass(frozen=True)
class Setup:
    """What a contender is opened with.

    ``folder`` has the model in the form of Hugging Face, and is where a contender keeps it in its own form. ``module``
    is Collage's file. ``running`` is the most requests at a time. ``precision`` is that of products and of the cache,
    "float32" or "bfloat16", or "int8", which is that of weights only; ``defaults`` asks for the contender's own.
    """

    folder: Path
    module: Path
    threads: int
    running: int
    precision: str = FLOAT32
    defaults: bool = False

    def require(self, name: str, *precisions: str) -> None:
        """Raise MissingError where the contender is asked for a precision that is none of these."""
        if self.precision not in precisions and not self.defaults:
            raise MissingError(f"{name} is compared in {' and '.join(precisions)} only")


class Contender(Protocol):
    """A system that serves requests."""

    def facts(self) -> Mapping[str, Any]:
        """Its version, and what it was set to."""
        ...

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests as they arrive, the times of which count from the call."""
        ...


class Stepping(Protocol):
    """An engine that is asked for one iteration after another."""

    def add(self, number: int, arrival: Arrival) -> None:
        """Take a request in."""
        ...

    def step(self) -> list[tuple[int, int]]:
        """Run an iteration. Returns the new tokens, each with the number of its request."""
        ...


def serve_stepwise(engine: Stepping, arrivals: Sequence[Arrival], note: Note) -> None:
    """Serve the requests with iterations in this thread; requests are taken in between."""
    start = time.monotonic()
    left = {number: each.tokens for number, each in enumerate(arrivals)}
    waiting = list(enumerate(arrivals))
    running = 0
    while left:
        now = time.monotonic() - start
        while waiting and waiting[0][1].at_s <= now:
            engine.add(*waiting.pop(0))
            running += 1
        if not running:
            time.sleep(max(0.0, waiting[0][1].at_s - now))
            continue
        for number, token in engine.step():
            note(number, token)
            left[number] -= 1
            if not left[number]:
                del left[number]
                running -= 1


class Clock(Protocol):
    """What tells the time and lets it pass, as the module ``time`` does."""

    def monotonic(self) -> float:
        """The time in seconds."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""
        ...


def serve_in_batches(
    run: Callable[[list[tuple[int, Arrival]]], None],
    most: int,
    arrivals: Sequence[Arrival],
    clock: Clock = time,
) -> None:
    """Serve the requests in batches of at most ``most``, none of which begins before the last one has ended."""
    start = clock.monotonic()
    waiting = list(enumerate(arrivals))
    while waiting:
        now = clock.monotonic() - start
        batch = [each for each in waiting[:most] if each[1].at_s <= now]
        if not batch:
            clock.sleep(max(0.0, waiting[0][1].at_s - now))
            continue
        del waiting[: len(batch)]
        run(batch)


def convert(command: Sequence[str]) -> None:
    """Run a peer's own converter of models. Raises MissingError where it is not installed, or refuses the model."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise MissingError(f"{command[0]}, which converts the model, is not installed") from error
    except subprocess.CalledProcessError as error:
        raise MissingError(f"{command[0]} cannot convert the model: {error.stderr.strip()[-300:]}") from error
