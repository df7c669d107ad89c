"""What follows an operation in the same graph: a residual, a bias for each channel, an activation, and a clamp."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from collage.backends.chains.epilogue import Activation, Epilogue
from collage.backends.cudnn_kernels.graph import POINTWISE
from collage.backends.cudnn_kernels.lowered import Lowering

__all__ = ["EpilogueStep", "append", "steps_of"]

_FUNCTIONS = {
    Activation.GELU: ("GELU_FWD", ()),
    Activation.TANH: ("TANH_FWD", ()),
    Activation.SIGMOID: ("SIGMOID_FWD", ()),
    Activation.SWISH: ("SWISH_FWD", (1.0,)),
    Activation.GELU_TANH: ("GELU_APPROX_TANH_FWD", ()),
}


@dataclass(frozen=True)
class EpilogueStep:
    """A function of each element, by cuDNN's name, with an operand that is a tensor's position, or with numbers."""

    function: str
    operand: int | None = None
    numbers: tuple[float, ...] = ()


def steps_of(lowering: Lowering, epilogue: Epilogue, bias: int | None, residual: int | None) -> Iterator[EpilogueStep]:
    """The steps of an epilogue.

    A residual that is added before the activation comes before the bias, as in the library's fixed patterns.
    """
    if residual is not None and epilogue.residual_first:
        yield EpilogueStep("ADD", residual)
    if bias is not None:
        yield EpilogueStep("ADD", bias)
    if epilogue.activation is not Activation.NONE:
        function, numbers = _FUNCTIONS[epilogue.activation]
        yield EpilogueStep(function, None, numbers)
    yield from _clamped(lowering, epilogue.low, epilogue.high)
    if residual is not None and not epilogue.residual_first:
        yield EpilogueStep("ADD", residual)


def _clamped(lowering: Lowering, low: float, high: float) -> Iterator[EpilogueStep]:
    if (low, high) == (0.0, math.inf):
        yield EpilogueStep("RELU_FWD")
    elif math.isfinite(low):
        yield EpilogueStep("RELU_FWD", None, (low,) if math.isinf(high) else (low, high))
    elif math.isfinite(high):
        yield EpilogueStep("MIN", lowering.maker.scalar(high, 4))


def append(lowering: Lowering, start: int, steps: list[EpilogueStep], output: int) -> None:
    """Add the steps to the graph: from what is at ``start`` to the ``output``. There is at least one."""
    at = start
    for number, step in enumerate(steps):
        made = output if number == len(steps) - 1 else lowering.maker.like(start)
        operands = (at,) if step.operand is None else (at, step.operand)
        at = lowering.maker.run(POINTWISE, operands, made, step.function, *step.numbers)
