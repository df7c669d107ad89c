"""Plans whose tensors hold integers of 8 bits, made of the plans for float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from collage.backends.chains.strided import FLOAT_BYTES
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.description import INT8, ITEM_BYTES, UINT8
from collage.backends.onednn_kernels.narrow import with_dtype
from collage.backends.onednn_kernels.plan import Argument, Input, Output, Plan, PostOpOperand, Share
from collage.graph.storage import BF16

DTYPES = {"float32": "", "int8": INT8, "uint8": UINT8}
"""The dtypes of descriptions by those of values."""

STORED_DTYPES = {**DTYPES, "bfloat16": BF16}
"""Those of stored values, which may be narrower than the values themselves."""


def typed(draft: Draft, dtypes: Mapping[int | PostOpOperand, str]) -> Draft:
    """The plan with other dtypes of tensors than float32, by the numbers of their arguments."""
    steps = tuple(tuple(_typed(share, dtypes) for share in step) for step in draft.plan.steps)
    return replace(draft, plan=Plan(steps))


def _typed(share: Share, dtypes: Mapping[int | PostOpOperand, str]) -> Share:
    operation, arguments = share.operation, []
    for each in share.arguments:
        dtype = dtypes.get(each.number, "")
        arguments.append(_moved(each, dtype))
        if dtype:
            operation = with_dtype(operation, each.number, dtype)
    return Share(operation, tuple(arguments))


def _moved(argument: Argument, dtype: str) -> Argument:
    """The argument with an offset that counts elements of that dtype."""
    buffer = argument.buffer
    if not isinstance(buffer, (Input, Output)):
        return argument
    return replace(argument, buffer=replace(buffer, offset=buffer.offset // FLOAT_BYTES * ITEM_BYTES[dtype]))
