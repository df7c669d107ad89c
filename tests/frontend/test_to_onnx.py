"""ONNX → Relax → ONNX gives the same numbers: nodes verbatim, operator by operator, and in two parts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.export_emit import fill_tensor
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.frontend.to_onnx import EXPORT_OPSET, ExportError, can_export, export_onnx
from collage.graph.dataflow import np_dtype

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Feed:
    """A graph input, fresh random values in [low, high)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -2.0
    high: float = 2.0

    def draw(self, rng: np.random.Generator) -> Array:
        if self.dtype == "bool":
            return np.asarray(rng.random(self.shape) < 0.5)
        if self.dtype.startswith("float"):
            return np.asarray(rng.uniform(self.low, self.high, self.shape)).astype(self.dtype)
        return rng.integers(int(self.low), int(self.high), self.shape).astype(self.dtype)


@dataclass
class Net:
    """Builds an ONNX model node by node; ``feeds`` are its inputs."""

    opset: int = 18
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    feeds: dict[str, Feed] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of float32 values that ONNX's shape inference does not know."""

    def input(self, *shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = Feed(shape, dtype, low, high)
        return name

    def weight(self, array: Any, dtype: str | None = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array, dtype)
        return name

    def random(self, *shape: int) -> str:
        rng = np.random.default_rng(len(self.weights))
        return self.weight(rng.standard_normal(shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.ops(op, 1, *inputs, **attrs)[0]

    def ops(self, op: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
        outputs = [f"{op.lower()}_{len(self.nodes)}_{i}" for i in range(count)]
        domain = "com.microsoft" if attrs.pop("contrib", False) else ""
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], domain=domain, **attrs))
        return outputs

    def reduce(self, op: str, x: str, axis: int) -> str:
        return self.op(op, x, axes=[axis]) if self.opset < 18 else self.op(op, x, self.ints(axis))

    def build(self, *outputs: str) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(f.dtype)), f.shape)
            for n, f in self.feeds.items()
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", infos, results, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        for name, shape in self.shapes.items():
            graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return onnx.shape_inference.infer_shapes(made, data_prop=True)


def run(model: onnx.ModelProto, feeds: Sequence[Array], optimise: bool = True) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(
        None, {i.name: f for i, f in zip(model.graph.input, feeds, strict=True)}
    )
    return results


def agree(found: Sequence[Array], expected: Sequence[Array]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b)
        else:
            finite = np.abs(b[np.isfinite(b)])
            scale = max(1.0, float(finite.max())) if finite.size else 1.0
            loose = 2e-3 if a.dtype.itemsize == 2 else 2e-5
            np.testing.assert_allclose(a, b, rtol=loose, atol=loose * scale)


def whole(model: Model, **options: bool) -> onnx.ModelProto:
    graph = model.graph
    return export_onnx(model, range(len(graph.nodes)), graph.inputs, graph.outputs, **options)


