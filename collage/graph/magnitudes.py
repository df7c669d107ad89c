"""Magnitudes of values: bounds on operators' results from bounds on their inputs.

A bound holds for finite inputs in exact arithmetic. A value that may be anything, NaN and infinities included, has the
bound infinity. Most operators propagate NaN, so results of such a value are unbounded, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from collage.graph.dataflow import Graph, Node, np_dtype

CONVOLUTIONS = frozenset(f"nn.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_transpose"))

LIMIT = 1e12
"""The largest magnitude that a scan accepts. Trained networks have no larger activations, and sums of squares of such
numbers are still far from float32's largest number, 3e38."""

ROOM = 1e30
"""A bound below which the sums of kernels stay finite, also those of fast algorithms with their factors."""

SCANNED: Mapping[str, tuple[str, int]] = {
    "float32": ("int32", 0x5368D4A5),
    "float16": ("int16", 0x7BFF),
    "bfloat16": ("int16", 0x5368),
    "float64": ("int64", 0x426D1A94A2000000),
}
"""For each float dtype that can be scanned, the integer dtype of its size, and the bits of its largest value up to
LIMIT."""

_LIMITED = ("float32", "float16", "bfloat16")
"""The float dtypes of which a scan may accept less than LIMIT."""

INTEGER_LIMIT = 1 << 24
"""The largest integer magnitude that a scan accepts: engines that compute 64 bits in 32 can then add a few such numbers
and multiply them by small factors."""

SCANNED_INTEGERS = ("int32", "uint32", "int64", "uint64")
"""The integer dtypes that are scanned; narrower ones are within the limit anyway."""

_MOST = 1e36
_FLOAT16 = 65504.0
"""Values that may be larger than this may be infinite: _MOST for wide floats, _FLOAT16 for float16."""


def can_be_infinite(dtype: str) -> bool:
    """Whether values of that type can be NaN or infinite."""
    return "float" in dtype or "complex" in dtype


def can_be_scanned(dtype: str) -> bool:
    """Whether values of that type, which ``can_be_infinite``, can be scanned; floats of 8 bits and less cannot."""
    return dtype in SCANNED or dtype.startswith("complex")


def is_scanned(dtype: str) -> bool:
    """Whether there is a scan for values of that type, and they may hold something that it finds."""
    return can_be_scanned(dtype) or dtype in SCANNED_INTEGERS


_HIDING: Mapping[str, frozenset[int]] = {
    **dict.fromkeys("divide floor_divide".split(), frozenset({1})),
    **dict.fromkeys("rsqrt argmax argmin topk sort argsort isfinite isinf".split(), frozenset({0})),
    **dict.fromkeys("power equal not_equal greater greater_equal less less_equal".split(), frozenset({0, 1})),
}
"""The operators whose results are numbers also where these inputs are infinite, and others than for a large number."""


def hides_infinity(node: Node, position: int, graph: Graph) -> bool:
    """Whether an infinite input of a node may leave no trace in its results, and these are wrong for a large number.

    Functions that end in a bound, such as a sigmoid, give what they give for a large number. Of operators that are not
    known nobody can tell.
    """
    if node.op == "astype":
        return not can_be_infinite(graph.type_of(node.outputs[0]).dtype)
    return node.op.startswith("onnx.") or position in _HIDING.get(node.op, ())


def can_be_limited(dtype: str) -> bool:
    """Whether a scan of values of that type may accept less than LIMIT."""
    return dtype in _LIMITED


def limit_bits(dtype: str, limit: float = LIMIT) -> int:
    """The bits of the largest value up to ``limit`` (at most LIMIT) of a float dtype in SCANNED."""
    integer, most = SCANNED[dtype]
    if limit >= LIMIT or not can_be_limited(dtype):
        return most
    with np.errstate(over="ignore"):
        rounded = np.array(limit, np_dtype(dtype))
    bits = int(rounded.view(integer))
    return max(1, min(most, bits if float(rounded) <= limit else bits - 1))


def room(dtype: str) -> float:
    """The bound up to which values of that type need no scan."""
    return _FLOAT16 / 2 if dtype == "float16" else ROOM


