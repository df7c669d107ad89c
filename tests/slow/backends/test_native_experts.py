"""Rows that each choose one of many matrices, by our own kernel, against float64 numpy."""

from __future__ import annotations

import ctypes
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
from collage.backends.native_kernels.experts import OPERATOR, SHAPE, Experts, scratch_bytes
from collage.backends.native_kernels.widened_experts import Bf16Experts, Int8Experts
from collage.core.typed import MalformedError
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import TensorType
from collage.graph.storage import BF16, INT8, PLAIN_BF16, from_layout, to_layout
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions, Variant
from collage.native import TaskError
from collage.native.kernel_library import kernel_function
from collage.native.packed import Packed
from collage.native.structure import structure
from tests.backends.native_checks import (
    BACKEND,
    kernel_of,
    needs_native,
    refusals_of,
    run_variant,
    subgraphs_of,
)
from tests.compile.backends.test_native_int8 import rounded_weights
from tests.models import make_model

pytestmark = needs_native

ALGORITHM = Experts()
REDUCED = frozenset({BF16, INT8})


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


def check(count: int, choice: Sequence[int], threads: int, depth: int = 37, columns: int = 90) -> set[str]:
    """All variants are right in exact arithmetic on their weights; returns the splits of those in float32."""
    subgraph = only(mixture(count, len(choice), depth, columns))
    x, c = data(len(choice), depth), np.array(choice, np.int64)
    matrix = matrices(count, depth, columns)
    used = {
        "": matrix,
        BF16: from_layout(to_layout(matrix, PLAIN_BF16), PLAIN_BF16, TensorType(matrix.shape, "float32")),
        INT8: np.stack([rounded_weights(each) for each in matrix]),
    }
    splits: dict[str, set[str]] = {}
    for variant in BACKEND.variants(subgraph, BuildOptions(threads=threads, precisions=REDUCED)):
        w = used[variant.precision].astype(np.float64)
        wanted = np.stack([row.astype(np.float64) @ w[expert] for row, expert in zip(x, choice, strict=True)])
        (found,) = run_variant(subgraph, variant, threads, [x, c])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * depth, err_msg=str(variant))
        splits.setdefault(variant.precision, set()).add(variant.split)
    assert splits.keys() == {"", *REDUCED}
    return splits[""]


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


def test_threads_share_the_columns() -> None:
    found = {each.partition(", ")[0] for each in check(4, [0, 1], 2)}
    assert {"columns", ""} <= found <= {"columns", "", "in order"}
    assert {each.partition(", ")[0] for each in check(4, [0, 1], 2, columns=16)} <= {"", "in order"}
    assert {each.partition(", ")[0] for each in check(4, [0, 1], 1)} <= {"", "in order"}


def test_experts_that_nobody_chooses_are_left_alone() -> None:
    """Their NaN would show in the results."""
    model = mixture(6, 5)
    weights = np.full((6, 37, 90), np.nan, np.float32)
    weights[[1, 4]] = matrices(6, 37, 90)[[1, 4]]
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    (found,) = run_variant(
        only(model), Variant(split="columns"), 2, [data(5), np.array([4, 1, 1, -2, 4], np.int64)]
    )
    assert np.isfinite(found).all()


@pytest.mark.parametrize("columns", [96, 100, 37])
def test_a_row_is_the_same_however_many_there_are(columns: int) -> None:
    """A token must not depend on who shares its iteration, nor on what these choose."""
    depth, x = 2100, data(160, 2100)
    found = {}
    for rows in (1, 2, 3, 5, 9, 70, 160):
        choice = np.arange(rows) * 7 % 10 % 3
        subgraph = only(mixture(3, rows, depth, columns))
        (found[rows],) = run_variant(
            subgraph, Variant(split="columns"), 2, [x[:rows], choice.astype(np.int64)]
        )
    for rows, y in found.items():
        np.testing.assert_array_equal(y, found[160][:rows])


