"""Reading a mixture that sorts: all pairs of a token and a slot are put in the order of their experts, their rows are
split where one expert's end, and what the experts make is put together again and added to the tokens.

So Granite is exported. How many rows an expert gets depends on the data, so that nothing of this has a fixed shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import onnx

from collage.serve.decoder.experts.follow import base_of, experts_chosen_from, filling, follow, is_zero
from collage.serve.decoder.experts.values import ExpertPart, ExpertSteps, Mixture, Operand, Total
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, evaluated

_BY_ELEMENT = frozenset("Cast Div Mul Abs Floor Sign Identity".split())
"""Operators on numbers of pairs; the other operand is one number."""
_RESHAPING = frozenset("Reshape Unsqueeze Squeeze Flatten".split())
_PICKING = frozenset("Slice Split Gather Squeeze Unsqueeze Reshape Concat Identity".split())
"""Operators that put numbers of rows in other places, and change none."""
_MANY = 1 << 16
"""More pairs than an iteration has."""


@dataclass(frozen=True)
class _Numbers:
    """A number that follows from each pair's place before it was put in order."""


@dataclass(frozen=True)
class _Factors:
    """The factors of all pairs [pairs], in the order of their experts: those of ``gates``."""

    gates: str


@dataclass(frozen=True)
class _All:
    """What all pairs have [pairs, width], in the order of their experts; ``made`` says how, for each expert."""

    made: tuple[Operand, ...]
    width: int


@dataclass(frozen=True)
class _Own:
    """What the pairs of one expert have [pairs, width]."""

    expert: int
    made: Operand
    width: int


_Value: TypeAlias = _Numbers | _Factors | _All | _Own | Total


def sorted_mixtures(graph: OnnxGraph, tokens: int) -> Iterator[Mixture]:
    """The mixtures of that kind of a graph that was read for so many tokens, a number that no other axis has."""
    for node in graph.nodes:
        if node.op_type == "TopK" and (found := _reader(graph, tokens, node)) is not None:
            yield from found.read()


def _reader(graph: OnnxGraph, tokens: int, node: onnx.NodeProto) -> _Reader | None:
    choice = base_of(graph, node.input[0])
    experts = experts_chosen_from(graph, tokens, choice)
    pairs, ordered = (graph.shapes.get(name, ()) for name in (node.input[0], node.output[1]))
    ascending = attribute(node, "sorted", 1) and not attribute(node, "largest", 1)
    if not (experts and ascending and len(pairs) == 1 and ordered == pairs):
        return None
    return _Reader(graph, tokens, choice, graph.shapes[choice][1], experts, node.output[1])


