"""Any valid model runs: what cannot be cut into parts runs whole on an engine, and the report says why."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import collage
from collage.backends.onnx_engine import OnnxEngine
from collage.backends.onnxruntime import OnnxRuntime
from collage.errors import CollageError, InputError, ModelError, UsageError
from collage.graph.value_type import TENSOR, ValueType
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions
from collage.module.file import read_summary
from collage.report.show import facts, headline
from collage.runtime.original import Careful, Fallback
from collage.schedule.suffix import ValuePort
from tests.helpers.models import make_model, positive_rows

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("db") / "measurements.sqlite"


def compiled(model: onnx.ModelProto, database: Path, **options: Any) -> collage.CompiledModule:
    return collage.compile(model, db=database, progress=False, quick=True, **options)


def typed_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, onnx.TypeProto],
    outputs: dict[str, onnx.TypeProto],
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_value_info(name, kind) for name, kind in inputs.items()],
        [helper.make_value_info(name, kind) for name, kind in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tensor(element: int = TensorProto.FLOAT, shape: Sequence[int | str | None] | None = None) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(element, shape)


def test_shapes_that_depend_on_data(database: Path, tmp_path: Path) -> None:
    module = compiled(positive_rows(), database)
    assert module.outputs == {"y": "float32[?x4]"}
    (region,) = module.program.regions
    assert region.backend in ("onnxruntime", "openvino")
    assert any("compress" in note and "depends on data" in note for note in module.report.notes)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((6, 4)).astype(np.float32)
        np.testing.assert_array_equal(module(x), x[x.sum(1) > 0])
    assert compiled(positive_rows(), database).report.measurements_made == 0
    verdicts = [c["verdict"] for c in module.summary()["nodes"][0]["candidates"]]
    assert verdicts.count("chosen") == 1
    with pytest.raises(InputError, match="x has shape 5x4, the module was compiled for 6x4"):
        module(x[:5])
    with pytest.raises(UsageError, match="runs the model whole"):
        module.trace({"x": x})

    path = tmp_path / "net.collage"
    module.save(path)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np, collage\n"
        "np.save(sys.argv[3], collage.load(sys.argv[1])(np.load(sys.argv[2])))\n"
        "assert 'collage.compiler.compile' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, *(str(tmp_path / n) for n in ("net.collage", "x.npy", "y.npy"))],
        check=True,
    )
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), module(x))


def test_strict_refuses_what_is_not_converted(database: Path) -> None:
    with pytest.raises(CollageError, match=r"compress \(Compress\)"):
        compiled(positive_rows(), database, strict=True)
    weights = {
        name: RNG.standard_normal(shape).astype(np.float32) for name, shape in (("w", (1, 8, 3)), ("r", (1, 8, 2)))
    }
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=2)]
    lstm = make_model(nodes, {"x": [4, 1, 3]}, {"y": [4, 1, 1, 2]}, weights)
    with pytest.raises(ModelError, match=r"strict: 1 ONNX nodes are not converted.*lstm \(LSTM\)"):
        compiled(lstm, database, strict=True)
    relu = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [3]}, {"y": [3]})
    np.testing.assert_array_equal(compiled(relu, database, strict=True)(np.array([-1, 0, 2], np.float32)), [0, 0, 2])


def test_sequences_go_in_and_out(database: Path) -> None:
    sequence = helper.make_sequence_type_proto(tensor(shape=[2]))
    nodes = [
        helper.make_node("SequenceInsert", ["s", "x"], ["t"]),
        helper.make_node("SequenceAt", ["t", "last"], ["y"]),
    ]
    model = typed_model(nodes, {"s": sequence, "x": tensor(shape=[2])}, {"t": sequence, "y": tensor(shape=[2])})
    model.graph.initializer.append(numpy_helper.from_array(np.array(-1), "last"))
    module = compiled(model, database)
    assert module.inputs["s"] == "sequence(float32[2])"
    first, second = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    sequence_out, y = module([first], second)
    np.testing.assert_array_equal(np.stack(sequence_out), [first, second])
    np.testing.assert_array_equal(y, second)
    with pytest.raises(InputError, match="s is a int, the model takes a list"):
        module(1, second)
    with pytest.raises(InputError, match="s has dtype float64"):
        module([first.astype(np.float64)], second)


def test_strings(database: Path) -> None:
    text = tensor(TensorProto.STRING, [3])
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"])]
    module = compiled(typed_model(nodes, {"x": text}, {"y": text}, opset=20), database)
    found = module(np.array(["a", "b", "cd"], object))
    assert list(found) == ["aa", "bb", "cdcd"]
    assert list(module([b"a", "ä".encode(), b"cd"])) == ["aa", "ää", "cdcd"]
    with pytest.raises(InputError, match="x has dtype int64, the model takes strings"):
        module(np.arange(3))


def test_optionals(database: Path) -> None:
    optional = helper.make_optional_type_proto(tensor(shape=[2]))
    nodes = [helper.make_node("OptionalHasElement", ["x"], ["y"])]
    module = compiled(typed_model(nodes, {"x": optional}, {"y": tensor(TensorProto.BOOL, [])}), database)
    assert module(np.zeros(2, np.float32))
    assert not module(None)


def branches() -> onnx.ModelProto:
    """x + 1 where its sum is positive, else -x: both from a body that captures x."""
    taken = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["a"])],
        "then",
        [],
        [helper.make_value_info("a", tensor(shape=[3]))],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["b"])], "else", [], [helper.make_value_info("b", tensor(shape=[3]))]
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=taken, else_branch=other),
    ]
    weights = {"one": np.array(1, np.float32), "zero": np.array(0, np.float32)}
    return make_model(nodes, {"x": [3]}, {"y": [3]}, weights)


def loop(rounds: int = 5) -> onnx.ModelProto:
    """x doubled ``rounds`` times, and all results on the way."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["w"]),
            helper.make_node("Identity", ["w"], ["scan"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_value_info("i", tensor(TensorProto.INT64, [])),
            helper.make_value_info("go", tensor(TensorProto.BOOL, [])),
            helper.make_value_info("v", tensor(shape=[3])),
        ],
        [
            helper.make_value_info("on", tensor(TensorProto.BOOL, [])),
            helper.make_value_info("w", tensor(shape=[3])),
            helper.make_value_info("scan", tensor(shape=[3])),
        ],
    )
    nodes = [helper.make_node("Loop", ["rounds", "true", "x"], ["y", "all"], body=body)]
    weights = {"rounds": np.array(rounds), "true": np.array(True)}
    return make_model(nodes, {"x": [3]}, {"y": [3], "all": [rounds, 3]}, weights)


