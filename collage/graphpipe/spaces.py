"""The sets of plans that the searches go through, as the arrays of the compiled dynamic programs.

``TreeSpace`` is Algorithm 2's: a stage is units one after another of a series, or children side by side of a parallel.
``SetSpace`` has a stage between any two nested sets of a family of sets that are closed under predecessors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import Atom, BlockGraph, Series
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
        return self.sets[int(stage["row"])]


def tree_space(costs: Costs, root: Series, *, chain: bool = False, mixed: bool = False) -> TreeSpace:
    """The space of a tree. Equal children of a parallel are neighbours, or with ``mixed`` as far apart as can be."""
    builder = _Builder(costs, mixed)
    builder.series(root)
    return TreeSpace(builder.problem(), builder.sets, chain)


def chain_space(costs: Costs) -> TreeSpace:
    """The space of chains whose stages are intervals of the blocks in their order."""
    return tree_space(costs, Series(tuple(Atom((at,)) for at in range(len(costs.graph.blocks)))), chain=True)


@dataclass(eq=False)
class _Builder:
    """Arrays of a tree (see search/pipeline.h). It numbers the parts, the root last, and finds those of equal costs."""

    costs: Costs
    mixed: bool
    sets: list[frozenset[int]] = field(default_factory=list)
    rows: dict[frozenset[int], int] = field(default_factory=dict)
    row: list[int] = field(default_factory=list)
    units: list[list[int]] = field(default_factory=list)
    s_rows: list[int] = field(default_factory=list)
    s_same: list[int] = field(default_factory=list)
    variants: list[list[list[tuple[int, int, int]]]] = field(default_factory=list)
    child: list[int] = field(default_factory=list)
    child_end: list[int] = field(default_factory=list)
    p_runs: list[int] = field(default_factory=list)
    p_same: list[int] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)

    def series(self, series: Series) -> int:
        """Number a series, after all that is in it."""
        count = len(series.units)
        units: list[int] = []
        variants: list[list[tuple[int, int, int]]] = []
        seen: list[bytes] = []
        for at, unit in enumerate(series.units):
            if isinstance(unit, Atom):
                units.append(-1)
                variants.append([])
                continue
            children = self.in_order(unit.children)
            units.append(self.parallel(children))
            variants.append([*self.beside(series, at, children, seen)])
        start = len(self.row)
        for first in range(count):
            blocks: frozenset[int] = frozenset()
            self.row += [-1] * first
            for unit in series.units[first:]:
                blocks |= frozenset(unit.blocks)
                self.row.append(self.numbered(blocks, seen))
        parts = tuple(at if at < 0 else self.p_same[at] for at in units)
        others = tuple((self.p_same[place], after) for each in variants for place, after, _ in each)
        number = len(self.units)
        self.units.append(units)
        self.s_rows.append(start)
        self.variants.append(variants)
        self.s_same.append(self.known.setdefault((count, parts, others, b"".join(seen)), number))
        return number

    def in_order(self, children: Sequence[Series]) -> list[tuple[Series, int]]:
        """Children with their numbers. The empty one is the first; equal ones are neighbours, unless ``mixed``."""
        found = [(each, self.series(each)) for each in children]
        seen: dict[int, int] = {}
        keys = {}
        for child, number in found:
            same = self.s_same[number]
            seen[same] = seen.get(same, 0) + 1
            keys[number] = (bool(child.units), *((seen[same], same) if self.mixed else (same, seen[same])))
        return sorted(found, key=lambda pair: keys[pair[1]])

    def parallel(self, children: Sequence[tuple[Series, int]]) -> int:
        """The first place of these children, each the first units of the series of its number."""
        start, count = len(self.child), len(children)
        self.child += [*(number for _, number in children), -1]
        self.child_end += [*(len(child.units) for child, _ in children), 0]
        self.p_runs += [-1] * (count + 1)
        self.p_same += [-1] * (count + 1)
        self.p_same[-1] = self.known.setdefault("end", start + count)
        for at in reversed(range(count)):
            seen: list[bytes] = []
            self.p_runs[start + at] = len(self.row)
            self.row += [-1, -1]  # a child alone is its series
            blocks = frozenset(children[at][0].blocks)
            for child, _ in children[at + 1 :]:
                blocks |= frozenset(child.blocks)
                self.row.append(self.numbered(blocks, seen) if children[at][0].units else -1)
            key = (
                self.s_same[children[at][1]],
                len(children[at][0].units),
                self.p_same[start + at + 1],
                b"".join(seen),
            )
            self.p_same[start + at] = self.known.setdefault(key, start + at)
        return start

    def beside(
        self, series: Series, at: int, children: Sequence[tuple[Series, int]], seen: list[bytes]
    ) -> Iterator[tuple[int, int, int]]:
        """Variants of a unit: the first place of what is left, whether the other part is in the stage after, its rows.

        The chapter's parallel parts share their source and sink: a stage has the sink and the end of one part, or the
        source and the beginning of one.
        """
        count = len(series.units)
        of_class = {self.s_same[number]: (child, number) for child, number in children if child.units}
        for child, number in of_class.values():
            others = [each for each in children if each[1] != number]
            empty = sum(not each.units for each, _ in others)
            for cut in range(len(child.units) + 1):
                for after in (True, False):
                    kept, taken = child.units[:cut], child.units[cut:]
                    if not after:
                        kept, taken = taken, kept
                    if not taken or (after and at + 1 == count) or (not after and at == 0):
                        continue
                    left = Series(kept)
                    beside = [(left, number if after else self.series(left))]
                    ordered = [*others[:empty], *beside, *others[empty:]] if kept else [*beside, *others]
                    place = self.parallel(ordered)
                    start = len(self.row)
                    self.row += [-1] * (count + 1)
                    blocks = frozenset(block for unit in taken for block in unit.blocks)
                    for end in range(at + 1, count) if after else range(at - 1, -1, -1):
                        blocks |= frozenset(series.units[end].blocks)
                        self.row[start + end + after] = self.numbered(blocks, seen)
                    yield place, after, start

    def numbered(self, blocks: frozenset[int], seen: list[bytes]) -> int:
        """The row of sums of a stage, which are added to those seen."""
        at = self.rows.setdefault(blocks, len(self.sets))
        if at == len(self.sets):
            self.sets.append(blocks)
        seen.append(self.costs.sums(blocks).tobytes())
        return at

    def problem(self) -> PipeTree:
        """The arrays of all that was numbered."""
        variants = [each for series in self.variants for each in series]
        flat = [each for of_unit in variants for each in of_unit] or [(0, 0, 0)]
        places, afters, rows = zip(*flat, strict=True)
        lists: dict[str, Sequence[int]] = {
            "s_first": [0, *accumulate(map(len, self.units))],
            "unit": [at for units in self.units for at in units],
            "s_rows": self.s_rows,
            "s_same": self.s_same,
            "v_first": [0, *accumulate(map(len, variants))],
            "v_place": places,
            "v_after": afters,
            "v_rows": rows,
            "child": self.child or [-1],
            "child_end": self.child_end or [0],
            "p_runs": self.p_runs or [0],
            "p_same": self.p_same or [0],
            "row": self.row,
        }
        arrays = {name: np.array(each, np.int32) for name, each in lists.items()}
        return PipeTree(arrays, np.array([self.costs.sums(blocks) for blocks in self.sets]))


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
