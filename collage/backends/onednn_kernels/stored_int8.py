"""Which kernels on values of 8 bits oneDNN offers: what they read and write in steps, and what in floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain
from collage.backends.chains.product import COLUMNS, WHOLE
from collage.backends.onednn_kernels import matmul
from collage.backends.onednn_kernels.conv_plan import ConvTask
from collage.backends.onednn_kernels.matmul import ProductTask
from collage.backends.onednn_kernels.quantised import planner_of
from collage.backends.onednn_kernels.roots import chain_of
from collage.backends.onednn_kernels.stored_plan import (
    data_of,
    in_units,
    multiplied,
    only_moves,
    problem_of,
    scale_of,
    scales_of,
)
from collage.graph.ranges import Range
from collage.graph.storage import (
    BF16,
    CHANNELS_LAST,
    PLAIN,
    STORED_INT8,
    Storage,
    is_narrow,
    narrowed,
    steps_of,
)
from collage.kernel.options import Variant
from collage.kernel.target import reduced_precisions
from collage.native.kernel_library import rounding_problem


def variants(task: Any, ranges: Mapping[int, Range], threads: int) -> list[Variant]:
    """Results in 8 bits, in float32 and in bfloat16, of data in 8 bits, all with channels last.

    Operands of the result's shape are in 8 bits where the result is, as far as their ranges are known. There are none
    for what is not taken.
    """
    if rounding_problem() or problem_of(task):
        return []
    chain = chain_of(task)
    stored = {
        value: found
        for value in (*chain.inputs, chain.output)
        if value in ranges and (found := ranges[value].storage(_order(task))) is not None
    }
    data = data_of(task)
    if any(value not in stored for value in data):
        return []
    offered = []
    for wide in _wide(task, threads):
        for target in _targets(task, stored):
            made = _stored(task, wide, target, stored)
            if _is_possible(task, made):
                offered.append(made)
    return offered


def _order(task: Any) -> Storage:
    """The storage of the float32 variants that those in 8 bits are made of."""
    return PLAIN if isinstance(task, ProductTask) else CHANNELS_LAST


def _wide(task: Any, threads: int) -> list[Variant]:
    """The float32 variants whose data and result have the channels last, and those of products, which are plain."""
    chain = chain_of(task)
    if isinstance(task, ProductTask):
        rows = task.product.dst[-2] > 1
        splits = [each.split for each in matmul.variants(task, threads)]
        # oneDNN has only its reference code for columns that do not lie together.
        kept = [each for each in splits if not (rows and each == COLUMNS)] or [WHOLE]
        return [Variant((PLAIN,) * len(chain.inputs), (PLAIN,), split) for split in kept]
    ends = [chain.inputs.index(value) for value in data_of(task)]
    if isinstance(task, Chain) and not only_moves(task):
        task = multiplied(task, 1.0)
    found = planner_of(task).variants(task, threads)
    return [each for each in found if {*each.outputs, *(each.inputs[at] for at in ends)} == {CHANNELS_LAST}]


def _targets(task: Any, stored: Mapping[int, Storage]) -> list[Storage]:
    own = [stored[chain_of(task).output]] if chain_of(task).output in stored else []
    if only_moves(task):
        return own
    order = _order(task)
    narrow = [narrowed(order, BF16)] if BF16 in reduced_precisions() else []
    return [*own, order, *narrow]


def _stored(task: Any, wide: Variant, target: Storage, stored: Mapping[int, Storage]) -> Variant:
    """The variant with the data in 8 bits, and what has the result's shape like the ``target`` as far as it can be."""
    chain, order = chain_of(task), _order(task)
    operands = stored if steps_of(target) else {}
    precision = BF16 if is_narrow(target) and not steps_of(target) else ""
    inputs = []
    for value, storage in zip(chain.inputs, wide.inputs, strict=True):
        if value in data_of(task):
            inputs.append(stored[value])
        elif storage == order and chain.type_of(value).shape == chain.shape:
            inputs.append(operands.get(value, narrowed(storage, precision)))
        else:
            inputs.append(storage)
    return Variant(tuple(inputs), (target,), wide.split, STORED_INT8)


def _is_possible(task: Any, variant: Variant) -> bool:
    chain = chain_of(task)
    storages = dict(zip(chain.inputs, variant.inputs, strict=True))
    if only_moves(task):
        return {*storages.values()} == {*variant.outputs}
    try:
        folded = isinstance(task, (ConvTask, ProductTask))
        epilogue = task.folded.epilogue if folded else chain.epilogue
        in_units(epilogue, scales_of(storages), scale_of(variant.outputs[0]))
    except UnsupportedError:
        return False
    return True
