"""Poolings, and means and maxima over all spatial axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, read_chain
from collage.backends.chains.conv import needed, row_axis
from collage.backends.chains.pool import Pool, read_pool
from collage.backends.chains.strided import AxisRange, cut
from collage.backends.onednn_kernels.builder import Draft, StepBuilder, variant_of
from collage.backends.onednn_kernels.description import laid_out, part
from collage.backends.onednn_kernels.operations import Pooling
from collage.backends.onednn_kernels.plan import DST, SRC, Input, Output
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, STORAGES, Storage
from collage.kernel.options import Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

BATCH, ROWS, CHANNELS, WHOLE = "batch", "rows", "channels", ""
SMALL_ELEMENTS = 1 << 18
"""Inputs below this (1 MB) may be left to one thread."""


@dataclass(frozen=True)
class PoolTask:
    """A pooling and its epilogue."""

    chain: Chain
    pool: Pool


def read(subgraph: Subgraph) -> PoolTask:
    """The subgraph as a pooling. Raises UnsupportedError when it is none."""
    chain = subgraph.parsed(read_chain)
    return PoolTask(chain, read_pool(chain.graph, chain.root))


def variants(task: PoolTask, threads: int) -> list[Variant]:
    """Every layout, with the split that it allows."""
    chain, pool = task.chain, task.pool
    if any(isinstance(each, Combine) for each in chain.epilogue) and (
        pool.to_points or len(chain.type_of(chain.root.outputs[0]).shape) != len(pool.dst)
    ):
        raise UnsupportedError("an operand is combined with single elements")
    found = []
    for layout in STORAGES:
        if _is_misread(task, layout, pool.dst):
            continue
        target = layout
        if pool.to_points and (layout != BLOCKED or pool.dst[1] % BLOCK == 0):
            target = PLAIN  # the bytes are the same in all layouts
        elif chain.viewed and layout != PLAIN:
            continue  # a reshaped result has only the plain layout
        elif len(chain.type_of(chain.root.outputs[0]).shape) != len(pool.dst):
            continue
        split = _best_split(pool, layout) if threads > 1 else WHOLE
        splits = [split, *([WHOLE] if chain.type_of(chain.root.inputs[0]).size < SMALL_ELEMENTS else [])]
        found += [variant_of(chain, chain.root.inputs, layout, target, split) for split in dict.fromkeys(splits)]
    return found


def plan(task: PoolTask, variant: Variant, threads: int) -> Draft:
    """The shares of the variant."""
    chain, pool = task.chain, task.pool
    builder = StepBuilder(chain, variant, pool.dst, chain.epilogue)
    data = chain.root.inputs[0]
    layout, index = builder.input_layout(data), chain.inputs.index(data)
    if not pool.to_points and builder.output_layout != layout:
        raise UnsupportedError(f"a pooling cannot go from {layout} to {builder.output_layout}")
    if chain.viewed and builder.output_layout != PLAIN:
        raise UnsupportedError("a reshaped result has only the plain layout")
    for dst_range, src_range, pads in _shares(pool, variant.split, layout, threads):
        src, offset = laid_out(pool.src, layout), 0
        dst, at = laid_out(pool.dst, layout), 0
        if src_range is not None and dst_range is not None:
            src, offset = part(pool.src, layout, src_range.axis, src_range.start, src_range.stop)
            dst, at = part(pool.dst, layout, dst_range.axis, dst_range.start, dst_range.stop)
        if _is_misread(task, layout, dst.dims):
            raise UnsupportedError("oneDNN misreads a tensor that is combined with a pooling")
        operation = Pooling(pool.algorithm, src, dst, pool.kernel, pool.strides, pool.dilation, *pads)
        builder.add(operation, [(SRC, Input(index, offset)), (DST, Output(0, at))], dst_range)
    return builder.draft()


def _is_misread(task: PoolTask, layout: Storage, share: tuple[int, ...]) -> bool:
    """Whether oneDNN 3.2 reads other elements than it should of a tensor that a ``share`` is combined with.

    Of one with the shape of the share it does so in plain layout, where there are several channels of several axes. In
    the others it takes such a tensor to lie as the share does, although it is plain where it has not the whole result's
    shape. Numbers for each channel are taken to lie side by side, which those of one row of several do not.
    """
    whole = task.pool.dst
    channels, pixels = share[1], math.prod(share[2:])
    wrong = {
        PLAIN: channels > 1 and len(share) > 3,
        CHANNELS_LAST: channels > 1 and pixels > 1,
        BLOCKED: channels == 1,
    }
    for each in task.chain.epilogue:
        if not isinstance(each, Combine) or len(each.shape) != len(whole):
            continue
        pairs = zip(each.shape, whole, share, strict=True)
        read = tuple(piece if extent == full else extent for extent, full, piece in pairs)
        if read == share and wrong[layout] and (layout == PLAIN or each.shape != whole):
            return True
        if read[1] > 1 and math.prod(read[2:]) == 1 < math.prod(each.shape[2:]):
            return True
    return False


_Share = tuple[AxisRange | None, AxisRange | None, tuple[tuple[int, ...], tuple[int, ...]]]
"""A part of the result, the part of the input that it needs, and the padding of that part."""


def _best_split(pool: Pool, layout: Storage) -> str:
    if pool.dst[0] > 1:
        return BATCH
    if layout == CHANNELS_LAST or pool.dst[1] <= (BLOCK if layout == BLOCKED else 1):
        return WHOLE if row_axis(pool.src, pool.dst) is None else ROWS
    return CHANNELS


def _shares(pool: Pool, split: str, layout: Storage, threads: int) -> list[_Share]:
    pads = pool.pad_begin, pool.pad_end
    if split == WHOLE or threads == 1:
        return [(None, None, pads)]
    if split in (BATCH, CHANNELS):
        axis = 0 if split == BATCH else 1
        unit = BLOCK if split == CHANNELS and layout == BLOCKED else 1
        ranges = [AxisRange(axis, a, b) for a, b in cut(pool.dst[axis], threads, unit)]
        return [(each, each, pads) for each in ranges]
    rows = row_axis(pool.src, pool.dst)
    if split != ROWS or rows is None:
        raise UnsupportedError(f"pooling is not split by {split!r}")
    shares: list[_Share] = []
    for a, b in cut(pool.dst[rows], threads):
        halo = needed(pool.window(rows), a, b)
        if halo.start >= halo.stop:
            raise UnsupportedError("a share of the rows would see nothing but padding")
        begin, end = ([*each] for each in pads)
        begin[rows - 2], end[rows - 2] = halo.pad_begin, halo.pad_end
        src = AxisRange(rows, halo.start, halo.stop)
        shares.append((AxisRange(rows, a, b), src, (tuple(begin), tuple(end))))
    return shares
