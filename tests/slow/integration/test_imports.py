"""Models whose files are odd: they are placed as others, and their outputs are those of ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import collage
from collage.backends.openvino import OpenVino
from collage.frontend.model import import_model
from collage.frontend.relax.importer import DataDependentError
from tests.helpers.models import make_model
from tests.helpers.preferred import preferred

N = helper.make_node
RNG = np.random.default_rng(0)
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("db") / "measurements.sqlite"


def compiled(model: onnx.ModelProto, database: Path, **options: Any) -> collage.CompiledModule:
    """The model as a mix if there is one, however fast engines are on it."""
    with preferred():
        return collage.compile(model, db=database, progress=False, **{"quick": True, "budget_s": math.inf, **options})


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def is_placed(module: collage.CompiledModule) -> bool:
    return not any("runs the model whole" in note for note in module.report.notes)


def fresh(module: collage.CompiledModule, model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Normal numbers for the inputs of floats, small ones for those of integers."""
    rng = np.random.default_rng(seed)
    elements = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    found = {}
    for name, told in module.inputs.items():
        text = told[told.index("[") + 1 : -1]
        shape = [int(each) for each in text.split("x")] if text else []
        found[name] = (rng.standard_normal(shape) * 2).astype(helper.tensor_dtype_to_np_dtype(elements[name]))
    return found


def assert_agrees(module: collage.CompiledModule, model: onnx.ModelProto, valid: onnx.ModelProto | None = None) -> None:
    """The module's outputs are those of ONNX Runtime on the model, or on a ``valid`` form of it; bound calls, too."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession((valid or model).SerializeToString(), options)
    for seed in range(2):
        inputs = fresh(module, model, seed)
        expected = dict(zip(module.outputs, session.run(None, inputs), strict=True))
        found = module.run(inputs)
        bound = module.bind()
        for each, array in inputs.items():
            bound.inputs[each][...] = array
        bound()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(bound.outputs[name], array, rtol=1e-4, atol=1e-5)


def branch(sign: str, batch: int) -> onnx.GraphProto:
    """A branch with types of a batch of its own inside."""
    return helper.make_graph(
        [N(sign, ["r"], [f"{sign}1"]), N("Tanh", [f"{sign}1"], [f"{sign}2"])],
        sign,
        [],
        [helper.make_tensor_value_info(f"{sign}2", FLOAT, [batch, 10])],
        value_info=[helper.make_tensor_value_info(f"{sign}1", FLOAT, [batch, 10])],
    )


def layers(
    inner: Mapping[str, tuple[int, Sequence[int | str]]] = {},
    output: Sequence[int | str] = ("n", 6),
    *,
    middle: Sequence[onnx.NodeProto] = (N("Relu", ["r"], ["s"], "second"),),
) -> onnx.ModelProto:
    """A product between functions, for any batch, with what a file declares of inner values and of the output."""
    nodes = [
        N("Relu", ["x"], ["r"], "relu"),
        *middle,
        N("MatMul", ["s", "w"], ["m"], "product"),
        N("Tanh", ["m"], ["y"], "tanh"),
    ]
    weights = {"w": normal(10, 6)}
    model = make_model(nodes, {"x": ["n", 10]}, {"y": output}, weights)
    for name, (kind, shape) in inner.items():
        model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    return model


def in_a_function() -> onnx.ModelProto:
    model = layers(middle=[N("Inner", ["r"], ["s"], "second", domain="own")])
    function = helper.make_function(
        "own",
        "Inner",
        ["a"],
        ["c"],
        [N("Relu", ["a"], ["b"]), N("Neg", ["b"], ["c"])],
        [helper.make_opsetid("", 18)],
    )
    function.value_info.append(helper.make_tensor_value_info("b", FLOAT, [1, 10]))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.ir_version = 10
    return model


CHOICE_OF_DATA = [
    N("ReduceSum", ["r"], ["t"], keepdims=0),
    N("Cast", ["t"], ["c"], to=TensorProto.BOOL),
    N("If", ["c"], ["s"], "second", then_branch=branch("Abs", 1), else_branch=branch("Neg", 1)),
]

STALE: dict[str, Callable[[], onnx.ModelProto]] = {
    "another batch": lambda: layers({"r": (FLOAT, [1, 10]), "m": (FLOAT, [1, 6])}, [1, 6]),
    "rank": lambda: layers({"r": (FLOAT, [1, 10, 3])}, [1, 6]),
    "dtype": lambda: layers({"m": (DOUBLE, ["n", 6])}),
    "fewer dimensions": lambda: layers(output=[6]),
    "in branches": lambda: layers(output=[1, 6], middle=CHOICE_OF_DATA),
    "in a function": in_a_function,
}


@pytest.mark.parametrize("name", STALE)
def test_types_that_contradict_the_model_are_not_believed(name: str, database: Path) -> None:
    model = STALE[name]()
    module = compiled(model, database, shapes={"x": (4, 10)})
    assert module.outputs == {"y": "float32[4x6]"}
    assert is_placed(module)
    valid = onnx.ModelProto()
    valid.CopyFrom(model)
    bodies = [each.g for node in valid.graph.node for each in node.attribute if each.HasField("g")]
    for graph in (valid.graph, *bodies):
        del graph.value_info[:]
        (last,) = graph.output
        last.CopyFrom(helper.make_tensor_value_info(last.name, FLOAT, None))
    assert_agrees(module, model, valid)


def with_types(
    model: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto] = {}, version: int = 1
) -> onnx.ModelProto:
    """The model with ONNX Runtime's own operators, and with weights of types that numpy lacks."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", version))
    model.graph.initializer.extend(weights.values())
    model.ir_version = 10
    return model


