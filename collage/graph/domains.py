"""Operators that may make NaN or an infinity of finite numbers, as quotients by zero and roots do.

A kernel that is right on finite numbers only is guarded by scans of what it reads. What it makes inside of itself is
not scanned, so such a kernel must not have one of these operators before one that may lose a NaN. Of an opaque operator
only its name is known here, and the names of those in its bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from collage.graph.dataflow import Graph, Node
from collage.graph.spans import Masked, Span, axes_of, spans

_HANDING_ON = frozenset(
    "add subtract multiply divide negative matmul sum mean sqrt square reshape flatten squeeze expand_dims "
    "permute_dims split strided_slice repeat tile flip broadcast_to concat stack nn.batch_flatten nn.dropout".split()
)
"""Operators whose results are NaN in all kernels where an operand is."""
_OF_STEPS = frozenset(
    "nn.softmax nn.log_softmax nn.layer_norm nn.group_norm nn.instance_norm nn.rms_norm".split()
)
"""Operators of several steps, which may lose what an earlier one of their own has made."""
_OPAQUE = "onnx."
_LEAVING = frozenset("Acos Acosh Asin Atanh Div Log Mod Pow Reciprocal Sqrt".split())
"""Opaque operators of one step that may make NaN, which only what follows can lose."""
_STAYING = frozenset(
    # They move, choose or count numbers, or make random ones.
    "Bernoulli CenterCropPad Col2Im Compress Concat ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Gather "
    "GatherElements GatherND Identity MaxPool MaxRoiPool MaxUnpool NonMaxSuppression NonZero OneHot Optional "
    "OptionalGetElement Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reshape "
    "ReverseSequence RoiAlign Scatter ScatterElements ScatterND SequenceAt Slice SpaceToDepth Split Squeeze "
    "TensorScatter Tile TopK Transpose Trilu Unique Unsqueeze Where "
    # They are sums and products.
    "Add AffineGrid AveragePool CausalConvWithState Conv ConvTranspose CumProd CumSum DFT DeformConv DequantizeLinear "
    "Det DynamicQuantizeLinear Einsum Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample LpPool MatMul Max "
    "Mean Min Mul Neg QuantizeLinear ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare Resize RotaryEmbedding STFT Sub Sum TfIdfVectorizer Upsample "
    # They are functions of any number, or look after zeros themselves. LRN's bias is 1, if the model does not say more.
    "Abs Asinh Atan BlackmanWindow Cast CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor GRU Gelu HammingWindow "
    "HannWindow HardSigmoid HardSwish Hardmax LRN LSTM LeakyRelu LpNormalization MelWeightMatrix Mish PRelu RNN Relu "
    "Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign SwiGLU Swish Tan Tanh ThresholdedRelu".split()
)
"""Opaque operators that make no NaN of finite numbers. Functions and unknown operators may."""
_WITH_BODIES = frozenset("If Loop Scan".split())
"""Opaque operators that make what those in their bodies make."""
_NOTHING: Mapping[int, Collection[str]] = {}


@dataclass(frozen=True)
class Domains:
    """What the operators of one graph may make of finite numbers.

    ``inside`` has the types of the ONNX operators in the bodies of opaque nodes, by the nodes' ids.
    """

    graph: Graph
    inside: Mapping[int, Collection[str]] = field(default_factory=lambda: _NOTHING)

    def lost(self, nodes: Sequence[Node], *, in_steps: bool = False) -> Node | None:
        """The first node that may make NaN or an infinity which another of the nodes may lose; None without one.

        ``nodes`` are in order. ``in_steps`` tells that values become integers of 8 bits somewhere, which loses all NaN.
        Numbers that overflow are not looked for.
        """
        places = {node.id for node in nodes}
        for node in nodes:
            if self._may_leave(node) and (in_steps or _has_steps(node) or self._is_lost(node, places)):
                return node
        return None

    def _may_leave(self, node: Node) -> bool:
        if node.op.startswith(_OPAQUE):
            floats = any("float" in self.graph.type_of(value).dtype for value in node.outputs)
            return floats and not self._stays(node)
        rule = _RULES.get(node.op)
        if rule is None or "float" not in self.graph.type_of(node.outputs[0]).dtype:
            return False
        return rule(self.graph, node, [self._spans[value] for value in node.inputs])

    def _stays(self, node: Node) -> bool:
        """Whether an opaque node makes no NaN of finite numbers."""
        name = node.op.removeprefix(_OPAQUE)
        if name not in _WITH_BODIES:
            return name in _STAYING
        inside = self.inside.get(node.id, ())
        return bool(inside) and _WITH_BODIES.union(_STAYING).issuperset(inside)

    def _is_lost(self, node: Node, places: set[int]) -> bool:
        """Whether what the node makes reaches an operator that may lose NaN, within these places."""
        pending, seen = [node.id], {node.id}
        while pending:
            for number in self.graph.successors[pending.pop()]:
                if number in seen or number not in places:
                    continue
                if self.graph.nodes[number].op not in _HANDING_ON:
                    return True
                seen.add(number)
                pending.append(number)
        return False

    @cached_property
    def _spans(self) -> list[Span]:
        return spans(self.graph)


def _has_steps(node: Node) -> bool:
    return node.op in _OF_STEPS or (
        node.op.startswith(_OPAQUE) and node.op.removeprefix(_OPAQUE) not in _LEAVING
    )


_Rule = Callable[[Graph, Node, Sequence[Span]], bool]
"""Whether an operator may leave its domain, where its operands are of these spans."""


def _by_zero(graph: Graph, node: Node, taken: Sequence[Span]) -> bool:
    divisors = graph.constants.get(node.inputs[1])
    return taken[1].has_zero if divisors is None else not divisors.all()


def _outside(low: float, high: float, *, ends: bool = True) -> _Rule:
    """The rule of a function from ``low`` to ``high``; with ``ends`` these belong to its domain."""
    return _of(
        lambda span: (
            span.low < low or span.high > high or (not ends and (span.low == low or span.high == high))
        )
    )


def _power(graph: Graph, node: Node, taken: Sequence[Span]) -> bool:
    base, exponents = taken[0], graph.constants.get(node.inputs[1])
    if exponents is None:
        return base.low <= 0
    numbers = np.asarray(exponents, np.float64)
    whole, falling = bool((numbers == np.round(numbers)).all()), bool((numbers < 0).any())
    return (falling and base.has_zero) or (not whole and base.low < 0)


def _without_epsilon(graph: Graph, node: Node, taken: Sequence[Span]) -> bool:
    epsilon = node.attrs.get("epsilon")
    return not (isinstance(epsilon, (int, float)) and epsilon > 0)


def _variance(graph: Graph, node: Node, taken: Sequence[Span]) -> bool:
    epsilon = node.attrs.get("epsilon")
    return not (isinstance(epsilon, (int, float)) and taken[4].low + epsilon > 0)


def _whole_row_masked(graph: Graph, node: Node, taken: Sequence[Span]) -> bool:
    masked, rank = taken[0].masked, len(graph.type_of(node.inputs[0]).shape)
    return masked is Masked.ROWS or (masked is Masked.PART_OF_ROWS and rank - 1 not in axes_of(node, rank))


def _of(function: Callable[..., bool]) -> _Rule:
    """The rule of an operator whose spans alone say whether it may leave its domain."""
    return lambda graph, node, taken: function(*taken)


def _infinity_by_zero(one: Span, other: Span) -> bool:
    return (one.masked is not Masked.NOTHING and other.has_zero) or (
        other.masked is not Masked.NOTHING and one.has_zero
    )


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys("divide floor_divide mod floor_mod".split(), _by_zero),
    **dict.fromkeys("nn.softmax nn.log_softmax".split(), _whole_row_masked),
    **dict.fromkeys("nn.layer_norm nn.group_norm nn.instance_norm nn.rms_norm".split(), _without_epsilon),
    "nn.batch_norm": _variance,
    "subtract": _of(lambda *spans: all(span.masked is not Masked.NOTHING for span in spans)),
    "multiply": _of(_infinity_by_zero),
    "sqrt": _outside(0, np.inf),
    "rsqrt": _of(lambda span: span.low <= 0),
    "log": _of(lambda span: span.low <= 0),
    "power": _power,
    "acos": _outside(-1, 1),
    "asin": _outside(-1, 1),
    "acosh": _outside(1, np.inf),
    "atanh": _outside(-1, 1, ends=False),
}