def valid(exported: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(exported, full_check=True)
    return exported


def run_in_two(model: Model, position: int, feeds: Sequence[Array]) -> list[Array]:
    graph = model.graph
    known: dict[int, Array] = dict(graph.constants) | dict(zip(graph.inputs, feeds, strict=True))
    order = tuple(range(len(graph.nodes)))
    for nodes in (order[:position], order[position:]):
        part = Subgraph(model, nodes)
        results = run(valid(part.to_onnx()), [known[v] for v in part.inputs])
        known.update(zip(part.outputs, results, strict=True))
    return [known[v] for v in graph.outputs]


def check(net: Net, *outputs: str, cut: bool = True) -> Model:
    """The promises of this file on one network: verbatim, operator by operator, and cut everywhere."""
    original = net.build(*outputs)
    model = import_model(original)
    rng = np.random.default_rng(7)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    expected = run(original, feeds)
    agree(run(valid(whole(model)), feeds), expected)
    if not model.opaque:
        agree(run(valid(whole(model, verbatim=False)), feeds), expected)
    if cut:
        for position in range(1, len(model.graph.nodes)):
            agree(run_in_two(model, position, feeds), expected)
    return model


# -- one operator ------------------------------------------------------------------------------------------

X = Feed((2, 3, 4))
POSITIVE = Feed((2, 3, 4), low=0.1, high=3.0)
UNIT = Feed((2, 3, 4), low=-0.9, high=0.9)
INT = Feed((2, 3, 4), "int32", -9, 9)
BOOL = Feed((2, 3, 4), "bool")
IMAGE = Feed((2, 4, 7, 9))
VOLUME = Feed((1, 2, 5, 6, 7))
SIGNAL = Feed((2, 4, 9))


@dataclass(frozen=True)
class Case:
    """One ONNX node on feeds and constants; ``relax`` are operators that its graph must have."""

    op: str
    inputs: tuple[Feed | Array | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    relax: str = ""
    opset: int = 18
    outputs: int = 1

    def __str__(self) -> str:
        attrs = "-".join(f"{k}={v}" for k, v in self.attrs.items())
        return re.sub(r"[^\w=.-]+", "_", f"{self.op}{self.opset}-{self.relax.split(' ')[0]}-{attrs}")[:80]


def case(op: str, *inputs: Any, relax: str = "", opset: int = 18, outputs: int = 1, **attrs: Any) -> Case:
    given = tuple(i if isinstance(i, Feed) or i is None else np.asarray(i) for i in inputs)
    return Case(op, given, attrs, relax, opset, outputs)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def indices(shape: tuple[int, ...], high: int, low: int = 0) -> Feed:
    return Feed(shape, "int64", low, high)


UNARY = [
    *(
        case(op, X)
        for op in [
            "Abs",
            "Atan",
            "Asinh",
            "Ceil",
            "Cos",
            "Cosh",
            "Erf",
            "Exp",
            "Floor",
            "Neg",
            "Round",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
        ]
    ),
    *(
        case(op, X)
        for op in [
            "Tan",
            "Tanh",
            "Relu",
            "Softplus",
            "Softsign",
            "Elu",
            "Selu",
            "HardSigmoid",
            "HardSwish",
            "Mish",
            "Celu",
        ]
    ),
    *(case(op, UNIT) for op in ("Acos", "Asin", "Atanh")),
    *(case(op, POSITIVE) for op in ("Log", "Sqrt", "Reciprocal")),
    case("Acosh", Feed((2, 3, 4), low=1.1, high=4.0)),
    case("Relu", INT),
    case("Abs", INT),
    case("Not", BOOL, relax="logical_not"),
    case("BitwiseNot", INT, relax="bitwise_not"),
    case("IsNaN", X),
    case("IsInf", X),
    case("IsInf", X, detect_negative=0, relax="isinf logical_and"),
    case("LeakyRelu", X, alpha=0.2),
    case("ThresholdedRelu", X, alpha=0.3),
    case("Shrink", X, lambd=0.5, bias=0.2),
    case("Gelu", X, opset=20),
    case("Gelu", X, approximate="tanh", opset=20),
    case("Clip", X, scalar(-0.5), scalar(1.0), relax="clip"),
    case("Clip", X, scalar(-0.5), relax="maximum"),
    case("Clip", X, None, scalar(0.5), relax="minimum"),
    case("Clip", X, scalar(1.0), scalar(-1.0)),
    case("Clip", INT, scalar(-3, np.int32), scalar(4, np.int32)),
    case("Clip", X, Feed((), low=-1.0, high=0.0), Feed((), low=0.1, high=1.0)),
    case("Clip", X, opset=10, min=-0.5, max=0.5),
    *(case("Cast", X, to=to) for to in (TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL)),
    *(case("Cast", X, to=to) for to in (TensorProto.INT32, TensorProto.INT64, TensorProto.INT8)),
    case("Cast", INT, to=TensorProto.FLOAT),
    case("Cast", BOOL, to=TensorProto.INT64),
    *(case("Softmax", X, axis=axis) for axis in (0, 1, -1)),
    case("Softmax", X, axis=1, opset=11),
    case("LogSoftmax", X, axis=-1),
    case("Hardmax", X, axis=1),
    case("PRelu", X, normal(4)),
    case("PRelu", IMAGE, normal(4, 1, 1), relax="nn.prelu"),
    case("PRelu", X, normal(1)),
    case("PRelu", X, normal(3, 4)),
]

BINARY = [
    *(case(op, X, Feed((3, 1))) for op in ("Add", "Sub", "Mul", "Max", "Min")),
    *(case(op, X, Feed((3, 1))) for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *(case(op, BOOL, Feed((4,), "bool")) for op in ("And", "Or", "Xor", "Equal")),
    *(case(op, INT, Feed((4,), "int32", -9, 9)) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal")),
    *(
        case("BitShift", Feed((5,), "uint32", 0, 99), Feed((5,), "uint32", 0, 5), direction=d)
        for d in ("LEFT", "RIGHT")
    ),
    case("Div", X, POSITIVE),
    case("Div", INT, Feed((4,), "int32", 1, 5)),
    case("Pow", POSITIVE, X),
    case("Mod", INT, scalar(4, np.int32), relax="floor_mod"),
    case("Mod", INT, scalar(-4, np.int32), relax="floor_mod"),
    case("Mod", INT, scalar(4, np.int32), fmod=1, relax="mod"),
    case("Mod", X, scalar(0.7), fmod=1, relax="mod"),
    case("Where", BOOL, X, Feed((3, 1))),
    case("Max", X, X, X),
    case("Sum", X, Feed((4,)), Feed((3, 1))),
    case("Mean", X, X),
]

PRODUCTS = [
    case("MatMul", X, Feed((4, 5))),
    case("MatMul", Feed((4,)), Feed((2, 4, 3))),
    case("MatMul", Feed((2, 3, 4)), normal(2, 4, 5)),
    case("Gemm", Feed((3, 4)), normal(4, 5), normal(5), alpha=0.5, beta=2.0),
    case("Gemm", Feed((4, 3)), normal(5, 4), transA=1, transB=1),
    case("Einsum", Feed((2, 3)), Feed((3, 4)), equation="ij,jk->ik", relax="einsum"),
    case("Einsum", Feed((2, 3, 4)), Feed((2, 5, 4)), equation="bij,bkj->bik", relax="einsum"),
    case("Conv", SIGNAL, normal(6, 4, 3), pads=[1, 1], strides=[2], relax="nn.conv1d"),
    case("Conv", IMAGE, normal(6, 4, 3, 3), normal(6), pads=[1, 1, 1, 1], relax="nn.conv2d"),
    case("Conv", IMAGE, normal(6, 2, 3, 2), group=2, pads=[0, 1, 2, 0], strides=[2, 1], relax="nn.conv2d"),
    case("Conv", IMAGE, normal(4, 1, 3, 3), group=4, dilations=[2, 2], relax="nn.conv2d"),
    case("Conv", IMAGE, normal(6, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2], relax="nn.conv2d"),
    case("Conv", IMAGE, normal(6, 4, 2, 2), auto_pad="SAME_LOWER", relax="nn.conv2d"),
    case("Conv", VOLUME, normal(3, 2, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1], relax="nn.conv3d"),
    case("ConvTranspose", SIGNAL, normal(4, 6, 3), strides=[2], relax="nn.conv1d_transpose"),
    case(
        "ConvTranspose",
        IMAGE,
        normal(4, 3, 4, 4),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        relax="nn.conv2d_transpose",
    ),
    case(
        "ConvTranspose", IMAGE, normal(4, 3, 3, 3), normal(6), group=2, strides=[2, 2], output_padding=[1, 1]
    ),
    case("ConvTranspose", VOLUME, normal(2, 3, 3, 3, 3), relax="nn.conv3d_transpose"),
]

POOLS = [
    *(case(op, SIGNAL, kernel_shape=[3], strides=[2]) for op in ("MaxPool", "AveragePool")),
    *(case(op, IMAGE, kernel_shape=[3, 2], pads=[1, 0, 1, 1]) for op in ("MaxPool", "AveragePool")),
    *(case(op, VOLUME, kernel_shape=[2, 2, 2], strides=[2, 2, 2]) for op in ("MaxPool", "AveragePool")),
    *(case(op, IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1) for op in ("MaxPool", "AveragePool")),
    *(case(op, IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1) for op in ("MaxPool", "AveragePool")),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], dilations=[2, 2], opset=19),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], dilations=[2, 2]),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]),
    case("GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", IMAGE),
    case("LpPool", IMAGE, kernel_shape=[2, 2]),
]

