"""Convolutions of float data in 8 bits: what is rounded when, and the plan of what oneDNN computes of it.

Weights are rounded ahead of time, with a factor for each output channel. Data is rounded when the kernel runs, with a
range for each item, and in grouped convolutions for each group. oneDNN multiplies unsigned bytes by signed ones, and
what follows the sum is float32: its factors, the bias and all other functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Combine, EpilogueOp
from collage.backends.chains.conv import Conv, row_axis, scaled
from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.chains.int8_weights import INT8_DEPTH, quantised
from collage.backends.chains.linear_fold import Folded
from collage.backends.onednn_kernels import conv_plan, description
from collage.backends.onednn_kernels.artifact import OneDnnArtifact
from collage.backends.onednn_kernels.builder import Draft, variant_of
from collage.backends.onednn_kernels.conv_plan import BATCH, ROWS, SMALL_FLOP, WHOLE, ConvTask
from collage.backends.onednn_kernels.narrow import typed
from collage.backends.onednn_kernels.pack import pack
from collage.backends.onednn_kernels.plan import DST, SRC, WEIGHTS, PostOpOperand
from collage.backends.onednn_kernels.rounding import Rounding, too_padded
from collage.graph.storage import (
    BF16,
    BLOCKED,
    CHANNELS_LAST,
    INT8,
    PLAIN,
    is_narrow,
    narrowed,
    widened,
)
from collage.kernel.options import Variant
from collage.kernel.target import reduced_precisions
from collage.native.kernel_library import rounding_problem

_SOURCES = CHANNELS_LAST, BLOCKED
_FEW_CHANNELS = 4


def variants(task: Any, threads: int) -> list[Variant]:
    """Results with channels last, of data that may also be blocked, all float32 or all bfloat16.

    There are none for what is no convolution, or one that is not taken.
    """
    if not isinstance(task, ConvTask) or problem_of(task):
        return []
    chain, conv = task.chain, task.conv
    data = chain.root.inputs[0]
    reads = [each for each in task.folded.epilogue if isinstance(each, Combine) and each.operand == data]
    split = _split(conv) if threads > 1 else WHOLE
    splits = dict.fromkeys([split, WHOLE] if conv.flop < SMALL_FLOP else [split])
    wide = [
        variant_of(chain, [data], source, CHANNELS_LAST, split)
        for source in (_SOURCES[:1] if reads else _SOURCES)
        for split in splits
    ]
    precisions = ("", BF16) if BF16 in reduced_precisions() else ("",)
    return [_stored(each, precision) for each in wide for precision in precisions]


def problem_of(task: ConvTask) -> str:
    """Why the convolution has no kernel in 8 bits, or ""."""
    chain, conv = task.chain, task.conv
    if problem := rounding_problem():
        return problem
    if chain.viewed or chain.graph.is_constant(chain.root.inputs[0]):
        return "the result is reshaped, or the data is a constant"
    if conv.transposed or conv.src[1] <= _FEW_CHANNELS or min(conv.pad_begin) < 0:
        return "it is transposed, has few channels or begins inside its data"
    if math.prod(conv.weights.shape[1:]) > INT8_DEPTH:
        return f"sums of more than {INT8_DEPTH} products may overflow"
    if math.prod(conv.weights.shape[2:]) == conv.groups == max(conv.strides) == 1 and not any(conv.pad_begin):
        return "there are kernels of our own for single pixels, with a range for each of them"
    if too_padded(conv.src[2:], _item(conv, conv.weights).src[2:]):
        return "most of what it reads is padding"
    if any(_has_items(each, conv) and chain.constant(each.operand) is not None for each in _operands(task)):
        return "a constant has a part for each item"
    return ""


def artifact_of(task: ConvTask, variant: Variant, threads: int) -> OneDnnArtifact:
    """The kernel of a variant. Raises UnsupportedError if there is none, and UnimplementedError as ``pack`` does."""
    if problem := problem_of(task):
        raise UnsupportedError(problem)
    chain, conv = task.chain, scaled(task.conv, task.folded.scale, task.folded.bias)
    outputs = conv.dst[1]
    steps, factors = quantised(conv.weights.reshape(outputs, -1).T)
    item = _item(conv, steps.T.reshape(conv.weights.shape).astype(np.float32))
    draft = _draft(task, item, variant, threads)
    packed = pack(draft.plan, draft.arrays, threads)
    bias = np.zeros(outputs, np.float32) if conv.bias is None else conv.bias
    constants = [np.ascontiguousarray(each, np.float32) for each in (factors, steps.sum(0, dtype=np.int32), bias)]
    first = len(packed.weights)
    data = chain.inputs.index(chain.root.inputs[0])
    items = conv.dst[0]
    by_rows = items == 1 and variant.split == ROWS
    rounding = Rounding(
        data=data,
        items=items,
        channels=conv.src[1],
        outputs=outputs,
        groups=conv.groups,
        extents=_three(conv.src[2:]),
        begin=_three(conv.pad_begin, missing=0),
        padded=_three(item.src[2:]),
        blocked=widened(variant.inputs[data]) == BLOCKED,
        narrow=is_narrow(variant.inputs[data]),
        sliced=tuple(chain.inputs.index(each.operand) for each in _operands(task) if _has_items(each, conv)),
        constants=(first, first + 1, first + 2),
        shares=len(packed.plan.steps[0]) if by_rows else min(threads if variant.split == BATCH else 1, items),
    )
    return replace(
        packed,
        forms=(*packed.forms, None, None, None),
        weights=(*packed.weights, *(each.view(np.uint8) for each in constants)),
        rounding=rounding,
    )


def _split(conv: Conv) -> str:
    if conv.dst[0] > 1:
        return BATCH
    return WHOLE if row_axis(conv.src, conv.dst) is None else ROWS


def _stored(variant: Variant, precision: str) -> Variant:
    """The variant in 8 bits with everything that has the data's or the result's shape as floats of that precision."""
    inputs, outputs = (
        tuple(each if each == PLAIN else narrowed(each, precision) for each in side)
        for side in (variant.inputs, variant.outputs)
    )
    return Variant(inputs, outputs, variant.split, INT8)


def _operands(task: ConvTask) -> Iterator[Combine]:
    return (each for each in task.folded.epilogue if isinstance(each, Combine))


def _has_items(step: Combine, conv: Conv) -> bool:
    return conv.dst[0] > 1 and step.shape[0] == conv.dst[0]


def _item(conv: Conv, weights: Any) -> Conv:
    """The convolution of one item whose padding is part of the data, and which needs all of that."""
    reach = (
        (count - 1) * stride + (taps - 1) * gap + 1
        for count, stride, taps, gap in zip(conv.dst[2:], conv.strides, weights.shape[2:], conv.dilation, strict=True)
    )
    none = (0,) * len(conv.strides)
    src, dst = (1, conv.src[1], *reach), (1, *conv.dst[1:])
    return replace(conv, src=src, dst=dst, weights=weights, bias=None, pad_begin=none, pad_end=none)


def _of_item(step: EpilogueOp, conv: Conv) -> EpilogueOp:
    """The function of one item."""
    if isinstance(step, Combine) and _has_items(step, conv):
        return replace(step, shape=(1, *step.shape[1:]))
    return step


def _draft(task: ConvTask, item: Conv, variant: Variant, threads: int) -> Draft:
    """The plan of an item. Its inputs are those of the chain, then the rounded data, the factors and the terms."""
    chain, before = task.chain, task.conv
    data, factors, terms = (len(chain.graph.values) + i for i in range(3))
    channels = (1, item.dst[1], *[1] * len(item.strides))
    epilogue: list[EpilogueOp] = [
        Combine(DnnlAlgorithm.MULTIPLY, factors, channels),
        Combine(DnnlAlgorithm.ADD, terms, channels),
    ]
    epilogue += (_of_item(each, before) for each in task.folded.epilogue)
    inner = replace(
        chain,
        inputs=(*chain.inputs, data, factors, terms),
        root=replace(chain.root, inputs=(data, *chain.root.inputs[1:])),
        epilogue=tuple(epilogue),
    )
    stored = Variant(
        (*map(widened, variant.inputs), CHANNELS_LAST, PLAIN, PLAIN),
        tuple(map(widened, variant.outputs)),
        ROWS if variant.split == ROWS else WHOLE,
    )
    draft = conv_plan.plan(ConvTask(inner, item, Folded(None, None, tuple(epilogue))), stored, threads)
    dtypes: dict[int | PostOpOperand, str] = {SRC: description.UINT8, WEIGHTS: description.INT8}
    if is_narrow(variant.outputs[0]):
        dtypes[DST] = BF16
    for place, step in enumerate(epilogue):
        operand = step.operand if isinstance(step, Combine) else -1
        if operand in chain.inputs and is_narrow(variant.inputs[chain.inputs.index(operand)]):
            dtypes[PostOpOperand(place)] = BF16
    return typed(draft, dtypes)


def _three(numbers: Sequence[int], missing: int = 1) -> tuple[int, int, int]:
    """A number each for planes, rows and columns, ``missing`` for axes that are not there."""
    planes, rows, columns = (*[missing] * (3 - len(numbers)), *numbers)
    return planes, rows, columns
