"""Comparison of whole networks, which run in rounds that are fair to all of them.

A machine that others use, too, is faster in one second and slower in the next by more than two placements differ. Both
placements feel that in the same round, so the ratio of their times in each round is steady if the times are not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias, TypeVar

from collage.measure.timing.calls import Clock, clock_overhead, median_interval, ratios_of, summary
from collage.measure_db.results import Timing

Turns: TypeAlias = "list[list[float]]"
"""Nanoseconds of the calls in each of a candidate's turns. It has one turn in each round."""

Name = TypeVar("Name")

Turn: TypeAlias = Callable[[], Sequence[float]]
"""Takes one turn: a few untimed calls, and then calls whose nanoseconds are returned."""

FEWEST = 3
"""A wide margin may decide after this many rounds."""
SURE = 8
"""Any margin beyond the noise may decide after this many rounds."""
_WIDE_MARGIN = 1.1
_SLOWER = 1.001
"""A candidate that was let go counts as slower than the best one by this factor at least."""
_ALIKE, _ALIKE_US = 0.005, 0.5
"""Candidates are alike if their noise is below this part of the shortest time, or below this many microseconds."""


@dataclass(frozen=True)
class Pace:
    """The most rounds of a comparison, the rounds that all candidates get, and the time limit in seconds."""

    rounds: int = 30
    least: int = FEWEST
    limit_s: float = 10.0


def race_by_turns(
    turns: Mapping[str, Turn], pace: Pace, clock: Callable[[], float] = time.monotonic
) -> dict[str, Timing]:
    """Timings of networks that run against each other: every round has a turn for each, in an order that rotates.

    A candidate is let go if it is slower than the best one by a wide margin after 3 rounds, or by any margin beyond the
    noise after 8. The comparison ends if one is left (after ``pace.least`` rounds), if all that are left are alike, or
    with the pace. See ``paired`` for the timings.
    """
    found: dict[str, Turns] = {name: [] for name in turns}
    running = list(turns)
    start = clock()
    for done in range(pace.rounds):
        if done >= FEWEST and clock() - start >= pace.limit_s:
            break
        if done >= FEWEST:
            known = paired({name: found[name] for name in running})
            margin = 1.0 if done >= SURE else _WIDE_MARGIN
            running = [name for name in running if may_be_best(known[name], known, margin)]
            alike = done >= SURE and _are_alike({name: known[name] for name in running})
            if done >= pace.least and (alike or (len(running) < 2 and len(turns) > 1)):
                break
        shift = done % len(running) if running else 0
        for name in running[shift:] + running[:shift]:
            found[name].append([*turns[name]()])
    return paired(found)


def take_turn(
    call: Callable[[], object], settle_s: float, turn_s: float, clock: Clock = time.perf_counter_ns
) -> list[float]:
    """Nanoseconds of the calls of a turn: a pause, ``turn_s`` seconds of untimed calls, and as many of timed ones.

    The idle threads of an engine spin for tens of milliseconds after a run, on the cores that the next one needs. After
    the untimed calls caches are warm, and threads that were woken have found cores of their own.
    """
    if settle_s:
        time.sleep(settle_s)
    overhead = clock_overhead(clock)
    for _ in range(2):
        taken: list[float] = []
        start = clock()
        while not taken or clock() - start < turn_s * 1e9:
            begin = clock()
            call()
            taken.append(max(1, clock() - begin - overhead))
    return taken


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
        math.exp(sum(math.log(levels[name][turn]) for name in to_the_end) / len(to_the_end)) for turn in range(most)
    ]
    best = min(to_the_end, key=lambda name: median(ratios_of(levels[name], means)))
    own = {name: summary([each for turn in found for each in turn]) for name, found in turns.items()}
    timings = {}
    for name, level in levels.items():
        timings[name] = own[name]
        if name != best:
            low, ratio, _ = median_interval(ratios_of(level, levels[best]))
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


def at_worst(timings: Mapping[Name, Timing], others: Mapping[Name, Timing]) -> Mapping[Name, Timing]:
    """The timings of two races as those of one: a time is the larger multiple of the best one's, in microseconds."""
    both = {name: (timings[name], others[name]) for name in timings if name in others}
    least, of_others = (min((pair[at].median_us for pair in both.values()), default=0.0) for at in range(2))
    return {
        name: replace(one, median_us=max(one.median_us, least * other.median_us / of_others))
        for name, (one, other) in both.items()
    } or timings


def _are_alike(timings: Mapping[str, Timing]) -> bool:
    """Whether the times of all that may be the best are known well enough."""
    shortest = min(each.median_us for each in timings.values())
    return all(
        each.noise_us <= max(_ALIKE_US, _ALIKE * shortest) for each in timings.values() if each.median_us > shortest
    )
