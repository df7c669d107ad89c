"""Sparse initializers as dense ones, which all that reads a model knows."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper

from collage.errors import ModelError
from collage.frontend.read.scopes import all_graphs


def make_dense(model: onnx.ModelProto) -> None:
    """Replace the sparse initializers of the model and of its bodies, in place.

    Raises ModelError for one whose indices are outside of its extents, and for one that is too large when dense.
    """
    for graph in all_graphs(model.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse))
        del graph.sparse_initializer[:]


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """The tensor; ``indices`` are positions in the flattened tensor, or one for each axis."""
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    try:
        found = np.zeros(tuple(sparse.dims), values.dtype)
        if indices.ndim == 1:
            found.reshape(-1)[indices] = values
        else:
            found[tuple(indices.T)] = values
    except (IndexError, MemoryError, ValueError) as error:
        raise ModelError(
            f"the sparse initializer {sparse.values.name} of the model does not fit its extents, or memory: {error}"
        ) from error
    return onnx.numpy_helper.from_array(found, sparse.values.name)