SPREAD = np.abs(normal(4)) + 0.5
NORMS = [
    case("BatchNormalization", IMAGE, normal(4), normal(4), normal(4), SPREAD, relax=""),
    case("LayerNormalization", X, normal(4), normal(4), axis=-1, relax="nn.layer_norm"),
    case("LayerNormalization", X, normal(3, 4), axis=1, relax="nn.layer_norm"),
    case("InstanceNormalization", IMAGE, normal(4), normal(4)),
    case("GroupNormalization", IMAGE, normal(2), normal(2), num_groups=2),
    case("LpNormalization", X, axis=1),
    case("MeanVarianceNormalization", IMAGE),
    case("LRN", IMAGE, size=3),
]

REDUCTIONS = [
    *(
        case(f"Reduce{kind}", POSITIVE, axes, keepdims=keep)
        for kind in ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]
        for axes, keep in ((i64(1), 1), (i64(0, 2), 0), (i64(-1), 0))
    ),
    case("ReduceMean", X),
    case("ReduceMean", X, axes=[1], opset=13),
    *(case(op, X, axis=axis, keepdims=k) for op in ("ArgMax", "ArgMin") for axis, k in ((1, 1), (-1, 0))),
    case("ArgMax", X, axis=1, select_last_index=1),
    *(case("CumSum", X, scalar(1, np.int64), exclusive=e, reverse=r) for e in (0, 1) for r in (0, 1)),
    case("TopK", X, i64(2), axis=1, outputs=2, relax="topk"),
    case("TopK", X, i64(2), largest=0, outputs=2, relax="topk"),
]

