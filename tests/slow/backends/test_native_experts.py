"""Rows that each choose one of many matrices, by our own kernel, against float64 numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage.backends.base import UnsupportedError
from collage.backends.native_kernels.algorithm import COLUMNS
from collage.backends.native_kernels.experts import OPERATOR, Bf16Experts, Experts, Int8Experts
from collage.backends.native_kernels.gemm import words
from collage.backends.native_kernels.reduced_gemm import WIDENED
from collage.core.typed import MalformedError
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import BF16, INT8, PLAIN, PLAIN_BF16, from_layout, to_layout
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions, Variant
from collage.native import TaskError
from collage.testing.buffers import Guarded
from tests.compile.backends.test_native_int8 import rounded_weights
from tests.helpers.backends.native_checks import (
    BACKEND,
    kernel_of,
    needs_native,
    refusals_of,
    run_variant,
    subgraphs_of,
)
from tests.helpers.models import make_model

pytestmark = needs_native

KINDS = {"": Experts(), BF16: Bf16Experts(), INT8: Int8Experts()}
REDUCED = frozenset({BF16, INT8})
SPLIT = {"": Variant(split=COLUMNS)} | {
    each: Variant(split=words(COLUMNS, WIDENED), precision=each) for each in REDUCED
}


def scan(rows: str, choice: str, weights: str, made: str, **more: Any) -> onnx.NodeProto:
    """Each row times the matrix that it chooses, as a node."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", [weights, f"{made}/chosen"], [f"{made}/matrix"], axis=0),
            helper.make_node("MatMul", [f"{made}/row", f"{made}/matrix"], [f"{made}/sums"]),
        ],
        "body",
        [
            helper.make_tensor_value_info(f"{made}/row", TensorProto.FLOAT, None),
            helper.make_tensor_value_info(f"{made}/chosen", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info(f"{made}/sums", TensorProto.FLOAT, None)],
    )
    return helper.make_node("Scan", [rows, choice], [made], made, body=body, **{"num_scan_inputs": 2, **more})


def matrices(count: int, depth: int, columns: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((count, depth, columns)).astype(np.float32)


def mixture(count: int, rows: int, depth: int = 37, columns: int = 90, **more: Any) -> onnx.ModelProto:
    """A model of one such node, whose choices are an input."""
    return make_model(
        [scan("x", "c", "w", "y", **more)],
        {"x": [rows, depth], "c": [rows]},
        {"y": [rows, columns]},
        {"w": matrices(count, depth, columns)},
        types={"c": TensorProto.INT64},
    )


def only(model: onnx.ModelProto) -> Subgraph:
    (found,) = [each for each in subgraphs_of(model) if each.ops == (OPERATOR,)]
    return found


def data(rows: int, depth: int = 37) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)


def check(count: int, choice: Sequence[int], threads: int, depth: int = 37, columns: int = 90) -> None:
    """All variants are right in exact arithmetic on their weights."""
    subgraph = only(mixture(count, len(choice), depth, columns))
    x, c = data(len(choice), depth), np.array(choice, np.int64)
    matrix = matrices(count, depth, columns)
    used = {
        "": matrix,
        BF16: from_layout(to_layout(matrix, PLAIN_BF16), PLAIN_BF16, TensorType(matrix.shape, "float32")),
        INT8: np.stack([rounded_weights(each) for each in matrix]),
    }
    seen = set()
    for variant in BACKEND.variants(subgraph, BuildOptions(threads=threads, precisions=REDUCED)):
        w = used[variant.precision].astype(np.float64)
        wanted = np.stack([row.astype(np.float64) @ w[expert] for row, expert in zip(x, choice, strict=True)])
        (found,) = run_variant(subgraph, variant, threads, [x, c])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * depth, err_msg=str(variant))
        seen.add(variant.precision)
    assert seen == KINDS.keys()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 8, 100])
@pytest.mark.parametrize("count", [1, 4, 60])
def test_rows_choose_any_expert(count: int, rows: int, threads: int) -> None:
    choice = np.random.default_rng(count).integers(-count, count, rows)
    check(count, choice.tolist(), threads)


