"""The part of an epilogue that comes first and is linear in each channel: it goes into the weights and the bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from collage.backends.chains.chain import Chain, EpilogueOp, Floats
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.graph.decisions import are_powers_of_two, decides, rounds_by_sum

_Doubles: TypeAlias = "npt.NDArray[np.float64]"


@dataclass(frozen=True)
class Folded:
    """result = scale · product + bias, channel by channel, then ``epilogue``; None stands for 1 and 0."""

    scale: Floats | None
    bias: Floats | None
    epilogue: tuple[EpilogueOp, ...]


def fold(chain: Chain, shape: tuple[int, ...], axis: int, *, scales: bool = True) -> Folded:
    """Take the first steps of the epilogue that are linear in each channel; the other ones stay.

    ``shape`` is the result's, and ``axis`` its axis of channels. With ``scales`` False a factor other than 1 is not
    taken, because the root's weights are not constant. Nothing is taken if a sum of the chain rounds a number.
    """
    channels = shape[axis]
    scale, bias = np.ones(channels), np.zeros(channels)
    scaled = shifted = False
    rest = list(chain.epilogue)
    if any(rounds_by_sum(chain.graph, node) for node in chain.operators):
        return Folded(None, None, tuple(rest))
    while rest and (linear := _linear(chain, rest[0], shape, axis, scales)) is not None:
        factor, term = linear
        scale, bias = scale * factor, bias * factor + term
        scaled |= bool((factor != 1).any())
        shifted |= bool(term.any())
        rest.pop(0)
    return Folded(
        scale.astype(np.float32) if scaled else None,
        bias.astype(np.float32) if shifted else None,
        tuple(rest),
    )


def _linear(
    chain: Chain, step: EpilogueOp, shape: tuple[int, ...], axis: int, scales: bool
) -> tuple[_Doubles, _Doubles] | None:
    """The factor and the term of each channel that the step means, or None if it must stay a step."""
    channels = shape[axis]
    if isinstance(step, Eltwise):
        if step.algorithm != DnnlAlgorithm.LINEAR or (step.alpha != 1.0 and not scales):
            return None
        return np.full(channels, step.alpha), np.full(channels, step.beta)
    array = chain.constant(step.operand)
    if array is None or any(n != 1 for i, n in enumerate(step.shape) if i != axis % len(shape)):
        return None
    number = np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))
    ones, zeros = np.ones(channels), np.zeros(channels)
    if step.algorithm is DnnlAlgorithm.ADD:
        return ones, number
    if step.algorithm is DnnlAlgorithm.SUBTRACT:
        return ones, -number
    if not scales:
        return None
    if step.algorithm is DnnlAlgorithm.MULTIPLY:
        return number, zeros
    if step.algorithm is DnnlAlgorithm.DIVIDE:
        if _is_decided(chain) and not are_powers_of_two(number):
            return None  # a product with a rounded reciprocal would decide otherwise
        with np.errstate(divide="ignore", over="ignore"):
            factor = 1 / number
            # If a factor is infinite, so are quotients; but zeros among the weights would become NaN.
            return (factor, zeros) if np.isfinite(factor.astype(np.float32)).all() else None
    return None


def _is_decided(chain: Chain) -> bool:
    """Whether a quotient of the chain is rounded to a whole number or compared."""
    return any(decides(chain.graph, node) for node in chain.operators if node.op == "divide")