DATA = [
    case("Reshape", X, i64(4, -1), relax="reshape"),
    case("Reshape", X, i64(0, 12)),
    case("Flatten", X, axis=2),
    case("Squeeze", Feed((2, 1, 3, 1)), i64(1, 3)),
    case("Unsqueeze", X, i64(0, 2)),
    case("Transpose", X, perm=[2, 0, 1], relax="permute_dims"),
    case("Transpose", X),
    case("Concat", X, Feed((2, 1, 4)), X, axis=1, relax="concat"),
    case("Concat", X, X, axis=-1),
    case("Split", Feed((2, 6)), i64(1, 2, 3), axis=1, outputs=3, relax="split"),
    case("Split", Feed((2, 6)), axis=-1, num_outputs=2, outputs=2),
    case("Slice", X, i64(1), i64(2**63 - 1), i64(1), relax="strided_slice"),
    case("Slice", X, i64(0, -3), i64(-1, 4), i64(0, 2), i64(1, 2)),
    case("Slice", X, i64(-1), i64(-(2**63)), i64(2), i64(-1)),
    case("Slice", X, i64(3), i64(0), i64(-1), i64(-2)),
    case("Slice", X, i64(99), i64(-99), i64(1), i64(-1)),
    case("Slice", X, i64(1), i64(99), i64(1), i64(5)),
    case("Gather", X, indices((2, 2), 3), axis=1, relax="take"),
    case("Gather", X, indices((3,), 3, -3), axis=1),
    case("Gather", X, scalar(-1, np.int64), axis=2),
    case("GatherElements", X, indices((2, 3, 2), 4, -4), axis=2, relax="gather_elements"),
    case("GatherND", X, indices((5, 2), 2), relax="gather_nd"),
    case("GatherND", X, indices((2, 1), 3), batch_dims=1),
    case("ScatterElements", X, indices((1, 3, 4), 2), Feed((1, 3, 4)), axis=0, relax="scatter_elements"),
    *(
        case("ScatterElements", X, np.arange(4).reshape(1, 1, 4) % 3, Feed((1, 1, 4)), axis=1, reduction=r)
        for r in ("add", "mul", "min", "max")
    ),
    case("ScatterND", X, np.array([[0, 2], [1, 0]]), Feed((2, 4)), relax="scatter_nd"),
    *(
        case("ScatterND", X, np.array([[0], [0]]), Feed((2, 3, 4)), reduction=r)
        for r in ("add", "mul", "max")
    ),
    case("Expand", Feed((3, 1)), i64(2, 3, 4), relax="broadcast_to"),
    case("Tile", X, i64(1, 2, 3), relax="tile"),
    *(case("Pad", X, i64(0, 1, 0, 1, 0, 2), mode=m, relax="nn.pad") for m in ("constant", "edge", "reflect")),
    case("Pad", X, i64(1, 0, 1, 2), scalar(3.5), i64(0, -1), relax="nn.pad"),
    case("Pad", X, i64(0, 1, 0, 1, 0, 2), mode="wrap", opset=19, relax="nn.pad"),
    case("Pad", INT, i64(0, 1, 0, 1, 0, 2), scalar(3, np.int32)),
    case("DepthToSpace", Feed((1, 8, 2, 3)), blocksize=2),
    case("DepthToSpace", Feed((1, 8, 2, 3)), blocksize=2, mode="CRD"),
    case("SpaceToDepth", Feed((1, 2, 4, 6)), blocksize=2),
    *(case("Trilu", X, scalar(k, np.int64), upper=u) for u in (0, 1) for k in (-1, 1)),
    case("Trilu", X, relax="triu"),
    case("EyeLike", Feed((3, 4)), k=1),
    case("Range", scalar(1), scalar(7), scalar(2)),
    case("OneHot", indices((3,), 5), scalar(5, np.int64), f32(0, 1)),
    case("Size", X),
    case("Shape", X),
]

