"""Reading a chain as a product of matrices, and what happens to its sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats, read_chain
from collage.backends.chains.conv import read_conv, scaled
from collage.backends.chains.ending import Ending, read_ending
from collage.backends.chains.fold import fold
from collage.backends.chains.product import Product, Views, read_product, views_of
from collage.backends.chains.strided import dense
from collage.backends.chains.transposes import product_of, read_product_chain
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, PLAIN, Storage
from collage.native.kernel_library import kernels_problem

CONVOLUTIONS = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
ROOTS = frozenset({"matmul", *CONVOLUTIONS})


@dataclass(frozen=True)
class Task:
    """``factor`` x left x right, then ``bias`` for each column and ``ending``.

    ``weights`` is the right operand where it is constant, with what the columns are multiplied with.
    """

    chain: Chain
    product: Product
    views: Views
    weights: Floats | None
    factor: float
    bias: Floats | None
    ending: Ending
    layout: Storage
    """Of all that has pixels: those are rows of the product."""


def read_task(subgraph: Subgraph) -> Task:
    """The subgraph as a product. Raises UnsupportedError when it is none that MKL takes."""
    root = product_of(subgraph)
    if root is None or root.op not in ROOTS:
        raise UnsupportedError(f"MKL has no {subgraph.operators[0].op}")
    graph = subgraph.model.graph
    for value in (*root.inputs, root.outputs[0]):
        kind = graph.type_of(value)
        if kind.dtype != "float32" or not kind.size:
            raise UnsupportedError(f"{kind}: MKL gets float32 with elements only")
    task = (
        _convolution(read_chain(subgraph, root))
        if root.op in CONVOLUTIONS
        else _matmul(read_product_chain(subgraph, root))
    )
    plain = task.bias is None and task.ending == Ending()
    if not plain and (problem := kernels_problem()):
        raise UnsupportedError(f"functions after a product need Collage's own kernels: {problem}")
    return task


def _matmul(chain: Chain) -> Task:
    product = read_product(chain.graph, chain.root)
    views = views_of(chain, product)
    shape = chain.type_of(chain.root.outputs[0]).shape
    folded = fold(chain, shape, len(shape) - 1)
    weights, factor = chain.constant(chain.root.inputs[1]), 1.0
    if weights is not None:
        weights = weights.reshape(product.right)
        if folded.scale is not None:
            weights = weights * folded.scale
    elif folded.scale is not None:
        factor = float(folded.scale[0])
        if (folded.scale != folded.scale[0]).any():
            raise UnsupportedError("a factor for each column, of two computed matrices")
    ending = read_ending(chain, folded.after, shape)
    if ending.residual is not None and views.dst != dense(product.dst):
        raise UnsupportedError("a residual of a transposed result")
    return Task(chain, product, views, weights, factor, folded.bias, ending, PLAIN)


def _convolution(chain: Chain) -> Task:
    """Of single pixels, channels innermost."""
    conv = read_conv(chain.graph, chain.root)
    data = chain.root.inputs[0]
    if conv.groups > 1 or conv.transposed or math.prod(conv.weights.shape[2:]) != 1:
        raise UnsupportedError("windows of more than a pixel, or grouped")
    if max(conv.strides) > 1 or any((*conv.pad_begin, *conv.pad_end)):
        raise UnsupportedError("pixels at distances, or padding")
    if chain.viewed or chain.graph.is_constant(data):
        raise UnsupportedError("a reshaped result, or a constant")
    folded = fold(chain, conv.dst, 1)
    conv = scaled(conv, folded.scale, folded.bias)
    outputs, inputs = conv.weights.shape[:2]
    rows = conv.dst[0] * math.prod(conv.dst[2:])
    product = Product((rows, inputs), (inputs, outputs), (rows, outputs), True)
    views = Views(dense(product.left), dense(product.right), dense(product.dst), (data, chain.root.inputs[1]))
    weights, ending = conv.weights.reshape(outputs, inputs).T, read_ending(chain, folded.after, conv.dst)
    return Task(chain, product, views, weights, 1.0, conv.bias, ending, CHANNELS_LAST)
