"""The operators of the sweep: those of the tests, and each operator's other dtypes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import helper

from collage.testing.onnx_cases import (
    BOOL,
    CASES,
    DATA,
    IMAGES,
    POOLS,
    Case,
    Feed,
    case,
    f32,
    i64,
    scalar,
)

__all__ = ["all_cases", "feeds_of", "is_bounded", "is_divisor"]

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_FLOATS = ("float16", "float32", "float64")
_SHAPE = (3, 37)
"""A length that is no multiple of any vector width, and larger than all of them."""
_TYPES = {name: helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (*INTEGERS, *_FLOATS, "bool")}


def all_cases() -> list[Case]:
    """All cases of the sweep. ONNX Runtime does not take some of them."""
    found = [_widened(each) for each in CASES]
    for dtype in (*INTEGERS, *_FLOATS):
        found += _arithmetic(dtype)
    for dtype in INTEGERS:
        found += _integer(dtype)
    for dtype in ("float16", "float64"):
        found += [
            case(op, Feed(_SHAPE, dtype))
            for op in "Abs Ceil Elu Erf Exp Floor Neg Relu Round Sigmoid Sign Softplus Tanh".split()
        ]
        found += [case("Softmax", Feed(_SHAPE, dtype), axis=-1)]
    found += [case("Cast", Feed(_SHAPE, source), to=_TYPES[to]) for source in _TYPES for to in _TYPES]
    found += [case("Where", BOOL, Feed((2, 3, 4), dtype), Feed((4,), dtype)) for dtype in (*INTEGERS, *_FLOATS)]
    found += [case("Pow", Feed(_SHAPE), scalar(power)) for power in (0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, 2.5)]
    found += [case("Clip", Feed(_SHAPE), f32(0).reshape(()), f32(6).reshape(()))]
    unique: dict[str, Case] = {}
    for each in found:
        unique.setdefault(name_of(each), each)
    return list(unique.values())


def name_of(each: Case) -> str:
    """A short name, different for each case."""
    dtypes = ",".join(f.dtype if isinstance(f, Feed) else "c" for f in each.inputs if f is not None)
    shapes = ",".join("x".join(map(str, f.shape)) for f in each.inputs if f is not None)
    return f"{each}({dtypes};{shapes})"


def _arithmetic(dtype: str) -> list[Case]:
    """Operators that ONNX has for all numbers, in one dtype."""
    x, y, low = Feed(_SHAPE, dtype, 0, 90), Feed((37,), dtype, 1, 9), Feed((4, 3, 5, 7), dtype, 0, 90)
    found = [case(op, x, y) for op in "Add Sub Mul Div Max Min Equal Less Greater LessOrEqual".split()]
    found += [case("Max", x, scalar(0, dtype)), case("Min", x, scalar(6, dtype)), case("Sum", x, x, y)]
    found += [case("Mod", x, y, fmod=1), case("Clip", x, scalar(3, dtype), scalar(60, dtype))]
    found += [case("Clip", x, scalar(3, dtype)), case("Relu", x), case("Pow", x, scalar(2, dtype))]
    found += [case("Pow", x, scalar(3, dtype)), case("Abs", x), case("Sign", x), case("Neg", x)]
    for op in "ReduceMax ReduceMin ReduceSum ReduceMean ReduceProd ReduceL1 ReduceSumSquare".split():
        found += [case(op, low, i64(*axes), keepdims=0) for axes in ((3,), (1,), (0, 2), (0, 1, 2, 3))]
    for op in ("ArgMax", "ArgMin"):
        found += [case(op, low, axis=axis, keepdims=0, select_last_index=last) for axis in (3, 1) for last in (0, 1)]
    found += [case("MaxPool", low, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], opset=12)]
    found += [case("MatMul", x, Feed((37, 5), dtype, 0, 9)), case("Gemm", x, Feed((37, 5), dtype, 0, 9))]
    found += [case("CumSum", low, scalar(3, "int64")), case("TopK", low, i64(2), axis=3, outputs=2)]
    found += [case("Concat", x, x, axis=0), case("Transpose", low), case("Gather", x, i64(2, 0), axis=0)]
    return found


def _integer(dtype: str) -> list[Case]:
    """Operators that ONNX has for integers only."""
    x, y = Feed(_SHAPE, dtype, 0, 90), Feed((37,), dtype, 1, 9)
    found = [case("Mod", x, y), case("Mod", x, scalar(7, dtype)), case("Div", x, scalar(7, dtype))]
    found += [case(f"Bitwise{op}", x, y) for op in ("And", "Or", "Xor")] + [case("BitwiseNot", x)]
    if dtype.startswith("uint"):
        shift = Feed((37,), dtype, 0, 7)
        found += [case("BitShift", x, shift, direction=side) for side in ("LEFT", "RIGHT")]
    else:
        found += [case("Mod", x, scalar(-7, dtype)), case("Div", x, scalar(-7, dtype))]
    return found


def _widened(each: Case) -> Case:
    """The case with 67 elements for each of the innermost axis where its feeds are the usual ones."""
    if any(each is other for other in (*DATA, *POOLS, *IMAGES)):
        return each
    wide = all(not isinstance(f, Feed) or f.shape in ((2, 3, 4), ()) for f in each.inputs)
    constants = any(f is not None and not isinstance(f, Feed) and f.size > 1 for f in each.inputs)
    if not wide or constants or len(each.inputs) > 1:
        return each
    feeds = tuple(replace(f, shape=(2, 3, 67)) if isinstance(f, Feed) and f.shape else f for f in each.inputs)
    return replace(each, inputs=feeds)


def feeds_of(each: Case) -> list[Feed]:
    """The inputs that are not constants."""
    return [given for given in each.inputs if isinstance(given, Feed)]


def is_divisor(each: Case, position: int) -> bool:
    """Whether the input is a divisor. Integers that are 0 or -1 would end the process there."""
    return each.op in ("Div", "Mod") and position == 1


def is_bounded(each: Case, position: int) -> bool:
    """Whether the input's integers have limits, as indices and shifts do."""
    indexed = {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "BitShift"}
    return (each.op in indexed and position == 1) or each.op == "OneHot"
