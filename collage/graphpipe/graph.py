"""The graph that is planned: blocks of a network with their costs, and its series-parallel decomposition (§3.5).

Blocks are in a topological order, and ids are positions. Times are tables by micro-batch: 1, 2, 4, ... samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from collage.core.new_file import new_file
from collage.errors import CollageError, UsageError
from collage.graph import dataflow
from collage.graph.dominators import post_dominators

Read = TypeVar("Read")
_FORMAT = "collage block graph 1"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a network that is never split.

    ``forward_s`` and ``backward_s`` are the seconds of a pass at micro-batches of 1, 2, 4, ... samples, ``update_s``
    those of an optimizer's step. ``activation_bytes`` are kept for the backward pass, for each sample.
    """

    name: str
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: float = 0.0
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor of ``nbytes`` a sample that the block ``target`` reads from the block ``source``."""

    source: int
    target: int
    nbytes: float


@dataclass(frozen=True)
class BlockGraph:
    """A network as a directed acyclic graph of blocks.

    ``state_factor`` is the bytes of weights, gradients and optimizer state over the bytes of the weights. Raises
    UsageError if blocks are not in a topological order, an edge is there twice, or the tables differ in length.
    """

    name: str
    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...]
    state_factor: float = 3.0

    def __post_init__(self) -> None:
        if not self.blocks:
            raise UsageError(f"{self.name}: a graph needs at least one block.")
        for block in self.blocks:
            if not len(block.forward_s) == len(block.backward_s) == len(self.blocks[0].forward_s) > 0:
                raise UsageError(f"{self.name}: {block.name} has times for other micro-batches than the first block.")
            numbers = (*block.forward_s, *block.backward_s, block.update_s, block.weight_bytes, block.activation_bytes)
            if not all(0 <= each < float("inf") for each in numbers):
                raise UsageError(f"{self.name}: {block.name} has a cost that is negative or not finite.")
        if not 0 < self.state_factor < float("inf") or not all(0 <= each.nbytes < float("inf") for each in self.edges):
            raise UsageError(f"{self.name}: the state factor or the bytes of an edge are negative or not finite.")
        for edge in self.edges:
            if not 0 <= edge.source < edge.target < len(self.blocks):
                wrong = f"the edge {edge.source} to {edge.target} does not go from one block to a later one"
                raise UsageError(f"{self.name}: {wrong}.")
        if len({(each.source, each.target) for each in self.edges}) < len(self.edges):
            raise UsageError(f"{self.name}: two edges join the same blocks; add their bytes.")

    @property
    def largest_micro_batch(self) -> int:
        """The largest micro-batch that the tables have times for, in samples."""
        return 1 << (len(self.blocks[0].forward_s) - 1)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the blocks."""
        return tuple(each.name for each in self.blocks)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each block, the blocks that read from it, ascending."""
        return tuple(tuple(sorted(e.target for e in self.edges if e.source == at)) for at in range(len(self.blocks)))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each block, the blocks that it reads from, ascending."""
        return tuple(tuple(sorted(e.source for e in self.edges if e.target == at)) for at in range(len(self.blocks)))

    def to_json(self) -> dict[str, Any]:
        """The graph as JSON."""
        return {
            "format": _FORMAT,
            "name": self.name,
            "state_factor": self.state_factor,
            "blocks": [
                {
                    "name": each.name,
                    "forward_s": list(each.forward_s),
                    "backward_s": list(each.backward_s),
                    "update_s": each.update_s,
                    "weight_bytes": each.weight_bytes,
                    "activation_bytes": each.activation_bytes,
                }
                for each in self.blocks
            ],
            "edges": [[each.source, each.target, each.nbytes] for each in self.edges],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> BlockGraph:
        """The graph of a JSON object. Raises UsageError."""
        if not isinstance(value, Mapping) or value.get("format") != _FORMAT:
            raise UsageError(f'this is no block graph: its "format" is not "{_FORMAT}".')
        try:
            blocks = tuple(
                Block(
                    str(each["name"]),
                    tuple(map(float, each["forward_s"])),
                    tuple(map(float, each["backward_s"])),
                    *(float(each.get(key, 0)) for key in ("update_s", "weight_bytes", "activation_bytes")),
                )
                for each in value["blocks"]
            )
            edges = tuple(Edge(int(source), int(target), float(size)) for source, target, size in value["edges"])
            return BlockGraph(str(value.get("name", "graph")), blocks, edges, float(value.get("state_factor", 3.0)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the block graph is malformed: {type(error).__name__}: {error}.") from error


def read_json(path: Path, made: Callable[[Any], Read] = lambda value: value) -> Read:
    """The value of a JSON file, or the object that ``made`` gives for it. Raises CollageError, which names the file."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise CollageError(f"{path} is no JSON file: {error}.") from error
    try:
        return made(found)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, which is whole or not there."""
    with new_file(path) as stream:
        stream.write((json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


@dataclass(frozen=True, slots=True)
class Atom:
    """Blocks that are always in the same stage: one, or a core that is not series-parallel."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Series:
    """Units one after another; none for an edge that skips the other children of its Parallel."""

    units: tuple[Unit, ...]

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """All blocks in it, ascending."""
        return tuple(sorted(block for unit in self.units for block in unit.blocks))


@dataclass(frozen=True)
class Parallel:
    """Series side by side, with the same atom before, and the same one after them. An atom is on each side of it."""

    children: tuple[Series, ...]

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """All blocks in it, ascending."""
        return tuple(sorted(block for child in self.children for block in child.blocks))


Unit: TypeAlias = "Atom | Parallel"


@dataclass(frozen=True)
class Decomposition:
    """A graph as a tree of series and parallel parts. ``cores`` are atoms of several blocks."""

    root: Series
    cores: tuple[tuple[int, ...], ...] = field(default=())


_Arcs: TypeAlias = "dict[tuple[int, int], list[tuple[Unit, ...]]]"


def decompose(graph: BlockGraph) -> Decomposition:
    """Reduce the graph to one edge by series and parallel reductions [TNS82], which gives the tree.

    A core that is not series-parallel becomes an atom: the blocks between a block and its nearest post-dominator, if
    that is dominated by the block. The smallest such core is taken first.
    """
    first, last = -1, len(graph.blocks)
    names: dict[int, tuple[int, ...]] = {at: (at,) for at in range(last)}
    arcs: _Arcs = {(each.source, each.target): [()] for each in graph.edges}
    for at in range(last):
        if not graph.predecessors[at]:
            arcs[first, at] = [()]
        if not graph.successors[at]:
            arcs[at, last] = [()]
    cores: list[tuple[int, ...]] = []
    while True:
        _reduce(arcs, names)
        if len(arcs) == 1:
            ((part,),) = arcs.values()
            return Decomposition(Series(part), tuple(cores))
        before, inner, after = _smallest_core(arcs)
        inside = [key for key in arcs if key[0] in inner or key[1] in inner]
        parts = [arcs.pop(key)[0] for key in inside]
        blocks = {block for part in parts for unit in part for block in unit.blocks}
        atom = min(inner)
        names[atom] = tuple(sorted(blocks | {block for at in inner for block in names[at]}))
        cores.append(names[atom])
        arcs[before, atom], arcs[atom, after] = [()], [()]


def _reduce(arcs: _Arcs, names: Mapping[int, tuple[int, ...]]) -> None:
    """Series and parallel reductions until none is left."""
    todo = [*names]
    while True:
        for key, parts in arcs.items():
            if len(parts) > 1:
                arcs[key] = [_side_by_side(parts)]
        befores: dict[int, list[int]] = {}
        afters: dict[int, list[int]] = {}
        for source, target in arcs:
            afters.setdefault(source, []).append(target)
            befores.setdefault(target, []).append(source)
        at = next((at for at in todo if len(befores.get(at, ())) == 1 == len(afters.get(at, ()))), None)
        if at is None:
            return
        (before,), (after,) = befores[at], afters[at]
        (head,), (tail,) = arcs.pop((before, at)), arcs.pop((at, after))
        arcs.setdefault((before, after), []).append((*head, Atom(names[at]), *tail))


def _side_by_side(parts: Iterable[tuple[Unit, ...]]) -> tuple[Unit, ...]:
    """The parts as one Parallel, without Parallels right inside it, and with at most one empty child, the first."""
    children: list[Series] = []
    for part in parts:
        if len(part) == 1 and isinstance(part[0], Parallel):
            children += part[0].children
        else:
            children.append(Series(part))
    full = sorted((each for each in children if each.units), key=lambda each: each.blocks)
    return (Parallel((*[Series(())] * (len(full) < len(children)), *full)),)


def _smallest_core(arcs: _Arcs) -> tuple[int, frozenset[int], int]:
    """A block, the blocks between it and its post-dominator, which it dominates, and that one; the fewest blocks."""
    afters: dict[int, list[int]] = {}
    befores: dict[int, list[int]] = {}
    for source, target in arcs:
        afters.setdefault(source, []).append(target)
        befores.setdefault(target, []).append(source)
    order = topological_order(befores, afters)
    down = nearest_dominators(order, befores)
    up = nearest_dominators([*reversed(order)], afters)
    cores = []
    for before, after in down.items():
        if after is not None and up[after] == before:
            inner = reached(before, after, afters) & reached(after, before, befores)
            if inner:
                cores.append((before, frozenset(inner), after))
    return min(cores, key=lambda core: (len(core[1]), min(core[1])))


def topological_order(befores: Mapping[int, Sequence[int]], afters: Mapping[int, Sequence[int]]) -> list[int]:
    waiting = {at: len(before) for at, before in befores.items()}
    order = [at for at in afters if at not in befores]
    for at in order:  # which grows
        for after in afters.get(at, ()):
            waiting[after] -= 1
            if not waiting[after]:
                order.append(after)
    return order


def nearest_dominators(order: Sequence[int], befores: Mapping[int, Sequence[int]]) -> dict[int, int | None]:
    """The immediate post-dominator of each, in a topological order; of dominators, with all turned around."""
    number = {at: position for position, at in enumerate(order)}
    kind = dataflow.TensorType((1,), "float32")
    graph = dataflow.Graph(
        tuple(
            dataflow.Node(number[at], "block", tuple(number[before] for before in befores.get(at, ())), (number[at],))
            for at in order
        ),
        tuple(dataflow.Value(position, kind, position) for position in range(len(order))),
        (),
        (),
    )
    found = post_dominators(graph)
    return {at: None if (to := found[number[at]]) is None else order[to] for at in order}


def reached(start: int, stop: int, steps: Mapping[int, Sequence[int]]) -> set[int]:
    """All that steps lead to from ``start``, without it, ``stop`` and what is beyond that."""
    found: set[int] = set()
    todo = [start]
    while todo:
        for each in steps.get(todo.pop(), ()):
            if each != stop and each not in found:
                found.add(each)
                todo.append(each)
    return found