@pytest.mark.parametrize("wrong", [4, -5, 1 << 40, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_expert_that_is_not_there_is_an_error(wrong: int, threads: int) -> None:
    """ONNX Runtime has one, too. Nothing is written then, and the next call is right."""
    subgraph = only(mixture(4, 20))
    (variant, *_) = BACKEND.variants(subgraph, BuildOptions(threads=threads))
    inputs = [aligned_array(kind) for kind in subgraph.input_types]
    outputs = [aligned_array(kind) for kind in subgraph.output_types]
    inputs[0][...], inputs[1][...], outputs[0][...] = data(20), 1, np.nan
    call = kernel_of(subgraph, variant, threads).bind(inputs, outputs)
    inputs[1][13] = wrong
    with pytest.raises(TaskError, match=r"native step 0 of 1: an index is out of range"):
        call()
    assert np.isnan(outputs[0]).all()
    inputs[1][13] = -1
    call()
    np.testing.assert_allclose(outputs[0][13], data(20)[13] @ matrices(4, 37, 90)[3], rtol=1e-4, atol=1e-4)


def test_nan_stays_in_its_row() -> None:
    x = data(6)
    x[2, 5], x[4, 0] = np.nan, np.inf
    choice = np.array([0, 1, 0, 1, 1, 0], np.int64)
    (found,) = run_variant(only(mixture(2, 6)), Variant(split="columns"), 2, [x, choice])
    assert np.isnan(found[2]).all()
    assert not np.isfinite(found[4]).any()
    assert np.isfinite(found[[0, 1, 3, 5]]).all()


def test_numbers_that_do_not_fit_are_refused() -> None:
    subgraph = only(mixture(4, 20))
    build = BuildOptions(threads=2, variant=Variant(split="columns"))
    packed = ALGORITHM.pack(ALGORITHM.task(subgraph), build)
    wrongs: list[dict[str, Any]] = [
        *({name: 0} for name in ("rows", "depth", "columns", "experts", "row_chunk", "slice", "shares")),
        *({"shares": 3}, {"experts": 5}, {"depth": 38}, {"columns": 97}, {"in_order": 2}),
        *({"row_chunk": 1 << 62}, {"rows": 1.5}, {"choice": "1"}, {"choice": None}, {"data": None}),
    ]
    for wrong in wrongs:
        with pytest.raises(MalformedError):
            ALGORITHM.load(Packed({**packed.numbers, **wrong}, packed.arrays), 2)
    arrays = [
        [aligned_array(kind) for kind in kinds] for kinds in (subgraph.input_types, subgraph.output_types)
    ]
    for other, what in (
        ({"rows": 21}, "the data has"),
        ({"choice": 2}, "no input 2"),
        ({"choice": -1}, "no input -1"),
        ({"data": 1}, "the data has"),
    ):
        with pytest.raises(MalformedError, match=what):
            ALGORITHM.load(replace(packed, numbers={**packed.numbers, **other}), 2).steps(*arrays)
    kernel = ALGORITHM.load(packed, 2)
    with pytest.raises(MalformedError, match="the choice has"):
        kernel.steps([arrays[0][0], arrays[0][1][:19]], arrays[1])
    with pytest.raises(MalformedError, match="the result has"):
        kernel.steps(arrays[0], [arrays[1][0][:19]])


def test_scratch_memory_is_as_large_as_the_kernel_wants() -> None:
    made = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    for algorithm, kind, together in (
        (ALGORITHM, "", 1),
        (Bf16Experts(), "_bf16", 2),
        (Int8Experts(), "_int8", 4),
    ):
        wanted = made(kernel_function(f"collage_expert_gemm{kind}_scratch"))
        for count, rows, depth, columns in ((1, 1, 1, 1), (5, 300, 38, 90), (60, 7, 64, 100)):
            task = algorithm.task(only(mixture(count, rows, depth, columns)))
            build = BuildOptions(variant=algorithm.variants(task, BuildOptions())[0])
            numbers = algorithm.pack(task, build).numbers
            assert wanted(ctypes.addressof(structure(SHAPE, numbers))) == scratch_bytes(numbers, together)


def body_of(model: onnx.ModelProto) -> Any:
    return next(each for each in model.graph.node[0].attribute if each.name == "body").g


def turned_rows(model: onnx.ModelProto) -> None:
    body_of(model).node[1].input[:] = ["y/matrix", "y/row"]


def another_axis(model: onnx.ModelProto) -> None:
    body_of(model).node[0].attribute[0].i = 2


def more_steps(model: onnx.ModelProto) -> None:
    body_of(model).node.append(helper.make_node("Relu", ["y/sums"], ["y/relu"]))
    body_of(model).output[0].name = "y/relu"


def chosen_twice(model: onnx.ModelProto) -> None:
    body_of(model).node[0].input[0] = "y/row"


def own_weights(model: onnx.ModelProto) -> None:
    tensor = onnx.numpy_helper.from_array(matrices(37, 37, 37), "own")
    body_of(model).initializer.append(tensor)
    body_of(model).node[0].input[0] = "own"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 37


def given_weights(model: onnx.ModelProto) -> None:
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [37, 37, 37]))


