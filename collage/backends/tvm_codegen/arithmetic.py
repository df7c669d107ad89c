"""Transcendental functions as arithmetic that vectorises: polynomials without calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.prim_blocks import collect, op_name

_WHOLE = ("floor", "ceil", "round", "trunc", "nearbyint")
"""Calls that make whole numbers."""
_LEAST = 1e-30
"""Reciprocals between this and its own reciprocal are no denormals, and not infinite."""


def vector_math(func: Any, products: Callable[[Any], Any] = lambda func: func) -> Any:
    """Make arithmetic of transcendental calls on float32 and float16. The error is below 1e-6, relative for exp.

    What such a call reads, and the results of a softmax, are multiplied by reciprocals instead of divided, since no
    whole numbers are expected of them. ``products`` changes the function before there are polynomials in it.
    """

    def power(call: Any) -> Any:
        if op_name(call) != "pow" or str(call.ty.dtype) not in ("float32", "float64"):
            return call
        x, exponent = call.args
        rule = POWERS.get(float(exponent.value)) if isinstance(exponent, tirx.FloatImm) else None
        return call if rule is None else let(x, rule)

    def rewrite(call: Any) -> Any:
        name, dtype = op_name(call), str(call.ty.dtype) if hasattr(call.ty, "dtype") else ""
        if name not in _MATH or dtype not in ("float32", "float16"):
            return call
        if dtype == "float32":
            return let(_by_reciprocal(call.args[0]), _MATH[name])
        return tirx.Cast("float16", let(tirx.Cast("float32", call.args[0]), _MATH[name]))

    def multiply(block: Any) -> Any:
        if not block.name_hint.startswith("T_softmax_norm"):
            return block
        return tvm_ffi.structural_map(block, (tirx.Div, _times_inverse), order="post")

    func = tvm_ffi.structural_map(func, (s_tir.SBlock, multiply), order="post")
    func = products(tvm_ffi.structural_map(func, (tvm.ir.Call, power), order="post"))
    return tvm_ffi.structural_map(func, (tvm.ir.Call, rewrite), order="post")


def rounds_quotients(func: Any) -> bool:
    """Whether whole numbers are made of floats beside divisions: x / 41 * 2 is not x * (2 / 41) there."""
    if not any(_is_float(each) for each in collect(func.body, tirx.Div)):
        return False
    casts = (each for each in collect(func.body, tirx.Cast) if not _is_float(each))
    return any(map(_is_float, (each.value for each in casts))) or any(
        op_name(each) in _WHOLE for each in collect(func.body, tvm.ir.Call)
    )


def _is_float(value: Any) -> bool:
    return "float" in str(getattr(value.ty, "dtype", ""))


def _by_reciprocal(value: Any) -> Any:
    """The value, where a quotient by a number is its product with the reciprocal, which may be off by its last bit."""
    if not (isinstance(value, tirx.Div) and isinstance(value.b, tirx.FloatImm)):
        return value
    inverse = 1 / float(value.b.value) if value.b.value else math.inf
    return value.a * _f32(inverse) if _LEAST <= abs(inverse) <= 1 / _LEAST else value


def _times_inverse(quotient: Any) -> Any:
    """The product with the inverse of the divisor, which LLVM computes once if it is the same in a loop."""
    one = tirx.const(1.0, str(quotient.ty.dtype))
    return quotient.a * (one / quotient.b)


def is_polynomial(call: Any) -> bool:
    """Whether ``vector_math`` makes a polynomial of the call."""
    return op_name(call) in _MATH and str(getattr(call.ty, "dtype", "")) in ("float32", "float16")


def let(value: Any, body: Callable[[Any], Any]) -> Any:
    """The expression `body` of the value, which is computed once."""
    var = tirx.Var("t", str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _f32(value: float) -> Any:
    return tirx.FloatImm("float32", value)


def _fma(a: Any, b: Any, c: Any) -> Any:
    return tirx.call_llvm_pure_intrin("float32", "llvm.fmuladd", a, b, c)


def _horner(x: Any, coefficients: Sequence[float]) -> Any:
    out = _f32(coefficients[0])
    for c in coefficients[1:]:
        out = _fma(out, x, _f32(c))
    return out


def _clamp(x: Any, low: float, high: float) -> Any:
    """A clamp that keeps NaN, for which both comparisons are false."""
    return let(tirx.Select(x > _f32(high), _f32(high), x), lambda y: tirx.Select(y < _f32(low), _f32(low), y))


def _exp(x: Any) -> Any:
    """2**n * p(r) with n = round(x / ln 2): Cephes' polynomial, the power added to the exponent's bits.

    fmuladd keeps the two-part ln 2 from being reassociated into one, integers the power from being multiplied
    out of range. n stops at 127 so that results up to the largest float exist; subnormal results become 0.
    """
    low, high = -87.336544, 88.722832

    def reduced(t: Any, n: Any) -> Any:
        r = _fma(n, _f32(2.12194440e-4), _fma(n, _f32(-0.693359375), t))
        return let(
            r,
            lambda r: let(tirx.shift_left(tirx.Cast("int32", n), tirx.IntImm("int32", 23)), lambda k: result(r, k)),
        )

    def result(r: Any, k: Any) -> Any:
        p = [
            1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
        ]  # fmt: skip
        value = _fma(_horner(r, p), r * r, r + _f32(1.0))
        return tirx.reinterpret("float32", tirx.reinterpret("int32", value) + k)

    def steps(t: Any) -> Any:
        n = tirx.floor(t * _f32(1.44269504088896341) + _f32(0.5))
        return let(n, lambda n: let(tirx.Select(n > _f32(127.0), _f32(127.0), n), lambda n: reduced(t, n)))

    inside = let(_clamp(x, low, high), steps)
    return tirx.Select(x > _f32(high), tirx.infinity("float32"), tirx.Select(x < _f32(low), _f32(0.0), inside))


def _rational(x: Any, limit: float, p: Sequence[float], q: Sequence[float]) -> Any:
    return let(
        _clamp(x, -limit, limit),
        lambda t: let(t * t, lambda s: t * _horner(s, p) / _horner(s, q)),
    )


_TANH_P = [-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
           1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03]  # fmt: skip
_TANH_Q = [1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03]
_ERF_P = [-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
          -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02]  # fmt: skip
_ERF_Q = [-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
          -1.42647390514189e-02]  # fmt: skip


def _log(x: Any) -> Any:
    """Cephes' logf: mantissa in [sqrt(1/2), sqrt(2)) by bit arithmetic. Subnormals are scaled up first."""
    small = x < _f32(1.17549435e-38)
    scaled = tirx.Select(small, x * _f32(8388608.0), x)
    value = _log_of_bits(scaled, tirx.Select(small, _f32(23.0), _f32(0.0)), lambda f: f)
    inf = tirx.infinity("float32")
    special = tirx.Select(x < _f32(0.0), _f32(math.nan), tirx.Select(x == _f32(0.0), -inf, value))
    return tirx.Select(x < inf, special, x)  # the comparison is false for inf and NaN


