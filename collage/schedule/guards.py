"""Guards: which values are scanned for NaN, infinities and huge magnitudes, so that some kernels never get any.

A kernel that is right on finite numbers only may be fast (Winograd's algorithm, a relu in one instruction). It gets
only such numbers: the values that it reads are known to be bounded, or are scanned before. A scanned value is bounded
by ``magnitudes.LIMIT``, and the results of convolutions and sums by the sizes of their weights as well, so that a
network needs a scan about every ten layers. A value that becomes steps of 8 bits has a limit of its own: what is far
beyond all that samples have shown would be cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from collage.backends.base import VIEW
from collage.graph.dataflow import TensorType
from collage.graph.magnitudes import ROOM, SCANNED_INTEGERS, can_be_infinite, room, scanned
from collage.schedule.region import Region

Flow: TypeAlias = Callable[[Sequence[float]], tuple[float, Sequence[float]]]
"""A function from the bounds of a region's inputs to the largest bound inside of it and the bounds of its outputs."""

_NONE: Mapping[int, float] = {}

_Scan: TypeAlias = "tuple[int, int]"
"""The number of a region, and a value that is scanned before it."""


def guarded(
    regions: Sequence[Region],
    flows: Sequence[Flow],
    types: Mapping[int, TensorType],
    limits: Mapping[int, float] = _NONE,
    extraordinary: Collection[int] = (),
) -> list[Region]:
    """The regions, in launch order, with the values that are scanned before each.

    ``limits`` has values of which a region that is right on finite numbers only takes no larger ones than that.
    ``extraordinary`` are values that no such region reads, and that are not scanned: something would always be found.
    The fewest bytes are scanned where the network is a chain, or a chain of blocks that each need at most one scan
    inside. In other networks, too, every scan is needed.
    """
    if not any(region.finite_only for region in regions):
        return list(regions)
    found: dict[int, set[int]] = {}
    scans = _Guards(regions, flows, types, limits, extraordinary).cheapest()
    for number, value in (*scans, *_integers(regions, types)):
        found.setdefault(number, set()).add(value)
    return [
        replace(region, scans=tuple(sorted(found[number]))) if number in found else region
        for number, region in enumerate(regions)
    ]


def _integers(regions: Sequence[Region], types: Mapping[int, TensorType]) -> Iterator[_Scan]:
    """Scans of wide integers that such regions read, each before the first of them; they are few and small."""
    seen: set[int] = set()
    for number, region in enumerate(regions):
        for value in region.inputs if region.finite_only else ():
            if types[value].dtype in SCANNED_INTEGERS and value not in seen:
                seen.add(value)
                yield number, value


@dataclass(frozen=True)
class _Neck:
    """A point before region ``first`` where ``value`` is the only float that later regions read.

    ``reader`` is the first launch that reads it.
    """

    first: int
    value: int
    reader: int


@dataclass(frozen=True)
class _Way:
    """The scans from one neck (or the start) up to another (or the end), and the bytes that they read."""

    scans: tuple[_Scan, ...]
    nbytes: int


@dataclass(frozen=True)
class _Guards:
    regions: Sequence[Region]
    flows: Sequence[Flow]
    types: Mapping[int, TensorType]
    limits: Mapping[int, float]
    extraordinary: Collection[int]

    def cheapest(self) -> tuple[_Scan, ...]:
        """The scans with the fewest bytes: at some necks their values are scanned, and between them what has to be."""
        necks = self._necks()
        best: dict[int, _Way] = {}  # up to the neck, its own scan included
        end: _Way | None = None
        for number in range(-1, len(necks)):
            if number < 0:
                before, known, first = _Way((), 0), {}, 0
            elif number in best:
                neck = necks[number]
                before, known, first = best[number], {neck.value: self._scanned(neck.value)}, neck.first
            else:
                continue
            for position, way in self._onward(first, known, necks[number + 1 :]):
                whole = _Way((*before.scans, *way.scans), before.nbytes + way.nbytes)
                if position is None:
                    end = whole if end is None or whole.nbytes < end.nbytes else end
                elif whole.nbytes < best.get(number + 1 + position, _Way((), 1 << 62)).nbytes:
                    best[number + 1 + position] = whole
        assert end is not None
        return end.scans

    def _onward(
        self, first: int, known: Mapping[int, float], necks: Sequence[_Neck]
    ) -> list[tuple[int | None, _Way]]:
        """The ways from region ``first`` to each neck that can be reached, and to the end (None).

        Each value is scanned as late as possible.
        """
        bounds = dict(known)
        scans: list[_Scan] = []
        nbytes = 0
        found: list[tuple[int | None, _Way]] = []
        waiting = list(enumerate(necks))
        for number in range(first, len(self.regions)):
            at_neck = bool(waiting) and waiting[0][1].first == number
            if at_neck:
                position, neck = waiting.pop(0)
                if bounds.get(neck.value, math.inf) > self._scanned(neck.value):
                    size = self.types[neck.value].nbytes
                    found.append((position, _Way((*scans, (neck.reader, neck.value)), nbytes + size)))
            needed = self._needed(number, bounds)
            if needed and at_neck:
                return found  # every way on begins with a scan of the neck's value
            for value in needed:
                bounds[value] = self._scanned(value)
                scans.append((number, value))
                nbytes += self.types[value].nbytes
            region = self.regions[number]
            _, made = self.flows[number](self._taken(region, bounds))
            bounds.update(zip(region.outputs, made, strict=True))
        return [*found, (None, _Way(tuple(scans), nbytes))]

    def _needed(self, number: int, bounds: Mapping[int, float]) -> list[int]:
        """The values that have to be scanned right before that region."""
        region = self.regions[number]
        if not region.finite_only:
            return []
        floats = [v for v in dict.fromkeys(region.inputs) if can_be_infinite(self.types[v].dtype)]
        taken = {value: bounds.get(value, math.inf) for value in floats}
        if all(taken[v] <= self._accepted(v) for v in floats):
            inside, _ = self.flows[number](self._taken(region, bounds))
            if inside <= ROOM:
                return []
        return [value for value in floats if taken[value] > self._scanned(value)]

    def _taken(self, region: Region, bounds: Mapping[int, float]) -> list[float]:
        return [bounds.get(v, self._unknown(v)) for v in region.inputs]

    def _unknown(self, value: int) -> float:
        return math.inf if can_be_infinite(self.types[value].dtype) else self._scanned(value)

    def _scanned(self, value: int) -> float:
        return min(scanned(self.types[value].dtype), self.limits.get(value, math.inf))

    def _accepted(self, value: int) -> float:
        """The bound up to which the value needs no scan."""
        return self.limits.get(value, max(room(self.types[value].dtype), self._scanned(value)))

    def _necks(self) -> list[_Neck]:
        readers: dict[int, list[int]] = {}
        made: dict[int, int] = {}
        for number, region in enumerate(self.regions):
            for value in region.inputs:
                if can_be_infinite(self.types[value].dtype):
                    readers.setdefault(value, []).append(number)
            made.update(dict.fromkeys(region.outputs, number))
        necks = []
        for number in range(len(self.regions)):
            alive = [v for v, by in readers.items() if made.get(v, -1) < number <= by[-1]]
            if len(alive) == 1:
                (value,) = alive
                if value in self.extraordinary:
                    continue
                by = [n for n in readers[value] if n >= number and self.regions[n].backend != VIEW]
                if by:
                    necks.append(_Neck(number, value, by[0]))
        return necks
