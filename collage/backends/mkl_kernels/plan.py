"""Dividing a product among the threads of a team: which matrices each share multiplies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as every
from typing import Any, ClassVar, TypeAlias

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats, read_chain
from collage.backends.chains.conv import Conv, conv_of
from collage.backends.chains.epilogue import Epilogue, read_epilogue
from collage.backends.chains.linear_fold import fold
from collage.backends.chains.product import Product, Views, ranges, read_product, splits, views_of
from collage.backends.chains.product_rule import ProductRule
from collage.backends.chains.strided import FLOAT_BYTES, Strided, cut, dense
from collage.backends.chains.transposes import ProductChain, product_of, read_product_chain
from collage.backends.native_kernels.task import check_pixels
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import BF16, CHANNELS_LAST, PLAIN, Storage, narrowed
from collage.kernel.options import Variant
from collage.native.kernel_library import kernels_problem
from collage.native.packed import Packed

CONVOLUTIONS = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
ROOTS = frozenset({"matmul", *CONVOLUTIONS})


@dataclass(frozen=True)
class MklTask:
    """``factor`` x left x right, then ``bias`` for each column and ``epilogue``.

    ``matrix`` is the right operand if it is constant. Its columns are multiplied with ``scale``.
    """

    chain: Chain
    product: Product
    views: Views
    matrix: Floats | None
    scale: Floats | None
    factor: float
    bias: Floats | None
    epilogue: Epilogue
    layout: Storage
    """The layout of everything that has pixels, which are rows of the product."""

    @property
    def weights(self) -> Floats | None:
        """The matrix with its columns multiplied. It is computed on each use, since it is large, and only packed."""
        return self.matrix if self.matrix is None or self.scale is None else self.matrix * self.scale


def task_of(subgraph: Subgraph) -> MklTask:
    """The subgraph as a product, parsed once. Raises UnsupportedError when it is none that MKL takes."""
    return subgraph.parsed(_read_task)


def _read_task(subgraph: Subgraph) -> MklTask:
    root = product_of(subgraph)
    if root is None or root.op not in ROOTS:
        raise UnsupportedError(f"MKL has no {subgraph.operators[0].op}")
    graph = subgraph.model.graph
    for value in (*root.inputs, root.outputs[0]):
        kind = graph.type_of(value)
        if kind.dtype != "float32" or not kind.size:
            raise UnsupportedError(f"{kind}: MKL gets float32 with elements only")
    task = (
        _convolution(subgraph.parsed(read_chain), conv_of(subgraph))
        if root.op in CONVOLUTIONS
        else _matmul(subgraph.parsed(read_product_chain))
    )
    plain = task.bias is None and task.epilogue == Epilogue()
    if not plain and (problem := kernels_problem()):
        raise UnsupportedError(f"functions after a product need Collage's own kernels: {problem}")
    return task


def _matmul(chain: ProductChain) -> MklTask:
    product = read_product(chain.graph, chain.root)
    views = views_of(chain, product)
    shape = chain.type_of(chain.root.outputs[0]).shape
    folded = fold(chain, shape, len(shape) - 1)
    matrix, factor = chain.constant(chain.root.inputs[1]), 1.0
    if matrix is not None:
        matrix = matrix.reshape(product.right)
    elif folded.scale is not None:
        factor = float(folded.scale[0])
        if (folded.scale != folded.scale[0]).any():
            raise UnsupportedError("the columns of two computed matrices' product have factors")
    epilogue = read_epilogue(chain, folded.epilogue, shape)
    if epilogue.residual is not None and views.dst != dense(product.dst):
        raise UnsupportedError("a residual is added to a transposed result")
    return MklTask(chain, product, views, matrix, folded.scale, factor, folded.bias, epilogue, PLAIN)


def _convolution(chain: Chain, conv: Conv) -> MklTask:
    """A convolution of single pixels, with channels innermost."""
    data = chain.root.inputs[0]
    check_pixels(chain, conv)
    folded = fold(chain, conv.dst, 1)
    outputs, inputs = conv.weights.shape[:2]
    rows = conv.dst[0] * math.prod(conv.dst[2:])
    product = Product((rows, inputs), (inputs, outputs), (rows, outputs), True)
    views = Views(dense(product.left), dense(product.right), dense(product.dst), (data, chain.root.inputs[1]))
    matrix = conv.weights.reshape(outputs, inputs).T
    epilogue = read_epilogue(chain, folded.epilogue, conv.dst)
    return MklTask(chain, product, views, matrix, folded.scale, 1.0, folded.bias, epilogue, CHANNELS_LAST)


PACKED = "packed"
_CHUNK_BYTES = 1 << 19
"""The size of the sums that get their epilogue at a time, while they are in the L2 cache."""
_LEAST_ROWS = 64
"""The fewest rows of a chunk, since each chunk reads all of the right operand."""
_MOST = 2**31 - 1

Box: TypeAlias = "list[tuple[int, int]]"
"""Where a part of the result begins and ends along each axis."""


class MklRule(ProductRule):
    """Finds products with their epilogues, and pointwise convolutions."""

    library: ClassVar[str] = "MKL"
    roots: ClassVar[frozenset[str]] = ROOTS

    def take(self, subgraph: Subgraph) -> object:
        """Read the product and its variants. Raises UnsupportedError if MKL has none."""
        return variants(task_of(subgraph), 1)


def variants(task: MklTask, threads: int) -> list[Variant]:
    """The splits of the product, with a constant matrix as it is and packed by MKL.

    Raises UnsupportedError when MKL has no call for the operands.
    """
    _call(task, [(0, extent) for extent in task.product.dst])
    packs = task.matrix is not None and task.matrix.ndim == 2
    words = [word for split in splits(task.product, threads) for word in _words(split, packs)]
    if task.layout == PLAIN:
        return [Variant(split=word) for word in words]
    return [Variant((task.layout,) * len(task.chain.inputs), (task.layout,), word) for word in words]


def narrow_variants(task: MklTask, threads: int) -> list[Variant]:
    """The splits with bfloat16 data and a packed matrix of bfloat16. There are none for two computed operands.

    The result is float32, and so is what is added to it.
    """
    if task.matrix is None or task.matrix.ndim != 2:
        return []
    data = task.chain.inputs.index(task.views.values[0])
    if task.epilogue.residual == task.views.values[0]:
        return []
    wide = [task.layout] * len(task.chain.inputs)
    wide[data] = narrowed(task.layout, BF16)
    words = [word for split in splits(task.product, threads) for word in _words(split, True)[1:]]
    return [Variant(tuple(wide), (task.layout,), word, BF16) for word in words]


def _words(split: str, packs: bool) -> list[str]:
    packed = f"{split}, {PACKED}" if split else PACKED
    return [split, packed] if packs else [split]


def plan(task: MklTask, variant: Variant, threads: int) -> Packed:
    """The shares as numbers, with the bias and the weights, which are packed in MKL's own order only when loaded."""
    place = task.chain.inputs.index
    split = variant.split.removesuffix(PACKED).removesuffix(", ")
    epilogue = task.epilogue
    follows = task.bias is not None or epilogue != Epilogue()
    shares = []
    for where in ranges(task.product, split, threads):
        whole = [(0, extent) for extent in task.product.dst]
        if where is not None:
            whole[where.axis] = where.start, where.stop
        shares.append([_call(task, box) for box in (_chunks(whole) if follows else [whole])])
    numbers = {
        "left": place(task.views.values[0]),
        "right": None if task.matrix is not None else place(task.views.values[1]),
        "packed": variant.split != split,
        **({"narrow": True} if variant.precision else {}),
        "factor": task.factor,
        "shares": shares,
        "finish": follows,
        "activation": epilogue.activation,
        "residual_first": epilogue.residual_first,
        "low": epilogue.low,
        "high": epilogue.high,
        "residual": None if epilogue.residual is None else place(epilogue.residual),
    }
    weights = task.weights
    arrays = {} if weights is None else {"weights": np.ascontiguousarray(weights)}
    return Packed(numbers, arrays if task.bias is None else {**arrays, "bias": task.bias})