def scanned(dtype: str) -> float:
    """The bound of a scanned value of that type, or of any value of an integer type."""
    if not can_be_infinite(dtype):
        kind = np_dtype(dtype)
        return 2.0 ** (8 * kind.itemsize) if kind.kind in "iu" else 1.0
    return min(LIMIT, _FLOAT16) if dtype == "float16" else LIMIT


@dataclass(frozen=True)
class Magnitudes:
    """Bounds on the values of one graph; what is read from its weights is read once."""

    graph: Graph
    _constants: dict[int, float] = field(default_factory=dict)
    _gains: dict[int, float] = field(default_factory=dict)

    def through(self, nodes: Sequence[Node], known: Mapping[int, float]) -> dict[int, float]:
        """Bounds on all values that the nodes, in order, make; ``known`` has bounds on values that they read.

        Values without a known bound are unbounded.
        """
        bounds = dict(known)
        found: dict[int, float] = {}
        for node in nodes:
            taken = [self._bound(value, bounds) for value in node.inputs]
            given = self._results(node, taken)
            for position, value in enumerate(node.outputs):
                dtype = self.graph.type_of(value).dtype
                bound = given if position == 0 or node.op == "split" else math.inf
                if not can_be_infinite(dtype):
                    bound = scanned(dtype)
                elif not bound <= (_FLOAT16 if dtype == "float16" else _MOST):
                    bound = math.inf
                bounds[value] = found[value] = bound
        return found

    def overflows(self, nodes: Sequence[Node]) -> bool:
        """Whether one of the nodes has weights so large that its sums may be infinite for numbers up to LIMIT."""
        products = (node for node in nodes if node.op == "matmul" or node.op in CONVOLUTIONS)
        return any(not self._weighted(node) * LIMIT <= ROOM for node in products)

    def _weighted(self, node: Node) -> float:
        """The largest factor between input and results of a product with a constant; 0 for any other product."""
        constants = [self.graph.is_constant(value) for value in node.inputs]
        return self._results(node, [1.0, 1.0]) if any(constants) else 0.0

    def _bound(self, value: int, bounds: Mapping[int, float]) -> float:
        if value in bounds:
            return bounds[value]
        if self.graph.is_constant(value):
            if value not in self._constants:
                array = self.graph.constants[value]
                self._constants[value] = _largest(array)
            return self._constants[value]
        dtype = self.graph.type_of(value).dtype
        return math.inf if can_be_infinite(dtype) else scanned(dtype)

    def _results(self, node: Node, taken: Sequence[float]) -> float:
        if not all(map(math.isfinite, taken)):
            return math.inf
        rule = _RULES.get(node.op)
        return math.inf if rule is None else rule(self, node, taken)

    def _gain(self, node: Node, position: int, read: Callable[[np.ndarray], float]) -> float:
        """A number that ``read`` computes from the magnitudes of a constant of the node, once."""
        if node.id not in self._gains:
            self._gains[node.id] = read(
                np.abs(self.graph.constants[node.inputs[position]].astype(np.float64))
            )
        return self._gains[node.id]


_Rule = Callable[[Magnitudes, Node, Sequence[float]], float]


def _largest(array: np.ndarray) -> float:
    if array.dtype.kind == "b" or not array.size:
        return 1.0
    with np.errstate(all="ignore"):
        found = float(np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)).max())
    return found if math.isfinite(found) else math.inf


def _of(function: Callable[[Sequence[float]], float]) -> _Rule:
    """The rule of an operator whose bound follows from those of its operands alone."""
    return lambda bounds, node, taken: function(taken)


