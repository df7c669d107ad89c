"""Reading a loop over experts, as exporters write it down: for each expert the tokens that chose it are looked up
(``NonZero``), their rows are gathered and computed, weighted and added to the tokens (``Scatter``).

How many rows an expert gets depends on the data, so that nothing of this has a fixed shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from collage.errors import ModelError
from collage.graph.dataflow import Array
from collage.serve.decoder.experts.follow import base_of, experts_chosen_from, follow, is_zero
from collage.serve.decoder.experts.values import (
    EXPERT,
    FEATURE,
    ONE,
    PAIR,
    ROW,
    SLOT,
    TOKEN,
    Axes,
    Column,
    ExpertChoice,
    ExpertPart,
    ExpertRows,
    ExpertSteps,
    Hits,
    Lengths,
    Mask,
    Mixture,
    Operand,
    Places,
    Total,
    Value,
)
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described

_SAME = frozenset({"Cast", "Identity"})
_OF_HITS = frozenset("Transpose Squeeze Unsqueeze Split Slice NonZero".split())
_LENGTHS = frozenset("Shape Size Concat Gather Slice Squeeze Unsqueeze Cast Mul Add ReduceProd Identity".split())


def mixtures(graph: OnnxGraph, tokens: int) -> list[Mixture]:
    """The mixtures of experts of a graph that was read for so many tokens, a number that no other axis has."""
    found: list[Mixture] = []
    for node in graph.nodes:
        choice = node.output[1] if node.op_type == "TopK" else ""
        if scores := experts_chosen_from(graph, tokens, choice):
            found += _Reader(graph, tokens, choice, graph.shapes[choice][1], scores).read()
    return found


def _alike(one: Column, other: Column) -> bool:
    return one.expert == other.expert and one.axes == other.axes


@dataclass
class _Reader:
    """Follows one choice through the graph. What it does not understand it does not follow.

    ``scores`` is the number of experts that can be chosen, and ``experts`` that of those that the graph looks at.
    """

    graph: OnnxGraph
    tokens: int
    choice: str
    slots: int
    scores: int
    known: dict[str, Value] = field(default_factory=dict)
    experts: int = 0
    steps: dict[int, ExpertSteps] = field(default_factory=dict)

    def read(self) -> Iterator[Mixture]:
        self.known[self.choice] = ExpertChoice((TOKEN, SLOT))
        follow(self.graph, [self.choice], self._visit)
        for name, total in self.known.items():
            if isinstance(total, Total) and self._is_whole(total) and self._is_last(name):
                steps = tuple(self.steps[each].all for each in range(self.experts) if each in self.steps)
                yield Mixture(self.choice, self.slots, name, total, steps)

    def _is_whole(self, total: Total) -> bool:
        experts = sorted(part.expert for part in total.parts)
        return self.experts == self.scores and experts == list(range(self.experts))

    def _is_last(self, name: str) -> bool:
        users = self.graph.users.get(name, ())
        return not any(isinstance(self.known.get(each.output[0]), (Total, ExpertPart)) for each in users)

    def _visit(self, node: onnx.NodeProto) -> Sequence[str]:
        """Tell what the values are that a node makes. Returns the names of those that are known."""
        made = self._made(node, [self.known.get(name) for name in node.input])
        if isinstance(made, list):
            self.known.update(zip(node.output, made, strict=False))
        elif made is not None:
            self.known[node.output[0]] = made
        return [name for name in node.output if name in self.known]

    def _made(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | list[Value] | None:
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in ("Shape", "Size"):
            return Lengths()
        if node.op_type in _LENGTHS and all(v is None or isinstance(v, Lengths) for v in taken):
            return Lengths()
        first = taken[0]
        if node.op_type in _SAME and not isinstance(first, ExpertRows):
            return first
        if node.op_type in _OF_HITS and isinstance(first, Hits):
            return [first] * len(node.output)
        if node.op_type in ("Transpose", "Unsqueeze", "Squeeze") and first is not None:
            return self._moved(node, first)
        rule = _RULES.get(node.op_type)
        found = None if rule is None else rule(self, node, taken)
        return self._step(node, taken) if found is None else found

    # Axes that are moved, added or taken away.

    def _moved(self, node: onnx.NodeProto, value: Value) -> Value | None:
        if not isinstance(value, (ExpertChoice, Mask, Places, Column, ExpertRows)):
            return None
        axes = self._moved_axes(node, value.axes)
        return None if axes is None else replace(value, axes=axes)

    def _moved_axes(self, node: onnx.NodeProto, axes: Axes) -> Axes | None:
        if node.op_type == "Transpose":
            order = attribute(node, "perm", list(range(len(axes)))[::-1])
            assert isinstance(order, list)
            return tuple(axes[each] for each in order) if sorted(order) == list(range(len(axes))) else None
        places = self._integers(node, 1, "axes")
        if node.op_type == "Squeeze":
            gone = [each for each, axis in enumerate(axes) if axis == ONE]
            gone = gone if places is None else [each % len(axes) for each in places]
            if any(axes[each] != ONE for each in gone):
                return None
            return tuple(axis for each, axis in enumerate(axes) if each not in gone)
        if places is None:
            return None
        added = {each % (len(axes) + len(places)) for each in places}
        rest = iter(axes)
        return tuple(ONE if each in added else next(rest) for each in range(len(axes) + len(places)))

    def _integers(self, node: onnx.NodeProto, place: int, name: str) -> list[int] | None:
        if len(node.input) > place and node.input[place]:
            found = self.graph.constants.get(node.input[place])
            return None if found is None else [int(each) for each in found.reshape(-1)]
        given = attribute(node, name)
        return [int(each) for each in given] if isinstance(given, (list, tuple)) else None

    # Masks.

    def _one_hot(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        depth, levels = (self.graph.constants.get(name) for name in node.input[1:3])
        last = attribute(node, "axis", -1)
        if taken[0] != ExpertChoice((TOKEN, SLOT)) or last not in (-1, 2) or depth is None or levels is None:
            return None
        if levels.reshape(-1).tolist() != [0, 1]:
            return None
        self.experts = int(depth.reshape(-1)[0])
        return Mask((TOKEN, SLOT, EXPERT))

    def _equal(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        place = 0 if isinstance(taken[0], ExpertChoice) else 1
        choice, other = taken[place], self.graph.constants.get(node.input[1 - place])
        if not isinstance(choice, ExpertChoice) or other is None:
            return None
        if choice.axes == (TOKEN, SLOT) and other.size == 1:
            self.experts = max(self.experts, int(other.reshape(-1)[0]) + 1)
            return Mask(choice.axes, int(other.reshape(-1)[0]))
        numbers = other.reshape(-1)
        if choice.axes != (TOKEN, SLOT, ONE) or not np.array_equal(numbers, np.arange(len(numbers))):
            return None
        self.experts = len(numbers)
        return Mask((TOKEN, SLOT, EXPERT))

    def _hits(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        """Whether any token has chosen an expert: how many there are, and whether these are more than 0."""
        of = taken[0]
        if node.op_type == "Greater":
            return of if isinstance(of, Hits) and self.graph.scalar(node.input[1]) == 0 else None
        if not isinstance(of, Mask) or of.expert is not None or EXPERT not in of.axes:
            return None
        summed = self._integers(node, 1, "axes")
        rest = {*range(len(of.axes))} - {each % len(of.axes) for each in summed or ()}
        return Hits() if summed is not None and rest == {of.axes.index(EXPERT)} else None

    def _nonzero(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        mask = taken[0]
        if not isinstance(mask, Mask) or mask.expert is None or {*mask.axes} != {TOKEN, SLOT}:
            return None
        return Places(mask.expert, mask.axes, (PAIR, ROW))

    # Looking up.

    def _gather(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        of, by = taken[:2]
        axis = attribute(node, "axis", 0)
        assert isinstance(axis, int)
        if isinstance(of, Hits) and by is None:
            return of
        if isinstance(of, Mask) and isinstance(by, Hits):
            raise ModelError(
                f"{described(node)} looks up the tokens of one expert among those that are chosen: the file has only "
                "the experts that were chosen while it was exported, and is wrong for other tokens. Let the model go "
                "through all experts while it is exported, as optimum-onnx does for Qwen 3."
            )
        if isinstance(of, (Mask, Places)) and by is None:
            return self._part(of, axis, self.graph.constants.get(node.input[1]))
        if of is None and isinstance(by, Column):
            shape = self.graph.shapes.get(node.input[0])
            return None if shape is None else self._rows(node.input[0], shape, axis % len(shape), by)
        return None

    def _part(self, of: Mask | Places, axis: int, number: Array | None) -> Value | None:
        """One expert of a mask, or the tokens or slots of rows."""
        axis %= len(of.axes)
        if number is None or number.size != 1:
            return None
        place, kept = int(number.reshape(-1)[0]), (ONE,) * number.ndim
        axes = (*of.axes[:axis], *kept, *of.axes[axis + 1 :])
        if isinstance(of, Places):
            return self._column(of, place, axes) if of.axes[axis] == PAIR else None
        if of.axes[axis] != EXPERT or of.expert is not None:
            return None
        return Mask(axes, place % self.experts)

    def _column(self, of: Places, place: int, axes: Axes) -> Column:
        is_token = of.parts[place] == TOKEN
        return Column(of.expert, axes, is_token, 1, not is_token)

    def _slice(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        of = taken[0]
        if not isinstance(of, (Mask, Places)) or len(node.input) < 4:
            return None
        bounds = [self.graph.constants.get(name) for name in node.input[1:4]]
        if any(each is None or each.size != 1 for each in bounds):
            return None
        first, end, axis = (int(each.reshape(-1)[0]) for each in bounds if each is not None)
        return self._part(of, axis, np.array([first])) if end == first + 1 else None

    def _split(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> list[Value] | None:
        of, axis = taken[0], attribute(node, "axis", 0)
        assert isinstance(axis, int)
        if not isinstance(of, (Mask, Places)):
            return None
        sizes = self._integers(node, 1, "split")
        if sizes is not None and any(each != 1 for each in sizes):
            return None
        parts = [self._part(of, axis, np.array([each])) for each in range(len(node.output))]
        return [each for each in parts if each is not None] if None not in parts else None

    def _rows(self, name: str, shape: Sequence[int], axis: int, by: Column) -> Value | None:
        """Rows that are gathered along an axis: those of the tokens, or their factors."""
        rest = [size for each, size in enumerate(shape) if each != axis]
        if by.token and by.slots == 1 and not by.with_slot and shape[axis] == self.tokens:
            if sum(size > 1 for size in rest) > 1 or any(size > 1 for size in shape[:axis]):
                return None
            axes = tuple(ONE if size == 1 else FEATURE for size in shape)
            made = Operand("tokens", base_of(self.graph, name))
        elif by.token and by.with_slot and by.slots == self.slots:
            if shape[axis] != self.tokens * self.slots or any(size > 1 for size in rest):
                return None
            axes, made = (ONE,) * len(shape), Operand("gates", base_of(self.graph, name))
        else:
            return None
        return ExpertRows(by.expert, (*axes[:axis], *by.axes, *axes[axis + 1 :]), made)

    def _gather_nd(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        by, shape = taken[1], self.graph.shapes.get(node.input[0])
        if taken[0] is not None or shape is None or attribute(node, "batch_dims", 0):
            return None
        if isinstance(by, Column) and by.axes == (ROW, ONE):
            return self._rows(node.input[0], shape, 0, replace(by, axes=(ROW,)))
        if isinstance(by, Places) and by.axes == (ROW, PAIR) and by.parts == (TOKEN, SLOT):
            if shape[:2] != (self.tokens, self.slots) or any(size > 1 for size in shape[2:]):
                return None
            return ExpertRows(
                by.expert,
                (ROW, *[ONE] * (len(shape) - 2)),
                Operand("gates", base_of(self.graph, node.input[0])),
            )
        return None

    def _concat(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        parts = [each for each in taken if isinstance(each, Column) and each.axes == (ROW, ONE)]
        if len(parts) != len(taken) or attribute(node, "axis") not in (-1, 1):
            return None
        if len({each.expert for each in parts}) > 1:
            return None
        if any(each.token and (each.with_slot or each.slots > 1) for each in parts):
            return None
        return Places(parts[0].expert, tuple(TOKEN if each.token else SLOT for each in parts), (ROW, PAIR))

    def _arithmetic(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        """The place of a row's token and slot among all pairs: token x slots + slot."""
        first, second = taken
        if node.op_type == "Mul":
            place = 0 if isinstance(first, Column) else 1
            column, factor = taken[place], self.graph.scalar(node.input[1 - place])
            if isinstance(column, Column) and column == replace(column, token=True, slots=1, with_slot=False):
                return None if factor is None else replace(column, slots=int(factor))
            return None
        if isinstance(first, Column) and isinstance(second, Column) and _alike(first, second):
            token, slot = (first, second) if first.token else (second, first)
            if token.token and not token.with_slot and not slot.token:
                return replace(token, with_slot=True)
        return None

    # Shapes of rows.

    def _reshape(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        value = taken[0]
        rank = self.graph.shapes.get(node.input[1], ())
        if rank == (1,) and (
            isinstance(value, Column) or (isinstance(value, ExpertRows) and FEATURE not in value.axes)
        ):
            return replace(value, axes=(ROW,))
        if not isinstance(value, ExpertRows) or rank != (2,):
            return None
        return replace(value, axes=(ROW, FEATURE if FEATURE in value.axes else ONE))

    def _expand(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        """The same in the shape of other rows, which it has, or its columns repeated."""
        value = taken[0]
        if isinstance(value, Column) and value.axes == (ROW, ONE):
            return replace(value, axes=(ROW, FEATURE))
        return value if isinstance(value, ExpertRows) and value.axes == (ROW, FEATURE) else None

    # Adding to the tokens.

    def _scatter(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        base, to, rows = taken
        across = (ROW, ONE) if node.op_type == "ScatterND" else (ROW, FEATURE)
        if not isinstance(to, Column) or not isinstance(rows, ExpertRows) or rows.axes != (ROW, FEATURE):
            return None
        if to != Column(rows.expert, across, True) or attribute(node, "axis", 0) != 0:
            return None
        shape = self.graph.shapes.get(node.input[0])
        if shape is None or len(shape) != 2 or shape[0] != self.tokens:
            return None
        part = ExpertPart(rows.expert, rows.made)
        reduction = attribute(node, "reduction", b"none")
        if reduction == b"add":
            return self._added(node.input[0], base, part)
        # A token is at most once among the rows of an expert, so that it makes no difference.
        return part if reduction == b"none" and base is None and is_zero(self.graph, node.input[0]) else None

    def _added(self, name: str, base: Value | None, part: ExpertPart) -> Value | None:
        if base is None:
            return Total("" if is_zero(self.graph, name) else name, (part,))
        return replace(base, parts=(*base.parts, part)) if isinstance(base, Total) else None

    def _sum(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        for place in (0, 1):
            part, other = taken[place], taken[1 - place]
            if isinstance(part, ExpertPart):
                return self._added(node.input[1 - place], other, part)
        return self._arithmetic(node, taken)

    # What is computed of rows.

    def _step(self, node: onnx.NodeProto, taken: Sequence[Value | None]) -> Value | None:
        rows = [each for each in taken if isinstance(each, ExpertRows)]
        if not rows or len({each.expert for each in rows}) > 1 or len(rows) < sum(v is not None for v in taken):
            return None
        expert = rows[0].expert
        steps = self.steps.setdefault(expert, ExpertSteps(self.graph))
        if any(each.axes not in ((ROW, FEATURE), (ROW, ONE)) for each in rows):
            return None
        operands = [each.made if isinstance(each, ExpertRows) else None for each in taken]
        made = steps.add(node, operands)
        axes = (ROW, FEATURE) if any(each.axes == (ROW, FEATURE) for each in rows) else (ROW, ONE)
        return None if made is None else ExpertRows(expert, axes, made)


_Rule = Callable[[_Reader, onnx.NodeProto, Sequence["Value | None"]], "Value | list[Value] | None"]

_RULES: Mapping[str, _Rule] = {
    "OneHot": _Reader._one_hot,
    "Equal": _Reader._equal,
    "ReduceSum": _Reader._hits,
    "Greater": _Reader._hits,
    "NonZero": _Reader._nonzero,
    "Gather": _Reader._gather,
    "GatherND": _Reader._gather_nd,
    "Slice": _Reader._slice,
    "Split": _Reader._split,
    "Concat": _Reader._concat,
    "Mul": _Reader._arithmetic,
    "Add": _Reader._sum,
    "Reshape": _Reader._reshape,
    "Expand": _Reader._expand,
    "ScatterND": _Reader._scatter,
    "ScatterElements": _Reader._scatter,
}
