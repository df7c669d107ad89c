"""Reading a chain as a product of matrices and its epilogue."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Floats, read_chain
from collage.backends.chains.conv import Conv, conv_of
from collage.backends.chains.epilogue import Epilogue, read_epilogue
from collage.backends.chains.linear_fold import fold
from collage.backends.chains.product import Product, Views, read_product, views_of
from collage.backends.chains.strided import dense
from collage.backends.chains.transposes import ProductChain, product_of, read_product_chain
from collage.backends.native_kernels.task import check_pixels
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import CHANNELS_LAST, PLAIN, Storage
from collage.native.kernel_library import kernels_problem

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
