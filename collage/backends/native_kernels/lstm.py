"""LSTM layers with constant weights; see `lstm.cpp`.

What is computed of the data is one product for all steps. What is left of a step is a product with the state before
it, whose weights stay in the cache of the core that computes these units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.native_kernels.algorithm import COLUMNS, WHOLE, Algorithm, shared_or_whole
from collage.backends.native_kernels.gemm import ROW_CHUNK, Gemm, packed_weights, slice_depth
from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.kernel import kernel_task
from collage.core.typed import MalformedError
from collage.graph.dataflow import Array
from collage.graph.storage import BLOCK, PLAIN
from collage.kernel.buffers import aligned_bytes
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel, Step, in_sequence
from collage.native.kernel_library import kernel_function
from collage.native.packed import Packed
from collage.native.reach import at_least, check_floats, one_of, picked
from collage.native.structure import structure

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

OPERATOR = "onnx.LSTM"
"""The name of an LSTM that TVM's importer has left as it is."""

_GATES = 4
_DIRECTIONS = {b"forward": 1, b"reverse": 1, b"bidirectional": 2}
_ACTIVATIONS = [b"Sigmoid", b"Tanh", b"Tanh"]
_KNOWN = frozenset({"activations", "direction", "hidden_size", "input_forget", "layout"})
_OUTPUTS = ("y", "last_h", "last_c")


@dataclass(frozen=True)
class Lstm:
    """What a layer computes. Matrices are [direction, gates x hidden, elements], with the gates in ONNX's order.

    ``data``, ``before_h`` and ``before_c`` are positions among the subgraph's inputs, and those of ``made`` (by the
    names y, last_h and last_c) among its outputs; None stands for what is not there.
    """

    steps: int
    batch: int
    reverse: bool
    of_data: Floats
    of_state: Floats
    bias: Floats
    data: int
    before_h: int | None
    before_c: int | None
    made: Mapping[str, int | None]
    inputs: int
    outputs: int

    @property
    def directions(self) -> int:
        """The number of directions, 1 or 2."""
        return int(self.of_state.shape[0])

    @property
    def hidden(self) -> int:
        """The number of units of a direction."""
        return int(self.of_state.shape[2])

    @property
    def blocks(self) -> int:
        """The number of blocks of units in all directions."""
        return self.directions * self.hidden // BLOCK

    @property
    def flop(self) -> int:
        """The number of floating-point operations of the products."""
        return 2 * self.steps * self.batch * (self.of_data.size + self.of_state.size)


