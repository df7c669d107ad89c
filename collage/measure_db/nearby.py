"""Outputs of a model for numbers that differ in their last bits: how exact its results can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from collage.graph.dataflow import Array
from collage.measure_db.compare import slightly_changed

_RUNS = 4
"""A few alone may change little by chance."""
_RUNS_OF_WEIGHTS = 2
"""Each loads the model once more."""

Run = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Any]]
"""Outputs of a model, in order, for inputs by name."""


def nearby_outputs(model: onnx.ModelProto, feeds: Mapping[str, Array], run: Run) -> Iterator[list[Any]]:
    """Outputs for inputs that are changed a little, or where no input is of floats for weights that are."""
    rng = np.random.default_rng(0)
    if any(array.dtype.kind == "f" or "float" in array.dtype.name for array in feeds.values()):
        for _ in range(_RUNS):
            yield run(model, {name: slightly_changed(array, rng) for name, array in feeds.items()})
        return
    for _ in range(_RUNS_OF_WEIGHTS):
        yield run(_with_changed_weights(model, rng), feeds)


def _with_changed_weights(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for tensor in changed.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = slightly_changed(numpy_helper.to_array(tensor), rng)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return changed