def between(
    middle: Sequence[onnx.NodeProto],
    shapes: tuple[Sequence[int], Sequence[int]],
    weights: Mapping[str, np.ndarray],
    *,
    last: Sequence[str] = ("m",),
    **packed: onnx.TensorProto,
) -> onnx.ModelProto:
    """An operator of ONNX Runtime's, from ``r`` to ``m``, between those of the standard."""
    ends = [N("Tanh", [last[0]], ["t"], "tanh"), N("Add", ["t", last[-1]], ["y"], "add")]
    nodes = [N("Relu", ["x"], ["r"], "relu"), *middle, *ends]
    return with_types(make_model(nodes, {"x": shapes[0]}, {"y": shapes[1]}, weights, opset=21), packed)


def own(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("m",), **attributes: Any) -> onnx.NodeProto:
    return N(op, inputs, outputs, op, domain="com.microsoft", **attributes)


def ends(op: str, domain: str = "") -> onnx.GraphProto:
    """A branch that applies the operator to ``r``. It does not say of which shape its result is."""
    result = helper.make_tensor_type_proto(FLOAT, None)
    nodes = [helper.make_node(op, ["r"], ["e"], domain=domain)]
    return helper.make_graph(nodes, "branch", [], [helper.make_value_info("e", result)])


def packed(name: str, element: int, shape: Sequence[int]) -> onnx.TensorProto:
    low, high = (-8, 8) if element == TensorProto.INT4 else (0, 16)
    return helper.make_tensor(name, element, shape, RNG.integers(low, high, math.prod(shape)).tolist())


def dequantised(element: int) -> onnx.ModelProto:
    weight = N("DequantizeLinear", ["w", "s"], ["d"], "dequantize", axis=0, block_size=8)
    nodes = [weight, N("MatMul", ["r", "d"], ["m"], "product")]
    return between(nodes, ([2, 16], [2, 8]), {"s": np.abs(normal(2, 8))}, w=packed("w", element, [16, 8]))


def attention() -> onnx.ModelProto:
    nodes = [N("MatMul", ["r", f"w{each}"], [each], each) for each in "qkv"]
    given = ["q", "k", "v", "", "", "before", "all"]
    nodes.append(own("GroupQueryAttention", given, ("m", "pk", "pv"), num_heads=2, kv_num_heads=1))
    weights = {"wq": normal(16, 16), "wk": normal(16, 8), "wv": normal(16, 8)}
    lengths = {"before": np.array([3], np.int32), "all": np.array(4, np.int32)}
    return between(nodes, ([1, 4, 16], [1, 4, 16]), {**weights, **lengths})


