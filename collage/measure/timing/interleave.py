"""Comparison of whole networks, which run in rounds that are fair to all of them.

A machine that others use, too, is faster in one second and slower in the next by more than two placements differ. Both
placements feel that in the same round, so the ratio of their times in each round is steady where the times are not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

from collage.kernel.kernel import Call
from collage.measure.timing.calls import (
    Clock,
    batch_ns,
    clock_overhead,
    median_interval,
    no_gc,
    summary,
    undisturbed,
)
from collage.measure_db.results import Timing

T = TypeVar("T")

Turns = list[list[float]]
"""Nanoseconds of the calls in each of a candidate's turns. It has one turn in each round."""

FEWEST = 3
"""A wide margin may decide after this many rounds."""
SURE = 8
"""Any margin beyond the noise may decide after this many rounds."""
_WIDE_MARGIN = 1.1
_SLOWER = 1.001
"""A candidate that was let go counts as slower than the best one by this factor at least."""
_TIE = 1.01
"""Candidates that are slower than the best one by less than this factor may tie with it."""
ALIKE, _ALIKE_US = 0.005, 0.5
"""Candidates are alike when their noise is below this part of the shortest time, or below this many microseconds.
Without the second limit a network of one operator was compared for 15 s, to tell 4.1 us from 4.2 us."""


@dataclass(frozen=True)
class Pace:
    """The most rounds of a comparison, its time limit, and the pause and the length of a turn; times are in seconds."""

    rounds: int = 50
    limit_s: float = 10.0
    settle_s: float = 0.0
    turn_s: float = 0.0


@dataclass(frozen=True)
class Decision:
    """When the order of candidates is decided before the last round; see ``take_turns``.

    Candidates are alike, too, when their noise is below ``alike_us`` microseconds. Where others have ``disturbed`` the
    machine, all rounds are taken, unless after 8 of them no candidate's own ``undisturbed`` calls are slower than
    another one's by more than ``alike_us``.
    """

    early: int = FEWEST
    least: int = SURE
    alike_us: float = 0.0
    disturbed: bool = False


def take_turns(
    candidates: Mapping[str, Call],
    pace: Pace,
    decision: Decision | None = None,
    *,
    after: Mapping[str, Call] | None = None,
    clock: Clock = time.perf_counter_ns,
) -> dict[str, Turns]:
    """Run whole networks against each other: every round has a turn for each candidate, in an order that rotates.

    A turn is a pause of ``settle_s`` seconds (ONNX Runtime's idle threads spin for tens of milliseconds after
    a run, on the cores the next candidate needs), then ``turn_s`` seconds of untimed calls and as many of
    timed ones, at least one of each: caches are warm then, and woken threads have found cores of their own
    (DCGAN in ONNX Runtime, 0.65 ms: 1.2 ms in the first calls after a pause). The comparison ends after ``rounds``, or
    after ``limit_s`` seconds with at least 3 rounds. With a ``decision`` a candidate is let go when it is known to be
    slower than the best one, by a wide margin after ``early`` rounds and by any margin after 8. Then the comparison
    also ends when one candidate is left, after ``least`` rounds or more, or when the times of those that are left are
    known to 0.5 %, 0.5 us or ``alike_us``. What a candidate has in ``after`` is called at the end of each of its turns,
    for ``turn_s`` seconds, without being timed.
    """
    turns: dict[str, Turns] = {name: [] for name in candidates}
    running = list(candidates)
    with no_gc():
        overhead = clock_overhead(clock)
        start = clock()
        for done in range(pace.rounds):
            if done >= FEWEST and clock() - start >= pace.limit_s * 1e9:
                break
            if decision is not None and decision.disturbed:
                if done >= SURE and _spread_us(apart(turns)) <= decision.alike_us:
                    break
            elif decision is not None and running and done >= decision.early:
                found = paired({name: turns[name] for name in running})
                margin = 1.0 if done >= SURE else _WIDE_MARGIN
                running = [name for name in running if may_be_best(found[name], found, margin)]
                left = {name: found[name] for name in running}
                alike = done >= SURE and _are_alike(left, decision.alike_us)
                if done >= decision.least and (alike or len(running) < 2):
                    break
            shift = done % len(running) if running else 0
            for name in running[shift:] + running[:shift]:
                timed = partial(batch_ns, [candidates[name]], clock, overhead)
                turns[name].append(take_turn(timed, pace.settle_s, pace.turn_s, clock))
                if after and name in after:
                    _repeat(after[name], pace.turn_s, clock)
    return turns


