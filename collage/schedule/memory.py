"""The memory plan: one arena, in which values whose lifetimes do not overlap share bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""The alignment of values in bytes; TVM's kernels fault on buffers that are not aligned to a cache line."""

DEVICE_ALIGNMENT = 256
"""The alignment on other devices, as TensorRT and the allocators of GPUs have it."""


@dataclass(frozen=True)
class Lifetime:
    """A value's size in bytes, and the first and last launch step (both included) at which it must exist."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """The offset in bytes of each value in the arena, the arena's size, and a lower bound on the size of any plan.

    ``lower_bound`` is the largest number of bytes alive at one step.
    """

    offsets: Mapping[int, int]
    nbytes: int
    lower_bound: int


def lifetimes(
    steps: Sequence[tuple[Sequence[int], Sequence[int]]],
    nbytes: Mapping[int, int],
    inputs: Collection[int],
    outputs: Collection[int],
) -> dict[int, Lifetime]:
    """The lifetimes of the values of a launch list.

    ``steps`` has (values read, values written) of each launch, in order. Inputs exist from the start, and outputs to
    the end. A value that is never read exists during the step that writes it, and one that several launches write
    exists from the first of them on.
    """
    first: dict[int, int] = dict.fromkeys(inputs, 0)
    last: dict[int, int] = dict.fromkeys(inputs, 0)
    for step, (reads, writes) in enumerate(steps):
        for value in (*writes, *reads):
            first.setdefault(value, step)
            last[value] = step
    for value in outputs:
        if value in first:
            last[value] = len(steps)
    return {value: Lifetime(nbytes[value], first[value], last[value]) for value in first}


def plan_memory(
    lives: Mapping[int, Lifetime],
    meet: Callable[[int, int], bool] | None = None,
    alignment: int = ALIGNMENT,
) -> MemoryPlan:
    """Choose offsets for all values: the largest first, each at the lowest offset that is free during its lifetime.

    Offsets are multiples of ``alignment`` bytes. ``meet`` tells whether two values may exist at the same time; by
    default they may when their lifetimes overlap. The report compares the size of the arena with the lower bound.
    """

    def overlap(a: int, b: int) -> bool:
        return lives[a].first <= lives[b].last and lives[b].first <= lives[a].last

    together = meet or overlap
    placed: list[tuple[int, int, int]] = []
    offsets: dict[int, int] = {}
    total = 0
    for value, life in sorted(lives.items(), key=lambda item: (-item[1].nbytes, item[1].first, item[0])):
        size = _rounded(life.nbytes, alignment)
        offset = 0
        for begin, end, other in placed:  # ascending by begin
            if together(value, other):
                if offset + size <= begin:
                    break
                offset = max(offset, end)
        offsets[value] = offset
        placed.append((offset, offset + size, value))
        placed.sort(key=lambda each: each[:2])
        total = max(total, offset + size)
    return MemoryPlan(offsets, total, _lower_bound(lives, alignment))


def _rounded(nbytes: int, alignment: int) -> int:
    return max(alignment, -(-nbytes // alignment) * alignment)


def _lower_bound(lives: Mapping[int, Lifetime], alignment: int) -> int:
    change: dict[int, int] = {}
    for life in lives.values():
        change[life.first] = change.get(life.first, 0) + _rounded(life.nbytes, alignment)
        change[life.last + 1] = change.get(life.last + 1, 0) - _rounded(life.nbytes, alignment)
    alive = largest = 0
    for step in sorted(change):
        alive += change[step]
        largest = max(largest, alive)
    return largest