@pytest.mark.parametrize(
    "choice",
    [[2] * 9, [2] * 300, [0] * 130 + [3], [3, 0] * 140, [3, 3, 1, 1, 1, 0], [-1, 3, -4, 0, 0], [0, 1, 0]],
    ids=["one", "one, in chunks", "one and another", "two, scattered", "in turn", "from the end", "gap"],
)
def test_rows_of_one_expert_may_be_many_or_scattered(choice: Sequence[int]) -> None:
    for threads in (1, 2):
        check(4, choice, threads, 38)


@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (16, 16), (6, 33), (2100, 100), (64, 96)])
def test_matrices_of_any_size(depth: int, columns: int) -> None:
    for rows in (1, 5, 70):
        choice = np.random.default_rng(depth).integers(0, 3, rows)
        for threads in (1, 3):
            check(3, choice.tolist(), threads, depth, columns)


def with_weights(weights: np.ndarray, rows: int) -> Subgraph:
    """Products of so many rows with these matrices."""
    count, depth, columns = weights.shape
    model = mixture(count, rows, depth, columns)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    return only(model)


def of(weights: np.ndarray, x: np.ndarray, choice: Sequence[int], threads: int = 2) -> np.ndarray:
    """The products in 8 bits."""
    inputs = [x, np.array(choice, np.int64)]
    variant = SPLIT[INT8] if threads > 1 else Variant(split=WIDENED, precision=INT8)
    (found,) = run_variant(with_weights(weights, len(x)), variant, threads, inputs)
    return found


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 37, 770])
def test_each_weight_is_off_by_half_a_step_at_most(depth: int) -> None:
    """The error of a sum is that of its weights, whose steps are a 127th of the largest one of their column."""
    choice = [2, 0, 2, 1, 1, 2]
    x, weights = data(6, depth), matrices(3, depth, 50)
    exact = np.stack([row.astype(np.float64) @ weights[c] for row, c in zip(x, choice, strict=True)])
    steps = np.abs(weights).max(1)[choice] / 127
    allowed = np.abs(x).sum(1, keepdims=True) * steps / 2
    off = np.abs(of(weights, x, choice) - exact)
    assert (off <= allowed + 1e-5 * depth).all()
    assert depth == 1 or off.max() > 1e-3  # so they were rounded


