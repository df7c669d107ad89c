"""Products of rows that each choose one of many constant matrices, as in mixtures of experts; see `expert_gemm.cpp`.

ONNX has no operator for them. They are read from a ``Scan`` over the rows and their choices, whose body gathers the
chosen matrix and multiplies the row with it. An engine that runs it as it is written copies a matrix for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.int8_weights import quantised
from collage.backends.native_kernels.algorithm import COLUMNS, Algorithm, shared_or_whole
from collage.backends.native_kernels.gemm import (
    IN_ORDER,
    ROW_CHUNK,
    orders_of,
    packed_weights,
    slice_depth,
    split_and_order,
    words,
)
from collage.backends.native_kernels.geometry import padded, shape_struct
from collage.backends.native_kernels.kernel import CKernel, SharedKernel
from collage.backends.native_kernels.limits import experts_limits
from collage.backends.native_kernels.reduced_gemm import (
    TILE_SUMS,
    WIDENED,
    bf16_panels,
    int8_panels,
    row_chunk,
)
from collage.core.typed import typed
from collage.graph.dataflow import Array
from collage.graph.storage import BF16, BLOCK, INT8
from collage.kernel.buffers import ALIGNMENT
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.packed import Packed
from collage.native.reach import FLOAT_BYTES, check_floats, picked

if TYPE_CHECKING:
    import onnx

    from collage.frontend.subgraph import Subgraph

OPERATOR = "onnx.Scan"
"""The name of a loop over the elements of tensors, which TVM's importer has left as it is."""

_DOMAINS = ("", "ai.onnx")
_AXES = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
"""Attributes of a Scan that are zeros if it goes along first axes, and forward."""
_INDEX_BYTES = 8


@dataclass(frozen=True)
class ExpertProduct:
    """``result[r] = data[r] @ weights[choice[r]]`` for each row r.

    ``weights`` are (E, K, N) in float32. ``data`` (R, K) in float32 and ``choice`` (R,) in int64 are positions among
    the subgraph's inputs, and ``rows`` is R. The result is (R, N) in float32.
    """

    data: int
    choice: int
    rows: int
    weights: Floats

    @property
    def flop(self) -> int:
        """The number of floating-point operations."""
        _, depth, columns = self.weights.shape
        return 2 * self.rows * int(depth * columns)


def read_experts(subgraph: Subgraph) -> ExpertProduct:
    """The subgraph as such products. Raises UnsupportedError with the reason if it is something else."""
    if len(subgraph.nodes) != 1:
        raise UnsupportedError("something follows the products of experts")
    graph, (node,) = subgraph.model.graph, subgraph.operators
    proto = subgraph.model.onnx.graph.node[node.source]
    if proto.domain not in _DOMAINS:
        raise UnsupportedError(f"a Scan of the domain {proto.domain}")
    _check_scan(proto)
    data, choice, weights = node.inputs
    if not graph.is_constant(weights):
        raise UnsupportedError("the experts' matrices are no constant")
    if graph.is_constant(data) or graph.is_constant(choice):
        raise UnsupportedError("the rows or their choices are constants")
    kinds = [graph.type_of(value) for value in (data, choice, weights, node.outputs[0])]
    dtypes = [each.dtype for each in kinds]
    if dtypes != ["float32", "int64", "float32", "float32"]:
        raise UnsupportedError(f"products of experts of {', '.join(dtypes)}")
    rows, chosen, matrices, made = (each.shape for each in kinds)
    fits = len(rows) == 2 and chosen == rows[:1] and len(matrices) == 3 and matrices[1] == rows[1]
    if not fits or made != (rows[0], matrices[2]):
        raise UnsupportedError(f"{rows} rows with the choices {chosen} of the matrices {matrices}")
    if 0 in (*rows, *matrices):
        raise UnsupportedError("there are no rows, no experts, or no numbers in them")
    return ExpertProduct(
        subgraph.inputs.index(data),
        subgraph.inputs.index(choice),
        rows[0],
        np.asarray(graph.constants[weights], np.float32),
    )