@dataclass
class _Reader:
    """Follows the ``order`` of pairs through the graph. What it does not understand it does not follow."""

    graph: OnnxGraph
    tokens: int
    choice: str
    slots: int
    experts: int
    order: str
    known: dict[str, _Value] = field(default_factory=dict)
    steps: list[ExpertSteps] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [ExpertSteps(self.graph) for _ in range(self.experts)]

    @property
    def pairs(self) -> int:
        return self.tokens * self.slots

    def read(self) -> Iterator[Mixture]:
        """The mixtures of these pairs: one, or none where it is something else."""
        self.known[self.order] = _Numbers()
        follow(self.graph, [self.order], self._visit)
        for name, value in self.known.items():
            if isinstance(value, Total):
                yield Mixture(self.choice, self.slots, name, value, tuple(each.all for each in self.steps))

    def _visit(self, node: onnx.NodeProto) -> Sequence[str]:
        """Tell what the values are that a node makes. Returns the names of those that are known."""
        found = self._made(node, [self.known.get(name) for name in node.input])
        made = found if isinstance(found, list) else [found]
        told = {name: each for name, each in zip(node.output, made, strict=False) if each is not None}
        self.known.update(told)
        return list(told)

    def _made(self, node: onnx.NodeProto, taken: Sequence[_Value | None]) -> _Value | Sequence[_Value | None] | None:
        first = taken[0]
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in ("Gather", "GatherND"):
            return self._looked_up(node) if first is None else None
        if node.op_type == "ScatterND":
            return self._added(node, taken)
        if any(isinstance(each, _Numbers) for each in taken):
            return self._numbers(node, taken)
        if node.op_type == "Concat":
            return self._joined(node, taken)
        if isinstance(first, _Factors):
            column = node.op_type in _RESHAPING and self._has_column(node.output[0])
            return self._for_all(Operand("gates", first.gates), 1) if column else None
        if node.op_type == "Split" and isinstance(first, (_All, _Own)):
            return self._split(node, first)
        if node.op_type == "Expand" and isinstance(first, _All):
            shape = self.graph.constants.get(node.input[1])
            return first if shape is not None and shape.tolist() == [self.pairs, first.width] else None
        return self._step(node, taken)

    # Numbers of pairs.

    def _numbers(self, node: onnx.NodeProto, taken: Sequence[_Value | None]) -> _Value | None:
        if node.op_type in _RESHAPING:
            return taken[0]
        by_element = all(
            isinstance(each, _Numbers) or self.graph.scalar(name) is not None
            for name, each in zip(node.input, taken, strict=True)
        )
        return _Numbers() if node.op_type in _BY_ELEMENT and by_element else None

    def _are_places(self, name: str, divisor: int) -> bool:
        """Whether numbers are the places of pairs before they were put in order, divided and rounded down.

        Divided by the slots, these places are tokens.
        """
        places = np.arange(_MANY)
        found = evaluated(self.graph, base_of(self.graph, name), {self.order: places})
        return found is not None and np.array_equal(found, places // divisor)

    def _has_column(self, name: str) -> bool:
        return self.graph.shapes.get(name) == (self.pairs, 1)

    # Rows of all pairs, and of the pairs of one expert.

    def _looked_up(self, node: onnx.NodeProto) -> _Value | None:
        """The rows of the pairs' tokens, or the pairs' factors."""
        name, by = node.input
        shape, index = self.graph.shapes.get(name, ()), self.graph.shapes.get(by)
        if index != ((self.pairs,) if node.op_type == "Gather" else (self.pairs, 1)):
            return None
        if attribute(node, "axis", 0) or attribute(node, "batch_dims", 0):
            return None
        base = base_of(self.graph, name)
        if len(shape) == 2 and shape[0] == self.tokens and self._are_places(by, self.slots):
            return self._for_all(Operand("tokens", base), shape[1])
        return _Factors(base) if shape == (self.pairs,) and self._are_places(by, 1) else None

    def _for_all(self, made: Operand, width: int) -> _All:
        return _All((made,) * self.experts, width)

    def _split(self, node: onnx.NodeProto, rows: _All | _Own) -> Sequence[_Value] | None:
        axis = attribute(node, "axis", 0)
        if axis in (1, -1):
            return self._columns(node, rows)
        whole = isinstance(rows, _All) and len(node.output) == self.experts and len(node.input) > 1
        if not isinstance(rows, _All) or not whole or not self._are_lengths(node.input[1]):
            return None
        return [_Own(expert, made, rows.width) for expert, made in enumerate(rows.made)]

    def _columns(self, node: onnx.NodeProto, rows: _All | _Own) -> Sequence[_Value] | None:
        count = len(node.output)
        if len(node.input) > 1 and node.input[1]:
            given = self.graph.constants.get(node.input[1])
            sizes = [] if given is None else given.tolist()
        else:
            sizes = [rows.width // count] * count
        if sum(sizes) != rows.width:
            return None
        made: list[_Value] = []
        for first, end in pairwise((0, *accumulate(sizes))):
            if isinstance(rows, _Own):
                part = self.steps[rows.expert].columns(rows.made, first, end)
                made.append(_Own(rows.expert, part, end - first))
            else:
                parts = [each.columns(one, first, end) for each, one in zip(self.steps, rows.made, strict=True)]
                made.append(_All(tuple(parts), end - first))
        return made

    def _joined(self, node: onnx.NodeProto, taken: Sequence[_Value | None]) -> _Value | None:
        """What all pairs have, from what those of each expert have, in order."""
        own = [each for each in taken if isinstance(each, _Own)]
        whole = len(own) == len(taken) and [each.expert for each in own] == list(range(self.experts))
        if not whole or attribute(node, "axis") not in (0, -2):
            return None
        return _All(tuple(each.made for each in own), own[0].width)

    def _step(self, node: onnx.NodeProto, taken: Sequence[_Value | None]) -> _Value | None:
        """What a node computes of each row by itself."""
        width = self._width(node, taken)
        if width is None:
            return None
        rows = [each for each in taken if each is not None]
        own = [each for each in rows if isinstance(each, _Own)]
        experts = {each.expert for each in own} if own else set(range(self.experts))
        if len(own) not in (0, len(rows)) or (own and len(experts) > 1):
            return None
        found = []
        for expert in sorted(experts):
            operands = [
                each.made[expert] if isinstance(each, _All) else each.made if isinstance(each, _Own) else None
                for each in taken
            ]
            found.append(self.steps[expert].add(node, operands))
        made = tuple(each for each in found if each is not None)
        if len(made) < len(found):
            return None
        return _Own(own[0].expert, made[0], width) if own else _All(made, width)

    def _width(self, node: onnx.NodeProto, taken: Sequence[_Value | None]) -> int | None:
        """The features of the rows that a node makes of others, which are two axes."""
        shapes = []
        for name, each in zip(node.input, taken, strict=True):
            shape = (self.pairs, each.width) if isinstance(each, (_All, _Own)) else self.graph.shapes.get(name)
            if isinstance(each, (_Numbers, _Factors, Total)) or (name and (shape is None or len(shape) > 2)):
                return None
            shapes.append(shape or (1,))
        if node.op_type in ("MatMul", "Gemm"):
            return shapes[1][0 if attribute(node, "transB", 0) else -1]
        return max(shape[-1] for shape in shapes)

    def _added(self, node: onnx.NodeProto, taken: Sequence[_Value | None]) -> _Value | None:
        """The tokens to which the rows of all pairs are added."""
        base, to, rows = taken
        shape = self.graph.shapes.get(node.input[0])
        if base is not None or not isinstance(to, _Numbers) or not isinstance(rows, _All):
            return None
        if shape != (self.tokens, rows.width) or attribute(node, "reduction") != b"add":
            return None
        if not self._has_column(node.input[1]) or not self._are_places(node.input[1], self.slots):
            return None
        parts = tuple(ExpertPart(expert, made) for expert, made in enumerate(rows.made))
        return Total("" if is_zero(self.graph, node.input[0]) else node.input[0], parts)

    # How many pairs have chosen each expert.

    def _are_lengths(self, name: str) -> bool:
        """Whether a value [experts] has the number of pairs of each expert."""
        sums = self._picked_from(name)
        if sums is None or not self._counts(sums):
            return False
        numbers = np.arange(self.experts)
        found = evaluated(self.graph, name, {sums: numbers}, len(self.graph.nodes))
        return found is not None and np.array_equal(found, numbers)

    def _picked_from(self, name: str) -> str | None:
        """The one value whose numbers a value has, in other places or the same."""
        waiting, found, seen = [name], set(), set()
        while waiting:
            each = waiting.pop()
            node = self.graph.producers.get(each)
            if each in seen:
                continue
            seen.add(each)
            if node is None or node.op_type not in _PICKING:
                found.add(each)
                continue
            others = () if node.op_type == "Concat" else node.input[1:]
            if any(other and other not in self.graph.constants for other in others):
                return None
            waiting += node.input if node.op_type == "Concat" else node.input[:1]
        return found.pop() if len(found) == 1 else None

    def _counts(self, name: str) -> bool:
        """Whether a value is a sum over tokens of a one for each expert that a token has chosen, and zeros."""
        node = self.graph.producers.get(name)
        if node is None or node.op_type != "ReduceSum" or len(node.input) < 2 or attribute(node, "keepdims", 1):
            return False
        axes = self.graph.constants.get(node.input[1])
        if axes is None or axes.tolist() not in ([0], [-2]):
            return False
        node = self.graph.producers.get(node.input[0])
        while node is not None and node.op_type in ("Cast", "Identity"):
            node = self.graph.producers.get(node.input[0])
        if node is None or node.op_type != "ScatterElements" or attribute(node, "axis", 0) not in (1, -1):
            return False
        zeros, choice, ones = node.input
        return (
            self.graph.shapes.get(node.output[0]) == (self.tokens, self.experts)
            and self.graph.shapes.get(choice) == (self.tokens, self.slots)
            and base_of(self.graph, choice) == self.choice
            and attribute(node, "reduction", b"none") == b"none"
            and is_zero(self.graph, zeros)
            and filling(self.graph, ones) == 1
        )