def read_lstm(subgraph: Subgraph) -> Lstm:
    """The subgraph as a layer. Raises UnsupportedError with the reason if it is none that the kernel takes."""
    if len(subgraph.nodes) != 1:
        raise UnsupportedError("something follows the LSTM")
    graph, (node,) = subgraph.model.graph, subgraph.operators
    proto = subgraph.model.onnx.graph.node[node.source]
    attributes = {each.name: _value(each) for each in proto.attribute}
    directions = _DIRECTIONS.get(attributes.get("direction", b"forward"), 0)
    odd = sorted(attributes.keys() - _KNOWN)
    if odd or not directions or attributes.get("layout", 0) or attributes.get("input_forget", 0):
        raise UnsupportedError(f"an LSTM with {', '.join(odd) or 'another layout, direction or coupled gates'}")
    if attributes.get("activations", _ACTIVATIONS * directions) != _ACTIVATIONS * directions:
        raise UnsupportedError("an LSTM with other activations than the usual ones")
    values = iter(node.inputs)
    given: list[int | None] = [next(values) if name else None for name in proto.input]
    given += [None] * (8 - len(given))
    data, of_data, of_state, bias, lengths, before_h, before_c, peepholes = given
    if lengths is not None or peepholes is not None:
        raise UnsupportedError("an LSTM with lengths of sequences or peepholes")
    if data is None or of_data is None or of_state is None or graph.is_constant(data):
        raise UnsupportedError("an LSTM of constant data")
    if not all(graph.is_constant(value) for value in (of_data, of_state, bias) if value is not None):
        raise UnsupportedError("the weights of the LSTM are no constants")
    # Exporters write the zeros down that a state begins with if none is given.
    before_h, before_c = (
        None if v is not None and graph.is_constant(v) and not graph.constants[v].any() else v
        for v in (before_h, before_c)
    )
    if any(graph.is_constant(v) for v in (before_h, before_c) if v is not None):
        raise UnsupportedError("the state before the LSTM is a constant other than zero")
    kinds = {graph.type_of(v).dtype for v in (*node.inputs, *node.outputs)}
    if kinds != {"float32"}:
        raise UnsupportedError(f"an LSTM of {', '.join(sorted(kinds))}")
    steps, batch, _ = graph.type_of(data).shape
    weights = [np.asarray(graph.constants[value], np.float32) for value in (of_data, of_state)]
    hidden = weights[1].shape[2]
    if hidden % BLOCK:
        raise UnsupportedError(f"{hidden} hidden units are no multiple of {BLOCK}")
    terms = np.zeros((directions, 2 * _GATES * hidden), np.float32)
    if bias is not None:
        terms = np.asarray(graph.constants[bias], np.float32)
    made = iter(node.outputs)
    names = [*proto.output, *[""] * (3 - len(proto.output))]
    outputs = dict(zip(_OUTPUTS, (next(made) if name else None for name in names), strict=True))
    return Lstm(
        steps,
        batch,
        attributes.get("direction") == b"reverse",
        weights[0],
        weights[1],
        terms[:, : _GATES * hidden] + terms[:, _GATES * hidden :],
        subgraph.inputs.index(data),
        None if before_h is None else subgraph.inputs.index(before_h),
        None if before_c is None else subgraph.inputs.index(before_c),
        {name: subgraph.outputs.index(value) if value in subgraph.outputs else None for name, value in outputs.items()},
        len(subgraph.inputs),
        len(subgraph.outputs),
    )


