"""Legalisation of 2-D pooling in two stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

__all__ = ["LEGALIZE"]


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


LEGALIZE: dict[str, Callable[[Any, Any], Any]] = {
    "relax.nn.max_pool2d": lambda builder, call: _pool2d(builder, call, True),
    "relax.nn.avg_pool2d": lambda builder, call: _pool2d(builder, call, False),
}
