"""Factorisation machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.windtunnel.modules.part import Part, Tensor, array
from collage.windtunnel.writer import Value, Writer


class Machine(Part):
    """``bias + x @ weights + Σ over i < j of <factors i, factors j> x_i x_j``; factors [inputs, dimension]."""

    @classmethod
    def of(cls, bias: float, weights: Any, factors: Any) -> Machine:
        weights = np.asarray(weights, np.float64).reshape(-1, 1)
        return cls({"bias": np.array([float(bias)]), "weights": weights, "factors": factors}, {}, width=1)

    def forward(self, x: Tensor) -> Tensor:
        both = (x @ self.factors).square() - x.square() @ self.factors.square()
        return torch.addmm(self.bias, x, self.weights) + 0.5 * both.sum(1, keepdim=True)

    def randomise(self, generator: Any) -> None:
        self.bias.data.zero_()
        self.weights.data.zero_()
        self.factors.data = 0.01 * torch.randn(self.factors.shape, generator=generator, dtype=self.factors.dtype)

    def export(self, to: Writer, *inputs: Value) -> Value:
        x, factors = to.dense(inputs[0]), array(self.factors)
        of_sum = to.product(inputs[0], factors)
        squares = to.op("MatMul", to.op("Mul", x, x), to.number(factors * factors))
        both = to.op("Sub", to.op("Mul", of_sum, of_sum), squares)
        half = to.op("Mul", to.op("ReduceSum", both, to.constant([1], np.int64)), to.number(0.5))
        line = to.product(inputs[0], array(self.weights), array(self.bias))
        return to.plain(to.op("Add", line, half), 1)
