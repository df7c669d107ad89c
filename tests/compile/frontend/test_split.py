"""A model is cut where shapes begin to depend on data. The two parts in turn have the outputs of the whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.frontend.model import from_simplified, import_model
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.rewrite.split import Split, split
from collage.frontend.session import reference_run
from tests.helpers.models import detector, make_model


def cut(model: onnx.ModelProto) -> Split | None:
    simple = simplify(model)
    with pytest.raises(DataDependentError) as caught:
        from_simplified(simple)
    return split(simple, caught.value.nodes)


def test_a_detector() -> None:
    model = detector()
    parts = cut(model)
    assert parts is not None
    assert [node.op_type for node in parts.prefix.graph.node].count("Conv") == 2
    assert "Conv" not in {node.op_type for node in parts.suffix.graph.node}
    assert [info.name for info in parts.prefix.graph.input] == ["x", "prior"]
    assert "prior" in {info.name for info in parts.suffix.graph.input}, "the suffix reads an input of the model"
    onnx.checker.check_model(parts.prefix, full_check=True)
    onnx.checker.check_model(parts.suffix, full_check=True)
    assert import_model(parts.prefix).opaque == {}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values = {
            info.name: rng.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(np.float32)
            for info in model.graph.input
        }
        expected = dict(zip([o.name for o in model.graph.output], reference_run(model, values), strict=True))
        for part in (parts.prefix, parts.suffix):
            outputs = reference_run(part, {info.name: values[info.name] for info in part.graph.input})
            values |= zip([o.name for o in part.graph.output], outputs, strict=True)
        for name, array in expected.items():
            np.testing.assert_allclose(values[name], array, rtol=1e-5, atol=1e-6)


def test_bodies_read_from_outside() -> None:
    """A value that only the body of an If reads is in the suffix, or comes from the prefix."""
    branch = helper.make_graph(
        [helper.make_node("Compress", ["r", "mask"], ["picked"])],
        "then",
        [],
        [helper.make_tensor_value_info("picked", TensorProto.FLOAT, ["n"])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["r"], ["all"])],
        "else",
        [],
        [helper.make_tensor_value_info("all", TensorProto.FLOAT, ["m"])],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Greater", ["x", "zero"], ["mask"], "greater"),
        helper.make_node("If", ["flag"], ["y"], "if", then_branch=branch, else_branch=other),
    ]
    model = make_model(
        nodes,
        {"x": [6], "flag": []},
        {"y": ["n"]},
        {"zero": np.array(0, np.float32)},
        types={"flag": TensorProto.BOOL},
    )
    parts = cut(model)
    assert parts is not None
    assert {info.name for info in parts.suffix.graph.input} == {"flag", "r", "mask"}
    assert {info.name for info in parts.prefix.graph.output} == {"r", "mask"}


def test_nothing_to_cut_off() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"], "find")]
    model = make_model(nodes, {"x": [5]}, {"y": [1, "n"]}, types={"y": TensorProto.INT64})
    assert cut(model) is None