def scan() -> onnx.ModelProto:
    """Running sums over the rows of x."""
    row = tensor(shape=[3])
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "r"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [helper.make_value_info("s", row), helper.make_value_info("r", row)],
        [helper.make_value_info("t", row), helper.make_value_info("o", row)],
    )
    nodes = [helper.make_node("Scan", ["start", "x"], ["y", "all"], num_scan_inputs=1, body=body)]
    return make_model(nodes, {"x": [4, 3]}, {"y": [3], "all": [4, 3]}, {"start": np.zeros(3, np.float32)})


def unary(element: int, *operators: str) -> onnx.ModelProto:
    nodes = [helper.make_node(operator, [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i, operator in enumerate(operators)]
    last = f"t{len(operators)}"
    return make_model(nodes, {"x": [2, 5]}, {last: [2, 5]}, types={"x": element, last: element})


def quantised() -> onnx.ModelProto:
    """A quantised matrix product between two quantisations, as exporters write it."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "t", "z"], ["m"]),
        helper.make_node("DequantizeLinear", ["m", "t", "z"], ["y"]),
    ]
    weights = {
        "s": np.array(0.05, np.float32),
        "t": np.array(0.2, np.float32),
        "z": np.array(3, np.uint8),
        "w": RNG.integers(0, 9, (4, 2)).astype(np.uint8),
    }
    return make_model(nodes, {"x": [3, 4]}, {"y": [3, 2]}, weights, opset=19)


def empty() -> onnx.ModelProto:
    """A tensor of no elements beside one that has some."""
    nodes = [
        helper.make_node("Concat", ["x", "e"], ["c"], axis=0),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("Relu", ["e"], ["z"]),
    ]
    return make_model(nodes, {"x": [2, 3], "e": [0, 3]}, {"y": [2, 3], "z": [0, 3]})


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "if": branches,
    "loop": loop,
    "scan": scan,
    "float16": lambda: unary(TensorProto.FLOAT16, "Relu", "Sigmoid"),
    "double": lambda: unary(TensorProto.DOUBLE, "Exp", "Tanh"),
    "int8": lambda: unary(TensorProto.INT8, "Abs"),
    "uint64": lambda: unary(TensorProto.UINT64, "Identity"),
    "bool": lambda: unary(TensorProto.BOOL, "Not"),
    "quantised": quantised,
    "empty": empty,
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_standard(name: str, database: Path) -> None:
    model = CASES[name]()
    module = compiled(model, database)
    rng = np.random.default_rng(1)
    inputs = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        inputs[info.name] = (rng.standard_normal(shape) * 3).astype(dtype)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for actual, reference in zip(module.run(inputs).values(), expected, strict=True):
        assert actual.dtype == reference.dtype
        tolerance = 2e-3 if actual.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(actual, reference, rtol=tolerance, atol=tolerance)


def test_bfloat16_goes_into_onnx_runtime() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    model = make_model(nodes, {"x": [3]}, {"y": [3]}, types={"x": TensorProto.BFLOAT16}).SerializeToString()
    x = np.array([-1, 0.5, 3], ml_dtypes.bfloat16)
    read, made = (
        ValuePort(name, ValueType(TENSOR, dtype, (3,))) for name, dtype in (("x", "bfloat16"), ("y", "float32"))
    )
    for found in (
        OnnxRuntime().session(model, BuildOptions(threads=1)).run([x]),
        Careful(model, 1).run([x]),
        [Fallback(model, [read], [made], 1).run({"x": x})["y"]],
    ):
        np.testing.assert_array_equal(found[0], [0, 0.5, 3])


def reshape() -> onnx.ModelProto:
    """Its second input is a shape, which random numbers are not."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    return make_model(nodes, {"x": [2, 6], "shape": [2]}, {"y": ["a", "b"]}, types={"shape": TensorProto.INT64})


def test_inputs_to_measure_with(database: Path) -> None:
    shape = np.array([3, 4])
    module = compiled(reshape(), database, inputs={"shape": shape})
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(module(x, shape), x.reshape(3, 4))
    np.testing.assert_array_equal(module(x, np.array([12, 1])), x.reshape(12, 1))
    assert module.report.max_abs_error == 0
    with pytest.raises(UsageError, match=r"unknown input: q\. Valid: shape, x"):
        compiled(reshape(), database, inputs={"q": shape})
    with pytest.raises(InputError, match="shape has dtype float32, the model takes int64"):
        compiled(reshape(), database, inputs={"shape": shape.astype(np.float32)})


def test_a_model_that_random_inputs_cannot_run_is_loaded_unmeasured(database: Path) -> None:
    module = compiled(reshape(), database)
    assert any("neither measured nor checked" in note for note in module.report.notes)
    told = dict(facts(module.report, module.program))
    assert headline(module.report).startswith("not measured: no engine runs the model on made-up inputs")
    assert told["outputs"] == "not checked"
    assert "not measured" in repr(module) and module.summary()["measured_us"] is None
    path = database.with_name("unmeasured.collage")
    module.save(path)
    assert dict(facts(*read_summary(path).first)) == told
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(module(x, np.array([4, 3])), x.reshape(4, 3))
    with pytest.raises(CollageError, match=r"fails on these inputs: .*[Rr]eshape"):
        module(x, np.array([5, 3]))


class _Hostile(OnnxEngine):
    requirement = "nothing"

    def available(self) -> collage.Availability:
        return collage.Availability(version="1")

    def load(self, artifact: bytes, options: BuildOptions) -> collage.Kernel:
        raise NotImplementedError


class Crashes(_Hostile):
    name = "crashes"

    def session(self, model: bytes, options: BuildOptions) -> Session:
        os.abort()


class Hangs(_Hostile):
    name = "hangs"

    def session(self, model: bytes, options: BuildOptions) -> Session:
        time.sleep(600)
        raise AssertionError


class _Zeros(Session):
    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return [np.zeros((1, 4), np.float32)]


class Wrong(_Hostile):
    name = "wrong"

    def session(self, model: bytes, options: BuildOptions) -> Session:
        return _Zeros()


def test_an_engine_that_crashes_hangs_or_errs_costs_itself_only(database: Path) -> None:
    registry = collage.Registry()
    for engine in (Crashes(), Hangs(), Wrong(), OnnxRuntime()):
        registry.register(engine)
    module = collage.compile(
        positive_rows(), db=database, registry=registry, progress=False, quick=True, time_limit_s=5
    )
    assert [region.backend for region in module.program.regions] == ["onnxruntime"]
    reasons = {c.backend: c.reason for c in module.report.candidates}
    assert "SIGABRT" in reasons["crashes"]
    assert "took more than 5 s" in reasons["hangs"]
    assert "inaccurate" in reasons["wrong"]


def test_without_an_engine_that_takes_it(database: Path) -> None:
    with pytest.raises(CollageError, match=r"depends on data.*no engine can run the model whole: there is none"):
        compiled(positive_rows(), database, backends=["tvm"])
    nodes = [helper.make_node("Magic", ["x"], ["y"], domain="nobody.knows")]
    model = make_model(nodes, {"x": [3]}, {"y": [3]})
    model.opset_import.append(helper.make_opsetid("nobody.knows", 1))
    with pytest.raises(ModelError, match=r"onnxruntime, as written: .*Magic.*openvino, as written: .*Magic"):
        compiled(model, database)
