"""Repeated blocks of a network, which a picture shows folded: the layers of a transformer, the cells of a CNN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from collage.report.network import INPUT, OUTPUT, Box, Network
from collage.report.report import NodeReport

MANY = 40
"""If a network has more boxes, blocks are folded at first; if there are still more, rows of blocks are, too."""
_LEAST_SIZE = 2
_LONGEST_PERIOD = 64
_LEAST_IN_ROW = 3


@dataclass(frozen=True)
class Block:
    """Boxes from ``first`` up to ``end``, one after another in the network's order, that are folded together.

    So the network has no circle whichever blocks are folded. ``parent`` is the position of the row of blocks that this
    one is in, and None for a row and for a block in no row.
    """

    label: str
    first: int
    end: int
    parent: int | None = None
    folded: bool = False


def blocks(found: Network, nodes: Sequence[NodeReport]) -> tuple[Block, ...]:
    """The repeated blocks, and rows of blocks that follow each other; each row comes before its blocks.

    Blocks are recognised by names of ONNX nodes, as in ``/layers.3/attention/MatMul``, or as operators and types that
    come again and again, whichever covers more boxes. ``nodes`` are those of the report.
    """
    by_names = [box.block for box in found.boxes]
    rows = max(_rows(found.boxes, by_names), _rows(found.boxes, _repeated(found, nodes)), key=_covered)
    many = len(found.boxes) > MANY
    visible = len(found.boxes) - sum(end - first - 1 for row in rows for _, first, end in row)
    made: list[Block] = []
    for row in rows:
        parent = None
        if len(row) >= _LEAST_IN_ROW:
            parent = len(made)
            label = f"{len(row)} × {_stem(row[0][0]).rstrip('._-/ ')}"
            made.append(Block(label, row[0][1], row[-1][2], folded=visible > MANY))
        made += [Block(label, first, end, parent, folded=many) for label, first, end in row]
    return tuple(made)


_Span = tuple[str, int, int]
"""The label of a block, its first box and the one after its last."""


def _covered(rows: Sequence[Sequence[_Span]]) -> int:
    return sum(end - first for row in rows for _, first, end in row)


def _rows(boxes: Sequence[Box], keys: Sequence[str]) -> list[list[_Span]]:
    """Rows of blocks, given the block of each box or ""; names of blocks of one row differ by a number."""
    spans: list[_Span] = []
    for at, key in enumerate(keys):
        if not key:
            continue
        if spans and spans[-1][0] == key and not _stops(boxes[spans[-1][2] : at]):
            spans[-1] = key, spans[-1][1], at + 1  # conversions and nameless nodes in between belong to the block
        else:
            spans.append((key, at, at + 1))
    rows: list[list[_Span]] = []
    for span in spans:
        if span[2] - span[1] < _LEAST_SIZE:
            continue
        if rows and _stem(rows[-1][-1][0]) == _stem(span[0]):
            label, first, end = rows[-1][-1]
            if not any(keys[end : span[1]]) and not _stops(boxes[end : span[1]]):
                rows[-1][-1] = label, first, span[1]
                rows[-1].append(span)
                continue
        rows.append([span])
    stems = Counter(_stem(label) for row in rows for label, _, _ in row)
    return [_with_parts(row) for row in rows if stems[_stem(row[0][0])] > 1]


def _stops(between: Sequence[Box]) -> bool:
    return any(box.kind in (INPUT, OUTPUT) for box in between)


def _stem(key: str) -> str:
    return key.rstrip("0123456789")


def _with_parts(row: Sequence[_Span]) -> list[_Span]:
    """The blocks of a row, whose labels say which part of a block each is if others interrupt it."""
    counts, seen = Counter(label for label, _, _ in row), Counter[str]()
    found = []
    for label, first, end in row:
        seen[label] += 1
        part = f", part {seen[label]}" if counts[label] > 1 else ""
        found.append((label + part, first, end))
    return found


def _repeated(found: Network, nodes: Sequence[NodeReport]) -> list[str]:
    """The block of each box, or "": equal sequences of operators and types that follow each other.

    Sequences are of the graph's nodes, since equal nodes may be in regions of different kinds.
    """
    keys: dict[int, str] = {}
    crossing = _crossing(found, len(nodes))
    for name, (first, period, count) in enumerate(_repetitions([(each.op, each.types) for each in nodes], crossing)):
        for node in range(first, first + period * count):
            keys[node] = f"block {name + 1}.{(node - first) // period + 1}"
    blocks_of = (Counter(key for node in box.nodes if (key := keys.get(node))) for box in found.boxes)
    return [counts.most_common(1)[0][0] if counts else "" for counts in blocks_of]


def _crossing(found: Network, count: int) -> list[int]:
    """For each node of the graph, how many values are made by boxes before its box, and read by it or later ones."""
    changes = [0] * (len(found.boxes) + 1)
    last: dict[int, int] = {}
    for edge in found.edges:
        last[edge.start] = max(last.get(edge.start, 0), edge.end)
    for start, end in last.items():
        changes[start + 1] += 1
        changes[end + 1 if end + 1 < len(changes) else end] -= 1
    alive = list(accumulate(changes))
    box_of = {node: at for at, box in reversed([*enumerate(found.boxes)]) for node in box.nodes}
    return [alive[box_of[node]] if node in box_of else 0 for node in range(count)]


def _repetitions(signs: Sequence[Hashable], crossing: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The first node, the period and the count of sequences that are repeated, from the first node on.

    Of the nodes that a sequence could begin with, it begins with one before which few values are alive: a residual
    block begins after the addition of the one before.
    """
    count = len(signs)
    equal: dict[int, list[int]] = {}
    for period in range(_LEAST_SIZE, min(_LONGEST_PERIOD, count // 2) + 1):
        runs = [0] * (count + 1)  # how many signs from here on are followed by themselves after the period
        for at in reversed(range(count - period)):
            runs[at] = runs[at + 1] + 1 if signs[at] == signs[at + period] else 0
        equal[period] = runs
    at = 0
    while at < count:
        long = [(period * (runs[at] // period + 1), -period) for period, runs in equal.items() if runs[at] >= period]
        if not long:
            at += 1
            continue
        covered, negative = max(long)
        spare = equal[-negative][at] % -negative
        first = min(range(at, at + spare + 1), key=lambda node: (crossing[node], node))
        yield first, -negative, covered // -negative
        at = first + covered