def _check_scan(node: onnx.NodeProto) -> None:
    """Raise UnsupportedError unless the node multiplies each row with the matrix that its index chooses."""
    attributes = {each.name: each for each in node.attribute}
    body = attributes["body"].g
    odd = sorted(attributes.keys() - {"body", "num_scan_inputs", *_AXES})
    if odd or any(number for name in _AXES if name in attributes for number in attributes[name].ints):
        raise UnsupportedError(f"a Scan along other axes than the first ones, or backward{' '.join(odd)}")
    ports = (
        len(node.input),
        attributes["num_scan_inputs"].i,
        len(node.output),
        len(body.input),
        len(body.output),
    )
    if ports != (2, 2, 1, 2, 1) or not all((*node.input, *node.output)):
        raise UnsupportedError("a Scan with a state, or over something else than rows and their choices")
    row, chosen = (each.name for each in body.input)
    steps = {each.op_type: each for each in body.node if each.domain in _DOMAINS}
    if [each.op_type for each in body.node] != ["Gather", "MatMul"] or len(steps) != 2:
        raise UnsupportedError("the body of the Scan does not gather a matrix and multiply by it")
    gather, product = steps["Gather"], steps["MatMul"]
    if any(each.name != "axis" or each.i not in (0, -3) for each in gather.attribute):
        raise UnsupportedError("the body of the Scan gathers along another axis than the first one")
    if body.initializer or body.sparse_initializer or len({row, chosen, gather.input[0], gather.output[0]}) != 4:
        raise UnsupportedError("the experts' matrices are inside the Scan")
    wired = gather.input[1] == chosen and [*product.input] == [row, gather.output[0]]
    if not wired or body.output[0].name != product.output[0]:
        raise UnsupportedError("the body of the Scan gathers or multiplies something else")


