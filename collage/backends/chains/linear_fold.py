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
    """Split off what follows the root and is linear in each channel (those of ``axis``).

    ``scales`` tells whether the root's weights are constant, so that a factor can go into them.
    """
    channels = shape[axis]
    scale, bias = np.ones(channels), np.zeros(channels)
    scaled = shifted = False
    rest = list(chain.epilogue)
    if any(rounds_by_sum(chain.graph, node) for node in chain.operators):
        return Folded(None, None, tuple(rest))
    while rest:
        step = rest[0]
        if isinstance(step, Eltwise):
            if step.algorithm != DnnlAlgorithm.LINEAR or (step.alpha != 1.0 and not scales):
                break
            factor, term = np.full(channels, step.alpha), np.full(channels, step.beta)
        else:
            array = chain.constant(step.operand)
            if array is None or any(n != 1 for i, n in enumerate(step.shape) if i != axis % len(shape)):
                break
            number = np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))
            if (
                step.algorithm is DnnlAlgorithm.DIVIDE
                and not are_powers_of_two(number)
                and _is_decided(chain)
            ):
                break  # a product with a rounded reciprocal would decide otherwise
            made = _linear(step.algorithm, number)
            if made is None or (
                not scales and step.algorithm in (DnnlAlgorithm.MULTIPLY, DnnlAlgorithm.DIVIDE)
            ):
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


def _is_decided(chain: Chain) -> bool:
    """Whether a quotient of the chain is rounded to a whole number or compared."""
    return any(decides(chain.graph, node) for node in chain.operators if node.op == "divide")


def _linear(algorithm: DnnlAlgorithm, number: _Doubles) -> tuple[_Doubles, _Doubles] | None:
    """The factor and the term that combining with a number means."""
    ones, zeros = np.ones(number.shape), np.zeros(number.shape)
    if algorithm is DnnlAlgorithm.DIVIDE:
        with np.errstate(divide="ignore", over="ignore"):
            factor = 1 / number
            # Quotients are infinite where the factor is, but zeros among the weights would become NaN.
            return (factor, zeros) if np.isfinite(factor.astype(np.float32)).all() else None
    return {
        DnnlAlgorithm.ADD: (ones, number),
        DnnlAlgorithm.SUBTRACT: (ones, -number),
        DnnlAlgorithm.MULTIPLY: (number, zeros),
    }.get(algorithm)
