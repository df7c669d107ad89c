"""ONNX operators with their attributes, each as one node and the inputs that it is tried on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.graph.dataflow import Array


@dataclass(frozen=True)
class Feed:
    """A graph input of new random values in [low, high)."""

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
    """Normal numbers, the same each time."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def indices(shape: tuple[int, ...], high: int, low: int = 0) -> Feed:
    return Feed(shape, "int64", low, high)


UNARY = [
    *(
        case(op, X)
        for op in (
            "Abs Atan Asinh Ceil Cos Cosh Erf Exp Floor Neg Round Sigmoid Sign Sin Sinh Tan Tanh Relu Softplus "
            "Softsign Elu Selu HardSigmoid HardSwish Mish Celu"
        ).split()
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
    case("Clip", X, scalar(-0.5), relax="clip"),
    case("Clip", X, None, scalar(0.5), relax="clip"),
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
    case("ConvTranspose", IMAGE, normal(4, 3, 3, 3), normal(6), group=2, strides=[2, 2], output_padding=[1, 1]),
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
    case("RMSNormalization", X, normal(4), axis=-1, relax="nn.rms_norm", opset=23),
    case("RMSNormalization", X, normal(3, 4), axis=-1, relax="nn.rms_norm", opset=23),
    case("RMSNormalization", X, normal(1), axis=1, relax="nn.rms_norm", opset=23),
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
    *(case("ScatterND", X, np.array([[0], [0]]), Feed((2, 3, 4)), reduction=r) for r in ("add", "mul", "max")),
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
    *(case("Resize", SMALL, None, f32(1, 1, 2, 3), mode="nearest", nearest_mode=r) for r in ("floor", "ceil")),
    case("Resize", SMALL, None, f32(1, 1, 0.6, 0.7), mode="linear"),
    case("Resize", SMALL, None, f32(1, 1, 2, 2), mode="linear", antialias=1),
    case("Resize", Feed((1, 1, 2, 3, 4)), None, f32(1, 1, 2, 2, 2), mode="nearest"),
    *(case("GridSample", SMALL, Feed((1, 3, 3, 2), low=-1.2, high=1.2), padding_mode=p) for p in ("zeros", "border")),
    case("GridSample", SMALL, Feed((1, 3, 3, 2), low=-1.2, high=1.2), mode="linear", align_corners=1, opset=20),
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


def as_model(each: Case) -> onnx.ModelProto:
    """The operator as a model with inputs ``x<position>`` and outputs ``y<position>``."""
    names = [f"x{i}" if given is not None else "" for i, given in enumerate(each.inputs)]
    inputs, weights = [], []
    for name, given in zip(names, each.inputs, strict=True):
        if isinstance(given, Feed):
            inputs.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(given.dtype)), given.shape)
            )
        elif given is not None:
            weights.append(numpy_helper.from_array(given, name))
    outputs = [f"y{i}" for i in range(each.outputs)]
    node = helper.make_node(each.op, names, outputs, **each.attrs)
    graph = helper.make_graph([node], "case", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", each.opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)
