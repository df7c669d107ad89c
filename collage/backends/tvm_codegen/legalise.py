"""Lowering of operators for which TVM's own is slow, missing, wrong for some numbers, or not ONNX Runtime's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from collage.backends.tvm_codegen.arithmetic import POWERS, let

_FLOATS = ("float16", "float32", "float64")


def _arg_reduce(builder: Any, call: Any, most: bool) -> Any:
    """The index of the first of the largest numbers. NaN is passed over, unless it comes first of all.

    TVM's own starts at index -1, which stays if nothing is above the least number, and takes NaN for larger.
    """
    (x,) = call.args
    shape, axis = [int(d) for d in x.ty.shape], call.attrs.axis
    dtype, index = str(x.ty.dtype), str(call.ty.dtype)
    if axis is None:
        return call.op.get_attr("FLegalize")(builder, call)
    along = int(axis) % len(shape)
    result = [int(d) for d in call.ty.shape]
    kept = len(result) == len(shape)

    def better(left: Any, right: Any) -> Any:
        above = right[1] > left[1] if most else right[1] < left[1]
        takes = tirx.any(above, tirx.all(right[1] == left[1], right[0] < left[0]))
        return tirx.Select(takes, right[0], left[0]), tirx.Select(takes, right[1], left[1])

    def start(kind: str, of: str) -> Any:
        if of not in _FLOATS:
            return tirx.const(0, kind), tirx.min_value(of) if most else tirx.max_value(of)
        return tirx.const(0, kind), tirx.const(float("-inf" if most else "inf"), of)

    reducer = te.comm_reducer(better, start, name="first_of_the_most")

    def compute(data: Any) -> Any:
        k = te.reduce_axis((0, shape[along]), "k")

        def at(indices: Any, position: Any) -> list[Any]:
            others = [v for d, v in enumerate(indices) if not (kept and d == along)]
            return [*others[:along], position, *others[along:]]

        def reduced(*i: Any) -> Any:
            return reducer((tirx.Cast(index, k), data(*at(i, k))), axis=k)

        found, _ = te.compute(result, reduced, name="arg_reduce")
        if dtype not in _FLOATS:
            return found
        zero = tirx.const(0, index)
        return te.compute(
            result,
            lambda *i: tirx.Select(tirx.isnan(data(*at(i, 0))), zero, found(*i)),
            name="arg_reduce_first",
        )

    return builder.call_te(compute, x, primfunc_name_hint="argmax" if most else "argmin")


def _cast(builder: Any, call: Any) -> Any:
    """Floats to small and unsigned integers by way of larger ones, as compilers for x86 do: beyond the range they
    wrap around.
    """
    (x,) = call.args
    source, target = str(x.ty.dtype), str(call.ty.dtype)
    way = {**dict.fromkeys(("int8", "uint8", "int16", "uint16"), "int32"), "uint32": "int64"}.get(target)
    if source not in _FLOATS or (way is None and target != "uint64"):
        return call.op.get_attr("FLegalize")(builder, call)

    def unsigned(value: Any) -> Any:
        half = tirx.const(2.0**63, str(value.ty.dtype))
        above = tirx.Cast("uint64", tirx.Cast("int64", value - half)) + tirx.const(2**63, "uint64")
        return tirx.Select(value >= half, above, tirx.Cast("uint64", tirx.Cast("int64", value)))

    def element(value: Any) -> Any:
        wide = tirx.Cast("float32", value) if source == "float16" else value
        return let(wide, unsigned) if way is None else tirx.Cast(target, tirx.Cast(way, wide))

    return builder.call_te(
        lambda data: te.compute(data.shape, lambda *i: element(data(*i)), name="cast"),
        x,
        primfunc_name_hint="cast",
    )


def _sign(builder: Any, call: Any) -> Any:
    """The sign: NaN for NaN, but 0 for float16 as in ONNX Runtime, and that of unsigned numbers, which TVM refuses."""
    (x,) = call.args
    dtype = str(x.ty.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def element(value: Any) -> Any:
        if dtype.startswith("uint"):
            return tirx.Select(value > zero, one, zero)
        rest = value if dtype in ("float32", "float64") else zero
        return tirx.Select(value > zero, one, tirx.Select(value < zero, tirx.const(-1, dtype), rest))

    return builder.call_te(
        lambda data: te.compute(data.shape, lambda *i: let(data(*i), element), name="sign"),
        x,
        primfunc_name_hint="sign",
    )


def _equal(builder: Any, call: Any) -> Any:
    """The comparison of booleans. TVM compares them as floats, which LLVM refuses."""
    if str(call.args[0].ty.dtype) != "bool":
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(
        lambda a, b: topi.equal(topi.cast(a, "uint8"), topi.cast(b, "uint8")),
        *call.args,
        primfunc_name_hint="equal",
    )


def _power(builder: Any, call: Any) -> Any:
    """Powers with a constant exponent, if they are arithmetic. TVM writes a warning for each from 3 on."""
    x, exponent = call.args
    usual = call.op.get_attr("FLegalize")
    if not isinstance(exponent, tvm.ir.GenericConst) or str(x.ty.dtype) not in ("float32", "float64"):
        return usual(builder, call)
    value = np.array(np.from_dlpack(exponent.value))
    rule = POWERS.get(value.item()) if value.size == 1 and value.ndim <= len(x.ty.shape) else None
    if rule is None:
        return usual(builder, call)
    return builder.call_te(
        lambda data: te.compute(data.shape, lambda *i: let(data(*i), rule), name="power"),
        x,
        primfunc_name_hint="power",
    )


def _softplus(builder: Any, call: Any) -> Any:
    """log(1 + exp(x)), which is exp(x) for small numbers. TVM adds 1 before it takes the logarithm: that makes 0."""
    (x,) = call.args
    dtype, beta = str(x.ty.dtype), float(call.attrs.beta)
    wide = "float32" if dtype == "float16" else dtype
    zero, slope = tirx.const(0, wide), tirx.const(beta, wide)

    def positive(value: Any) -> Any:
        rest = tirx.log1p(tirx.exp(zero - tirx.abs(value)))
        return tirx.Max(value, zero) + rest

    def element(value: Any) -> Any:
        value = tirx.Cast(wide, value) if wide != dtype else value
        found = let(value, positive) if beta == 1 else let(value * slope, positive) / slope
        return tirx.Cast(dtype, found) if wide != dtype else found

    return builder.call_te(
        lambda data: te.compute(data.shape, lambda *i: element(data(*i)), name="softplus"),
        x,
        primfunc_name_hint="softplus",
    )


def _pool2d(builder: Any, call: Any, maximum: bool) -> Any:
    """2-D pooling in two stages: down each window's column, then along its row, with the padding folded into
    the first.

    One 3x3 window takes 6 steps instead of 9 and a third of the strided reads, and no padded copy is made.
    The largest or mean of windows whose rows or columns are dilated, or of other layouts than NCHW and NHWC,
    stays TVM's.
    """
    attrs, (x,) = call.attrs, call.args
    dtype, layout = str(x.ty.dtype), str(attrs.layout)
    plain = (
        [int(d) for d in attrs.dilation] == [1, 1]
        and layout == str(attrs.out_layout)
        and dtype in ("float32", "float64")
    )
    if not plain or layout not in ("NCHW", "NHWC"):
        return call.op.get_attr("FLegalize")(builder, call)
    hd, wd = layout.index("H"), layout.index("W")
    shape = [int(d) for d in x.ty.shape]
    result = [int(d) for d in call.ty.shape]
    (kh, kw), (sh, sw) = ([int(v) for v in t] for t in (attrs.pool_size, attrs.strides))
    top, left, bottom, right = (int(v) for v in attrs.padding)
    columns = [(result[wd] - 1) * sw + kw if i == wd else n for i, n in enumerate(result)]
    identity = tirx.min_value(dtype) if maximum else tirx.const(0.0, dtype)
    combine = te.max if maximum else te.sum

    def covered(i: Any, stride: int, k: int, before: int, after: int, n: int) -> Any:
        low, high = (-before, n + after) if attrs.count_include_pad else (0, n)
        return te.min(i * stride - before + k, high) - te.max(i * stride - before, low)

    def pool(data: Any) -> Any:
        ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")

        def down(*i: Any) -> Any:
            row, col = i[hd] * sh + ry - top, i[wd] - left
            at = [row if d == hd else col if d == wd else v for d, v in enumerate(i)]
            inside = tirx.all(row >= 0, row < shape[hd], col >= 0, col < shape[wd])
            return combine(tirx.if_then_else(inside, data(*at), identity), axis=ry)

        tall = te.compute(columns, down, name="pool_down")

        def along(*i: Any) -> Any:
            return combine(tall(*(v * sw + rx if d == wd else v for d, v in enumerate(i))), axis=rx)

        out = te.compute(result, along, name="pool_along")
        if maximum:
            return out
        count = te.compute(
            [result[hd], result[wd]],
            lambda h, w: tirx.Cast(dtype, te.max(
                covered(h, sh, kh, top, bottom, shape[hd]) * covered(w, sw, kw, left, right, shape[wd]), 1
            )), name="pool_count",
        )  # fmt: skip
        return te.compute(result, lambda *i: out(*i) / count(i[hd], i[wd]), name="pool_mean")

    return builder.call_te(pool, x, primfunc_name_hint="max_pool2d" if maximum else "avg_pool2d")


def _cumsum(builder: Any, call: Any) -> Any:
    """The sums of the elements up to each one along an axis; of those before it if they are ``exclusive``.

    Loops that read what they have written are no blocks for TVM, so this is fused with nothing, and one thread runs it.
    """
    (x,), attrs = call.args, call.attrs
    shape, dtype = [int(d) for d in x.ty.shape], str(call.ty.dtype)
    if attrs.axis is None:
        before, along, after = 1, math.prod(shape), 1
    else:
        axis = int(attrs.axis) % len(shape)
        before, along, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    last = 1 if attrs.exclusive else 0

    def nest(data: Any, result: Any) -> Any:
        with IRBuilder() as made:
            source, target = build.buffer_proxy(data), build.buffer_proxy(result)
            with build.serial(0, before) as outer:
                with build.serial(0, after) as inner:
                    at = outer * (along * after) + inner
                    target[at] = tirx.const(0, dtype) if last else tirx.Cast(dtype, source[at])
                with build.serial(0, along - 1) as step, build.serial(0, after) as inner:
                    at = outer * (along * after) + step * after + inner
                    target[at + after] = target[at] + tirx.Cast(dtype, source[at + (0 if last else after)])
            return made.get()

    def compute(data: Any) -> Any:
        out = tirx.decl_buffer([int(d) for d in call.ty.shape], dtype, "sums")
        return te.extern(
            [out.shape],
            [data],
            lambda ins, outs: nest(ins[0], outs[0]),
            dtype=dtype,
            out_buffers=[out],
            name="cumsum",
        )

    return builder.call_te(compute, x, primfunc_name_hint="cumsum")


OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "relax.argmax": lambda builder, call: _arg_reduce(builder, call, True),
    "relax.argmin": lambda builder, call: _arg_reduce(builder, call, False),
    "relax.astype": _cast,
    "relax.cumsum": _cumsum,
    "relax.sign": _sign,
    "relax.equal": _equal,
    "relax.power": _power,
    "relax.nn.softplus": _softplus,
    "relax.nn.max_pool2d": lambda builder, call: _pool2d(builder, call, True),
    "relax.nn.avg_pool2d": lambda builder, call: _pool2d(builder, call, False),
}
"""Lowerings by the Relax names of their operators."""
