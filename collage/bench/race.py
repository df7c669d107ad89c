"""A race between contenders, each in a process of its own, which run in short bursts one after another.

Spinning threads of a contender that has just run do not slow the next one. A machine that gets slower meanwhile slows
all of them alike.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from collage.bench.worker import Burst, BurstSamples, Inputs, Loaded, Ran, Setup
from collage.check.compare import difference
from collage.core.background import standing_still
from collage.core.child_process import ChildError, ChildProcess
from collage.core.machine_lock import machine_lock
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.measure.timing.calls import median_interval, summary
from collage.measure.timing.effort import FULL

_BURST_S = 5 * FULL.turn_s
"""The seconds of a burst, few enough that a change in the machine's load affects all contenders alike."""
FASTER, SLOWER, AS_FAST, UNSURE = "faster", "slower", "as fast", "unsure"
SURE_ROUNDS = 6
"""Fewer rounds have no interval of 95 %."""
_NARROW = 0.05
"""An interval that goes no farther from 1 shows that two are alike. A wider one shows nothing."""
Errors = Callable[[Callable[[Sequence[Array]], Sequence[Array]]], Sequence[float]]
"""Tells the errors of something that runs on inputs in the model's order and gives its outputs in order."""


@dataclass(frozen=True)
class Race:
    """Timings of the contenders that ran, and the reasons of those that failed, both by name.

    A timing holds microseconds, the error of the outputs, and the seconds until the first run had ended (``load_s``).
    ``bursts`` holds the median microseconds in each round, and ``errors`` what the function of that name has told.
    """

    timings: Mapping[str, Mapping[str, Any]]
    bursts: Mapping[str, Sequence[float]]
    failed: Mapping[str, str]
    errors: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def ratio(self, name: str, to: str) -> float:
        """The time of ``name`` divided by that of ``to``: the median of the ratios of all rounds."""
        return median(self._ratios(name, to))

    def interval(self, name: str, to: str) -> tuple[float, float]:
        """The 95 % confidence interval of that ratio. With fewer than ``SURE_ROUNDS`` rounds it spans all of them."""
        low, _, high = median_interval(self._ratios(name, to))
        return low, high

    def _ratios(self, name: str, to: str) -> list[float]:
        return [own / other for own, other in zip(self.bursts[name], self.bursts[to], strict=True)]


def verdict(low: float, high: float) -> str:
    """How fast something is that is so many times as fast as another thing, by the interval of that ratio."""
    if low > 1.0:
        return FASTER
    if high < 1.0:
        return SLOWER
    return AS_FAST if low >= 1 - _NARROW and high <= 1 + _NARROW else UNSURE


