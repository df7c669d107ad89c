"""Corners of the import that a review found: what is rare in models, and was lost, mixed up or wrong."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage import is_op, wildcard
from collage.backends.engine_faults.free_sizes import impossible_size
from collage.check.reference import evaluate
from collage.check.store import ValueStore
from collage.errors import ModelError
from collage.frontend.model import import_model
from collage.frontend.read import load
from collage.frontend.relax.build import fold
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.session import reference_run
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.patterns import BackendPattern
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from tests.helpers.models import make_model

N = helper.make_node


def test_large_weights_beside_a_model_are_not_serialised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few bytes with 4 GB beside it: ONNX's checker would serialise it all, and raise."""
    model = make_model([N("Add", ["x", "w"], ["y"])], {"x": [512]}, {"y": [512]}, {"w": np.ones(512, np.float32)})
    path = tmp_path / "m.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert path.stat().st_size < 1000
    monkeypatch.setattr(load, "_CHECKED_BELOW_BYTES", 1000)
    monkeypatch.setattr(onnx.checker, "check_model", lambda *_: pytest.fail("was serialised"))
    assert load.load_onnx(path).graph.initializer[0].raw_data == np.ones(512, np.float32).tobytes()
    assert load.load_onnx(onnx.load(path)).graph.node


def test_a_given_model_is_loaded_without_its_text() -> None:
    """The text of a model is four times as long as its weights, and took 150 s a GB."""
    weights = np.random.default_rng(0).standard_normal(1 << 20, np.float32)
    model = make_model([N("Add", ["x", "w"], ["y"])], {"x": [1 << 20]}, {"y": [1 << 20]}, {"w": weights})
    tracemalloc.start()
    try:
        load.load_onnx(model)
        assert tracemalloc.get_traced_memory()[1] < 2 * weights.nbytes  # the checker gets them as bytes
    finally:
        tracemalloc.stop()


def test_no_blocks_are_no_impossible_size() -> None:
    """ONNX Runtime writes the default of 0 into what it simplifies."""
    nodes = [N("QuantizeLinear", ["x", "s", "z"], ["q"]), N("DequantizeLinear", ["q", "s", "z"], ["y"])]
    weights = {"s": np.float32(0.1), "z": np.array(3, np.uint8)}
    simple = simplify(make_model(nodes, {"x": [4, 4]}, {"y": [4, 4]}, weights, opset=21))
    assert any(attribute.name == "block_size" for node in simple.graph.node for attribute in node.attribute)
    assert impossible_size(simple) == ""


def normalised(outputs: Sequence[str]) -> onnx.ModelProto:
    node = N("LayerNormalization", ["x", "g"], ["y", *outputs])
    given = {"y": [2, 4], **{name: [2, 1] for name in outputs if name}}
    return make_model([node], {"x": [2, 4], "g": [4]}, given)


def cell(initial: Sequence[str]) -> onnx.ModelProto:
    node = N("LSTM", ["x", "w", "r", "b", "", *initial], ["", "y"], hidden_size=3)
    shapes: dict[str, Sequence[int | str]] = {"x": [2, 1, 4], "w": [1, 12, 4], "r": [1, 12, 3], "b": [1, 24]}
    return make_model([node], {**shapes, "s": [1, 1, 3]}, {"y": [1, 1, 3]})


@pytest.mark.parametrize(
    "models",
    [
        [normalised(["m", ""]), normalised(["", "m"])],
        [cell(["s", ""]), cell(["", "s"])],
    ],
    ids=["outputs", "inputs"],
)
def test_what_is_left_out_of_opaque_nodes_counts(models: Sequence[onnx.ModelProto]) -> None:
    digests = set()
    for each in models:
        model = import_model(each)
        if not any(node.op.startswith("onnx.") for node in model.graph.nodes):
            pytest.skip("the node is not opaque")
        digests.add(Subgraph(model, tuple(range(len(model.graph.nodes)))).digest)
    assert len(digests) == len(models)