def _chunks(whole: Box) -> Iterator[Box]:
    """Parts of a matrix that get their epilogue soon after they are computed. A batch is one part."""
    *batch, (start, stop), columns = whole
    if batch:
        yield whole
        return
    rows = max(_LEAST_ROWS, _CHUNK_BYTES // (FLOAT_BYTES * (columns[1] - columns[0])))
    for begin, end in cut(stop - start, -(-(stop - start) // rows)):
        yield [(start + begin, start + end), columns]


def _call(task: MklTask, box: Box) -> dict[str, Any]:
    """The product of that part of the result. Offsets and distances of rows are in floats."""
    views = task.views
    rows, columns = box[-2:]
    everything = (0, task.product.left[-1])
    left = _matrices(views.left, [*box[:-2], rows, everything])
    right = _matrices(views.right, [*box[:-2], everything, columns])
    dst = _matrices(views.dst, box)
    if dst.transposed:
        raise UnsupportedError("the rows of the result do not lie together")
    if max(left.row, right.row, dst.row, *task.product.dst) > _MOST:
        raise UnsupportedError("a matrix is larger than MKL's 32-bit integers")
    return {
        "rows": rows[1] - rows[0],
        "columns": columns[1] - columns[0],
        "depth": everything[1],
        "first_column": columns[0],
        **{"left_row": left.row, "left_transposed": left.transposed, "left": left.starts},
        **{"right_row": right.row, "right_transposed": right.transposed, "right": right.starts},
        **{"dst_row": dst.row, "dst": dst.starts},
    }


@dataclass(frozen=True)
class _Matrices:
    """Matrices of one form: where each starts, and the distance of the rows as they lie in memory."""

    starts: list[int]
    row: int
    transposed: bool


def _matrices(whole: Strided, box: Box) -> _Matrices:
    """Part of a batch. An operand that broadcasts along an axis is read again for each place on it."""
    spans = [(0, 1) if extent == 1 else span for extent, span in zip(whole.dims, box, strict=True)]
    *_, rows, columns = (range(*span) for span in spans)
    row, column = whole.strides[-2:]
    if column == 1 or len(columns) == 1:
        distance, transposed = (row if len(rows) > 1 else 0), False
    elif row == 1 or len(rows) == 1:
        distance, transposed = column, True
    else:
        raise UnsupportedError("neither rows nor columns of a matrix lie together")
    first = rows.start * row + columns.start * column
    counts = [range(*span) for span in box[:-2]]
    steps = [0 if extent == 1 else stride for extent, stride in zip(whole.dims, whole.strides, strict=True)]
    starts = [first + sum(i * step for i, step in zip(at, steps, strict=False)) for at in every(*counts)]
    least = len(rows) if transposed else len(columns)
    return _Matrices(starts, max(distance, least), transposed)
