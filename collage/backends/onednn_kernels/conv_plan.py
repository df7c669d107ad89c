"""Convolutions: how they are laid out and split over threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp, read_chain
from collage.backends.chains.conv import (
    Conv,
    conv_of,
    in_a_row,
    merged,
    needed,
    row_axis,
    scaled,
    transposed_needed,
)
from collage.backends.chains.functions import Eltwise
from collage.backends.chains.linear_fold import Folded, fold
from collage.backends.chains.strided import AxisRange, cut, dense
from collage.backends.onednn_kernels.builder import Draft, StepBuilder, variant_of
from collage.backends.onednn_kernels.description import Packed, laid_out, part
from collage.backends.onednn_kernels.operations import Convolution
from collage.backends.onednn_kernels.plan import BIAS, DST, SRC, WEIGHTS, Buffer, Input
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, Storage
from collage.kernel.options import Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage.frontend.subgraph import Subgraph

SMALL_FLOP = 40_000_000
"""Below this, one thread may do all of it: some 200 us, which can run beside another branch of the model."""

BATCH, ROWS, CHANNELS, GROUPS, WHOLE = "batch", "rows", "output channels", "groups", ""
_FEW_CHANNELS = 4


@dataclass(frozen=True)
class ConvTask:
    """A convolution and its epilogue, whose linear part is split off."""

    chain: Chain
    conv: Conv
    folded: Folded


def read(subgraph: Subgraph) -> ConvTask:
    """The subgraph as a convolution. Raises UnsupportedError when it is none."""
    chain, conv = subgraph.parsed(read_chain), conv_of(subgraph)
    return ConvTask(chain, conv, fold(chain, conv.dst, 1))


def variants(task: ConvTask, threads: int) -> list[Variant]:
    """Layouts with their best split, and one thread alone for small work.

    Where the chain reshapes the result, there are only plain layouts. A plain result of one position is one with
    channels last, too.
    """
    chain, conv = task.chain, task.conv
    points = {*conv.src[2:], *conv.dst[2:]} == {1}
    functions = bool(task.folded.epilogue)
    found: list[Variant] = []
    for source, target in _layouts(conv):
        if chain.viewed and target != PLAIN:
            continue
        slow = target == PLAIN and not (chain.viewed and points)
        if functions and (slow or (conv.transposed and target == BLOCKED)):
            continue  # these kernels call slow code for post-ops: a relu after a plain convolution doubles its time
        if target == PLAIN and conv.groups > 1:
            continue  # plain, it is one small product a group, and 10 to 30 times slower
        if any(isinstance(each, Combine) and each.operand == chain.root.inputs[0] for each in chain.epilogue) and (
            source != target
        ):
            continue
        splits = [_best_split(conv, source, target)] if threads > 1 else []
        if threads == 1 or conv.flop < SMALL_FLOP or splits == [WHOLE]:
            splits.append(WHOLE)
        found += [variant_of(chain, chain.root.inputs[:1], source, target, split) for split in dict.fromkeys(splits)]
    return found


def plan(task: ConvTask, variant: Variant, threads: int) -> Draft:
    """The shares of the variant. Raises UnsupportedError when it is none of this convolution."""
    chain, conv, folded = task.chain, task.conv, task.folded
    if chain.viewed and variant.outputs and variant.outputs[0] != PLAIN:
        raise UnsupportedError("a reshaped result has only the plain layout")
    epilogue = folded.epilogue
    if variant.split == ROWS and all(_lies_in_a_row(each, conv) for each in epilogue):
        before, conv = conv.dst, in_a_row(conv)
        epilogue = tuple(
            replace(each, shape=conv.dst) if isinstance(each, Combine) and each.shape == before else each
            for each in epilogue
        )
    builder = StepBuilder(chain, variant, conv.dst, epilogue)
    data = chain.root.inputs[0]
    if chain.graph.is_constant(data):
        raise UnsupportedError("the data is a constant")
    source, target = builder.input_layout(data), builder.output_layout
    conv = scaled(conv, folded.scale, folded.bias)
    if source == target == BLOCKED:
        conv = merged(conv)
    index = chain.inputs.index(data)
    for share in _shares(conv, source, target, variant.split, threads):
        _add(builder, conv, share, source, index)
    return builder.draft()


def _lies_in_a_row(op: EpilogueOp, conv: Conv) -> bool:
    """Whether a function knows no more of a position than its place in memory."""
    return isinstance(op, Eltwise) or op.shape == conv.dst or set(op.shape[2:]) == {1}


@dataclass(frozen=True)
class _Share:
    """Part of the result, the part of the input that it needs, and the padding of that part."""

    dst: AxisRange | None
    src: AxisRange | None
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]


def _layouts(conv: Conv) -> list[tuple[Storage, Storage]]:
    plain, last, blocked = PLAIN, CHANNELS_LAST, BLOCKED
    first = [(plain, blocked)] if conv.src[1] <= _FEW_CHANNELS and conv.groups == 1 else []
    return [*first, *([] if first else [(blocked, blocked)]), (last, last), (plain, plain)]


def _best_split(conv: Conv, source: Storage, target: Storage) -> str:
    if conv.dst[0] > 1:
        return BATCH
    rows = row_axis(conv.src, conv.dst) is not None
    if source == target == CHANNELS_LAST:
        return ROWS if rows else WHOLE
    if target == BLOCKED and conv.groups > 1 and source == BLOCKED:
        wide = merged(conv)
        if wide.groups > _group_unit(wide, source):
            return GROUPS
    elif conv.groups > 1:
        return GROUPS
    if conv.groups == 1 and conv.dst[1] > (BLOCK if target == BLOCKED else 1):
        return CHANNELS
    one_block = max(conv.src[1], conv.dst[1]) <= BLOCK
    return ROWS if rows and one_block and source == target == BLOCKED else WHOLE


def _shares(conv: Conv, source: Storage, target: Storage, split: str, threads: int) -> list[_Share]:
    pads = conv.pad_begin, conv.pad_end
    if split == WHOLE or threads == 1:
        return [_Share(None, None, *pads)]
    if split == BATCH:
        ranges = [AxisRange(0, a, b) for a, b in cut(conv.dst[0], threads)]
        return [_Share(each, each, *pads) for each in ranges]
    axis = row_axis(conv.src, conv.dst)
    if split == ROWS and axis is not None:
        return [_rows(conv, axis, a, b) for a, b in cut(conv.dst[axis], threads)]
    unit = BLOCK if target == BLOCKED else 1
    if split == CHANNELS:
        return [_Share(AxisRange(1, a, b), None, *pads) for a, b in cut(conv.dst[1], threads, unit)]
    if split == GROUPS:
        ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
        unit = _group_unit(conv, source)
        return [
            _Share(AxisRange(1, a * outs, b * outs), AxisRange(1, a * ins, b * ins), *pads)
            for a, b in cut(conv.groups, threads, unit)
        ]
    raise UnsupportedError(f"a convolution is not split by {split!r}")


def _group_unit(conv: Conv, layout: Storage) -> int:
    """The least number of groups that have whole blocks of channels, which may be more groups than there are."""
    if layout != BLOCKED:
        return 1
    ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
    return next(n for n in range(1, BLOCK + 1) if n * ins % BLOCK == 0 and n * outs % BLOCK == 0)


def _rows(conv: Conv, axis: int, start: int, stop: int) -> _Share:
    """Rows (or planes) ``start`` to ``stop`` of the result, from those of the input that reach them."""
    find = transposed_needed if conv.transposed else needed
    halo = find(conv.window(axis), start, stop)
    if halo.start >= halo.stop:
        raise UnsupportedError("a share of the rows would see nothing but padding")
    return _Share(
        AxisRange(axis, start, stop),
        AxisRange(axis, halo.start, halo.stop),
        _with(conv.pad_begin, axis - 2, halo.pad_begin),
        _with(conv.pad_end, axis - 2, halo.pad_end),
    )


def _with(pads: tuple[int, ...], place: int, pad: int) -> tuple[int, ...]:
    return (*pads[:place], pad, *pads[place + 1 :])


def _add(builder: StepBuilder, conv: Conv, share: _Share, source: Storage, index: int) -> None:
    dst, output = builder.output_part(share.dst)
    if share.src is None:
        src, offset = laid_out(conv.src, source), 0
    else:
        src, offset = part(conv.src, source, share.src.axis, share.src.start, share.src.stop)
    channels = share.dst if share.dst is not None and share.dst.axis == 1 else None
    weights, bias, groups = conv.weights, conv.bias, conv.groups
    if channels is not None:
        weights = weights[channels.start : channels.stop]
        bias = None if bias is None else bias[channels.start : channels.stop]
        groups = groups * len(weights) // conv.dst[1] if groups > 1 else 1
    dims: Sequence[int] = weights.shape
    if groups > 1 or conv.groups > 1:
        dims = (groups, len(weights) // groups, *weights.shape[1:])
        weights = weights.reshape(dims)
    arguments: list[tuple[int, Buffer]] = [
        (SRC, Input(index, offset)),
        (WEIGHTS, builder.constant(weights)),
        (DST, output),
    ]
    if bias is not None:
        arguments.append((BIAS, builder.constant(np.ascontiguousarray(bias))))
    operation = Convolution(
        src,
        Packed(tuple(dims)),
        None if bias is None else dense(bias.shape),
        dst,
        conv.strides,
        conv.dilation,
        share.pad_begin,
        share.pad_end,
        conv.transposed,
    )
    builder.add(operation, arguments, share.dst)