EMPTY = [
    ("Clip", {}, 18),
    *((op, {"noop_with_empty_axes": 1}, 18) for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum")),
]


@pytest.mark.parametrize(("op", "attributes", "opset"), EMPTY, ids=[each[0] for each in EMPTY])
def test_operators_that_seem_to_do_nothing(op: str, attributes: Any, opset: int, tmp_path: Path) -> None:
    """The next node reads both what the operator reads and what it makes."""
    nodes = [N(op, ["x"], ["r"], **attributes), N("Add", ["r", "x"], ["y"])]
    proto = make_model(nodes, {"x": [2, 3]}, {"y": [2, 3]}, opset=opset)
    model = import_model(proto)
    x = np.array([[1, -2, 3], [0.5, np.inf, -4]], np.float32)
    store = ValueStore(tmp_path)
    assert evaluate(model, [x], store) == {}
    part = Subgraph(model, tuple(range(len(model.graph.nodes)))).to_onnx()
    (found,) = reference_run(part, {part.graph.input[0].name: x})
    (expected,) = reference_run(proto, {"x": x})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_initializers(flat: bool) -> None:
    """Also in the branch of an If that is taken, which is moved into the graph."""
    indices = np.array([1, 5], np.int64) if flat else np.array([[0, 1], [1, 2]], np.int64)
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("c", TensorProto.FLOAT, [2], [7.0, 9.0]), numpy_helper.from_array(indices), [2, 3]
    )
    branch = helper.make_graph(
        [N("Mul", ["x", "c"], ["b"])], "branch", [], [helper.make_tensor_value_info("b", 1, [2, 3])]
    )
    branch.sparse_initializer.append(sparse)
    nodes = [N("If", ["yes"], ["r"], then_branch=branch, else_branch=branch), N("Add", ["r", "c"], ["y"])]
    proto = make_model(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {"yes": np.array(True)})
    proto.graph.sparse_initializer.append(sparse)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    dense = np.array([[0, 7, 0], [0, 0, 9]], np.float32)
    part = Subgraph(model := import_model(proto), tuple(range(len(model.graph.nodes)))).to_onnx()
    (found,) = reference_run(part, {part.graph.input[0].name: x})
    np.testing.assert_array_equal(found, x * dense + dense)


def test_sparse_initializers_that_do_not_fit() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("c", TensorProto.FLOAT, [1], [7.0]), numpy_helper.from_array(np.array([9])), [2, 3]
    )
    proto = make_model([N("Add", ["x", "c"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]})
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelError, match="sparse initializer c"):
        import_model(proto)


def test_sizes_of_a_resize_in_operator_set_11() -> None:
    """Scales are no optional input there, so that exporters write empty ones."""
    nodes = [N("Resize", ["x", "none", "none", "sizes"], ["y"], mode="linear")]
    weights = {"none": np.zeros(0, np.float32), "sizes": np.array([1, 2, 6, 8], np.int64)}
    proto = make_model(nodes, {"x": [1, 2, 3, 4]}, {"y": [1, 2, 6, 8]}, weights, opset=11)
    model = import_model(proto)
    assert [node.op for node in model.graph.nodes] == ["image.resize2d"]
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
    part = Subgraph(model, (0,)).to_onnx()
    (found,) = reference_run(part, {part.graph.input[0].name: x})
    np.testing.assert_allclose(found, reference_run(proto, {"x": x})[0], atol=1e-6)


