"""Random inputs that a model accepts, as similar to a user's data as the graph allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.core.memory import physical_bytes
from collage.errors import ModelError
from collage.graph.dataflow import Array, Graph, Node, TensorType, np_dtype
from collage.graph.value_type import OPTIONAL, SEQUENCE, STRING, TENSOR, ValueType

if TYPE_CHECKING:  # this module imports TVM, which `collage run --random` does not need
    from collage.frontend.model import Model

_FOLLOWED = frozenset(
    "reshape flatten squeeze expand_dims permute_dims broadcast_to astype add subtract where concat split "
    "strided_slice tile repeat minimum maximum clip onnx.Cast onnx.Unsqueeze onnx.Squeeze onnx.Reshape onnx.Flatten "
    "onnx.Transpose onnx.Expand onnx.Slice onnx.Concat onnx.Where onnx.Identity".split()
)
"""Operators whose results are indices if their operands are."""
_INDEXING = {"take": 1, "gather_elements": 1, "onnx.Gather": 1, "onnx.GatherElements": 1}
"""The position of the indices of operators that index. Their data comes first."""

_DIVISIONS = frozenset(["divide", "floor_divide", "mod", "floor_mod", "onnx.Div", "onnx.Mod"])
"""Operators whose second input is a divisor. ONNX does not define a division of integers by zero, and ONNX Runtime
ends the process."""
_WITH_BODIES = frozenset(("onnx.If", "onnx.Loop", "onnx.Scan"))

_DRAWN_BYTES = 8
"""The size of a random number before it is cast."""


def random_inputs(model: Model, rng: np.random.Generator) -> tuple[Array, ...]:
    """An array for each of the graph's inputs, in order: the user's sample if there is one, or else random numbers.

    Floats are standard normal, and booleans are fair coins. Indices are uniform below the number of rows that they
    index (found by following them through the graph), other integers of 8 and 16 bits uniform in the range of the
    dtype. Wider ones are 0 or 1, or 1 or 2 if they divide something.
    """
    return tuple(
        model.example_inputs[name] if name in model.example_inputs else _random_input(model, value, rng)
        for name, value in zip(model.input_names, model.graph.inputs, strict=True)
    )


def _random_input(model: Model, value: int, rng: np.random.Generator) -> Array:
    kind = model.graph.type_of(value)
    rows = indexed_rows(model, value)
    if not _is_integer(kind.dtype) or rows is not None:
        return random_array(kind, rng, rows or 2)
    if _divides(model, value):
        return random_array(kind, rng, 2) + np.ones((), np_dtype(kind.dtype))
    dtype = np_dtype(kind.dtype)
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        return random_array(kind, rng, 2)
    info = np.iinfo(dtype.name)
    return rng.integers(info.min, info.max, kind.shape, dtype, endpoint=True)


def _divides(model: Model, value: int) -> bool:
    """Whether something is divided by the value, or by a value that is calculated from it."""
    graph = model.graph
    reached = {value}
    for node in graph.nodes:
        if node.op in _DIVISIONS and len(node.inputs) > 1 and node.inputs[1] in reached:
            return True
        if reached.intersection(node.inputs):
            reached.update(v for v in node.outputs if _is_integer(graph.type_of(v).dtype))
    return False


def random_array(kind: TensorType, rng: np.random.Generator, limit: int = 2) -> Array:
    """A random array: floats are standard normal, booleans fair coins, and integers uniform in [0, limit).

    Raises ModelError for an array that does not fit into memory.
    """
    dtype = np_dtype(kind.dtype)
    array: Any
    try:
        if _DRAWN_BYTES * kind.size > physical_bytes():
            raise MemoryError
        if dtype.kind in "biu" or "int" in dtype.name:
            array = rng.integers(0, 2 if dtype.kind == "b" else limit, kind.shape)
        else:
            array = rng.standard_normal(kind.shape)
            if dtype.kind == "c":
                array = array + 1j * rng.standard_normal(kind.shape)
        return np.asarray(array).astype(dtype)
    except MemoryError as error:
        raise ModelError(
            f"random numbers for {kind} take {_DRAWN_BYTES * kind.size >> 20} MiB, more than there is: fix "
            "smaller shapes (--shape, shapes= in Python), or give values (--input, inputs= in Python)."
        ) from error


def random_value(kind: ValueType | TensorType, rng: np.random.Generator) -> Any:
    """A random value of any type. Unknown extents are 1, strings are short words, and sequences have two elements.

    Raises TypeError for types that cannot be made up, and ModelError as ``random_array`` does.
    """
    if isinstance(kind, TensorType):
        return random_array(kind, rng)
    if kind.kind == TENSOR:
        shape = tuple(1 if extent is None else extent for extent in kind.shape or ())
        if kind.dtype == STRING:
            return rng.choice(np.array(["a", "bc", "def"], object), shape)
        return random_array(TensorType(shape, kind.dtype), rng)
    if kind.element is None or kind.kind not in (SEQUENCE, OPTIONAL):
        raise TypeError(f"a {kind} cannot be made up")
    value = random_value(kind.element, rng)
    return value if kind.kind == OPTIONAL else [value, random_value(kind.element, rng)]


def indexed_rows(model: Model, value: int) -> int | None:
    """The number of rows of the smallest tensor that the value indexes, or None if it is no index."""
    graph = model.graph
    seen = {value}
    pending = [value]
    rows: list[int] = []
    while pending:
        current = pending.pop()
        for user in graph.users[current]:
            node = graph.nodes[user]
            if node.op in _INDEXING:
                if current in node.inputs[_INDEXING[node.op] :]:
                    rows.append(_extent(model, node))
                if current != node.inputs[0]:
                    continue
            if node.op in _FOLLOWED or node.op in _INDEXING:
                new = [v for v in node.outputs if v not in seen and _is_integer(graph.type_of(v).dtype)]
                seen.update(new)
                pending += new
    return min((each for each in rows if each > 0), default=None)


def free_integers(graph: Graph, values: Sequence[int], members: Sequence[int], indices: Sequence[bool]) -> list[bool]:
    """Which of the values may be any integer: those that are no indices, and that no divisor is computed from.

    Those that bodies of loops and branches read may be both.

    ``values`` are value ids, and ``indices`` tells of each whether it is used as an index. ``members`` are the nodes
    that the values go through. ONNX does not define a division of integers by zero, and ONNX Runtime ends the
    process.
    """
    tainted: set[int] = set()  # values that a divisor is calculated from, or an index in a body
    for number in sorted(members, reverse=True):
        node = graph.nodes[number]
        if node.op in _DIVISIONS and len(node.inputs) > 1 and "int" in graph.type_of(node.inputs[1]).dtype:
            tainted.add(node.inputs[1])
        if node.op in _WITH_BODIES:
            tainted.update(node.inputs)
        if tainted.intersection(node.outputs):
            tainted.update(node.inputs)
    return [not index and value not in tainted for value, index in zip(values, indices, strict=True)]


def _is_integer(dtype: str) -> bool:
    return "int" in dtype


def _extent(model: Model, node: Node) -> int:
    """The length of the axis of the data that the node indexes."""
    shape = model.graph.type_of(node.inputs[0]).shape
    axis = node.attrs.get("axis", 0)
    if node.op.startswith("onnx."):
        from collage.frontend.read.scopes import integer  # with onnx, which drawing values does not need

        axis = integer(model.onnx.graph.node[node.source], "axis")
    if not isinstance(axis, int):  # take without an axis indexes the flattened tensor
        return int(np.prod(shape))
    return shape[axis] if -len(shape) <= axis < len(shape) else 1  # engines refuse an invalid axis
