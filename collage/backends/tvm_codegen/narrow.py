"""Kernels that read or write bfloat16 and compute in float32.

Each narrow buffer gets a wide one inside the PrimFunc, and a nest that copies between the two. These nests are cheap,
so that scheduling puts them where the numbers are used or made. TVM sees the 16 bits of a number as an integer: its own
bfloat16 would take a pass of its own, and calls on CPUs without instructions for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from collage.backends.tvm_codegen.arithmetic import let
from collage.backends.tvm_codegen.artifact import TensorSpec, TvmCall
from collage.backends.tvm_codegen.lower import LoweredKernel, LoweringError
from collage.backends.tvm_codegen.tidy import copy_nest, rebuild, replacer, root_stmts

STORED = "uint16"
"""The dtype of buffers whose numbers are the 16 bits of bfloat16."""
_QUIET_NAN = 0x7FC0


def narrow(lowered: LoweredKernel, inputs: Sequence[bool], outputs: Sequence[bool]) -> LoweredKernel:
    """The kernel with bfloat16 in the place of float32 in the chosen parameters and outputs.

    Raises LoweringError if one of these is no float32, or not a buffer of nests.
    """
    chosen = {"param": inputs, "output": outputs}

    def is_narrow(call: TvmCall, at: int) -> bool:
        slot = call.args[at]
        return slot.kind in chosen and chosen[slot.kind][slot.index]

    funcs = {
        call.name: _narrow(lowered.funcs[call.name], [is_narrow(call, at) for at in range(len(call.args))], call.writes)
        for call in lowered.calls
    }
    return replace(
        lowered,
        funcs=funcs,
        params=_stored(lowered.params, inputs),
        outputs=_stored(lowered.outputs, outputs),
    )


def _stored(specs: Sequence[TensorSpec], chosen: Sequence[bool]) -> tuple[TensorSpec, ...]:
    for spec, each in zip(specs, chosen, strict=True):
        if each and spec.dtype != "float32":
            raise LoweringError(f"{spec.dtype} is not stored as bfloat16")
    return tuple(replace(spec, dtype=STORED) if each else spec for spec, each in zip(specs, chosen, strict=True))


def _narrow(func: Any, chosen: Sequence[bool], writes: int) -> Any:
    """The PrimFunc with the chosen parameters narrow; the last ``writes`` of all are written."""
    if not any(chosen):
        return func
    if not isinstance(func.body, tvm.s_tir.SBlockRealize):
        raise LoweringError("a function that is no list of nests reads and writes no bfloat16")
    params, stmts, allocated = list(func.params), root_stmts(func), list(func.body.block.alloc_buffers)
    for at, param in enumerate(func.params):
        if not chosen[at]:
            continue
        stored = tirx.decl_buffer(param.shape, STORED, param.name)
        inner = tirx.decl_buffer(param.shape, "float32", f"{param.name}_wide")
        stmts = [tvm_ffi.structural_map(each, (tvm.ir.Var, replacer(param, inner)), order="post") for each in stmts]
        if at < len(chosen) - writes:
            stmts.insert(0, copy_nest(stored, inner, f"{param.name}_widened", _wide))
        else:
            stmts.append(copy_nest(inner, stored, f"{param.name}_rounded", _rounded))
        allocated.append(inner)
        params[at] = stored
    found = rebuild(func, stmts, allocated)
    return tirx.PrimFunc(params, found.body, attrs=found.attrs)


def _wide(bits: Any) -> Any:
    return tirx.reinterpret("float32", tirx.shift_left(tirx.Cast("uint32", bits), tirx.const(16, "uint32")))


def _rounded(value: Any) -> Any:
    """Round to the nearest number, or to the even one of two; NaN stays NaN."""

    def of_bits(bits: Any) -> Any:
        sixteen, one = tirx.const(16, "uint32"), tirx.const(1, "uint32")
        odd = tirx.bitwise_and(tirx.shift_right(bits, sixteen), one)
        return tirx.shift_right(bits + odd + tirx.const(0x7FFF, "uint32"), sixteen)

    return let(
        value,
        lambda x: tirx.Cast(
            STORED,
            tirx.Select(
                tirx.isnan(x),
                tirx.const(_QUIET_NAN, "uint32"),
                let(tirx.reinterpret("uint32", x), of_bits),
            ),
        ),
    )