SMALL = Feed((1, 2, 4, 5))
IMAGES = [
    *(
        case(
            "Resize",
            SMALL,
            None,
            None,
            i64(1, 2, 9, 7),
            mode=m,
            coordinate_transformation_mode=c,
            relax="image",
        )
        for m in ("nearest", "linear", "cubic")
        for c in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    ),
    *(
        case("Resize", SMALL, None, f32(1, 1, 2, 3), mode="nearest", nearest_mode=r)
        for r in ("floor", "ceil")
    ),
    case("Resize", SMALL, None, f32(1, 1, 0.6, 0.7), mode="linear"),
    case("Resize", SMALL, None, f32(1, 1, 2, 2), mode="linear", antialias=1),
    case("Resize", Feed((1, 1, 2, 3, 4)), None, f32(1, 1, 2, 2, 2), mode="nearest"),
    *(
        case("GridSample", SMALL, Feed((1, 3, 3, 2), low=-1.2, high=1.2), padding_mode=p)
        for p in ("zeros", "border")
    ),
    case(
        "GridSample", SMALL, Feed((1, 3, 3, 2), low=-1.2, high=1.2), mode="linear", align_corners=1, opset=20
    ),
    case("AffineGrid", Feed((1, 2, 3)), i64(1, 2, 4, 5), opset=20, relax="image.affine_grid"),
    *(
        case(
            "RoiAlign",
            SMALL,
            f32(0, 0, 3, 3).reshape(1, 4),
            i64(0),
            output_height=2,
            sampling_ratio=2,
            **attrs,
        )
        for attrs in ({}, {"spatial_scale": 0.5}, {"coordinate_transformation_mode": "output_half_pixel"})
    ),
    case("MaxRoiPool", SMALL, f32(0, 0, 0, 3, 3).reshape(1, 5), pooled_shape=[2, 2]),
]

QUANTISED = [
    case("QuantizeLinear", X, scalar(0.1), scalar(3, np.uint8), relax="quantize"),
    case("QuantizeLinear", X, f32(0.1, 0.2, 0.3), np.array([0, 1, 2], np.int8), axis=1, relax="quantize"),
    case(
        "DequantizeLinear",
        Feed((3, 4), "uint8", 0, 255),
        scalar(0.1),
        scalar(3, np.uint8),
        relax="dequantize",
    ),
    case("DynamicQuantizeLinear", X, outputs=3),
    case("MatMulInteger", Feed((2, 3), "uint8", 0, 9), Feed((3, 4), "uint8", 0, 9), scalar(1, np.uint8)),
]

CASES = UNARY + BINARY + PRODUCTS + POOLS + NORMS + REDUCTIONS + DATA + IMAGES + QUANTISED


@pytest.mark.parametrize("each", CASES, ids=str)
def test_operator(each: Case) -> None:
    net = Net(each.opset)
    names = []
    for given_input in each.inputs:
        if isinstance(given_input, Feed):
            names.append(f"x{len(net.feeds)}")
            net.feeds[names[-1]] = given_input
        else:
            names.append("" if given_input is None else net.weight(given_input))
    results = net.ops(each.op, each.outputs, *names, **each.attrs)
    model = check(net, *results, cut=len(net.feeds) > 0)
    found = {node.op for node in model.graph.nodes}
    assert all(any(op.startswith(r) for op in found) for r in each.relax.split()), found


# -- networks ----------------------------------------------------------------------------------------------

NETWORKS: dict[str, Callable[[Net], Sequence[str]]] = {}


def network(build: Callable[[Net], Sequence[str]]) -> Callable[[Net], Sequence[str]]:
    NETWORKS[build.__name__] = build
    return build


