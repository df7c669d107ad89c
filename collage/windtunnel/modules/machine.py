"""Factorisation machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.frontend.trees.graph import Graph
from collage.windtunnel.modules.part import Part, Tensor, array


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

    def export(self, graph: Graph, *inputs: str) -> str:
        factors = array(self.factors)
        of_sum = graph.op("MatMul", *inputs, graph.constant(factors))
        squares = graph.op("MatMul", graph.op("Mul", *inputs, *inputs), graph.constant(factors * factors))
        both = graph.op("Sub", graph.op("Mul", of_sum, of_sum), squares)
        pairs = graph.op("ReduceSum", both, graph.constant([1], np.int64))
        half = graph.op("Mul", pairs, graph.constant(0.5, np.float32))
        line = graph.op("Gemm", *inputs, graph.constant(array(self.weights)), graph.constant(array(self.bias)))
        return graph.op("Add", line, half)