def constant_choice(model: onnx.ModelProto) -> None:
    model.graph.input.pop()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(5, np.int64), "c"))


def backward(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("scan_output_directions", [1]))


def made_along_columns(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("scan_output_axes", [1]))
    shape = model.graph.output[0].type.tensor_type.shape.dim
    shape[0].dim_value, shape[1].dim_value = 37, 5


def in_32_bits(model: onnx.ModelProto) -> None:
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT32
    body_of(model).input[1].type.tensor_type.elem_type = TensorProto.INT32


def in_doubles(model: onnx.ModelProto) -> None:
    for info in (
        model.graph.input[0],
        model.graph.output[0],
        body_of(model).input[0],
        body_of(model).output[0],
    ):
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    double = matrices(37, 37, 37).astype(np.float64)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(double, "w"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (turned_rows, "gathers or multiplies something else"),
        (another_axis, "along another axis"),
        (more_steps, "does not gather a matrix and multiply"),
        (own_weights, "inside the Scan"),
        (given_weights, "are no constant"),
        (constant_choice, "their choices are constants"),
        (backward, "backward"),
        (made_along_columns, "other axes"),
        (in_32_bits, "int32"),
        (in_doubles, "float64"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_what_it_does_not_take_has_a_reason(change: Callable[[onnx.ModelProto], None], reason: str) -> None:
    model = mixture(37, 5, 37, 37)
    change(model)
    assert any(reason in each for each in refusals_of(model)), refusals_of(model)


def test_a_function_behind_it_is_no_part_of_it() -> None:
    model = mixture(4, 5)
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    assert {each.ops for each in subgraphs_of(model)} == {(OPERATOR,)}


def test_names_do_not_matter() -> None:
    nodes = [scan("x", "c", "v", "a/b"), scan("x", "c", "w", "y")]
    model = make_model(
        nodes,
        {"x": [3, 37], "c": [3]},
        {"a/b": [3, 90], "y": [3, 90]},
        {"v": matrices(4, 37, 90), "w": -matrices(4, 37, 90)},
        types={"c": TensorProto.INT64},
    )
    first, second = subgraphs_of(model)
    assert first.digest == second.digest
    assert first.digest == only(mixture(4, 3)).digest != only(mixture(5, 3)).digest


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
    options: dict[str, Any] = {"strict": True, "exact": True} if alone else {}
    module = collage.compile(
        model, backends=backends, db=tmp_path / "db", progress=False, threads=2, **options
    )
    (node,) = [each for each in module.summary()["nodes"] if each["op"] == OPERATOR]
    assert any(
        each["backend"] == "native" and each.keys() & {"cost_us", "least_us"} for each in node["candidates"]
    )
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