@network
def convolutions(net: Net) -> Sequence[str]:
    x = net.input(1, 3, 8, 8)
    a = net.op("Conv", x, net.random(4, 3, 3, 3), net.random(4), pads=[1, 1, 1, 1])
    b = net.op("Clip", a, net.weight(0.0, "float32"), net.weight(6.0, "float32"))
    c = net.op("Conv", b, net.random(4, 1, 3, 3), net.random(4), group=4, auto_pad="SAME_UPPER")
    return [net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.op("Add", c, b))))]


@network
def dense(net: Net) -> Sequence[str]:
    """The weights of Gemm are transposed and folded on the way: verbatim needs the original ones."""
    x = net.input(3, 4)
    a = net.op("Relu", net.op("Gemm", x, net.random(5, 4), net.random(5), transB=1))
    return [net.op("Gemm", a, net.random(2, 5), transB=1, alpha=0.5), a]


@network
def attention(net: Net) -> Sequence[str]:
    x = net.input(1, 4, 8)
    heads = []
    for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        y = net.op("Add", net.op("MatMul", x, net.random(8, 8)), net.random(8))
        heads.append(net.op("Transpose", net.op("Reshape", y, net.ints(1, 4, 2, 4)), perm=axes))
    scores = net.op("Div", net.op("MatMul", heads[0], heads[1]), net.weight(2.0, "float32"))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), heads[2])
    return [net.op("Reshape", net.op("Transpose", mixed, perm=(0, 2, 1, 3)), net.ints(0, 0, -1))]


@network
def branches(net: Net) -> Sequence[str]:
    x = net.input(2, 6)
    one, two = net.ops("Split", 2, x, *([net.ints(3, 3)] if net.opset >= 13 else []), axis=1)
    both = net.op("Concat", net.op("Sigmoid", two), one, axis=1)
    kept = net.op("Identity", both)
    return [kept, net.op("Sub", kept, x), one]


@network
def recurrent(net: Net) -> Sequence[str]:
    """An operator TVM cannot convert, two of its three outputs read."""
    x = net.input(5, 1, 3)
    scaled = net.op("Mul", x, net.weight(0.5, "float32"))
    outputs = net.ops("LSTM", 3, scaled, net.random(1, 16, 3), net.random(1, 16, 4), hidden_size=4)
    return [net.op("Relu", outputs[0]), outputs[2]]


@network
def conditional(net: Net) -> Sequence[str]:
    """Branches that capture outer values, one through an inner If, with names like our own."""
    x = net.input(2, 3)
    flag = net.input(dtype="bool")
    a, weight = net.op("Abs", x), net.random(3)

    def body(name: str, nodes: list[onnx.NodeProto], result: str) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, [2, 3])
        return helper.make_graph(nodes, name, [], [info])

    deep = body("deep", [helper.make_node("Mul", [a, weight], ["v1"])], "v1")
    flat = body("flat", [helper.make_node("Neg", [a], ["v2"])], "v2")
    inner = helper.make_node("If", [flag], ["t1"], then_branch=deep, else_branch=flat)
    then = body("then", [inner, helper.make_node("Add", ["t1", x], ["v0"])], "v0")
    other = body("other", [helper.make_node("Sub", [a, weight], ["k0"])], "k0")
    result = net.op("If", flag, then_branch=then, else_branch=other)
    return [net.op("Tanh", result)]


@network
def contributed(net: Net) -> Sequence[str]:
    """A node of another domain keeps it, and its operator set."""
    x = net.input(2, 4)
    y = net.op("FusedMatMul", net.op("Abs", x), net.random(4, 3), contrib=True, alpha=0.5)
    net.shapes[y] = (2, 3)
    return [net.op("Sqrt", net.op("Abs", y))]


@network
def normalised(net: Net) -> Sequence[str]:
    x = net.input(2, 3, 8)
    mean = net.reduce("ReduceMean", x, -1)
    scaled = net.op("Div", net.op("Sub", x, mean), net.reduce("ReduceL2", x, -1))
    centred = net.op("Add", scaled, net.reduce("ReduceLogSumExp", x, 1))
    square = net.op("Pow", centred, net.weight(2.0, "float32"))
    return [net.op("Mul", net.op("Softplus", square), net.op("Elu", centred))]


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_network_whole_and_cut_anywhere(build: Callable[[Net], Sequence[str]], opset: int) -> None:
    net = Net(opset)
    check(net, *build(net))


