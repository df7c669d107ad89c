"""Reading a match as a product for cuBLASLt: transposes before it, a bias, a residual and an activation after it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.epilogue import Activation, Epilogue, read_epilogue
from collage.backends.chains.linear_fold import fold
from collage.backends.chains.product import read_product, views_of
from collage.backends.chains.strided import dense
from collage.backends.chains.transposes import product_of, read_float_product_chain
from collage.backends.cublas_kernels.description import Description, describe
from collage.backends.cuda_kernels.precisions import dtype_of, is_stored_narrow, precision_of
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array, np_dtype
from collage.graph.storage import BF16, CUDA, FP16, TF32, Storage, narrowed

__all__ = ["PRECISIONS", "ROOTS", "CublasTask", "in_precision", "storage_of", "task_of"]

ROOTS = frozenset({"matmul"})

PRECISIONS = (TF32, FP16, BF16)
"""The reduced precisions that products of float32 matrices may be in."""


@dataclass(frozen=True)
class CublasTask:
    """The description in float32, and what its operands are; ``own`` is the precision of the model's dtype.

    ``left``, ``right`` and ``residual`` are positions among the subgraph's inputs. A constant right operand is
    ``weights``, and ``right`` is None then.
    """

    description: Description
    left: int
    right: int | None
    residual: int | None
    weights: Array | None
    bias: Array | None
    own: str = ""


def task_of(subgraph: Subgraph) -> CublasTask:
    """The subgraph as a product, parsed once. Raises UnsupportedError when it is none that cuBLASLt takes."""
    return subgraph.parsed(_read)


def storage_of(precision: str) -> Storage:
    """Where the operands and the result of a product of that precision are stored."""
    return narrowed(Storage(CUDA), precision if is_stored_narrow(precision) else "")


def in_precision(task: CublasTask, precision: str) -> CublasTask:
    """The same product in another precision, with its constants in the dtype of that."""
    dtype = dtype_of(precision)
    described = replace(task.description, dtype=dtype, tf32=precision == TF32)
    with np.errstate(over="ignore"):
        weights, bias = (None if each is None else each.astype(np_dtype(dtype)) for each in (task.weights, task.bias))
    return replace(task, description=described, weights=weights, bias=bias)


def _read(subgraph: Subgraph) -> CublasTask:
    root = product_of(subgraph)
    if root is None or root.op not in ROOTS:
        raise UnsupportedError(f"cuBLASLt has no {subgraph.operators[0].op}")
    chain = subgraph.parsed(read_float_product_chain)
    product = read_product(chain.graph, root)
    views = views_of(chain, product)
    shape = chain.type_of(root.outputs[0]).shape
    folded = fold(chain, shape, len(shape) - 1)
    epilogue = read_epilogue(chain, folded.epilogue, shape)
    weights, alpha = chain.constant(root.inputs[1]), 1.0
    if weights is not None:
        weights = weights.reshape(product.right)
        weights = weights if folded.scale is None else weights * folded.scale
    elif folded.scale is not None:
        alpha = float(folded.scale[0])
        if (folded.scale != alpha).any():
            raise UnsupportedError("the columns of two computed matrices' product have factors")
    if epilogue.residual is not None and views.dst != dense(product.dst):
        raise UnsupportedError("a residual is added to a transposed result")
    place = chain.inputs.index
    described = describe(views.left, views.right, views.dst, "float32")
    return CublasTask(
        replace(
            described,
            alpha=alpha,
            residual=epilogue.residual is not None,
            bias=folded.bias is not None,
            activation=_activation(epilogue),
        ),
        place(views.values[0]),
        None if weights is not None else place(views.values[1]),
        None if epilogue.residual is None else place(epilogue.residual),
        weights,
        folded.bias,
        precision_of(chain.dtype),
    )


def _activation(epilogue: Epilogue) -> str:
    """cuBLASLt's name of the activation. Raises UnsupportedError for what no epilogue of it does."""
    clamp, function = (epilogue.low, epilogue.high), epilogue.activation
    none = -math.inf, math.inf
    if epilogue.residual is not None and not epilogue.residual_first and (clamp, function) != (none, 0):
        raise UnsupportedError("a residual is added after the activation")
    if function is Activation.NONE and clamp in (none, (0.0, math.inf)):
        return "" if clamp == none else "relu"
    if function is Activation.GELU_TANH and clamp == none:
        return "gelu"
    raise UnsupportedError(f"cuBLASLt has no epilogue with {function.name.lower()} and a clamp to {clamp}")