def test_a_pattern_in_a_model_with_a_constant_output() -> None:
    model = make_model([N("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2], "c": [2]}, {"c": np.ones(2, np.float32)})
    context = MatchContext(import_model(model))
    matches, _ = find_matches(context, "test", [BackendPattern(is_op("relu")(wildcard()))])
    assert [tuple(each.nodes) for each in matches] == [(0,)]


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [((0, 1), (2, 4), (1, 1)), ((-3, -2), (99, -1), (2, 1)), ((-1, 9), (-99, 0), (-1, -2)), ((1, 0), (2, 5), (1, 3))],
)
def test_slices_of_constants_are_constants(
    starts: tuple[int, int], ends: tuple[int, int], steps: tuple[int, int]
) -> None:
    table = np.arange(15, dtype=np.float32).reshape(3, 5)
    axes = np.array([0, 1], np.int64)
    expected = table[slice(starts[0], ends[0], steps[0]), slice(starts[1], ends[1], steps[1])]
    attrs = {"arg1": (-2, 1), "arg2": starts, "arg3": ends, "arg4": steps}
    found = fold("strided_slice", [table], attrs, TensorType(expected.shape, "float32"))
    np.testing.assert_array_equal(found, expected)
    weights = {"t": table, "s": np.array(starts), "e": np.array(ends), "a": axes, "n": np.array(steps)}
    nodes = [N("Slice", ["t", "s", "e", "a", "n"], ["c"]), N("Add", ["x", "c"], ["y"])]
    shape = list(expected.shape)
    model = import_model(make_model(nodes, {"x": shape}, {"y": shape}, weights))
    assert [node.op for node in model.graph.nodes] == ["add"]


def test_rows_to_scatter_are_constants() -> None:
    """TVM computes them from ONNX's rows, which may count from the end, by slices of the data's shape."""
    nodes = [N("ScatterND", ["x", "i", "u"], ["y"])]
    model = make_model(nodes, {"x": [4, 3], "u": [2, 3]}, {"y": [4, 3]}, {"i": np.array([[-1], [1]], np.int64)})
    assert [node.op for node in import_model(model).graph.nodes] == ["scatter_nd"]


def test_bfloat16_that_is_input_and_output() -> None:
    types, n = {"x": TensorProto.BFLOAT16, "y": TensorProto.BFLOAT16}, {"n": np.array([1, 2], np.int64)}
    model = make_model([N("Reshape", ["x", "n"], ["y"])], {"x": [2]}, {"y": [1, 2]}, n, types=types)
    model.graph.output.insert(0, model.graph.input[0])
    model.graph.output.append(model.graph.output[1])
    x = numpy_helper.to_array(helper.make_tensor("x", TensorProto.BFLOAT16, [2], [1.5, -2]))
    found = reference_run(model, {"x": x})
    assert [np.asarray(each, np.float32).tolist() for each in found] == [[1.5, -2], *[[[1.5, -2]]] * 2]


def test_a_view_of_what_is_dequantized_to_float16() -> None:
    nodes = [
        N("DequantizeLinear", ["q", "s", "z"], ["d"], output_dtype=TensorProto.FLOAT16),
        N("Flatten", ["d"], ["y"]),
    ]
    types = {"q": TensorProto.UINT8, "y": TensorProto.FLOAT16}
    weights = {"s": np.float32(0.1), "z": np.array(3, np.uint8)}
    model = make_model(nodes, {"q": [2, 3, 4]}, {"y": [2, 12]}, weights, opset=23, types=types)
    q = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    found, expected = (reference_run(each, {"q": q})[0] for each in (simplify(model, halves=True), model))
    assert found.dtype == expected.dtype == np.float16
    np.testing.assert_array_equal(found, expected)


def test_a_concatenation_without_one_of_its_inputs_stays_opaque() -> None:
    """TVM's importer would end the process."""
    model = import_model(make_model([N("Concat", ["x", ""], ["y"], "join", axis=0)], {"x": [2, 3]}, {"y": [2, 3]}))
    assert list(model.opaque.values()) == ["one of any number of inputs is left out"]


def test_an_input_without_elements_is_named() -> None:
    nodes = [N("Concat", ["past", "x"], ["y"], axis=1)]
    model = make_model(nodes, {"past": [1, "p", 4], "x": [1, 3, 4]}, {"y": [1, "n", 4]}, {})
    with pytest.raises(ModelError, match=r"input past has no elements \(its shape is 1x0x4\)"):
        import_model(model, {"past": (1, 0, 4)})