def race(
    setups: Mapping[str, Setup],
    *,
    expected: Sequence[Array | None] | None = None,
    errors: Errors | None = None,
    rounds: int = 30,
    processes: int = 1,
    required: Collection[str] = (),
    progress: Callable[[Progress], None],
) -> Race:
    """Run the contenders ``setups``, by name, against each other; compare their outputs with ``expected``.

    ``errors`` is asked for those of each contender on inputs of its own, before the first round. Each contender has so
    many ``processes``, one after another, which share the rounds: two processes that run the same differ by 1 to 4 %.
    Raises CollageError when a contender in ``required`` cannot run the model, and when any contender fails in a later
    round.
    """
    largest: dict[str, tuple[float, float] | None] = {}
    told: dict[str, Sequence[float]] = {}
    loads_s: dict[str, float] = {}
    failed: dict[str, str] = {}
    bursts: dict[str, list[Sequence[int]]] = {}
    ends = [rounds * (number + 1) // processes for number in range(processes)]
    for begin, end in pairwise([0, *ends]):
        contenders: dict[str, _Contender] = {}
        with ExitStack() as stack:
            wanted = {name: setup for name, setup in setups.items() if name not in failed}
            for position, (name, setup) in enumerate(wanted.items()):
                progress(Progress("start", position, len(wanted), name))
                contender = _Contender(setup)
                stack.callback(contender.kill)
                try:
                    loaded = contender.loaded()
                    if name not in told:
                        told[name] = () if errors is None else tuple(errors(contender.outputs))
                except ChildError as failure:
                    if name in required or name in bursts:
                        raise CollageError(f"{name} cannot run {Path(setup.path).name}: {failure}") from failure
                    failed[name] = str(failure)
                    continue
                largest.setdefault(name, None if expected is None else _largest_error(loaded.outputs, expected))
                loads_s.setdefault(name, loaded.load_s)
                contenders[name] = contender
                bursts.setdefault(name, [])
            for name, found in _rounds(contenders, range(begin, end), rounds, progress).items():
                bursts[name] += found
    return Race(
        {
            name: {
                **_timing([one for burst in bursts[name] for one in burst], largest[name]),
                "load_s": round(loads_s[name], 3),
            }
            for name in bursts
        },
        {name: [median(burst) / 1e3 for burst in found] for name, found in bursts.items()},
        failed,
        told,
    )


def outputs_of(setup: Setup) -> Sequence[Array]:
    """The outputs of a contender that runs the model once. Raises ChildError."""
    contender = _Contender(setup)
    try:
        return contender.loaded().outputs
    finally:
        contender.kill()


def _largest_error(actual: Sequence[Array], expected: Sequence[Array | None]) -> tuple[float, float] | None:
    """The largest absolute and relative error of the outputs that are compared; None if there are none.

    A library that names no outputs has none.
    """
    if not actual:
        return None
    if len(actual) != len(expected):
        return math.inf, math.inf
    pairs = [difference(a, e) for a, e in zip(actual, expected, strict=True) if e is not None]
    return (max(p[0] for p in pairs), max(p[1] for p in pairs)) if pairs else None


def _rounds(
    contenders: Mapping[str, _Contender],
    numbers: range,
    rounds: int,
    show: Callable[[Progress], None],
) -> dict[str, list[Sequence[int]]]:
    """The nanoseconds of each contender's calls in the rounds of these ``numbers``; the order of them rotates."""
    names = list(contenders)
    bursts: dict[str, list[Sequence[int]]] = {name: [] for name in names}
    for number in numbers if names else ():
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            show(Progress("run", number, rounds, name))
            with machine_lock(), standing_still():
                time.sleep(FULL.settle_s)  # ONNX Runtime's threads spin for some milliseconds after a run
                try:
                    bursts[name].append(contenders[name].burst(_BURST_S))
                except ChildError as failure:
                    raise CollageError(f"{name} failed in round {number + 1}: {failure}") from failure
    show(Progress("run", numbers.stop, rounds))
    return bursts


def _timing(samples: Sequence[int], error: tuple[float, float] | None) -> dict[str, Any]:
    found = summary(samples)
    absolute, relative = (None, None) if error is None else error
    return {
        "median_us": round(found.median_us, 3),
        "noise_us": round(found.noise_us, 3),
        "min_us": round(found.min_us, 3),
        "p90_us": round(found.p90_us, 3),
        "samples": found.repeats,
        "max_abs_error": absolute,
        "max_relative_error": relative,
    }


class _Contender(ChildProcess):
    """The parent's end of a contender's process."""

    def __init__(self, setup: Setup) -> None:
        super().__init__("collage.bench.worker", subprocess.DEVNULL)
        self._setup = setup

    def loaded(self) -> Loaded:
        """Load the model, and run it once. Raises ChildError."""
        reply: Loaded = self.ask(self._setup, math.inf)
        return reply

    def outputs(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """The outputs on other inputs, in the model's order. Raises ChildError."""
        ran: Ran = self.ask(Inputs(dict(zip(self._setup.inputs, inputs, strict=True))), math.inf)
        return ran.outputs

    def burst(self, seconds: float) -> Sequence[int]:
        """Run a burst, and return the nanoseconds of its calls. Raises ChildError."""
        samples: BurstSamples = self.ask(Burst(seconds), math.inf)
        return samples.nanoseconds