def test_every_column_of_every_expert_has_a_factor() -> None:
    """Columns of very different magnitudes are as exact as they would be alone."""
    sizes = 10.0 ** np.random.default_rng(3).integers(-20, 10, (3, 1, 45))
    weights = (matrices(3, 64, 45) * sizes).astype(np.float32)
    choice, x = [1, 0, 2, 1], data(4, 64)
    wanted = np.stack([row @ rounded_weights(weights[c]) for row, c in zip(x.astype(float), choice, strict=True)])
    scale = np.abs(weights).max(1)[choice]
    np.testing.assert_allclose(of(weights, x, choice) / scale, wanted / scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_columns_of_zeros_are_zeros(threads: int) -> None:
    weights = matrices(3, 38, 70)
    weights[1, :, ::3] = 0
    weights[2] = 0
    found = of(weights, data(4, 38), [1, 2, 0, -2], threads)
    assert not found[[0, 3]][:, ::3].any()
    assert found[[0, 3]][:, 1::3].all()
    assert not found[1].any()
    assert found[2].all()


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("depth", [36, 37])
def test_odd_rows_keep_to_themselves(precision: str, depth: int) -> None:
    """A row with NaN has only that, one with infinity no number. Row 1, which is filled up, does not see the next."""
    x = data(6, depth)
    x[2, 0], x[4, 5] = np.nan, np.inf
    choice = np.array([0, 2, 0, 1, 1, 0], np.int64)
    (found,) = run_variant(only(mixture(3, 6, depth)), SPLIT[precision], 2, [x, choice])
    assert np.isnan(found[2]).all()
    assert not np.isfinite(found[4]).any()
    assert np.isfinite(found[[0, 1, 3, 5]]).all()


def guarded(content: np.ndarray) -> Guarded:
    """A copy with NaN on both sides."""
    copy = Guarded(TensorType(content.shape, content.dtype.name), PLAIN)
    copy.array[...] = content
    return copy


@pytest.mark.parametrize("precision", KINDS)
def test_experts_that_nobody_chooses_are_left_alone(precision: str) -> None:
    """NaN in the place of their weights and factors would show in the results."""
    subgraph, algorithm = only(mixture(6, 5)), KINDS[precision]
    build = BuildOptions(threads=2, variant=SPLIT[precision])
    packed = algorithm.pack(algorithm.task(subgraph), build)
    left = [0, 2, 3, 5]
    x, choice = guarded(data(5)).array, guarded(np.array([4, 1, 1, -2, 4], np.int64)).array
    made = []
    for spoilt in (False, True):
        if spoilt:
            for array in packed.arrays.values():
                array[left] = np.nan
        arrays = {name: guarded(array).array for name, array in packed.arrays.items()}
        result = guarded(np.full((5, 90), np.nan, np.float32))
        algorithm.load(replace(packed, arrays=arrays), 2).bind([x, choice], [result.array])()
        assert not result.written()
        made.append(result.array)
    assert np.isfinite(made[0]).all()
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize(("depth", "columns"), [(2100, 96), (2102, 100), (2099, 37)])
def test_a_row_is_the_same_however_many_there_are(precision: str, depth: int, columns: int) -> None:
    """A token must not depend on who shares its iteration, nor on what these choose."""
    x, found = data(100, depth), {}
    for rows in (1, 2, 3, 5, 9, 70, 100):
        choice = np.arange(rows) * 7 % 10 % 3
        inputs = [x[:rows], choice.astype(np.int64)]
        (found[rows],) = run_variant(only(mixture(3, rows, depth, columns)), SPLIT[precision], 2, inputs)
    for rows, y in found.items():
        np.testing.assert_array_equal(y, found[100][:rows])


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("wrong", [4, -5, 1 << 40, -(1 << 63)])
def test_an_expert_that_is_not_there_is_an_error(precision: str, wrong: int) -> None:
    """ONNX Runtime has one, too. Nothing is written then, and the next call is right."""
    subgraph = only(mixture(4, 20))
    inputs = [aligned_array(kind) for kind in subgraph.input_types]
    outputs = [aligned_array(kind) for kind in subgraph.output_types]
    inputs[0][...], inputs[1][...], outputs[0][...] = data(20), 1, np.nan
    inputs[1][13] = wrong
    call = kernel_of(subgraph, SPLIT[precision], 2).bind(inputs, outputs)
    with pytest.raises(TaskError, match="an index is out of range"):
        call()
    assert np.isnan(outputs[0]).all()
    inputs[1][13] = -1
    call()
    assert np.isfinite(outputs[0]).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_odd_weights_are_refused(odd: float) -> None:
    """Even those of an expert whom nobody may choose: which one that is tells only a run."""
    weights = matrices(3, 20, 40)
    weights[2, 7, 11] = odd
    with pytest.raises(UnsupportedError, match="NaN or infinities among the weights"):
        BACKEND.codegen(with_weights(weights, 2), BuildOptions(threads=2, variant=SPLIT[INT8]))


def test_columns_that_processes_divide_are_the_same() -> None:
    """A column's factor is its own, so a process that has a half of each expert's columns computes that half."""
    choice, x, weights = [1, 3, 3, 0], data(4, 128), matrices(4, 128, 192)
    halves = [of(np.ascontiguousarray(each), x, choice) for each in np.split(weights, 2, axis=2)]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), of(weights, x, choice))


def test_weights_are_packed_for_any_number_of_rows_in_the_same_way() -> None:
    """So the buckets of a decoder share them."""
    for precision, algorithm in KINDS.items():
        build = BuildOptions(threads=2, variant=SPLIT[precision])
        few, many = (algorithm.pack(algorithm.task(only(mixture(4, rows))), build) for rows in (1, 300))
        for name, array in few.arrays.items():
            np.testing.assert_array_equal(array.view(np.uint32), many.arrays[name].view(np.uint32))


def test_short_buffers_are_refused() -> None:
    subgraph = only(mixture(4, 20))
    packed = KINDS[""].pack(KINDS[""].task(subgraph), BuildOptions(threads=2, variant=SPLIT[""]))
    (x, choice), (made,) = (
        [aligned_array(kind) for kind in kinds] for kinds in (subgraph.input_types, subgraph.output_types)
    )
    for wrong, inputs, output, what in (
        ({"rows": 21}, [x, choice], made, "the data has"),
        ({"choice": 2}, [x, choice], made, "no input 2"),
        ({"choice": -1}, [x, choice], made, "no input -1"),
        ({"data": 1}, [x, choice], made, "the data has"),
        ({}, [x, choice[:19]], made, "the choice has"),
        ({}, [x, choice], made[:19], "the result has"),
    ):
        kernel = KINDS[""].load(replace(packed, numbers={**packed.numbers, **wrong}), 2)
        with pytest.raises(MalformedError, match=what):
            kernel.bind(inputs, [output])


