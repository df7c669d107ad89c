"""The epilogue that our own kernels have for their sums: a residual, one of some activations, and a clamp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp
from collage.backends.chains.functions import DnnlAlgorithm as Function
from collage.backends.chains.functions import Eltwise


class Activation(IntEnum):
    """The numbers that epilogue.h has for them."""

    NONE = 0
    GELU = 1
    TANH = 2
    SIGMOID = 3
    SWISH = 4
    GELU_TANH = 5


_ACTIVATIONS = {
    Eltwise(Function.GELU_ERF): Activation.GELU,
    Eltwise(Function.TANH): Activation.TANH,
    Eltwise(Function.SIGMOID): Activation.SIGMOID,
    Eltwise(Function.SWISH, 1.0): Activation.SWISH,
    Eltwise(Function.GELU_TANH): Activation.GELU_TANH,
}


@dataclass(frozen=True)
class Epilogue:
    """clamp(activation(sum [+ residual])) [+ residual], where ``residual`` is a value of the graph."""

    activation: Activation = Activation.NONE
    low: float = -inf
    high: float = inf
    residual: int | None = None
    residual_first: bool = False


def read_epilogue(chain: Chain, ops: Sequence[EpilogueOp], shape: tuple[int, ...]) -> Epilogue:
    """These functions of a result of that shape. Raises UnsupportedError when our kernels do not have them."""
    activation, low, high = Activation.NONE, -inf, inf
    residual, first, clamped = None, False, False
    for each in ops:
        if isinstance(each, Combine):
            if each.algorithm is not Function.ADD or each.shape != shape or residual is not None:
                raise UnsupportedError(
                    f"the kernels have no {each.algorithm.name.lower()} of {each.shape} after the sum"
                )
            if each.operand not in chain.inputs:
                raise UnsupportedError("the kernels add no constant of the result's shape")
            residual, first = each.operand, activation is Activation.NONE and not clamped
            continue
        if residual is not None and not first:
            raise UnsupportedError("a function follows the residual, and another one comes before it")
        if (found := _ACTIVATIONS.get(each)) is not None and activation is Activation.NONE and not clamped:
            activation = found
            continue
        least, most = bounds(each)
        low, high, clamped = min(max(low, least), most), min(max(high, least), most), True
    return Epilogue(activation, low, high, residual, first)


def bounds(each: Eltwise) -> tuple[float, float]:
    """The least and the greatest result of a clamp. Raises UnsupportedError for another function."""
    if each.algorithm == Function.RELU and each.alpha == 0:
        return 0.0, inf
    if each.algorithm == Function.CLIP:
        return each.alpha, each.beta
    raise UnsupportedError(f"the kernels have no {Function(each.algorithm).name.lower()} after the sum")
