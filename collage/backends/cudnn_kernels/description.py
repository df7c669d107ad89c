"""What cuDNN is to compute, in its own terms: a convolution, or the gradient of one, and what follows it.

A transposed convolution is the gradient of a convolution with regard to its data: cuDNN is told of the convolution that
leads from its result back to its input. Padding is the same at both ends of an axis there, so that there is none with
more of it at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Convolution"]

_MOST = 2**31 - 1


@dataclass(frozen=True)
class Convolution:
    """The result is relu(conv(source, filter) [+ residual] [+ bias]), with or without the relu, all in float32.

    ``source`` and ``result`` are (N, channels, spatial...). ``filter`` is (outputs, inputs / groups, spatial...), and
    of a transposed one (inputs, outputs / groups, spatial...). Two or three axes are spatial.
    """

    source: tuple[int, ...]
    filter: tuple[int, ...]
    result: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    bias: bool = False
    residual: bool = False
    relu: bool = False

    @property
    def fused(self) -> bool:
        """Whether one call does all of it: there is one for a convolution with a relu."""
        return self.relu and not self.transposed

    @property
    def ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The data and the result of the convolution that cuDNN is told of."""
        return (self.result, self.source) if self.transposed else (self.source, self.result)

    @property
    def filter_elements(self) -> int:
        """The number of weights."""
        return math.prod(self.filter)

    def problem(self) -> str:
        """What is wrong with the numbers, or ""."""
        data, made = self.ends
        rank = len(self.source) - 2
        if rank not in (2, 3) or {len(self.result), len(self.filter)} != {rank + 2}:
            return f"{rank} spatial axes"
        if {len(self.pads), len(self.strides), len(self.dilations)} != {rank}:
            return "paddings, strides or dilations of another number of axes"
        sizes = (*self.source, *self.filter, *self.result, *self.strides, *self.dilations, self.groups)
        if min(sizes) < 1 or min(self.pads) < 0 or max(math.prod(data), math.prod(made)) > _MOST:
            return f"sizes {sizes}"
        if self.residual and not self.fused:
            return "a residual without a relu after it"
        channels = self.filter[1] * self.groups, self.filter[0]
        if (data[1], made[1]) != channels or made[1] % self.groups or data[0] != made[0]:
            return f"{data[1]} channels to {made[1]} by a filter of {self.filter} in {self.groups} groups"
        for axis in range(rank):
            reach = (self.filter[2 + axis] - 1) * self.dilations[axis] + 1
            span = data[2 + axis] + 2 * self.pads[axis] - reach
            if span < 0 or span // self.strides[axis] + 1 != made[2 + axis]:
                return (
                    f"axis {axis}: {data[2 + axis]} elements do not make {made[2 + axis]} with equal paddings"
                )
        return ""