def body_of(model: onnx.ModelProto) -> Any:
    return next(each for each in model.graph.node[0].attribute if each.name == "body").g


def turned_rows(model: onnx.ModelProto) -> None:
    body_of(model).node[1].input[:] = ["y/matrix", "y/row"]


def another_axis(model: onnx.ModelProto) -> None:
    body_of(model).node[0].attribute[0].i = 2


def more_steps(model: onnx.ModelProto) -> None:
    body_of(model).node.append(helper.make_node("Relu", ["y/sums"], ["y/relu"]))
    body_of(model).output[0].name = "y/relu"


def own_weights(model: onnx.ModelProto) -> None:
    tensor = onnx.numpy_helper.from_array(matrices(37, 37, 37), "own")
    body_of(model).initializer.append(tensor)
    body_of(model).node[0].input[0] = "own"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 37


def given_weights(model: onnx.ModelProto) -> None:
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [37, 37, 37]))


def backward(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("scan_output_directions", [1]))


def in_32_bits(model: onnx.ModelProto) -> None:
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT32
    body_of(model).input[1].type.tensor_type.elem_type = TensorProto.INT32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (turned_rows, "gathers or multiplies something else"),
        (another_axis, "along another axis"),
        (more_steps, "does not gather a matrix and multiply"),
        (own_weights, "inside the Scan"),
        (given_weights, "are no constant"),
        (backward, "backward"),
        (in_32_bits, "int32"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_what_it_does_not_take_has_a_reason(change: Callable[[onnx.ModelProto], None], reason: str) -> None:
    model = mixture(37, 5, 37, 37)
    change(model)
    assert any(reason in each for each in refusals_of(model)), refusals_of(model)


def routed(tokens: int, slots: int, count: int = 8, depth: int = 64, columns: int = 96) -> onnx.ModelProto:
    """Tokens choose their experts by themselves: y[token, slot] = tanh(x[token] @ w[expert of the slot])."""
    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["scores"], "scores"),
        helper.make_node("TopK", ["scores", "slots"], ["best", "experts"], "best"),
        helper.make_node("Reshape", ["experts", "flat"], ["choice"], "choice"),
        helper.make_node("Unsqueeze", ["x", "one"], ["apart"], "apart"),
        helper.make_node("Expand", ["apart", "each"], ["all"], "all"),
        helper.make_node("Reshape", ["all", "rows"], ["taken"], "taken"),
        scan("taken", "choice", "w", "made"),
        helper.make_node("Tanh", ["made"], ["y"], "y"),
    ]
    constants: dict[str, np.ndarray] = {
        "router": np.random.default_rng(1).standard_normal((depth, count)).astype(np.float32),
        "slots": np.array([slots], np.int64),
        "flat": np.array([-1], np.int64),
        "one": np.array([1], np.int64),
        "each": np.array([tokens, slots, depth], np.int64),
        "rows": np.array([-1, depth], np.int64),
        "w": matrices(count, depth, columns) / 8,
    }
    return make_model(nodes, {"x": [tokens, depth]}, {"y": [tokens * slots, columns]}, constants)


@pytest.mark.parametrize("alone", [False, True], ids=["with engines", "without, and strict"])
def test_a_model_with_a_router_is_compiled(alone: bool, tmp_path: Path) -> None:
    model = routed(6, 2)
    backends = ["native", "tvm", *([] if alone else ["onnxruntime"])]
    options: dict[str, Any] = {"strict": True, "reassociate": False} if alone else {}
    module = collage.compile(model, backends=backends, db=tmp_path / "db", progress=False, threads=2, **options)
    (node,) = [each for each in module.summary()["nodes"] if each["op"] == OPERATOR]
    assert any(each["backend"] == "native" and each.keys() & {"cost_us", "least_us"} for each in node["candidates"])
    if alone:
        assert {each.backend for each in module.program.launches if OPERATOR in each.ops} == {"native"}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    path = tmp_path / "net.collage"
    module.save(path)
    for found in (module, collage.load(path)):
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((6, 64)).astype(np.float32)
            (wanted,) = session.run(None, {"x": x})
            np.testing.assert_allclose(found(x), wanted, rtol=1e-4, atol=1e-5)
