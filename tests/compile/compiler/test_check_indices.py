"""Checking indices alone: the inputs of a suffix get the number of rows that they index."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from collage.compiler.passes.check_indices import CheckIndices
from collage.compiler.passes.select import Select
from tests.helpers.compiler.null import Made, planned, whole_on_engine
from tests.helpers.models import make_model


def test_indices_are_checked_before_an_engine_runs() -> None:
    nodes = [helper.make_node("Gather", ["table", "row"], ["y"])]
    weights = {"table": np.zeros((5, 3), np.float32)}
    model = make_model(nodes, {"row": [2]}, {"y": [2, 3]}, weights, types={"row": TensorProto.INT64})
    found = CheckIndices()(Made({}).context, whole_on_engine(model))
    suffix = found.result.parts.program.suffix
    assert suffix is not None and [port.rows for port in suffix.inputs] == [5]


def test_a_module_without_a_suffix_is_left_as_it_is() -> None:
    made, start = planned()
    selected = Select()(made.context, start)
    assert CheckIndices()(made.context, selected) is selected
