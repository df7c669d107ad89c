"""Plans whose values and weights are bfloat16, made of the plans for float32.

A narrow variant has the order, the split and the arguments of a float32 one. Only the dtypes of its tensors and the
offsets in its buffers differ, so that everything about layouts and shares is planned once. Sums, biases and what is
known for each channel stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collage.backends.chains.chain import Chain, Combine
from collage.backends.chains.strided import FLOAT_BYTES
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.description import ITEM_BYTES
from collage.backends.onednn_kernels.operations import Binary, Operation
from collage.backends.onednn_kernels.plan import WEIGHTS, Argument, Input, Output, Plan, PostOpOperand, Share
from collage.backends.onednn_kernels.primitive import TENSORS
from collage.graph.storage import BF16, PLAIN, is_narrow, narrowed, widened
from collage.kernel.options import Variant


@dataclass(frozen=True)
class Ends:
    """Which ends of a chain are narrow: the data that its root reads, and its result with operands of that shape."""

    data: bool
    result: bool


BOTH, DATA, RESULT = Ends(True, True), Ends(True, False), Ends(False, True)


def narrow_variants(chain: Chain, wide: Sequence[Variant], ends: Sequence[Ends]) -> Iterator[Variant]:
    """Variants in bfloat16 for each of the ``wide`` ones. What has one number for a channel or a row stays wide."""
    operands = {each.operand: each.shape for each in chain.epilogue if isinstance(each, Combine)}
    direct = {chain.base} if chain.base in chain.inputs else {*chain.root.inputs}

    def end(value: int, which: Ends) -> bool:
        if value in direct or value not in operands:
            return which.data
        return which.result and operands[value] == chain.shape == chain.type_of(value).shape

    for variant in wide:
        inputs = variant.inputs or (PLAIN,) * len(chain.inputs)
        outputs = variant.outputs or (PLAIN,)
        for which in ends:
            yield Variant(
                tuple(
                    narrowed(storage, BF16) if end(value, which) else storage
                    for value, storage in zip(chain.inputs, inputs, strict=True)
                ),
                tuple(narrowed(each, BF16) if which.result else each for each in outputs),
                variant.split,
                BF16,
            )


def wide_variant(variant: Variant) -> Variant:
    """The float32 variant that a narrow one was made of."""
    inputs, outputs = (tuple(map(widened, side)) for side in (variant.inputs, variant.outputs))
    return Variant(inputs, outputs, variant.split)


def narrow(draft: Draft, variant: Variant) -> Draft:
    """The plan of a float32 variant with the dtypes of a narrow one, whose packed weights are bfloat16."""
    steps = tuple(tuple(_narrow(share, variant) for share in step) for step in draft.plan.steps)
    return replace(draft, plan=Plan(steps))


def _narrow(share: Share, variant: Variant) -> Share:
    operation, arguments = share.operation, []
    for each in share.arguments:
        if _is_narrow(each, variant):
            operation = with_dtype(operation, each.number, BF16)
            buffer = each.buffer
            if isinstance(buffer, (Input, Output)):
                buffer = replace(buffer, offset=buffer.offset // FLOAT_BYTES * ITEM_BYTES[BF16])
            each = replace(each, buffer=buffer)
        arguments.append(each)
    return Share(operation, tuple(arguments))


def _is_narrow(argument: Argument, variant: Variant) -> bool:
    buffer = argument.buffer
    if isinstance(buffer, Input):
        return is_narrow(variant.inputs[buffer.index])
    if isinstance(buffer, Output):
        return is_narrow(variant.outputs[buffer.index])
    return argument.number == WEIGHTS


def with_dtype(operation: Operation, number: int | PostOpOperand, dtype: str) -> Operation:
    """The operation with the tensor of one argument in another dtype."""
    if not isinstance(number, PostOpOperand):
        name = TENSORS[number]
        changed: Operation = replace(operation, **{name: replace(getattr(operation, name), dtype=dtype)})
        return changed
    post_ops = [*operation.post_ops]
    step = post_ops[number.position]
    assert isinstance(step, Binary)
    post_ops[number.position] = replace(step, operand=replace(step.operand, dtype=dtype))
    return replace(operation, post_ops=tuple(post_ops))
