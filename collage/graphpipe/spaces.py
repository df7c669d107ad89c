"""The sets of plans that the searches go through, as the arrays of the compiled dynamic programs.

``TreeSpace`` is Algorithm 2's: a stage is units one after another of a series, or children side by side of a parallel.
``SetSpace`` has a stage between any two nested sets of a family of sets that are closed under predecessors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import Atom, BlockGraph, Parallel, Series
from collage.native.pipeline_walk import MOST_BLOCKS, PipeIdeals, PipeTree


class Space(Protocol):
    """Plans to search: the problem for the compiled search, and how to read its answer."""

    @property
    def chain(self) -> bool:
        """Whether stages follow each other without regard to the edges."""

    @property
    def problem(self) -> PipeTree | PipeIdeals:
        """The arrays of the problem."""

    def blocks(self, stage: Any) -> frozenset[int]:
        """The blocks of a stage that was found, a row of STAGE."""


@dataclass(frozen=True, eq=False)
class TreeSpace:
    """Stages that respect a series-parallel tree; with ``chain``, a plain series of all blocks."""

    problem: PipeTree
    sets: Sequence[frozenset[int]]
    chain: bool = False

    def blocks(self, stage: Any) -> frozenset[int]:
        """The blocks of a stage that was found."""
        return self.sets[stage["row"]]


def tree_space(costs: Costs, root: Series, *, chain: bool = False, mixed: bool = False) -> TreeSpace:
    """The space of a tree. Equal children of a parallel are neighbours, or with ``mixed`` as far apart as can be."""
    builder = _Builder(costs, mixed)
    builder.series(root)
    return TreeSpace(builder.problem(), builder.sets, chain)


def is_mixable(root: Series) -> bool:
    """Whether ``mixed`` may make a difference: if a parallel has three children or more."""
    inner = [unit for unit in root.units if isinstance(unit, Parallel)]
    return any(len(each.children) > 2 or any(map(is_mixable, each.children)) for each in inner)


@dataclass(eq=False)
class _Builder:
    """Numbers the parts of a tree, the root last, and finds those with equal costs."""

    costs: Costs
    mixed: bool
    sets: list[frozenset[int]] = field(default_factory=list)
    rows: dict[frozenset[int], int] = field(default_factory=dict)
    row: list[int] = field(default_factory=list)
    s: list[tuple[list[int], int, int]] = field(default_factory=list)
    """For each series its units, the start of its rows, and the first one that is equal."""
    q: list[tuple[list[int], int, int]] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)

    def series(self, series: Series) -> int:
        units = [-1 if isinstance(unit, Atom) else self.parallel(unit) for unit in series.units]
        start, sums = self.runs([frozenset(unit.blocks) for unit in series.units])
        same = self.known.setdefault(("s", *(at if at < 0 else self.q[at][2] for at in units), sums), len(self.s))
        self.s.append((units, start, same))
        return len(self.s) - 1

    def parallel(self, parallel: Parallel) -> int:
        children = [(self.series(each), frozenset(each.blocks)) for each in parallel.children]
        seen: dict[int, int] = {}
        order = {}
        for at, blocks in children:
            same = self.s[at][2]
            seen[same] = seen.get(same, 0) + 1
            order[at] = (bool(blocks), *((seen[same], same) if self.mixed else (same, seen[same])))
        children.sort(key=lambda child: order[child[0]])  # the empty child is the first one
        start, sums = self.runs([blocks for _, blocks in children])
        numbers = [at for at, _ in children]
        same = self.known.setdefault(("q", *(self.s[at][2] for at in numbers), sums), len(self.q))
        self.q.append((numbers, start, same))
        return len(self.q) - 1

    def runs(self, parts: Sequence[frozenset[int]]) -> tuple[int, bytes]:
        """Rows for all runs of the parts; where they start, and their sums as a key."""
        start, count = len(self.row), len(parts)
        self.row += [-1] * count**2
        sums = []
        for first in range(count):
            blocks: frozenset[int] = frozenset()
            for last in range(first, count if parts[first] else first):
                blocks |= parts[last]
                at = self.rows.setdefault(blocks, len(self.sets))
                if at == len(self.sets):
                    self.sets.append(blocks)
                self.row[start + first * count + last] = at
                sums.append(self.costs.sums(blocks).tobytes())
        return start, b"".join(sums)

    def problem(self) -> PipeTree:
        sums = np.array([self.costs.sums(blocks) for blocks in self.sets])
        series, parallels = self.s, self.q or [([], 0, 0)]
        arrays = [
            array
            for group in (series, parallels)
            for array in (
                np.cumsum([0, *(len(each[0]) for each in group)], dtype=np.int32),
                np.array([at for each in group for at in each[0]] or [0], np.int32),
                np.array([each[1] for each in group], np.int32),
                np.array([each[2] for each in group], np.int32),
            )
        ]
        return PipeTree(*arrays, np.array(self.row, np.int32), sums)


@dataclass(frozen=True, eq=False)
class SetSpace:
    """Stages between nested sets of a family; in a ``chain`` they follow each other without regard to the edges."""

    problem: PipeIdeals
    masks: Sequence[int]
    chain: bool

    def blocks(self, stage: Any) -> frozenset[int]:
        """The blocks of a stage that was found."""
        mask = self.masks[stage["end"]] & ~self.masks[stage["begin"]]
        return frozenset(at for at in range(mask.bit_length()) if mask >> at & 1)


def set_space(costs: Costs, masks: Iterable[int], *, chain: bool) -> SetSpace:
    """The space of a family of sets, as masks of blocks, with the empty and the full one."""
    graph = costs.graph
    family = sorted(masks, key=lambda mask: (mask.bit_count(), mask))
    inside = np.array([[mask >> at & 1 for at in range(len(graph.blocks))] for mask in family], np.float64)
    words = [(mask & (1 << 64) - 1, mask >> 64) for mask in family]
    problem = PipeIdeals(
        np.array(words, np.uint64),
        np.ascontiguousarray(inside @ costs.rows),
        np.array([each.source for each in graph.edges], np.int32),
        np.array([each.target for each in graph.edges], np.int32),
        np.array([each.nbytes for each in graph.edges], np.float64),
        len(graph.blocks),
        chain,
    )
    return SetSpace(problem, family, chain)


def closed_sets(graph: BlockGraph, most: int) -> list[int] | None:
    """All sets of blocks that are closed under predecessors, as masks; None if there are more than ``most``."""
    if len(graph.blocks) > MOST_BLOCKS:
        return None
    before = [sum(1 << each for each in blocks) for blocks in graph.predecessors]
    found = {0}
    todo = [0]
    while todo:
        mask = todo.pop()
        for at, needed in enumerate(before):
            larger = mask | 1 << at
            if larger not in found and needed & ~mask == 0:
                if len(found) == most:
                    return None
                found.add(larger)
                todo.append(larger)
    return [*found]