def _first(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    return taken[0]


def _divide(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    if not bounds.graph.is_constant(node.inputs[1]):
        return math.inf
    least = bounds._gain(node, 1, lambda divisor: float(divisor.min(initial=math.inf)))
    return taken[0] / least if least > 0 else math.inf


def _clip(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    ends = [node.attrs.get("arg1"), node.attrs.get("arg2")]
    finite = [abs(end) for end in ends if isinstance(end, (int, float)) and math.isfinite(end)]
    if len(finite) == 2:
        return max(finite)
    return max(taken[0], *finite) if finite else taken[0]


def _leaky(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    alpha = node.attrs.get("alpha")
    return taken[0] * max(1.0, abs(alpha)) if isinstance(alpha, (int, float)) else math.inf


def _pad(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    value = node.attrs.get("pad_value")
    return max(taken[0], abs(value)) if isinstance(value, (int, float)) else math.inf


def _resize(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    plain = node.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize"
    return taken[0] if plain and node.attrs.get("method") in ("nearest_neighbor", "linear") else math.inf


def _take(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    return taken[0] if node.attrs.get("mode") in ("clip", "fast", "wrap") else math.inf


def _reduced(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    types = [bounds.graph.type_of(value) for value in (node.inputs[0], node.outputs[0])]
    return taken[0] * (types[0].size / max(types[1].size, 1))


def _conv(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    transposed = node.op.endswith("_transpose")
    if not str(node.attrs.get("kernel_layout")).startswith("IO" if transposed else "OI"):
        return math.inf
    weights = node.inputs[1]
    shape = bounds.graph.type_of(weights).shape
    if not bounds.graph.is_constant(weights):
        terms = math.prod(shape) / max(shape[1 if transposed else 0], 1)
        return taken[0] * taken[1] * terms
    axes = tuple(axis for axis in range(len(shape)) if axis != (1 if transposed else 0))
    return taken[0] * bounds._gain(node, 1, lambda w: float(w.sum(axis=axes).max(initial=0)))


def _largest_sum(weights: np.ndarray, axis: int) -> float:
    return float(weights.sum(axis=axis if weights.ndim > 1 else -1).max(initial=0))


def _matmul(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    graph = bounds.graph
    for position, axis in ((1, -2), (0, -1)):
        if graph.is_constant(node.inputs[position]):
            return taken[1 - position] * bounds._gain(node, position, partial(_largest_sum, axis=axis))
    shape = graph.type_of(node.inputs[0]).shape
    return taken[0] * taken[1] * (shape[-1] if shape else 1)


def _batch_norm(bounds: Magnitudes, node: Node, taken: Sequence[float]) -> float:
    epsilon, constants = node.attrs.get("epsilon"), bounds.graph.constants
    if not isinstance(epsilon, float) or not all(value in constants for value in node.inputs[1:5]):
        return math.inf
    scale, shift, mean, variance = (constants[value].astype(np.float64) for value in node.inputs[1:5])
    with np.errstate(all="ignore"):
        gain = np.abs(scale) / np.sqrt(variance + epsilon)
        most = float((gain * (taken[0] + np.abs(mean)) + np.abs(shift)).max(initial=0))
    return most if most >= 0 else math.inf


_RULES: dict[str, _Rule] = {
    **dict.fromkeys("sigmoid tanh nn.softmax erf sin cos sign".split(), _of(lambda taken: 1.0)),
    "nn.relu6": _of(lambda taken: 6.0),
    **dict.fromkeys("maximum minimum concat stack".split(), _of(max)),
    **dict.fromkeys(
        "nn.relu abs negative nn.gelu nn.silu hardswish nn.dropout reshape flatten squeeze expand_dims permute_dims "
        "split strided_slice repeat tile flip broadcast_to nn.pixel_shuffle nn.batch_flatten mean max min astype "
        "nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d "
        "nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d".split(),
        _first,
    ),
    **dict.fromkeys("round floor ceil trunc nn.softplus".split(), _of(lambda taken: taken[0] + 1)),
    **dict.fromkeys("add subtract".split(), _of(sum)),
    "multiply": _of(math.prod),
    "divide": _divide,
    "where": _of(lambda taken: max(taken[1:])),
    "clip": _clip,
    "nn.leakyrelu": _leaky,
    "nn.pad": _pad,
    "image.resize2d": _resize,
    "take": _take,
    "sum": _reduced,
    "matmul": _matmul,
    "nn.batch_norm": _batch_norm,
    **dict.fromkeys(CONVOLUTIONS, _conv),
}
