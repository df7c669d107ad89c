"""Makers from Relax to ONNX for elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Mapping

from collage.frontend.export.emit import ExportedCall, Maker, OnnxAttr, element_type, is_float


def _same(op: str, **attrs: OnnxAttr) -> Maker:
    """The ONNX operator with the same meaning, on all inputs."""
    return lambda c: c.op(op, *c.x, **attrs)


def _of_bools(op: str) -> Maker:
    def make(c: ExportedCall) -> str:
        c.need(all(t.dtype == "bool" for t in c.types), "ONNX has it for bool only")
        return c.op(op, *c.x)

    return make


def _bitwise(op: str) -> Maker:
    def make(c: ExportedCall) -> str:
        c.need_opset(18)
        return c.op(op, *c.x)

    return make


def _shift(direction: str) -> Maker:
    def make(c: ExportedCall) -> str:
        c.need(c.out.dtype.startswith("uint"), "ONNX shifts unsigned integers only")
        return c.op("BitShift", *c.x, direction=direction)

    return make


def _floor_mod(c: ExportedCall) -> str:
    """The remainder has the divisor's sign. ONNX has this operator for integers only."""
    if not is_float(c.out.dtype):
        return c.op("Mod", *c.x, fmod=0)
    return c.op("Sub", c.x[0], c.op("Mul", c.x[1], c.op("Floor", c.op("Div", *c.x))))


def _clip(c: ExportedCall) -> str:
    bounds = []
    for name in ("arg1", "arg2"):
        bound = c.real(name)
        bounds.append("" if math.isinf(bound) else c.number(c.attr(name), c.out.dtype))
    return c.op("Clip", c.x[0], *bounds)


def _relu(c: ExportedCall) -> str:
    if is_float(c.out.dtype):
        return c.op("Relu", c.x[0])
    return c.op("Max", c.x[0], c.number(0, c.out.dtype))


def _prelu(c: ExportedCall) -> str:
    after = len(c.types[0].shape) - 1 - c.axis()
    return c.op("PRelu", c.x[0], c.reshape(c.x[1], (*c.types[1].shape, *[1] * after)))


def _gelu(c: ExportedCall) -> str:
    if c.opset >= 20:
        return c.op("Gelu", c.x[0])
    dtype = c.out.dtype
    erf = c.op("Erf", c.op("Mul", c.x[0], c.number(math.sqrt(0.5), dtype)))
    half = c.op("Mul", c.x[0], c.number(0.5, dtype))
    return c.op("Mul", half, c.op("Add", erf, c.number(1.0, dtype)))


def _gelu_tanh(c: ExportedCall) -> str:
    if c.opset >= 20:
        return c.op("Gelu", c.x[0], approximate="tanh")
    dtype, x = c.out.dtype, c.x[0]
    cube = c.op("Mul", x, c.op("Mul", x, x))
    inner = c.op("Add", x, c.op("Mul", cube, c.number(0.044715, dtype)))
    tanh = c.op("Tanh", c.op("Mul", inner, c.number(math.sqrt(2 / math.pi), dtype)))
    return c.op("Mul", c.op("Mul", x, c.number(0.5, dtype)), c.op("Add", tanh, c.number(1.0, dtype)))


def _softplus(c: ExportedCall) -> str:
    beta = c.real("beta")
    c.need(c.real("threshold") >= 20, "Softplus with a threshold below 20 is no ONNX Softplus")
    if beta == 1:
        return c.op("Softplus", c.x[0])
    factor = c.number(beta, c.out.dtype)
    return c.op("Div", c.op("Softplus", c.op("Mul", c.x[0], factor)), factor)


def _cast(c: ExportedCall) -> str:
    c.need("float8" not in c.out.dtype, "Relax does not say whether a cast to 8-bit floats saturates")
    return c.op("Cast", c.x[0], to=element_type(c.out.dtype))


def _quantize(c: ExportedCall) -> str:
    c.need(c.out.dtype == c.types[2].dtype, f"gives {c.out.dtype} with a zero point of {c.types[2].dtype}")
    return c.op("QuantizeLinear", *c.x, axis=c.axis())


def _dequantize(c: ExportedCall) -> str:
    c.need(c.types[0].dtype == c.types[2].dtype, f"a zero point of {c.types[2].dtype} for {c.types[0].dtype}")
    return c.cast(c.op("DequantizeLinear", *c.x, axis=c.axis()), c.types[1].dtype, c.out.dtype)


_SAME_NAME = (
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor Greater IsInf IsNaN Less Log Round "
    "Sigmoid Sign Sin Sinh Sqrt Tan Tanh Where".split()
)
"""ONNX operators with the same meaning as the Relax operators of that name in small letters."""
_SAME_MEANING = {
    "divide": "Div",
    "greater_equal": "GreaterOrEqual",
    "less_equal": "LessOrEqual",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "power": "Pow",
    "subtract": "Sub",
}


def _table() -> dict[str, Maker]:
    table: dict[str, Maker] = {relax: _same(op) for relax, op in _SAME_MEANING.items()}
    table |= {op.lower(): _same(op) for op in _SAME_NAME}
    table |= {f"logical_{n.lower()}": _of_bools(n) for n in ("And", "Or", "Xor", "Not")}
    table |= {f"bitwise_{n.lower()}": _bitwise(f"Bitwise{n}") for n in ("And", "Or", "Xor", "Not")}
    return table | {
        "left_shift": _shift("LEFT"),
        "right_shift": _shift("RIGHT"),
        "floor_mod": _floor_mod,
        "mod": _same("Mod", fmod=1),
        "clip": _clip,
        "astype": _cast,
        "nn.relu": _relu,
        "nn.leakyrelu": lambda c: c.op("LeakyRelu", c.x[0], alpha=c.real("alpha")),
        "nn.prelu": _prelu,
        "nn.gelu": _gelu,
        "nn.gelu_tanh": _gelu_tanh,
        "nn.softplus": _softplus,
        "nn.softmax": lambda c: c.op("Softmax", c.x[0], axis=c.axis()),
        "nn.log_softmax": lambda c: c.op("LogSoftmax", c.x[0], axis=c.axis()),
        "nn.dropout": lambda c: [c.x[0]],
        "quantize": _quantize,
        "dequantize": _dequantize,
    }


ELEMENTWISE: Mapping[str, Maker] = _table()
"""The makers by Relax name."""
