"""Concatenations, of which each thread copies its share of every input.

In memory, whatever the layout, the result is a matrix whose columns are those of the inputs side by side: rows
are the axes that lie further out than the one that is concatenated.
"""

from __future__ import annotations

import math

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import integers
from collage.backends.chains.chain import Chain
from collage.backends.chains.strided import FLOAT_BYTES, Strided, cut
from collage.backends.onednn_kernels.builder import Draft, StepBuilder
from collage.backends.onednn_kernels.operations import Reorder
from collage.backends.onednn_kernels.plan import DST, SRC, Input, Output
from collage.graph.dataflow import Graph, Node
from collage.graph.formats import has_channels
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN, STORAGES, Storage, stored_type
from collage.kernel.options import Variant

EACH, WHOLE = "each input", ""
SMALL_ELEMENTS = 1 << 17
_LINE = 16  # elements in a cache line


def concat_problem(graph: Graph, node: Node) -> str:
    """Why a concatenation cannot be taken, or ""."""
    if any(graph.is_constant(v) for v in node.inputs):
        return "an input is a constant"
    return "" if len(node.inputs) > 1 else "there is one input only"


def variants(chain: Chain, threads: int) -> list[Variant]:
    """Every layout in which the inputs stay whole blocks."""
    kind = chain.type_of(chain.base)
    splits = [EACH] if threads > 1 else []
    splits += [WHOLE] if not splits or kind.size < SMALL_ELEMENTS else []
    return [
        Variant((layout,) * len(chain.inputs), (layout,), split)
        for layout in (STORAGES if has_channels(kind) and not chain.viewed else (PLAIN,))
        if not _cuts_blocks(chain, layout)
        for split in splits
    ]


def plan(chain: Chain, variant: Variant, threads: int) -> Draft:
    """The shares of the variant, several for each thread."""
    kind = chain.type_of(chain.base)
    builder = StepBuilder(chain, variant, kind.shape, ())
    layout = builder.output_layout
    if any(builder.input_layout(value) != layout for value in chain.inputs):
        raise UnsupportedError("the inputs have several layouts")
    if _cuts_blocks(chain, layout) or (chain.viewed and layout != PLAIN):
        raise UnsupportedError(f"the inputs cannot be joined in {layout} layout")
    axis, rank = _axis(chain), len(kind.shape)
    if layout == CHANNELS_LAST and axis > 0:
        axis = rank - 1 if axis == 1 else axis - 1
    whole = stored_type(kind, layout).shape
    rows, width = math.prod(whole[:axis]), math.prod(whole[axis:])
    parts = threads if variant.split == EACH else 1
    begin = 0
    for value in chain.root.inputs:
        columns = math.prod(stored_type(chain.type_of(value), layout).shape[axis:])
        index = chain.inputs.index(value)
        by_rows = rows >= parts
        for a, b in cut(rows, parts) if by_rows else cut(columns, parts, _LINE):
            (row, height), (column, extent) = ((a, b - a), (0, columns)) if by_rows else ((0, rows), (a, b - a))
            src, dst = (Strided((height, extent), (step, 1)) for step in (columns, width))
            at = FLOAT_BYTES * (row * width + begin + column)
            source = Input(index, FLOAT_BYTES * (row * columns + column))
            builder.add(Reorder(src, dst), [(SRC, source), (DST, Output(0, at))], None)
        begin += columns
    return builder.draft()


def _cuts_blocks(chain: Chain, layout: Storage) -> bool:
    """Whether an input would begin inside a block of channels."""
    extents = [chain.type_of(value).shape[_axis(chain)] for value in chain.root.inputs[:-1]]
    return layout == BLOCKED and _axis(chain) == 1 and any(extent % BLOCK for extent in extents)


def _axis(chain: Chain) -> int:
    (axis,) = integers(chain.root.attrs["axis"])
    return axis % len(chain.shape)
