"""A race: the kernels of one region run by turns in the same moment, so that a busy machine slows all of them alike.

In each round each one runs a short batch of calls, in an order that rotates. Those that are slower by far leave after
a few rounds; the rest run until the order is known, or the time is over. Ratios are taken round by round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from collage.graph.storage import BF16, FP16, INT8, TF32
from collage.measure.timing.calls import PRECISE, Clock, Enough, median_interval, noise, ratios_of

EXACT = ""
"""The precision of candidates that compute in the model's own dtypes."""
_MORE_EXACT = {INT8: (BF16,), BF16: (TF32, FP16), FP16: (TF32,)}
"""For a reduced precision, the other ones whose kernels have smaller errors."""

CLOSE = 1.5
"""A kernel that takes so many times as long as its fastest rival may still win in the network, by its formats."""
_LEAVE = ((3, CLOSE), (6, 1.2))
"""Rounds, and the factor on the time of the fastest rival beyond which a kernel leaves after them."""
_LONG_NS, _LONG_LEAVES = 1e6, (2, 2.5)
"""If calls take so long the first one is a turn, and those that are slower by this factor leave after two of them."""
_BATCH_NS, _LARGEST_BATCH = 20_000, 1 << 10
_SURE = 8
_LEAST_SHARE = 0.2
"""The share of its time that a race takes at least if there is no incumbent, whose ratios are known sooner."""
RUNS = 6
"""A kernel may run so many times, if that is more than its share of the time."""


def rivals_of(precision: str) -> frozenset[str]:
    """The precisions of the candidates that one of this precision races against: the same, and more exact ones."""
    return frozenset((EXACT, precision, *_MORE_EXACT.get(precision, ())))


@dataclass(frozen=True)
class Lane:
    """A kernel in a race. ``run`` calls it so many times, and gives the nanoseconds of one call.

    ``charge_ns`` is the cost of a call in the network on top of the kernel's own time. Lanes of the ``incumbent`` never
    leave, and count as one kernel. A turn begins with a pause of ``settle_s`` seconds, which no budget counts.
    """

    run: Callable[[int], float]
    precision: str = EXACT
    charge_ns: float = 0.0
    incumbent: bool = False
    settle_s: float = 0.0


@dataclass(frozen=True)
class LaneTime:
    """What a race shows of a candidate; times are in microseconds of the kernel alone.

    ``least_us`` is the lower end of its time's 95 % confidence interval. ``relative`` is its time as a multiple of its
    fastest rival's, both with what a call costs in the network; it is below 1 if the candidate beats the incumbent and
    all others that it competes with.
    """

    us: float
    noise_us: float
    least_us: float
    min_us: float
    repeats: int
    relative: float