def apart(turns: Mapping[str, Turns]) -> dict[str, Timing]:
    """Timings of candidates from a run on a busy machine, in microseconds: each of its own ``undisturbed`` calls.

    Those with fewer turns than others were let go, because they were known to be slower; they stay so. Raises
    ValueError for a candidate without turns.
    """
    if not turns:
        return {}
    samples = {name: [each for turn in found for each in turn] for name, found in turns.items()}
    found = {name: replace(summary(undisturbed(each)), repeats=len(each)) for name, each in samples.items()}
    most = max(len(each) for each in turns.values())
    shortest = min(timing.median_us for name, timing in found.items() if len(turns[name]) == most)
    for name, timing in found.items():
        if len(turns[name]) < most:
            found[name] = replace(timing, median_us=max(timing.median_us, _SLOWER * shortest), noise_us=0.0)
    return found


def paired(turns: Mapping[str, Turns]) -> dict[str, Timing]:
    """Timings of candidates that had their turns in the same rounds, in microseconds.

    The best one's timing is its own. Another one's median is that multiple of the best one's median which is the median
    of the ratios of their turns, round by round. Its ``noise_us`` is how far below that the ratio's 95 % confidence
    interval reaches, so that ``median_us - noise_us`` says how close to the best one it may be (see ``may_be_best``).
    Candidates with fewer turns than others were let go, because they were known to be slower; they stay so, whichever
    is the best in the end. Raises ValueError for a candidate without turns.
    """
    if not turns:
        return {}
    levels = {name: [median(turn) for turn in found] for name, found in turns.items()}
    most = max(len(found) for found in levels.values())
    to_the_end = [name for name, found in levels.items() if len(found) == most]
    means = [
        math.exp(sum(math.log(levels[name][turn]) for name in to_the_end) / len(to_the_end))
        for turn in range(most)
    ]
    best = min(to_the_end, key=lambda name: median(_ratios(levels[name], means)))
    own = {name: summary([each for turn in found for each in turn]) for name, found in turns.items()}
    timings = {}
    for name, level in levels.items():
        timings[name] = own[name]
        if name != best:
            low, ratio, _ = median_interval(_ratios(level, levels[best]))
            if name not in to_the_end:
                low = max(low, _SLOWER)
                ratio = max(low, ratio)
            us = own[best].median_us
            timings[name] = replace(own[name], median_us=us * ratio, noise_us=us * (ratio - low))
    return timings


def may_be_best(timing: Timing, rivals: Mapping[str, Timing], margin: float = 1.0) -> bool:
    """Whether one of ``paired`` timings may be as short as the shortest of them, or ``margin`` times that."""
    shortest = min(each.median_us for each in rivals.values())
    return timing.median_us - timing.noise_us <= margin * shortest


def ties(timings: Mapping[str, Timing]) -> list[str]:
    """The names of ``paired`` timings that tie with the best one, whose name comes first.

    They are slower by less than 1 %, and not known to be slower. The noise alone would not do: with 5 % of it, an
    engine that lost by 2 % would tie.
    """
    by_time = sorted(timings, key=lambda name: timings[name].median_us)
    shortest = timings[by_time[0]].median_us
    return [
        name
        for name in by_time
        if timings[name].median_us <= _TIE * shortest and may_be_best(timings[name], timings)
    ]


def take_turn(
    run: Callable[[], T], settle_s: float, turn_s: float, clock: Clock = time.perf_counter_ns
) -> list[T]:
    """The results of the runs of a turn, without the runs at its beginning; see ``take_turns``."""
    if settle_s:
        time.sleep(settle_s)
    _repeat(run, turn_s, clock)
    return _repeat(run, turn_s, clock)


def _repeat(run: Callable[[], T], seconds: float, clock: Clock) -> list[T]:
    found: list[T] = []
    start = clock()
    while not found or clock() - start < seconds * 1e9:
        found.append(run())
    return found


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratios of two candidates' times in the rounds that both had."""
    return [mine / their for mine, their in zip(ours, theirs, strict=False)]


def _spread_us(timings: Mapping[str, Timing]) -> float:
    """How much longer the slowest one takes than the fastest."""
    times = [each.median_us for each in timings.values()]
    return max(times, default=0.0) - min(times, default=0.0)


def _are_alike(timings: Mapping[str, Timing], alike_us: float) -> bool:
    """Whether the times of all that may be the best are known well enough."""
    shortest = min(each.median_us for each in timings.values())
    return all(
        each.noise_us <= max(_ALIKE_US, alike_us, ALIKE * shortest)
        for each in timings.values()
        if each.median_us > shortest
    )
