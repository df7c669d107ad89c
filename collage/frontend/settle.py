"""Shapes of operators that onnx has no rule for, from one run of each in ONNX Runtime.

Such are ONNX's operators for tables and trees, and ONNX Runtime's own for quantised sums. Their shapes follow from
those of their inputs, whatever the numbers are, so the rest of the model can be placed around them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from collage.core.library_text import library_text
from collage.frontend.bounds import Types
from collage.frontend.session import reference_run
from collage.frontend.shapes import infer_types
from collage.graph.dataflow import Array

log = logging.getLogger(__name__)

_OF_TABLES = frozenset(
    "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier LinearRegressor "
    "Normalizer OneHotEncoder Scaler SVMClassifier SVMRegressor TreeEnsemble TreeEnsembleClassifier "
    "TreeEnsembleRegressor".split()
)
_OF_ONNX_RUNTIME = frozenset(
    "BiasGelu FastGelu Gelu QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool "
    "QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QuickGelu SkipLayerNormalization".split()
)
_KINDS: Mapping[str, frozenset[str]] = {"ai.onnx.ml": _OF_TABLES, "com.microsoft": _OF_ONNX_RUNTIME}
"""Operators, by domain, whose shapes do not depend on numbers."""
_MOST_BYTES = 1 << 26
"""Inputs of a node that is run have at most so many."""


def settle(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the types of such operators, and what follows from them, into the caller's model, in place. Returns it.

    Nodes with texts, and those that ONNX Runtime refuses, stay as they are.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    tried: set[int] = set()
    while True:
        types = Types.of(model.graph)
        waiting = [
            index
            for index, node in enumerate(model.graph.node)
            if index not in tried and _is_settled(node, types)
        ]
        if not waiting:
            return model
        found: dict[str, Array] = {}
        for index in waiting:
            found |= _outputs(model, model.graph.node[index], types, constants)
        tried.update(waiting)
        if found:
            _write(model.graph, found)
            infer_types(model)


def _is_settled(node: onnx.NodeProto, types: Types) -> bool:
    """Whether it is of such a kind, with inputs of known types and an output of an unknown one."""
    if node.op_type not in _KINDS.get(node.domain, ()):
        return False
    return all(_size(types, name) is not None for name in node.input if name) and any(
        _size(types, name) is None for name in node.output if name
    )


def _size(types: Types, name: str) -> int | None:
    """The number of elements; None where the type or the shape is unknown, and for texts."""
    shape = types.shapes.get(name)
    known = types.elements.get(name, TensorProto.STRING) != TensorProto.STRING
    return None if shape is None or not known or min(shape, default=1) < 0 else int(np.prod(shape))


def _outputs(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types, constants: Mapping[str, TensorProto]
) -> dict[str, Array]:
    """The node's outputs for zeros, by name; none where ONNX Runtime refuses it, or where it gives texts."""
    names = list(dict.fromkeys(name for name in node.input if name))
    given = [name for name in names if name not in constants]
    feeds = {}
    for name in given:
        dtype = helper.tensor_dtype_to_np_dtype(types.elements[name])
        if (_size(types, name) or 0) * dtype.itemsize > _MOST_BYTES:
            return {}
        feeds[name] = np.zeros(types.shapes[name], dtype)
    made = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(name, types.elements[name], types.shapes[name]) for name in given],
        [onnx.ValueInfoProto(name=name) for name in made],
        [constants[name] for name in names if name in constants],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        arrays = reference_run(alone, feeds)
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("the shape of %s is not known: %s", node.name, library_text(error))
        return {}
    if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in arrays):
        return {}
    return dict(zip(made, arrays, strict=True))


def _write(graph: onnx.GraphProto, found: Mapping[str, Array]) -> None:
    """Declare the types of the values."""
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    for name, array in found.items():
        info = infos.get(name) or graph.value_info.add(name=name)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(name, kind, array.shape))
