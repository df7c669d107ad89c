"""Operators whose output sizes depend on data are reported before anything is measured."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from collage.errors import ModelError
from collage.frontend.model import import_model
from tests.models import make_model


def test_non_max_suppression() -> None:
    names = ["boxes", "scores", "most", "overlap"]
    weights = {"most": np.array([5]), "overlap": np.array([0.5], np.float32)}
    nodes = [
        helper.make_node("Relu", ["raw"], ["scores"], "relu"),
        helper.make_node("NonMaxSuppression", names, ["kept"], "suppress"),
    ]
    inputs = {"boxes": [1, 8, 4], "raw": [1, 2, 8]}
    model = make_model(nodes, inputs, {"kept": ["found", 3]}, weights, types={"kept": TensorProto.INT64})
    with pytest.raises(ModelError, match=r"suppress .*how many boxes are found depends on data"):
        import_model(model)
