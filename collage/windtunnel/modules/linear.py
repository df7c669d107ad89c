"""Linear operators: regressions, linear support vector machines, projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.windtunnel.modules.part import Part, Tensor, array
from collage.windtunnel.writer import Value, Writer


class Linear(Part):
    """``x @ weight + bias``; weight [inputs, outputs]."""

    @classmethod
    def of(cls, weight: Any, bias: Any = 0.0, learnt: bool = True) -> Linear:
        """``learnt`` is false for a projection, which a cold start keeps."""
        weight = np.asarray(weight, np.float64)
        bias = np.zeros(weight.shape[1]) + np.asarray(bias, np.float64)
        return cls({"weight": weight, "bias": bias}, {}, width=weight.shape[1], learnt=learnt)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)

    def randomise(self, generator: Any) -> None:
        if self.settings["learnt"]:
            drawn = torch.randn(self.weight.shape, generator=generator, dtype=self.weight.dtype)
            self.weight.data = drawn / max(1, len(drawn)) ** 0.5
            self.bias.data.zero_()

    def export(self, to: Writer, *inputs: Value) -> Value:
        return to.plain(to.product(inputs[0], array(self.weight), array(self.bias)), self.width)
