"""What a scan needs: which dtypes can be scanned, and the largest magnitudes of ordinary numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from collage.graph.dataflow import Graph, Node, np_dtype

LIMIT = 1e12
"""The largest magnitude that a scan accepts. Trained networks have no larger activations, and sums of squares of such
numbers are still far from float32's largest number, 3e38."""

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


def can_be_infinite(dtype: str) -> bool:
    """Whether values of that type can be NaN or infinite."""
    return "float" in dtype or "complex" in dtype


def can_be_scanned(dtype: str) -> bool:
    """Whether values of that type, which ``can_be_infinite``, can be scanned; floats of 8 bits and less cannot."""
    return dtype in SCANNED or dtype.startswith("complex")


def is_scanned(dtype: str) -> bool:
    """Whether there is a scan for values of that type, and they may hold something that it finds."""
    return can_be_scanned(dtype) or dtype in SCANNED_INTEGERS


def unguarded(graph: Graph, values: Collection[int]) -> frozenset[int]:
    """Those of the ``values``, which are found extraordinary, that no scan of the model's inputs can guard.

    They are inputs, or made of such inputs. What ordinary inputs lead to, as scores behind a mask that the model makes
    itself, is as the samples have shown.
    """
    reached = set(graph.inputs).intersection(values)
    for node in graph.nodes if reached else ():
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return frozenset(reached.intersection(values))


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
