"""Sizes of models that are told without serialising them."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import UnsupportedError
from collage.backends.onnx_engine import serialised
from collage.frontend.read import proto_size
from collage.frontend.read.proto_size import about_bytes, is_serialisable
from tests.helpers.models import make_model


def model_with(*tensors: TensorProto, constant: TensorProto | None = None) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    if constant is not None:
        nodes.append(helper.make_node("Constant", [], ["c"], value=constant))
    model = make_model(nodes, {"x": [2]}, {"y": [2]}, {})
    model.graph.initializer.extend(tensors)
    return model


def tensor(dtype: str, count: int, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.ones(count, dtype), name)


def test_weights_in_files_beside_the_model_count() -> None:
    large = tensor("float32", 1)
    large.dims[0] = 1 << 40
    large.ClearField("raw_data")
    large.data_location = TensorProto.EXTERNAL
    assert about_bytes(model_with(large)) == 1 << 42
    assert not is_serialisable(model_with(large))


def test_the_limit_is_exact_where_it_matters() -> None:
    model = model_with(tensor("float32", 10_000))
    size = model.ByteSize()
    for limit, fits in (
        (size + 1, True),
        (size, False),
        (size - 1, False),
        (10 * size, True),
        (size // 2, False),
    ):
        with mock.patch.object(proto_size, "_MAX_BYTES", limit):
            assert is_serialisable(model) == fits, limit
            if fits:
                assert serialised(model) == model.SerializeToString()
            else:
                with pytest.raises(UnsupportedError, match="2 GiB"):
                    serialised(model)
