"""Calls of several kernels in turns, so that a machine that gets slower slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One turn of a kernel: a pause, untimed calls, and timed calls."""

    timed: int = 1
    untimed: int = 0
    pause_s: float = 0.0


def in_turns(
    runs: Mapping[str, Callable[[], object]], seconds: float, turn: Turn, *, rounds: int = 1
) -> dict[str, list[float]]:
    """The seconds of each kernel's timed calls. It ends after ``seconds``, and after at least ``rounds`` rounds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < end:
        for name, run in runs.items():
            time.sleep(turn.pause_s)
            for _ in range(turn.untimed):
                run()
            for _ in range(turn.timed):
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
        done += 1
    return times
