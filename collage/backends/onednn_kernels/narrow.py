"""Plans whose tensors are bfloat16 or integers of 8 bits, made of the plans for float32.

They have the order, the split and the arguments of a float32 plan. Only the dtypes of tensors and the offsets in
buffers differ, so that layouts and shares are planned once. Sums, biases and factors of channels stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.chains.chain import Chain, Combine
from collage.backends.chains.strided import FLOAT_BYTES
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.description import INT8, ITEM_BYTES, UINT8
from collage.backends.onednn_kernels.operations import Binary, Operation
from collage.backends.onednn_kernels.plan import WEIGHTS, Argument, Input, Output, Plan, PostOpOperand, Share
from collage.backends.onednn_kernels.primitive import TENSORS
from collage.graph.formats import Narrow
from collage.graph.storage import BF16, PLAIN, Storage, is_narrow, narrowed, widened
from collage.kernel.options import Variant

DTYPES = {"float32": "", "int8": INT8, "uint8": UINT8}
"""The dtypes of descriptions by those of values."""

STORED_DTYPES = {**DTYPES, "bfloat16": BF16}
"""Those of stored values, which may be narrower than the values themselves."""


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
    return _retyped(draft, lambda each: BF16 if _is_narrow(each, variant) else "")


def typed(draft: Draft, dtypes: Mapping[int | PostOpOperand, str]) -> Draft:
    """The plan with other dtypes of tensors than float32, by the numbers of their arguments."""
    return _retyped(draft, lambda each: dtypes.get(each.number, ""))


def stored_dtype(storage: Storage) -> str:
    """The dtype of descriptions of float32 values in a storage."""
    found = storage.format
    return STORED_DTYPES[found.dtype] if isinstance(found, Narrow) else ""


def _retyped(draft: Draft, dtype_of: Callable[[Argument], str]) -> Draft:
    def of_share(share: Share) -> Share:
        operation, arguments = share.operation, []
        for each in share.arguments:
            if dtype := dtype_of(each):
                operation = _with_dtype(operation, each.number, dtype)
                if isinstance(buffer := each.buffer, (Input, Output)):
                    offset = buffer.offset // FLOAT_BYTES * ITEM_BYTES[dtype]
                    each = replace(each, buffer=replace(buffer, offset=offset))
            arguments.append(each)
        return Share(operation, tuple(arguments))

    return replace(draft, plan=Plan(tuple(tuple(map(of_share, step)) for step in draft.plan.steps)))


def _is_narrow(argument: Argument, variant: Variant) -> bool:
    buffer = argument.buffer
    if isinstance(buffer, Input):
        return is_narrow(variant.inputs[buffer.index])
    if isinstance(buffer, Output):
        return is_narrow(variant.outputs[buffer.index])
    return argument.number == WEIGHTS


def _with_dtype(operation: Operation, number: int | PostOpOperand, dtype: str) -> Operation:
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