class Experts(Algorithm[ExpertProduct]):
    """Takes rows that choose one of many constant matrices each, in float32."""

    name = "experts"
    roots = frozenset({OPERATOR})
    read = staticmethod(read_experts)
    together: ClassVar[int] = 1
    """The number of weights that lie in 4 bytes."""
    kind: ClassVar[str] = ""
    """What the name of the kernel's function ends with."""
    scaled: ClassVar[bool] = False
    """Whether each column of the weights has a factor."""

    def variants(self, task: ExpertProduct, build: BuildOptions) -> Sequence[Variant]:
        """Plain variants, split by columns, so that each thread reads its part of the matrices, or one thread has all.

        Where experts have few rows on average, these may be read in order.
        """
        experts, _, columns = task.weights.shape
        splits = shared_or_whole(COLUMNS, task.flop, build, columns // BLOCK)
        orders = orders_of(-(-task.rows // experts))
        return [Variant(split=words(split, order)) for split in splits for order in orders]

    def pack(self, task: ExpertProduct, build: BuildOptions) -> Packed:
        """The shape of the kernel, and each expert's weights in the order in which they are read."""
        depth = task.weights.shape[1]
        return self.packed(task, build, ROW_CHUNK, slice_depth(depth))

    def packed(self, task: ExpertProduct, build: BuildOptions, chunk: int, deep: int) -> Packed:
        """The same, if so many rows are multiplied with a depth of ``deep`` at a time."""
        split, order = split_and_order(build.variant.split)
        experts, depth, columns = task.weights.shape
        shares = build.threads if split.startswith(COLUMNS) else 1
        numbers = {
            "rows": task.rows,
            "depth": depth,
            "columns": columns,
            "experts": experts,
            "row_chunk": chunk,
            "slice": deep,
            "shares": shares,
            "in_order": order == IN_ORDER,
            "data": task.data,
            "choice": task.choice,
        }
        arrays: dict[str, Floats] = {}
        for expert, matrix in enumerate(task.weights):
            for name, part in self.one_packed(matrix, deep, shares).items():
                arrays.setdefault(name, np.empty((experts, part.size), np.float32))[expert] = part
        return Packed(numbers, arrays)

    def one_packed(self, matrix: Floats, deep: int, shares: int) -> Mapping[str, Floats]:
        """The kernel's arrays for one expert's matrix (K, N): ``weights``, flat, in the order in which they are read.

        Beside them there may be others.
        """
        return {"weights": packed_weights(matrix, deep, shares)}

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel for a team of ``threads`` threads. Raises MalformedError for numbers that do not fit."""
        return _ExpertKernel(self, packed, threads)


class WidenedExperts(Experts):
    """The same with weights in fewer bits, which are widened and multiplied with float32 rows; see `expert_widened.h`.

    Dot products of narrow rows would save arithmetic, which sets the pace only if many rows choose the same matrix.
    """

    def variants(self, task: ExpertProduct, build: BuildOptions) -> Sequence[Variant]:
        """The splits and orders of float32."""
        return [
            replace(each, split=words(split, WIDENED, order), precision=self.precision)
            for each in super().variants(task, build)
            for split, order in [split_and_order(each.split)]
        ]

    def pack(self, task: ExpertProduct, build: BuildOptions) -> Packed:
        """The shape of the kernel, and what it reads of each expert. The depth is not sliced."""
        depth = task.weights.shape[1]
        return self.packed(task, build, row_chunk(depth), depth)


class Bf16Experts(WidenedExperts):
    """The products with matrices of bfloat16."""

    name = "bf16_experts"
    precision = BF16
    together = 2
    kind = "_bf16"

    def one_packed(self, matrix: Floats, deep: int, shares: int) -> Mapping[str, Floats]:
        """One expert's matrix (K, N) in bfloat16, of which two are seen as one float32."""
        return {"weights": bf16_panels(matrix, shares)}


class Int8Experts(WidenedExperts):
    """The products with matrices of 8 bits. Each column of each expert has a factor of its own, as in ``Int8Gemm``."""

    name = "int8_experts"
    precision = INT8
    together = 4
    kind = "_int8"
    scaled = True

    def one_packed(self, matrix: Floats, deep: int, shares: int) -> Mapping[str, Floats]:
        """One expert's matrix (K, N) in 8 bits, of which four are seen as one float32, and ``scales`` of its columns.

        Raises UnsupportedError for NaN and infinities.
        """
        weights, scales = quantised(matrix)
        return {
            "weights": int8_panels(weights, shares),
            "scales": padded(scales, len(scales)),
        }


class _ExpertKernel(SharedKernel):
    """A kernel that reads, besides the data, the rows' choices."""

    def __init__(self, algorithm: Experts, packed: Packed, threads: int) -> None:
        together, scaled = algorithm.together, algorithm.scaled
        kernel = CKernel(
            f"collage_expert_gemm{algorithm.kind}",
            _SHAPE,
            partial(experts_limits, together=together, scaled=scaled),
            ("weights", "scales" if scaled else ""),
            residual=False,
            scratch_bytes=partial(_scratch_bytes, together=together),
        )
        super().__init__(kernel, packed, threads)
        self._choice, self._rows = (typed(int, packed.numbers[name]) for name in ("choice", "rows"))

    def also_read(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """The rows' choices. Raises MalformedError if there are too few."""
        choice = picked("input", inputs, self._choice)
        check_floats("the choice", choice, self._rows * _INDEX_BYTES / FLOAT_BYTES)
        return (choice,)


_SHAPE = shape_struct(
    *("rows", "depth", "columns", "experts", "row_chunk", "slice", "shares", "in_order"), clamps=False
)
"""``collage_expert_gemm_shape``."""


def _scratch_bytes(numbers: Mapping[str, Any], together: int) -> int:
    """The size of a share's order of the rows, copies of some, and for widened weights the sums of a tile.

    It is what ``collage_expert_gemm_scratch`` and its like say. ``together`` weights have 4 bytes.
    """
    rows = min(numbers["rows"], numbers["row_chunk"])
    parts = (
        _INDEX_BYTES * (numbers["experts"] + 2 + 2 * numbers["rows"]),
        FLOAT_BYTES * rows * together * -(-numbers["depth"] // together),
        FLOAT_BYTES * rows * numbers["columns"],
        FLOAT_BYTES * (TILE_SUMS if together > 1 else 0),
    )
    return int(sum(-(-each // ALIGNMENT) * ALIGNMENT for each in parts))