def race(
    lanes: Sequence[Lane],
    budget_s: float,
    *,
    enough: Enough = PRECISE,
    rounds: int = 1 << 20,
    clock: Clock = time.perf_counter_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> list[list[float]]:
    """The nanoseconds of each lane's turns, round by round. There is at least one round.

    It takes at most ``budget_s`` seconds for each candidate on average, or six runs if these take longer, and at most
    so many ``rounds``.
    """
    start = clock()
    first = [lane.run(1) for lane in lanes]
    long = max(first) >= _LONG_NS
    if not long:
        first = [min(ns, lane.run(1)) for ns, lane in zip(first, lanes, strict=True)]
    sizes = [min(_LARGEST_BATCH, math.ceil(_BATCH_NS / max(ns, 1.0))) for ns in first]
    turns: list[list[float]] = [[] for _ in lanes]
    if long:
        turns = [[ns if ns >= _LONG_NS else lane.run(size)] for ns, size, lane in zip(first, sizes, lanes, strict=True)]
    asked = [at for at, lane in enumerate(lanes) if not lane.incumbent]
    budget_ns = sum(max(budget_s * 1e9, RUNS * first[at]) for at in asked)
    running, done, check = list(range(len(lanes))), int(long), _SURE
    while done < rounds:
        if done:
            left = _left(lanes, turns, running, done)
            if done >= check:
                left = [at for at in left if lanes[at].incumbent or not _is_slower(lanes, turns, at, left)]
                lasted = clock() - start >= _LEAST_SHARE * budget_ns  # else one burst may have them all
                if (lasted or len(asked) < len(lanes)) and _are_known(lanes, turns, left, enough):
                    break
                check = done + max(1, done // 4)
            if all(lanes[at].incumbent for at in left):
                break
            cost_ns = sum(sizes[at] * turns[at][-1] for at in left)
            if clock() - start + cost_ns > budget_ns:
                break
            running = left
        shift = done % len(running)
        for at in running[shift:] + running[:shift]:
            if lanes[at].settle_s:
                sleep(lanes[at].settle_s)
                start += round(lanes[at].settle_s * 1e9)
            turns[at].append(lanes[at].run(sizes[at]))
        done += 1
    return turns


def results(lanes: Sequence[Lane], turns: Sequence[Sequence[float]], known_us: float = 0.0) -> list[LaneTime]:
    """What the turns show of each lane; the incumbent takes ``known_us`` microseconds alone.

    Without an incumbent the fastest one's median is its time. All others' times are the medians of their ratios,
    round by round, to the incumbent or the fastest one, times its time. In a few rounds, bursts of others may make the
    medians meaningless; then the ratios of the least times count.
    """
    incumbent = [at for at, lane in enumerate(lanes) if lane.incumbent]
    own = _Ratios(lanes, turns, charged=False)
    charged = _Ratios(lanes, turns, charged=True)
    fastest = None if incumbent else own.fastest(range(len(lanes)))
    anchor = own.incumbent if incumbent else list(turns[fastest or 0])
    anchor_us = known_us if incumbent and known_us > 0 else median(anchor) / 1e3
    found = []
    for at in range(len(lanes)):
        ratios = ratios_of(turns[at], anchor)
        low, ratio, high = median_interval(ratios)
        if len(ratios) < _SURE:
            ratio = _without_bursts(ratio, turns[at], anchor)
            low = min(low, ratio)
        width = noise(turns[at]) / 1e3 if at == fastest else (high - low) / 2 * anchor_us
        least_us = min(ratio * anchor_us, min(turns[at]) / 1e3)
        found.append(
            LaneTime(
                *(ratio * anchor_us, width, low * anchor_us, least_us),
                *(len(ratios), charged.relative(at)),
            )
        )
    return found


def _without_bursts(ratio: float, mine: Sequence[float], anchor: Sequence[float]) -> float:
    """The ratio of the least times if the median of a few rounds is far from it: bursts made some of these slow."""
    least = min(mine) / min(anchor[: len(mine)])
    return ratio if least / CLOSE <= ratio <= CLOSE * least else least


def time_alone(run: Callable[[int], float], budget_s: float) -> LaneTime:
    """The time of a kernel that races against nobody; see ``race``."""
    lanes = [Lane(run)]
    return results(lanes, race(lanes, budget_s))[0]


class _Ratios:
    """Ratios of lanes' times, round by round."""

    def __init__(self, lanes: Sequence[Lane], turns: Sequence[Sequence[float]], *, charged: bool) -> None:
        self.lanes = lanes
        self.levels = [
            [ns + (lane.charge_ns if charged else 0.0) for ns in found]
            for lane, found in zip(lanes, turns, strict=True)
        ]
        parts = [level for lane, level in zip(lanes, self.levels, strict=True) if lane.incumbent]
        self.incumbent = [sum(each) for each in zip(*parts, strict=True)]
        self.precisions = {lane.precision for lane in lanes if lane.incumbent}

    def rivals(self, at: int, among: Sequence[int]) -> list[Sequence[float]]:
        """The levels of the lanes that this one races against, the incumbent's last."""
        allowed = rivals_of(self.lanes[at].precision)
        found: list[Sequence[float]] = [
            self.levels[other]
            for other in among
            if other != at and not self.lanes[other].incumbent and self.lanes[other].precision in allowed
        ]
        if self.incumbent and self.precisions <= allowed:
            found.append(self.incumbent)
        return found

    def fastest(self, among: Sequence[int]) -> int:
        """The lane with the least time, of those with the most rounds."""
        most = max(len(self.levels[at]) for at in among)
        whole = [at for at in among if len(self.levels[at]) == most]
        means = [fmean(math.log(self.levels[at][turn]) for at in whole) for turn in range(most)]
        return min(
            whole,
            key=lambda at: median(math.log(ns) - mean for ns, mean in zip(self.levels[at], means, strict=True)),
        )

    def relative(self, at: int) -> float:
        """The lane's time as a multiple of its fastest rival's; 1 for one that has no rival."""
        mine = self.levels[at]
        return max(
            (median(ratios_of(mine, theirs)) for theirs in self.rivals(at, range(len(self.lanes)))),
            default=1.0,
        )


def _left(lanes: Sequence[Lane], turns: Sequence[Sequence[float]], running: list[int], rounds: int) -> list[int]:
    """The lanes that stay after so many rounds."""
    long = max(each[0] for each in turns) >= _LONG_NS
    factor = dict((*_LEAVE, _LONG_LEAVES) if long else _LEAVE).get(rounds, math.inf)
    if math.isinf(factor):
        return running
    found = _Ratios(lanes, turns, charged=True)

    def stays(at: int) -> bool:
        least = min(found.levels[at])
        return all(least <= factor * min(theirs) for theirs in found.rivals(at, running))

    return [at for at in running if lanes[at].incumbent or stays(at)]


def _is_slower(lanes: Sequence[Lane], turns: Sequence[Sequence[float]], at: int, running: Sequence[int]) -> bool:
    """Whether some rival is faster beyond doubt."""
    found = _Ratios(lanes, turns, charged=True)
    return any(median_interval(ratios_of(found.levels[at], theirs))[0] > 1.0 for theirs in found.rivals(at, running))


def _are_known(lanes: Sequence[Lane], turns: Sequence[Sequence[float]], running: Sequence[int], enough: Enough) -> bool:
    """Whether the times of those that are left are known well enough."""
    found = _Ratios(lanes, turns, charged=False)
    asked = [at for at in running if not lanes[at].incumbent]
    if not asked:
        return True
    fastest = found.fastest(asked)
    anchor = found.incumbent or found.levels[fastest]
    if not found.incumbent and noise(anchor) > enough.noise_ns(median(anchor)):
        return False
    level = median(anchor)
    for at in asked:
        low, ratio, high = median_interval(ratios_of(found.levels[at], anchor))
        if (high - low) / 2 * level > enough.noise_ns(ratio * level):
            return False
    return True