class LstmLayer(Algorithm[Lstm]):
    """Layers over several steps, with constant weights, in float32."""

    name = "lstm"
    roots = frozenset({OPERATOR})
    read = staticmethod(read_lstm)

    def variants(self, task: Lstm, build: BuildOptions) -> list[Variant]:
        """Plain variants: units are shared by the threads, or one thread has all. Raises UnsupportedError."""
        splits = shared_or_whole(COLUMNS, task.flop, build, task.blocks)
        plain = (PLAIN,) * task.inputs, (PLAIN,) * task.outputs
        return [Variant(*plain, split) for split in splits]

    def pack(self, task: Lstm, build: BuildOptions) -> Packed:
        """The numbers of the kernel and its weights, in the order in which they are read. Raises UnsupportedError."""
        shares = 1 if build.variant.split == WHOLE else build.threads
        depth = task.of_data.shape[2]
        deep = slice_depth(depth)
        numbers = {
            "steps": task.steps,
            "batch": task.batch,
            "elements": depth,
            "hidden": task.hidden,
            "directions": task.directions,
            "reverse": int(task.reverse),
            "shares": shares,
            "slice": deep,
            "data": task.data,
            "before_h": task.before_h,
            "before_c": task.before_c,
            **task.made,
        }
        matrix = np.concatenate([_by_block(each) for each in task.of_data]).reshape(-1, depth).T
        arrays = {
            "weights": packed_weights(np.ascontiguousarray(matrix), deep, shares),
            "bias": np.concatenate([_by_block(each[:, None]).reshape(-1) for each in task.bias]),
            "of_state": np.concatenate([_by_unit(each) for each in task.of_state]),
        }
        return Packed(numbers, arrays)

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel for a team of ``threads`` threads. Raises MalformedError for numbers that do not fit."""
        return _LstmKernel(packed, threads)


def _value(attribute: Any) -> Any:
    from onnx.helper import get_attribute_value

    return get_attribute_value(attribute)


def _by_block(matrix: Floats) -> Floats:
    """Rows [gate, unit] as [block, gate, unit of the block]."""
    rows, columns = matrix.shape
    found: Floats = matrix.reshape(_GATES, rows // (_GATES * BLOCK), BLOCK, columns).swapaxes(0, 1)
    return found


def _by_unit(matrix: Floats) -> Floats:
    """[gate, unit, unit before] as [block, unit before, gate, unit of the block], flat."""
    return np.ascontiguousarray(_by_block(matrix).transpose(0, 3, 1, 2)).reshape(-1)


class _LstmKernel(NativeKernel):
    def __init__(self, packed: Packed, threads: int) -> None:
        super().__init__(threads)
        n = packed.numbers
        at_least(1, n, "steps", "batch", "elements", "hidden", "directions", "shares", "slice")
        one_of((0, 1), n, "reverse")
        one_of((1, 2), n, "directions")
        blocks = n["directions"] * n["hidden"] // BLOCK
        if n["hidden"] % BLOCK or n["shares"] > min(threads, blocks):
            raise MalformedError(f"{n['hidden']} hidden units in {n['shares']} shares, on {threads} threads")
        self._numbers = n
        self._function = kernel_function("collage_lstm")
        self._shape = structure(_Shape, n)
        self._of_state = packed.arrays["of_state"]
        self._columns = _GATES * BLOCK * blocks
        check_floats("weights of the state", self._of_state, self._columns * n["hidden"])
        self._product = Gemm().load(self._of_data(packed), threads)

    def _of_data(self, packed: Packed) -> Packed:
        """The product of all steps' data with the weights."""
        n = self._numbers
        numbers = {
            "rows": n["steps"] * n["batch"],
            "depth": n["elements"],
            "columns": self._columns,
            "row_chunk": ROW_CHUNK,
            "slice": n["slice"],
            "shares": n["shares"],
            "by_rows": 0,
            "activation": 0,
            "residual_first": 0,
            "low": -math.inf,
            "high": math.inf,
            "data": 0,
            "residual": None,
        }
        return Packed(numbers, {name: packed.arrays[name] for name in ("weights", "bias")})

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """The product of the data, and a step for each one of the sequence. Raises MalformedError for short buffers."""
        n = self._numbers
        state = n["directions"] * n["batch"] * n["hidden"]
        data = picked("input", inputs, n["data"])
        sums = self._scratch(n["steps"] * n["batch"] * self._columns)
        before = [None if n[key] is None else picked("input", inputs, n[key]) for key in ("before_h", "before_c")]
        made = {key: None if n[key] is None else picked("output", outputs, n[key]) for key in _OUTPUTS}
        y = made["y"] if made["y"] is not None else self._scratch(n["steps"] * state)
        c = made["last_c"] if made["last_c"] is not None else self._scratch(state)
        check_floats("the data", data, n["steps"] * n["batch"] * n["elements"])
        check_floats("the result", y, n["steps"] * state)
        for each in (*before, c, made["last_h"]):
            if each is not None:
                check_floats("a state", each, state)
        arrays = [sums, self._of_state, *before, y, c, made["last_h"]]
        first, shares = self._product.steps([data], [sums]), n["shares"]
        tasks = [kernel_task(self._function, self._shape, arrays, i) for i in range(n["steps"] * shares)]
        if shares == 1:
            return [*first, Step((in_sequence(tasks),))]
        return [*first, *(Step(tuple(tasks[at : at + shares])) for at in range(0, len(tasks), shares))]

    @staticmethod
    def _scratch(floats: int) -> Array:
        found: Array = aligned_bytes(4 * floats).view(np.float32)
        return found


_Shape = shape_struct("steps", "batch", "hidden", "directions", "reverse", "shares", clamps=False)
"""``collage_lstm_shape``."""
