"""Lowering of cumulative sums, for which TVM names no kernel, and has one that is parallel for a single thread, too."""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

__all__ = ["cumsum"]


def cumsum(builder: Any, call: Any) -> Any:
    """The sums of the elements up to each one along an axis; of those before it where they are ``exclusive``.

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
