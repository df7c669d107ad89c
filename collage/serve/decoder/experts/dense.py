"""Reading a mixture that computes all experts for all tokens: what a token has not chosen is multiplied by zero.

So GPT-OSS is exported: the tokens are repeated for each expert, products have a matrix for each, and the scores that
weigh the results are zeros but for the experts that were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx

from collage.serve.decoder.experts.follow import base_of, experts_chosen_from, is_zero
from collage.serve.decoder.experts.values import ExpertPart, ExpertSteps, Mixture, Operand, Total
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute

_MOVING = frozenset("Transpose Reshape Unsqueeze Squeeze Cast Identity".split())
_REPEATING = frozenset("Expand Tile Reshape Unsqueeze Squeeze Identity Cast".split())


def dense_mixtures(graph: OnnxGraph, tokens: int) -> Iterator[Mixture]:
    """The mixtures of that kind of a graph that was read for so many tokens, a number that no other axis has."""
    for node in graph.nodes:
        if node.op_type == "ScatterElements" and (found := _reader(graph, tokens, node)) is not None:
            mixture = found.read(node.output[0])
            if mixture is not None:
                yield mixture


def _reader(graph: OnnxGraph, tokens: int, node: onnx.NodeProto) -> _Reader | None:
    zeros, choice, gates = node.input
    shape = graph.shapes.get(node.output[0], ())
    last = attribute(node, "axis", 0) in (1, -1) and attribute(node, "reduction", b"none") == b"none"
    if len(shape) != 2 or shape[0] != tokens or not last:
        return None
    if experts_chosen_from(graph, tokens, choice) != shape[1] or not is_zero(graph, zeros):
        return None
    return _Reader(graph, tokens, choice, gates, shape[1])


@dataclass
class _Reader:
    graph: OnnxGraph
    tokens: int
    choice: str
    gates: str
    experts: int
    steps: ExpertSteps = field(init=False)
    known: dict[str, Operand | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = ExpertSteps(self.graph)

    def read(self, scores: str) -> Mixture | None:
        """The mixture, from its scores [tokens, experts] on. None if it is something else."""
        weighted = self._weighted(scores)
        if weighted is None:
            return None
        node, other = weighted
        rows = self._rows(other)
        total = self._summed(node)
        if rows is None or total is None:
            return None
        made = self.steps.weighted(rows, base_of(self.graph, self.gates))
        slots = self.graph.shapes[self.choice][1]
        return Mixture(self.choice, slots, total, Total("", (ExpertPart(0, made),)), (self.steps.all,))

    def _weighted(self, scores: str) -> tuple[onnx.NodeProto, str] | None:
        """The node that multiplies by the scores, once they lie by expert, and what it multiplies."""
        value, turned = scores, False
        while True:
            users = self.graph.users.get(value, ())
            if len(users) != 1:
                return None
            (user,) = users
            if user.op_type == "Mul":
                shape = self.graph.shapes.get(value, ())
                by_expert = [size for size in shape if size > 1] == [self.experts, self.tokens]
                other = user.input[1 - list(user.input).index(value)]
                return (user, other) if turned and by_expert and shape[-1] == 1 else None
            if user.op_type not in _MOVING or user.input[0] != value:
                return None
            if user.op_type == "Transpose":
                before, after = (self.graph.shapes.get(each, ()) for each in (value, user.output[0]))
                if turned or before != (self.tokens, self.experts) or after != before[::-1]:
                    return None
                turned = True
            value = user.output[0]

    def _summed(self, node: onnx.NodeProto) -> str | None:
        users = self.graph.users.get(node.output[0], ())
        shape = self.graph.shapes.get(node.output[0], ())
        if len(users) != 1 or users[0].op_type != "ReduceSum" or shape[:1] != (self.experts,):
            return None
        axes = self.graph.constants.get(users[0].input[1]) if len(users[0].input) > 1 else None
        if axes is None or [int(each) % len(shape) for each in axes.reshape(-1)] != [0]:
            return None
        return None if attribute(users[0], "keepdims", 1) else str(users[0].output[0])

    def _rows(self, name: str) -> Operand | None:
        """What a value [experts, tokens, features] is for one expert's rows, or None if it is something else."""
        if name not in self.known:
            self.known[name] = self._made(name)
        return self.known[name]

    def _made(self, name: str) -> Operand | None:
        repeated = self._repeated(name)
        if repeated is not None:
            return Operand("tokens", repeated)
        node, shape = self.graph.producers.get(name), self.graph.shapes.get(name, ())
        if node is None or shape[:1] != (self.experts,) or self.tokens not in shape:
            return None
        if node.op_type in ("Reshape", "Unsqueeze", "Squeeze"):
            before = [size for size in self.graph.shapes.get(node.input[0], ()) if size > 1]
            same = before == [size for size in shape if size > 1]
            return self._rows(node.input[0]) if same else None
        of_tokens = [each in self.graph.from_tokens for each in node.input]
        operands = [self._rows(each) if depends else None for each, depends in zip(node.input, of_tokens, strict=True)]
        if any(depends and each is None for depends, each in zip(of_tokens, operands, strict=True)):
            return None
        return self.steps.add_for_all(node, operands, self.experts)

    def _repeated(self, name: str) -> str | None:
        """The value [tokens, features] that another one has once for each expert, or None."""
        shape = self.graph.shapes.get(name, ())
        if len(shape) != 3 or shape[:2] != (self.experts, self.tokens):
            return None
        while (node := self.graph.producers.get(name)) is not None and node.op_type in _REPEATING:
            before, after = (self.graph.shapes.get(each, ()) for each in (node.input[0], name))
            if node.op_type in ("Expand", "Tile") and not _repeats_whole(before, after):
                return None
            name = node.input[0]
            if math.prod(before) == self.tokens * shape[2]:
                return base_of(self.graph, name)
        return None


def _repeats_whole(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a value is repeated as a whole: nothing but axes of one element is in front of what grows."""
    padded = (*(1,) * (len(after) - len(before)), *before)
    grown = [axis for axis, sizes in enumerate(zip(padded, after, strict=True)) if sizes[0] != sizes[1]]
    return len(grown) <= 1 and all(size == 1 for axis in grown for size in after[:axis])