OF_ONNX_RUNTIME: dict[str, Callable[[], onnx.ModelProto]] = {
    "MatMulNBits": lambda: between(
        [own("MatMulNBits", ["r", "w", "s"], K=64, N=16, bits=4, block_size=32)],
        ([4, 64], [4, 16]),
        {"w": RNG.integers(0, 256, (16, 2, 16)).astype(np.uint8), "s": np.abs(normal(32)) * 0.1},
    ),
    "FusedConv": lambda: between(
        [own("FusedConv", ["r", "w", "b"], activation="Relu", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        ([1, 3, 8, 8], [1, 4, 8, 8]),
        {"w": normal(4, 3, 3, 3), "b": normal(4)},
    ),
    "SkipSimplifiedLayerNormalization": lambda: between(
        [own("SkipSimplifiedLayerNormalization", ["r", "x", "g"], ("m", "", "", "s"), epsilon=1e-5)],
        ([2, 4, 8], [2, 4, 8]),
        {"g": normal(8)},
        last=("m", "s"),
    ),
    "GroupQueryAttention": attention,
    "two in a row": lambda: between(
        [own("FusedMatMul", ["r", "w"], ("f",), transB=1, alpha=0.5), own("FastGelu", ["f", "b"])],
        ([2, 4, 8], [2, 4, 5]),
        {"w": normal(5, 8), "b": normal(5)},
    ),
    "in a branch": lambda: between(
        [
            N("ReduceSum", ["r"], ["sum"], keepdims=0),
            N("Greater", ["sum", "most"], ["many"]),
            N(
                "If",
                ["many"],
                ["m"],
                "if",
                then_branch=ends("Gelu", "com.microsoft"),
                else_branch=ends("Sigmoid"),
            ),
        ],
        ([2, 4, 8], [2, 4, 8]),
        {"most": np.array(25, np.float32)},
    ),
    "int4": lambda: dequantised(TensorProto.INT4),
}


@pytest.mark.parametrize("name", OF_ONNX_RUNTIME)
def test_what_is_around_operators_of_onnx_runtime_is_placed(name: str, database: Path) -> None:
    model = OF_ONNX_RUNTIME[name]()
    module = compiled(model, database)
    assert is_placed(module)
    assert {"relu", "tanh", "add"} <= {op for region in module.program.regions for op in region.ops}
    assert_agrees(module, model)


def test_an_output_behind_such_an_operator_has_the_shape_that_comes(database: Path) -> None:
    """Also if an engine runs the model whole: the file says 1x8."""
    nodes = [N("Relu", ["x"], ["r"]), own("BiasGelu", ["r", "b"], ("y",))]
    model = with_types(make_model(nodes, {"x": [4, 8]}, {"y": [1, 8]}, {"b": normal(8)}))
    module = compiled(model, database, backends=["onnxruntime"])
    call = module.bind()
    call()
    assert module.outputs == {"y": "float32[4x8]"} and call.outputs["y"].shape == (4, 8)


def test_shapes_that_depend_on_numbers_are_not_taken_from_a_run(database: Path) -> None:
    nodes = [N("Relu", ["x"], ["r"]), own("Unique", ["r"], ("u", "at", "counts")), N("Tanh", ["u"], ["y"])]
    module = compiled(with_types(make_model(nodes, {"x": [12]}, {"y": ["n"]})), database)
    assert not is_placed(module) and module.outputs == {"y": "float32[?]"}
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal(12).astype(np.float32)
        np.testing.assert_allclose(np.sort(module(x)), np.tanh(np.unique(np.maximum(x, 0))), rtol=1e-5)


@pytest.mark.parametrize(
    ("node", "other", "declared", "believed"),
    [
        (N("Reshape", ["x", "i"], ["c"]), [2], [2, 6], True),
        (N("Reshape", ["x", "i"], ["c"]), [2], [2, 6, 1], False),
        (N("Gather", ["z", "i"], ["c"]), [2], [2, 2], False),
        (N("Transpose", ["z"], ["c"]), [2], [2, 2], False),
        (N("Unique", ["x"], ["c"]), [2], [7], False),
    ],
    ids=["reshaped", "of another rank", "of what is found", "what is found, moved", "what is found"],
)
def test_declared_types_of_what_depends_on_numbers(
    node: onnx.NodeProto, other: Sequence[int], declared: Sequence[int], believed: bool
) -> None:
    """A file may say which shape a computed one is, but not how many elements are found."""
    nodes = [N("NonZero", ["x"], ["z"]), node, N("Cast", ["c"], ["f"], to=FLOAT), N("Relu", ["f"], ["y"])]
    model = make_model(
        nodes[0 if "z" in node.input else 1 :],
        {"x": [4, 3], "i": other},
        {"y": declared},
        types={"i": TensorProto.INT64},
    )
    infos = [("z", TensorProto.INT64, [2, 2]), ("f", FLOAT, declared)]
    infos.append(("c", FLOAT if "x" in node.input else TensorProto.INT64, declared))
    model.graph.value_info.extend(helper.make_tensor_value_info(*info) for info in infos)
    if believed:
        graph = import_model(model).graph
        assert [graph.type_of(each).shape for each in graph.outputs] == [tuple(declared)]
    else:
        with pytest.raises(DataDependentError):
            import_model(model)


def noisy(
    *middle: onnx.NodeProto,
    masks: Sequence[str] = (),
    inputs: Mapping[str, Sequence[int]] = {},
    function: Sequence[onnx.NodeProto] = (),
) -> onnx.ModelProto:
    """Random numbers, from ``m`` to ``d``, between products."""
    nodes = [
        N("Relu", ["x"], ["r"], "relu"),
        N("MatMul", ["r", "w"], ["m"], "product"),
        *middle,
        N("Tanh", ["d"], ["y"], "tanh"),
        N("Neg", ["m"], ["z"], "neg"),
    ]
    switches = {"half": np.array(0.5, np.float32), "yes": np.array(True), "no": np.array(False)}
    weights = {"w": normal(64, 64) * 0.1, **switches}
    kinds = dict.fromkeys((*masks, *inputs), TensorProto.BOOL)
    shape = [8, 64]
    outputs = {"y": shape, "z": shape, **dict.fromkeys(masks, shape)}
    model = make_model(nodes, {"x": shape, **inputs}, outputs, weights, types=kinds)
    if function:
        model.functions.append(helper.make_function("own", "Noise", ["a"], ["b"], list(function), model.opset_import))
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.ir_version = 10
    return model


def in_a_body(op: str) -> onnx.NodeProto:
    """An ``If`` whose branches draw or not, by the sum of the data."""
    result = helper.make_tensor_value_info("o", FLOAT, [8, 64])
    drawing = helper.make_graph([N(op, ["m"], ["n"]), N("Add", ["m", "n"], ["o"])], "drawing", [], [result])
    other = helper.make_graph([N(op, ["m"], ["n"]), N("Sub", ["m", "n"], ["o"])], "other", [], [result])
    return N("If", ["c"], ["d"], "if", then_branch=drawing, else_branch=other)


SUM = [N("ReduceSum", ["r"], ["total"], keepdims=0), N("Cast", ["total"], ["c"], to=TensorProto.BOOL)]
OWN_NOISE = N("Noise", ["m"], ["d"], "noise", domain="own")
DRAWING: dict[str, Callable[[], onnx.ModelProto]] = {
    "Dropout": lambda: noisy(N("Dropout", ["m", "half", "yes"], ["d"])),
    "Dropout with a mask": lambda: noisy(N("Dropout", ["m", "half", "yes"], ["d", "mask"]), masks=["mask"]),
    "Dropout by an input": lambda: noisy(N("Dropout", ["m", "half", "train"], ["d"]), inputs={"train": []}),
    "Bernoulli": lambda: noisy(N("Sigmoid", ["m"], ["s"]), N("Bernoulli", ["s"], ["d"])),
    "Multinomial": lambda: noisy(N("Multinomial", ["m"], ["i"], sample_size=64), N("Cast", ["i"], ["d"], to=FLOAT)),
    "RandomNormal": lambda: noisy(N("RandomNormal", [], ["n"], shape=[8, 64]), N("Add", ["m", "n"], ["d"])),
    "in a function": lambda: noisy(
        OWN_NOISE, function=[N("RandomUniformLike", ["a"], ["n"]), N("Add", ["a", "n"], ["b"])]
    ),
    "in branches": lambda: noisy(*SUM, in_a_body("RandomNormalLike")),
}


@pytest.mark.parametrize(("name", "quick"), [*((name, True) for name in DRAWING), ("Dropout with a mask", False)])
def test_random_numbers_are_drawn_in_each_call(name: str, quick: bool, database: Path) -> None:
    model = DRAWING[name]()
    module = compiled(model, database, quick=quick)
    assert is_placed(module)
    inputs = {"x": np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)}
    if "train" in module.inputs:
        inputs["train"] = np.array(True)
    one, other = module.run(inputs), module.run(inputs)
    np.testing.assert_array_equal(one["z"], other["z"])
    assert np.isfinite(one["y"]).all() and not np.array_equal(one["y"], other["y"])
    if "Dropout" in name:
        dropped = float((one["y"] == 0).mean())
        assert 0.3 < dropped < 0.7
        np.testing.assert_allclose(one["y"][one["y"] != 0], np.tanh(-2 * one["z"])[one["y"] != 0], rtol=1e-4, atol=1e-5)
    if "mask" in one:
        assert one["mask"].dtype == bool
        np.testing.assert_array_equal(one["mask"], one["y"] != 0)
    drawing = {
        region.backend
        for region in module.program.regions
        if any("Random" in op or "Dropout" in op for op in region.ops)
    }
    assert drawing <= {"onnxruntime"}
    if not quick and OpenVino().available():
        whole = [each for each in module.report.candidates if each.backend == "openvino" and each.original]
        assert whole and all("draws random numbers" in each.reason for each in whole)


def test_engines_that_would_not_draw_are_out_of_whole_models(database: Path) -> None:
    """Where nothing can be placed, too, and with the reason."""
    nodes = [N("Dropout", ["x", "half", "yes"], ["d"], "drop"), N("NonZero", ["d"], ["y"])]
    weights = {"half": np.array(0.5, np.float32), "yes": np.array(True)}
    model = make_model(nodes, {"x": [100]}, {"y": [1, "n"]}, weights, types={"y": TensorProto.INT64})
    module = compiled(model, database)
    assert not is_placed(module)
    reasons = {each.backend: each.reason for each in module.report.candidates}
    if OpenVino().available():
        assert "draws random numbers" in reasons["openvino"]
    ones = np.ones(100, np.float32)
    assert {20 < module(ones).shape[1] < 80 for _ in range(3)} == {True}


@pytest.mark.parametrize("training", [(), ("half", "no")])
def test_dropout_that_does_not_draw_is_the_identity(training: tuple[str, ...], database: Path) -> None:
    model = noisy(N("Dropout", ["m", *training], ["d", "mask"]), masks=["mask"])
    module = compiled(model, database)
    assert is_placed(module)
    assert not any("Dropout" in op for region in module.program.regions for op in region.ops)
    assert_agrees(module, model)
    assert module.run(fresh(module, model, 0))["mask"].all()


GATES = {"LSTM": 4, "GRU": 3}


def batch_first(op: str, steps: int, directions: int) -> onnx.ModelProto:
    """A recurrent operator of 3 sequences, whose batch comes first."""
    hidden, states = 6, ["h", "c"] if op == "LSTM" else ["h"]
    weights = {
        "w": normal(directions, GATES[op] * hidden, 4) * 0.5,
        "r": normal(directions, GATES[op] * hidden, hidden) * 0.5,
        "b": normal(directions, 2 * GATES[op] * hidden) * 0.5,
    }
    ends = [f"{each}_end" for each in states]
    node = N(
        op,
        ["e", "w", "r", "b", "", *states],
        ["all", *ends],
        "recurrent",
        hidden_size=hidden,
        direction="bidirectional" if directions == 2 else "forward",
        layout=1,
    )
    nodes = [N("Relu", ["x"], ["e"]), node, N("Tanh", ["all"], ["y"])]
    state = [3, directions, hidden]
    outputs = {"y": [3, steps, directions, hidden], **dict.fromkeys(ends, state)}
    return make_model(nodes, {"x": [3, steps, 4], **dict.fromkeys(states, state)}, outputs, weights)


@pytest.mark.parametrize(("op", "steps", "directions"), [("LSTM", 5, 2), ("GRU", 1, 1)])
def test_recurrent_operators_with_the_batch_first(op: str, steps: int, directions: int, database: Path) -> None:
    """ONNX Runtime runs none of these, so the standard's evaluator tells what is right."""
    model = batch_first(op, steps, directions)
    module = compiled(model, database)
    assert is_placed(module)
    inputs = fresh(module, model, 2)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for found, array in zip(module.run(inputs).values(), expected, strict=True):
        assert found.shape == array.shape
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)
