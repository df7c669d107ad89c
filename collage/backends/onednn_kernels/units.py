"""Functions on steps of 8 bits: operands are read as integers, and the result becomes integers again.

What a kernel computes is some number of units. A unit is 1 for most functions. An addition of integers is cheapest in
units of their steps, a relu takes any unit, and the result is stored in units of its own steps. So there are as few
factors as possible: a convolution, an addition and a relu need two, of which the first is part of the convolution's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Combine, EpilogueOp
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise

_SUMS = (DnnlAlgorithm.ADD, DnnlAlgorithm.SUBTRACT, DnnlAlgorithm.MAXIMUM, DnnlAlgorithm.MINIMUM)


def in_units(
    steps: Iterable[EpilogueOp], scales: Mapping[int, float], result: float
) -> tuple[float, tuple[EpilogueOp, ...]]:
    """The unit that the functions begin in, and the functions with the factors between them.

    ``scales`` are the steps of operands, by value, and ``result`` is the unit that they end in. Raises UnsupportedError
    for an operand of 8 bits that is no part of a sum or product.
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
