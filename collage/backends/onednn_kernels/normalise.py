"""Softmax and layer normalisation, in shares of rows."""

from __future__ import annotations

import math

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import integers, number
from collage.backends.chains.chain import Chain
from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.chains.strided import AxisRange, cut
from collage.backends.onednn_kernels.builder import Draft, StepBuilder
from collage.backends.onednn_kernels.operations import LayerNorm, Operation, Softmax
from collage.backends.onednn_kernels.plan import DST, SCALE, SHIFT, SRC, Buffer
from collage.graph.dataflow import Graph, Node
from collage.kernel.options import Variant

ROWS, WHOLE = "rows", ""
SMALL_ELEMENTS = 1 << 15

SOFTMAXES = {"nn.softmax": DnnlAlgorithm.SOFTMAX, "nn.log_softmax": DnnlAlgorithm.LOG_SOFTMAX}
_LAYER_NORM = "nn.layer_norm"
NORMALISATIONS = (*SOFTMAXES, _LAYER_NORM)


def normalise_problem(graph: Graph, node: Node) -> str:
    """Why a softmax or layer normalisation cannot be taken, or ""."""
    rank = len(graph.type_of(node.inputs[0]).shape)
    if node.op in SOFTMAXES:
        return ""
    if [axis % rank for axis in integers(node.attrs["axes"])] != [rank - 1]:
        return "it normalises over other axes than the last"
    known = all(graph.is_constant(v) for v in node.inputs[1:])
    return (
        ""
        if known and node.attrs.get("center") and node.attrs.get("scale")
        else "its factors and terms are not constant"
    )


def variants(chain: Chain, threads: int) -> list[Variant]:
    """Plain variants, split by rows."""
    shape, _ = _rows(chain)
    if threads == 1 or shape[0] == 1:
        return [Variant()]
    small = math.prod(shape) < SMALL_ELEMENTS
    return [Variant(split=split) for split in (ROWS, *([WHOLE] if small else []))]


def plan(chain: Chain, variant: Variant, threads: int) -> Draft:
    """The shares of the variant."""
    shape, axis = _rows(chain)
    builder = StepBuilder(chain, variant, shape, ())
    if variant.split not in (ROWS, WHOLE):
        raise UnsupportedError(f"{chain.root.op} is not split by {variant.split!r}")
    whole = variant.split == WHOLE or threads == 1
    ranges = [None] if whole else [AxisRange(0, a, b) for a, b in cut(shape[0], threads)]
    for where in ranges:
        src, source = builder.input_part(chain.root.inputs[0], shape, where)
        dst, output = builder.output_part(where)
        arguments: list[tuple[int, Buffer]] = [(SRC, source), (DST, output)]
        operation: Operation
        if chain.root.op in SOFTMAXES:
            operation = Softmax(SOFTMAXES[chain.root.op], src, dst, axis)
        else:
            operation = LayerNorm(src, dst, number(chain.root, "epsilon"))
            for place, argument in ((1, SCALE), (2, SHIFT)):
                array = chain.constant(chain.root.inputs[place])
                assert array is not None
                arguments.append((argument, builder.constant(np.ascontiguousarray(array))))
        builder.add(operation, arguments, where)
    return builder.draft()


def _rows(chain: Chain) -> tuple[tuple[int, ...], int]:
    """The tensor's shape as the primitive sees it, with rows that can be shared out first, and the axis."""
    shape = chain.shape
    (axis,) = (len(shape) - 1,) if chain.root.op == _LAYER_NORM else integers(chain.root.attrs["axis"])
    axis %= len(shape)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return ((before, shape[axis]) if after == 1 else (before, shape[axis], after)), 1