@functools.cache
def imported(name: str, opset: int = 18) -> Model:
    net = Net(opset)
    return import_model(net.build(*NETWORKS[name](net)))


# -- what the exported model looks like --------------------------------------------------------------------


def test_whole_nodes_keep_their_operator_and_the_models_operator_set() -> None:
    exported = whole(imported("dense", 17))
    assert [node.op_type for node in exported.graph.node] == ["Gemm", "Relu", "Gemm"]
    assert exported.opset_import[0].version == 17


def test_a_cut_old_model_is_exported_in_the_newer_operator_set() -> None:
    model = imported("dense", 11)
    cut = Subgraph(model, tuple(range(1, len(model.graph.nodes)))).to_onnx()
    assert cut.opset_import[0].version == EXPORT_OPSET
    assert cut.graph.node[0].op_type == "Add"  # the bias of the first Gemm
    assert [n.op_type for n in whole(model).graph.node] == ["Gemm", "Relu", "Gemm"]


def test_names_and_types_of_the_interface() -> None:
    model = imported("branches")
    part = Subgraph(model, tuple(range(1, len(model.graph.nodes))))
    exported = part.to_onnx()
    assert [i.name for i in exported.graph.input] == [f"v{v}" for v in part.inputs]
    assert [o.name for o in exported.graph.output] == [f"v{v}" for v in part.outputs]
    for info, found in zip(exported.graph.output, part.output_types, strict=True):
        assert tuple(d.dim_value for d in info.type.tensor_type.shape.dim) == found.shape


def test_outputs_that_no_node_makes_are_copies() -> None:
    model = imported("dense")
    graph = model.graph
    x, constant = graph.inputs[0], next(iter(graph.constants))
    made = graph.nodes[0].outputs[0]
    exported = valid(export_onnx(model, [0], [x], [x, made, made, constant]))
    names = [o.name for o in exported.graph.output]
    assert names == [f"v{x}_out0", f"v{made}", f"v{made}_out2", f"v{constant}_out3"]
    feed = normal(3, 4)
    results = run(exported, [feed])
    np.testing.assert_array_equal(results[0], feed)
    np.testing.assert_array_equal(results[1], results[2])
    np.testing.assert_array_equal(results[3], graph.constants[constant])


def test_a_constant_may_be_handed_in_as_an_input() -> None:
    model = imported("dense")
    node = model.graph.nodes[0]
    exported = valid(export_onnx(model, [0], node.inputs, node.outputs))
    assert not exported.graph.initializer
    x, w = normal(3, 4), np.asarray(model.graph.constants[node.inputs[1]])
    agree(run(exported, [x, w]), [x @ w])


def test_a_value_from_inside_an_onnx_node_forces_operators() -> None:
    """The product inside a Gemm is asked for: the Gemm cannot go back whole, though all of it is here."""
    model = imported("dense")
    graph = model.graph
    product, total = graph.nodes[0].outputs[0], graph.nodes[1].outputs[0]
    exported = valid(export_onnx(model, [0, 1], graph.inputs, [product, total]))
    assert [n.op_type for n in exported.graph.node] == ["MatMul", "Add"]


def test_each_weight_is_stored_once() -> None:
    for options in ({}, {"verbatim": False}):
        exported = whole(imported("convolutions"), **options)
        weights = [t.raw_data for t in exported.graph.initializer if len(t.raw_data) > 64]
        assert len(weights) == len(set(weights)) == 2


def test_unused_optional_outputs_are_left_out() -> None:
    exported = whole(imported("recurrent"))
    lstm = next(n for n in exported.graph.node if n.op_type == "LSTM")
    assert [bool(name) for name in lstm.output] == [True, False, True]


def test_domains_are_kept_only_where_they_are_used() -> None:
    model = imported("contributed")
    assert {o.domain for o in whole(model).opset_import} == {"", "com.microsoft"}
    first = Subgraph(model, (0,)).to_onnx()
    assert {o.domain for o in first.opset_import} == {""}


def test_a_node_without_a_form_is_named_in_the_error() -> None:
    model = imported("recurrent")
    with pytest.raises(ExportError, match=r"onnx\.LSTM \(lstm_1_0\) has no ONNX form: TVM's importer cannot"):
        whole(model, verbatim=False)
    opaque = next(n.id for n in model.graph.nodes if n.op == "onnx.LSTM")
    assert "only goes back whole" in str(can_export(model, opaque))
    assert can_export(model, 0) is None


