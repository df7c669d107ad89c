"""Kernels on values that are stored as integers of 8 bits, whose steps follow from samples: variants and plans.

They are convolutions, products, sums, maxima and concatenations. Nothing is rounded before the kernel: oneDNN
multiplies the integers that it reads. What follows the sums is float32, and the result is rounded to steps of its own,
or stays a float. Zero is always zero, so that padding needs no correction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp, Floats
from collage.backends.chains.conv import scaled
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.backends.chains.int8_weights import INT8_DEPTH, quantised
from collage.backends.chains.linear_fold import Folded
from collage.backends.chains.product import COLUMNS, WHOLE
from collage.backends.chains.transposes import ProductChain
from collage.backends.onednn_kernels import matmul
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.conv_plan import ConvTask
from collage.backends.onednn_kernels.description import INT8
from collage.backends.onednn_kernels.matmul import ProductTask
from collage.backends.onednn_kernels.narrow import stored_dtype, typed, wide_variant
from collage.backends.onednn_kernels.plan import DST, SRC, WEIGHTS, PostOpOperand
from collage.backends.onednn_kernels.pooling import PoolTask
from collage.backends.onednn_kernels.quantised import WholeProduct, constant_step, planner_of
from collage.backends.onednn_kernels.roots import chain_of
from collage.graph.formats import has_channels
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

_SUMS = (DnnlAlgorithm.ADD, DnnlAlgorithm.SUBTRACT, DnnlAlgorithm.MAXIMUM, DnnlAlgorithm.MINIMUM)


def in_units(
    steps: Iterable[EpilogueOp], scales: Mapping[int, float], result: float
) -> tuple[float, tuple[EpilogueOp, ...]]:
    """The unit that the functions begin in, and the functions with the factors between them.

    A unit is 1 for most functions, the steps of an operand for a sum with integers, and any for a relu. So there are as
    few factors as possible. ``scales`` are the steps of operands, by value, and ``result`` is the last unit.

    Raises UnsupportedError for an operand of 8 bits that is no part of a sum or product.
    """
    first: float | None = None
    unit = 1.0
    made: list[EpilogueOp] = []

    def turn_to(wanted: float) -> None:
        nonlocal first, unit
        if first is None:  # nothing has needed a unit so far
            first = wanted / unit
        elif wanted != unit:
            made.append(Eltwise(DnnlAlgorithm.LINEAR, unit / wanted))
        unit = wanted

    for step in steps:
        scale = scales.get(step.operand) if isinstance(step, Combine) else None
        if isinstance(step, Combine) and scale is not None:
            if step.algorithm is DnnlAlgorithm.MULTIPLY:
                unit *= scale
            elif step.algorithm in _SUMS:
                turn_to(scale)
            else:
                raise UnsupportedError(f"{step.algorithm.name} by integers of 8 bits")
        elif not (isinstance(step, Eltwise) and step.algorithm == DnnlAlgorithm.RELU):
            turn_to(1.0)
        made.append(step)
    turn_to(result)
    assert first is not None
    return first, tuple(made)


_FEW_CHANNELS = 4
Dtypes = dict["int | PostOpOperand", str]


def plan(task: Any, variant: Variant, threads: int) -> Draft:
    """The plan of a variant. Raises UnsupportedError if there is none."""
    if problem := rounding_problem() or problem_of(task):
        raise UnsupportedError(problem)
    chain = chain_of(task)
    storages = dict(zip(chain.inputs, variant.inputs, strict=True))
    (target,) = variant.outputs
    if isinstance(task, ConvTask):
        task, dtypes = _convolution(task, storages, target)
    elif isinstance(task, ProductTask):
        task, dtypes = _product(task, storages, target)
    elif only_moves(task):
        if {*storages.values()} != {target}:
            raise UnsupportedError("maxima and concatenations keep the steps of their data")
        dtypes = {SRC: stored_dtype(target), DST: stored_dtype(target)}
    else:
        task, dtypes = _sum(chain, storages, target)
    return typed(planner_of(task).plan(task, wide_variant(variant), threads), dtypes)


def problem_of(task: Any) -> str:
    """Why the task has no kernel on values of 8 bits, or ""."""
    if isinstance(task, ConvTask):
        conv = task.conv
        if task.chain.viewed or task.chain.graph.is_constant(task.chain.root.inputs[0]):
            return "the result is reshaped, or the data is a constant"
        if conv.transposed or conv.src[1] <= _FEW_CHANNELS or min(conv.pad_begin) < 0:
            return "it is transposed, has few channels or begins inside its data"
        if math.prod(conv.weights.shape[1:]) > INT8_DEPTH:
            return f"sums of more than {INT8_DEPTH} products may overflow"
        return ""
    if isinstance(task, ProductTask):
        return _problem_of_product(task)
    if isinstance(task, PoolTask):
        moved = task.pool.algorithm is DnnlAlgorithm.MAX_POOL and not task.chain.epilogue
        return "" if moved and not task.chain.viewed else "it is no maximum over windows"
    if only_moves(task):
        return "" if has_channels(task.type_of(task.base)) and not task.viewed else "there are no channels"
    if isinstance(task, Chain):
        first = task.epilogue[0] if task.epilogue else None
        is_sum = (
            isinstance(first, Combine) and first.algorithm is DnnlAlgorithm.ADD and first.shape == task.shape
        )
        computed = isinstance(first, Combine) and first.operand >= 0
        if not is_sum or not computed or task.viewed or not isinstance(first, Combine):
            return "it is no sum of two values"
        return "the operands are the same" if first.operand == task.base else ""
    return "it is no convolution, product, sum, maximum or concatenation"


def _problem_of_product(task: ProductTask) -> str:
    chain = task.chain
    if chain.operands or chain.result_axes is not None:
        return "something is transposed"
    if not task.product.packs or len(task.product.right) != 2:
        return "it is no product with a constant matrix"
    if task.product.right[0] > INT8_DEPTH:
        return f"sums of more than {INT8_DEPTH} products may overflow"
    return ""


def only_moves(task: Any) -> bool:
    """Whether the result has numbers of the data and no others, so that both have the same steps."""
    return isinstance(task, PoolTask) or (isinstance(task, Chain) and task.root.op == "concat")


def data_of(task: Any) -> tuple[int, ...]:
    """The values that a kernel reads in 8 bits, whatever its result is."""
    if isinstance(task, (ConvTask, ProductTask, PoolTask)):
        return task.chain.root.inputs[:1]
    if only_moves(task):
        return tuple(dict.fromkeys(task.root.inputs))
    first = task.epilogue[0]
    assert isinstance(first, Combine)
    return task.base, first.operand


def multiplied(chain: Chain, ratio: float) -> Chain:
    """The chain with a factor before all other functions."""
    own = [*chain.own]
    first = constant_step(DnnlAlgorithm.MULTIPLY, np.full((1,) * len(chain.shape), ratio), own)
    return replace(chain, epilogue=(first, *chain.epilogue), own=tuple(own))


def scales_of(storages: Mapping[int, Storage]) -> dict[int, float]:
    """The scales of the values that are stored in steps."""
    return {value: found.scale for value, each in storages.items() if (found := steps_of(each)) is not None}


def scale_of(storage: Storage) -> float:
    """The scale of a storage in steps, or 1 for floats."""
    found = steps_of(storage)
    return 1.0 if found is None else found.scale


def _convolution(task: ConvTask, storages: Mapping[int, Storage], target: Storage) -> tuple[ConvTask, Dtypes]:
    conv = scaled(task.conv, task.folded.scale, task.folded.bias)
    steps, factors = quantised(conv.weights.reshape(conv.dst[1], -1).T)
    shape = (1, conv.dst[1], *[1] * len(conv.strides))
    inner, dtypes = _weighted(task, factors, shape, storages, target)
    weights = steps.T.reshape(conv.weights.shape).astype(np.float32)
    folded = Folded(None, None, inner.epilogue)
    return ConvTask(inner, replace(conv, weights=weights, bias=None), folded), dtypes


def _product(
    task: ProductTask, storages: Mapping[int, Storage], target: Storage
) -> tuple[ProductTask, Dtypes]:
    right = task.chain.constant(task.chain.root.inputs[1])
    assert right is not None
    steps, factors = quantised(right if task.folded.scale is None else right * task.folded.scale)
    shape = (*[1] * (len(task.shape) - 1), len(factors))
    inner, dtypes = _weighted(task, factors, shape, storages, target)
    graph = inner.graph
    known = {**graph.constants, inner.root.inputs[1]: steps.astype(np.float32)}
    chain = replace(inner, graph=replace(graph, constants=known))
    assert isinstance(chain, ProductChain)
    return WholeProduct(chain, task.product), dtypes


def _weighted(
    task: ConvTask | ProductTask,
    factors: Floats,
    shape: tuple[int, ...],
    storages: Mapping[int, Storage],
    target: Storage,
) -> tuple[Chain, Dtypes]:
    """The chain of sums of whole numbers, with their factors and the bias, which have that shape; and the dtypes."""
    chain, bias = task.chain, task.folded.bias
    (data,) = data_of(task)
    unit, after = in_units(task.folded.epilogue, scales_of(storages), scale_of(target))
    own = [*chain.own]
    factors = factors * (scale_of(storages[data]) / unit)
    epilogue: list[EpilogueOp] = [constant_step(DnnlAlgorithm.MULTIPLY, factors.reshape(shape), own)]
    if bias is not None and bias.any():
        epilogue.append(constant_step(DnnlAlgorithm.ADD, (bias / unit).reshape(shape), own))
    whole = (*epilogue, *after)
    dtypes: Dtypes = {SRC: stored_dtype(storages[data]), WEIGHTS: INT8, DST: stored_dtype(target)}
    dtypes.update(_operands(whole, storages, 0))
    return replace(chain, epilogue=whole, own=tuple(own)), dtypes


def _sum(chain: Chain, storages: Mapping[int, Storage], target: Storage) -> tuple[Chain, Dtypes]:
    """The sum in units of the second operand's steps: the first one is multiplied by the ratio of both.

    The product is the primitive, and the sum is its first post-op.
    """
    first, *rest = chain.epilogue
    assert isinstance(first, Combine)
    left, right = (scale_of(storages[value]) for value in (chain.base, first.operand))
    unit, after = in_units((first, *rest), scales_of(storages), scale_of(target))
    assert unit == right
    made = multiplied(replace(chain, epilogue=after), left / right)
    dtypes: Dtypes = {SRC: stored_dtype(storages[chain.base]), DST: stored_dtype(target)}
    dtypes.update(_operands(made.epilogue, storages, 1))
    return made, dtypes


def _operands(epilogue: tuple[EpilogueOp, ...], storages: Mapping[int, Storage], before: int) -> Dtypes:
    """The dtypes of operands; ``before`` of the functions are no post-ops, but the primitive itself."""
    return {
        PostOpOperand(place - before): stored_dtype(storages[step.operand])
        for place, step in enumerate(epilogue)
        if place >= before and isinstance(step, Combine) and step.operand in storages
    }


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
