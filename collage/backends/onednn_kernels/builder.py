"""Collecting the shares of a plan, and the constants that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError, Variant
from collage.backends.onednn_kernels.chain import After, Chain, Combine, Floats
from collage.backends.onednn_kernels.description import (
    Description,
    laid_out,
    view,
)
from collage.backends.onednn_kernels.operations import Operation
from collage.backends.onednn_kernels.plan import (
    Argument,
    Buffer,
    Input,
    Output,
    Plan,
    PostOpOperand,
    Share,
    Weight,
)
from collage.backends.onednn_kernels.post_ops import Algorithm, Binary, Eltwise, PostOp
from collage.graph.dataflow import Array
from collage.graph.layout import Layout, to_layout


@dataclass(frozen=True)
class Range:
    """Elements ``start`` to ``stop`` of an axis."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True)
class Draft:
    """A plan whose constants are not packed yet."""

    plan: Plan
    arrays: tuple[Array, ...]


@dataclass
class Builder:
    """Makes the one step of a plan for a chain in a variant.

    ``shape`` is that of the root's result, as its primitive sees it, and ``after`` the functions that are left
    for post-ops.
    """

    chain: Chain
    variant: Variant
    shape: tuple[int, ...]
    after: tuple[After, ...]
    shares: list[Share] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)

    def constant(self, array: Array) -> Weight:
        """A constant of the kernel; an array that was added before is not added again."""
        for index, known in enumerate(self.arrays):
            if known.ctypes.data == array.ctypes.data and known.shape == array.shape:
                return Weight(index)
        self.arrays.append(array)
        return Weight(len(self.arrays) - 1)

    def add(self, operation: Operation, arguments: Sequence[tuple[int, Buffer]], where: Range | None) -> None:
        """A share that computes ``where`` of the result (all of it: None), with the chain's post-ops."""
        post_ops, operands = self._post_ops(where)
        numbered = tuple(Argument(number, buffer) for number, buffer in arguments)
        self.shares.append(Share(replace(operation, post_ops=post_ops), (*numbered, *operands)))

    def draft(self) -> Draft:
        """What was collected."""
        return Draft(Plan((tuple(self.shares),)), tuple(self.arrays))

    def input_layout(self, value: int) -> Layout:
        """The layout in which the variant has an input of the subgraph."""
        place = self.chain.subgraph.inputs.index(value)
        return self.variant.inputs[place] if self.variant.inputs else Layout.PLAIN

    @property
    def output_layout(self) -> Layout:
        """The layout of the result."""
        return self.variant.outputs[0] if self.variant.outputs else Layout.PLAIN

    def input_part(self, value: int, dims: tuple[int, ...], where: Range | None) -> tuple[Description, Input]:
        """Part of an input, seen with these dimensions."""
        description, offset = _part(dims, self.input_layout(value), where)
        return description, Input(self.chain.subgraph.inputs.index(value), offset)

    def output_part(self, where: Range | None) -> tuple[Description, Output]:
        """Part of the result."""
        description, offset = _part(self.shape, self.output_layout, where)
        return description, Output(0, offset)

    def _post_ops(self, where: Range | None) -> tuple[tuple[PostOp, ...], list[Argument]]:
        made: list[PostOp] = []
        arguments: list[Argument] = []
        for each in self.after:
            if isinstance(each, Eltwise):
                made.append(each)
                continue
            description, buffer = self._operand(each, where)
            arguments.append(Argument(PostOpOperand(len(made)), buffer))
            made.append(Binary(each.algorithm, description))
        return tuple(made), arguments

    def _operand(self, step: Combine, where: Range | None) -> tuple[Description, Buffer]:
        whole = step.shape == self.shape
        layout = self.output_layout if whole else Layout.PLAIN
        cuts = where is not None and step.shape[where.axis] > 1
        array = self.chain.constant(step.operand)
        if array is not None:
            array = array.reshape(step.shape)
            if where is not None and cuts:
                array = np.take(array, range(where.start, where.stop), where.axis)
            return laid_out(array.shape, layout), self.constant(to_layout(array, layout))
        if self.input_layout(step.operand) is not layout:
            raise UnsupportedError(f"an operand in {self.input_layout(step.operand)} layout, not {layout}")
        return self.input_part(step.operand, step.shape, where if cuts else None)


def _part(dims: tuple[int, ...], layout: Layout, where: Range | None) -> tuple[Description, int]:
    if where is None:
        return laid_out(dims, layout), 0
    return view(dims, layout, where.axis, where.start, where.stop)


_Doubles: TypeAlias = "npt.NDArray[np.float64]"


@dataclass(frozen=True)
class Folded:
    """result = scale · product + bias, channel by channel, then ``after``; None for 1 and 0."""

    scale: Floats | None
    bias: Floats | None
    after: tuple[After, ...]


def fold(chain: Chain, shape: tuple[int, ...], axis: int, *, scales: bool = True) -> Folded:
    """Split off what follows the root and is linear in each channel (those of ``axis``).

    ``scales`` tells whether the root's weights are constant, so that a factor can go into them.
    """
    channels = shape[axis]
    scale, bias = np.ones(channels), np.zeros(channels)
    scaled = shifted = False
    rest = list(chain.after)
    while rest:
        step = rest[0]
        if isinstance(step, Eltwise):
            if step.algorithm != Algorithm.LINEAR or (step.alpha != 1.0 and not scales):
                break
            factor, term = np.full(channels, step.alpha), np.full(channels, step.beta)
        else:
            array = chain.constant(step.operand)
            if array is None or any(n != 1 for i, n in enumerate(step.shape) if i != axis % len(shape)):
                break
            number = np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))
            made = _linear(step.algorithm.name, number)
            if made is None or (not scales and step.algorithm.name in ("MULTIPLY", "DIVIDE")):
                break
            factor, term = made
        scale, bias = scale * factor, bias * factor + term
        scaled |= bool((factor != 1).any())
        shifted = shifted or bool(term.any())
        rest.pop(0)
    return Folded(
        scale.astype(np.float32) if scaled else None,
        bias.astype(np.float32) if shifted else None,
        tuple(rest),
    )


def _linear(name: str, number: _Doubles) -> tuple[_Doubles, _Doubles] | None:
    """Factor and term that combining with a number means."""
    ones, zeros = np.ones(number.shape), np.zeros(number.shape)
    return {
        "ADD": (ones, number),
        "SUBTRACT": (ones, -number),
        "MULTIPLY": (number, zeros),
        "DIVIDE": (1 / np.where(number == 0, np.nan, number), zeros),
    }.get(name)