def test_a_value_that_is_neither_given_nor_made_is_an_error() -> None:
    model = imported("dense")
    with pytest.raises(ExportError, match="no input of the part"):
        export_onnx(model, [2], [], model.graph.nodes[2].outputs)
    with pytest.raises(ExportError, match="made outside"):
        export_onnx(model, [0], model.graph.inputs, model.graph.nodes[2].outputs)


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_constants_of_any_dtype_keep_their_bits(dtype: str) -> None:
    values = normal(3, 2).astype(np_dtype(dtype))
    tensor = onnx.TensorProto()
    fill_tensor(tensor, "w", values)
    back = numpy_helper.to_array(tensor)
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_networks_of_other_dtypes(dtype: str) -> None:
    net = Net()
    x = net.input(2, 4, dtype=dtype)
    product = net.op("MatMul", x, net.weight(normal(4, 3), dtype))
    total = net.op("Add", product, net.weight(normal(3), dtype))
    check(net, net.op("Clip", net.op("Tanh", total), net.weight(-0.5, dtype), net.weight(0.5, dtype)))


# -- random networks ---------------------------------------------------------------------------------------

_SHAPE = (2, 3, 4)
_STEPS: list[Callable[[Net, str, str], str]] = [
    lambda net, a, b: net.op("Relu", a),
    lambda net, a, b: net.op("Tanh", net.op("Mul", a, b)),
    lambda net, a, b: net.op("Add", a, b),
    lambda net, a, b: net.op("Sub", a, b),
    lambda net, a, b: net.op("Max", a, b),
    lambda net, a, b: net.op("Sigmoid", a),
    lambda net, a, b: net.op("Softmax", a, axis=1),
    lambda net, a, b: net.op("Clip", a, net.weight(-1.0, "float32"), net.weight(1.0, "float32")),
    lambda net, a, b: net.op("Sub", a, net.op("ReduceMean", b, net.ints(2), keepdims=1)),
    lambda net, a, b: net.op("Tanh", net.op("MatMul", a, net.random(4, 4))),
    lambda net, a, b: net.op("Concat", *net.ops("Split", 2, a, net.ints(1, 2), axis=1)[::-1], axis=1),
    lambda net, a, b: net.op("Transpose", net.op("Reshape", a, net.ints(3, 4, 2)), perm=[2, 0, 1]),
    lambda net, a, b: net.op(
        "Slice", net.op("Pad", a, net.ints(0, 1, 0, 0, 0, 0)), net.ints(0), net.ints(3), net.ints(1)
    ),
    lambda net, a, b: net.op("Slice", a, net.ints(-1), net.ints(-99), net.ints(2), net.ints(-1)),
    lambda net, a, b: net.op("Where", net.weight([[True], [False], [True]]), a, b),
    lambda net, a, b: net.op("LayerNormalization", a, net.random(4), net.random(4)),
    lambda net, a, b: net.op("Gather", a, net.ints(2, 0, 1), axis=1),
    lambda net, a, b: net.op("CumSum", net.op("Abs", a), net.ints(1), reverse=1),
    lambda net, a, b: net.op("Identity", a),
    lambda net, a, b: net.op(
        "Min", net.op("Expand", net.op("ReduceMax", a, net.ints(1)), net.ints(*_SHAPE)), b
    ),
]


@st.composite
def random_nets(draw: st.DrawFn) -> tuple[Net, list[str]]:
    net = Net()
    values = [net.input(*_SHAPE), net.input(*_SHAPE)]
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=12)):
        recent = st.sampled_from(values[-4:])
        values.append(step(net, draw(recent), draw(recent)))
    return net, [values[-1], *([values[-2]] if len(values) > 3 else [])]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_nets(), st.data())
def test_random_networks_come_back_with_the_same_numbers(
    case: tuple[Net, list[str]], data: st.DataObject
) -> None:
    net, outputs = case
    original = net.build(*outputs)
    model = import_model(original)
    assert not model.opaque
    rng = np.random.default_rng(1)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    expected = run(original, feeds)
    agree(run(valid(whole(model, verbatim=False)), feeds), expected)
    agree(run(valid(whole(model)), feeds), expected)
    if len(model.graph.nodes) > 1:
        agree(run_in_two(model, data.draw(st.integers(1, len(model.graph.nodes) - 1)), feeds), expected)
