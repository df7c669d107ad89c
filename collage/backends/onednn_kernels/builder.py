"""Collecting the shares of a plan, and the constants that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp, Floats
from collage.backends.chains.functions import Eltwise
from collage.backends.chains.strided import FLOAT_BYTES, AxisRange, dense
from collage.backends.onednn_kernels.description import Description, laid_out, view
from collage.backends.onednn_kernels.operations import Binary, Operation, PostOp
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
from collage.graph.dataflow import Array
from collage.graph.storage import BLOCK, BLOCKED, PLAIN, Storage, to_layout
from collage.kernel.options import Variant


def variant_of(chain: Chain, data: Sequence[int], source: Storage, target: Storage, split: str) -> Variant:
    """A variant with values ``data`` in ``source``, and the result and operands of its shape in ``target``.

    All other values are plain.
    """
    layouts = dict.fromkeys(chain.inputs, PLAIN)
    for each in chain.epilogue:
        if isinstance(each, Combine) and each.operand in layouts:
            whole = chain.type_of(each.operand).shape == each.shape == chain.shape
            layouts[each.operand] = target if whole else PLAIN
    layouts.update(dict.fromkeys(data, source))
    return Variant(tuple(layouts.values()), (target,), split)


@dataclass(frozen=True)
class Draft:
    """A plan whose constants are not packed yet."""

    plan: Plan
    arrays: tuple[Array, ...]


@dataclass
class StepBuilder:
    """Makes the one step of a plan for a chain in a variant.

    ``shape`` is that of the root's result, as its primitive sees it, and ``epilogue`` the functions that are left
    for post-ops. In a ``flat`` one ranges count elements as they lie in memory, whatever the axis.
    """

    chain: Chain
    variant: Variant
    shape: tuple[int, ...]
    epilogue: tuple[EpilogueOp, ...]
    flat: bool = False
    shares: list[Share] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)

    def constant(self, array: Array) -> Weight:
        """A constant of the kernel. An array that was added before is not added again."""
        for index, known in enumerate(self.arrays):
            if known.ctypes.data == array.ctypes.data and known.shape == array.shape:
                return Weight(index)
        self.arrays.append(array)
        return Weight(len(self.arrays) - 1)

    def add(self, operation: Operation, arguments: Sequence[tuple[int, Buffer]], where: AxisRange | None) -> None:
        """Add a share that computes ``where`` of the result, or all of it, with the chain's post-ops."""
        post_ops, operands = self._post_ops(where)
        numbered = tuple(Argument(number, buffer) for number, buffer in arguments)
        self.shares.append(Share(replace(operation, post_ops=post_ops), (*numbered, *operands)))

    def draft(self) -> Draft:
        """The plan and the constants that were collected."""
        return Draft(Plan((tuple(self.shares),)), tuple(self.arrays))

    def input_layout(self, value: int) -> Storage:
        """The layout in which the variant has an input of the subgraph."""
        place = self.chain.inputs.index(value)
        return self.variant.inputs[place] if self.variant.inputs else PLAIN

    @property
    def output_layout(self) -> Storage:
        """The layout of the result."""
        return self.variant.outputs[0] if self.variant.outputs else PLAIN

    def input_part(self, value: int, dims: tuple[int, ...], where: AxisRange | None) -> tuple[Description, Input]:
        """Part of an input, seen with these dimensions."""
        description, offset = self._part(dims, self.input_layout(value), where)
        return description, Input(self.chain.inputs.index(value), offset)

    def output_part(self, where: AxisRange | None) -> tuple[Description, Output]:
        """Part of the result."""
        description, offset = self._part(self.shape, self.output_layout, where)
        return description, Output(0, offset)

    def _post_ops(self, where: AxisRange | None) -> tuple[tuple[PostOp, ...], list[Argument]]:
        made: list[PostOp] = []
        arguments: list[Argument] = []
        for each in self.epilogue:
            if isinstance(each, Eltwise):
                made.append(each)
                continue
            if _is_misread(self.shape, each.shape):
                raise UnsupportedError("oneDNN misreads an operand of one number a channel for points")
            description, buffer = self.operand(each, where)
            arguments.append(Argument(PostOpOperand(len(made)), buffer))
            made.append(Binary(each.algorithm, description))
        return tuple(made), arguments

    def operand(self, step: Combine, where: AxisRange | None) -> tuple[Description, Buffer]:
        """What a share needs of the tensor that its part of the result is combined with.

        A single number has one axis, as oneDNN has no tensors without any.
        """
        shape = step.shape or (1,)
        if self.flat and shape != self.shape:
            raise UnsupportedError(f"an operand of {shape} does not lie like the result")
        cuts = where is not None and (self.flat or shape[where.axis] > 1)
        layout = self._operand_layout(shape)
        array = self.chain.constant(step.operand)
        if array is not None:
            return self._constant_operand(array.reshape(shape), layout, where if cuts else None)
        given = self.input_layout(step.operand)
        if given != layout and not _same_bytes(shape, given, layout):
            raise UnsupportedError(f"an operand is in {given} layout, not {layout}")
        description, offset = self._part(shape, layout, where if cuts else None)
        return description, Input(self.chain.inputs.index(step.operand), offset)

    def _operand_layout(self, shape: tuple[int, ...]) -> Storage:
        """How an operand of that shape must lie. Blocked kernels want one number a channel in blocks, too."""
        layout = self.output_layout
        if shape == self.shape or (layout == BLOCKED and shape[1] == self.shape[1] > 1):
            return layout
        return PLAIN

    def _constant_operand(self, array: Floats, layout: Storage, where: AxisRange | None) -> tuple[Description, Buffer]:
        description, _ = self._part(array.shape, layout, where)
        if self.flat:
            stored = to_layout(array, layout).reshape(-1)
            return description, self.constant(stored if where is None else stored[where.start : where.stop])
        if where is not None:
            array = np.take(array, range(where.start, where.stop), where.axis)
            description = laid_out(array.shape, layout)
        return description, self.constant(to_layout(array, layout))

    def _part(self, dims: tuple[int, ...], layout: Storage, where: AxisRange | None) -> tuple[Description, int]:
        if where is None:
            return laid_out(dims, layout), 0
        if self.flat:
            return dense((where.stop - where.start,)), where.start * FLOAT_BYTES
        return view(dims, layout, where.axis, where.start, where.stop)


def _is_misread(shape: tuple[int, ...], operand: tuple[int, ...]) -> bool:
    """Whether oneDNN 3.2 would take the first channel's number for all: (N, C, 1) and an operand (1, C, 1), N > 1."""
    points = len(shape) > 2 and shape[0] > 1 and all(extent == 1 for extent in shape[2:])
    return points and operand[0] == 1 < operand[1]


def _same_bytes(shape: tuple[int, ...], one: Storage, other: Storage) -> bool:
    """Whether a tensor with one element a channel lies alike in two layouts."""
    points = len(shape) > 2 and all(extent == 1 for extent in shape[2:])
    return points and (BLOCKED not in (one, other) or shape[1] % BLOCK == 0)