def _log1p(x: Any) -> Any:
    """The logarithm of 1 + x for numbers from 0 on: that of the sum, whose mantissa is x itself if it is near 1."""
    inf, low = tirx.infinity("float32"), x < _f32(0.41421353)
    value = _log_of_bits(x + _f32(1.0), _f32(0.0), lambda f: tirx.Select(low, x, f))
    return tirx.Select(x < inf, value, x)  # the comparison is false for inf and NaN


def _log_of_bits(x: Any, shift: Any, exactly: Callable[[Any], Any]) -> Any:
    """The logarithm of a normal number divided by 2**shift. ``exactly`` improves how far the mantissa is from 1."""

    def from_bits(bits: Any) -> Any:
        mantissa = tirx.reinterpret(
            "float32", (bits & tirx.IntImm("int32", 0x007FFFFF)) | tirx.IntImm("int32", 0x3F000000)
        )
        exponent = tirx.Cast("float32", tirx.shift_right(bits, tirx.IntImm("int32", 23)) - tirx.IntImm("int32", 126))
        return let(mantissa, lambda m: let(exponent - shift, lambda e: split(m, e)))

    def split(m: Any, e: Any) -> Any:
        low = m < _f32(0.707106781186547524)
        return let(
            exactly(tirx.Select(low, m + m, m) - _f32(1.0)),
            lambda f: let(tirx.Select(low, e - _f32(1.0), e), lambda e: series(f, e)),
        )

    def series(f: Any, e: Any) -> Any:
        p = [
            7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
            -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
        ]  # fmt: skip
        z = f * f
        y = _fma(_f32(-0.5), z, _fma(e, _f32(-2.12194440e-4), _horner(f, p) * f * z))
        return _fma(e, _f32(0.693359375), f + y)

    return from_bits(tirx.reinterpret("int32", x))


def _inverse(x: Any) -> Any:
    return tirx.const(1.0, str(x.ty.dtype)) / x


POWERS: Mapping[float, Callable[[Any], Any]] = {
    1.0: lambda t: t,
    2.0: lambda t: t * t,
    3.0: lambda t: t * t * t,
    4.0: lambda t: let(t * t, lambda s: s * s),
    0.5: tirx.sqrt,
    -0.5: lambda t: _inverse(tirx.sqrt(t)),
    -1.0: _inverse,
}
"""Powers that occur in networks as arithmetic, by their exponents."""

_MATH: dict[str, Callable[[Any], Any]] = {
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "tanh": lambda x: _rational(x, 9.0, _TANH_P, _TANH_Q),
    "erf": lambda x: _rational(x, 4.0, _ERF_P, _ERF_Q),
    "sigmoid": lambda x: _f32(1.0) / (_f32(1.0) + _exp(_f32(0.0) - x)),
}
