"""Naive Bayes, and distances to the centres of KMeans."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.frontend.trees.graph import Graph
from collage.windtunnel.modules.part import Part, Tensor, array


class Quadratic(Part):
    """``-((x - centre)² * factor).sum() + bias`` for each output: the joint log likelihoods of GaussianNB."""

    @classmethod
    def of(cls, centre: Any, factor: Any, bias: Any) -> Quadratic:
        """``centre`` and ``factor`` are [outputs, inputs]; ``factor`` is positive, and learnt as its logarithm."""
        factor = np.log(np.asarray(factor, np.float64))
        return cls({"centre": centre, "log_factor": factor, "bias": bias}, {}, width=len(factor))

    def forward(self, x: Tensor) -> Tensor:
        apart = x[:, None, :] - self.centre
        return self.bias - (apart * apart * self.log_factor.exp()).sum(2)

    def export(self, graph: Graph, *inputs: str) -> str:
        x = graph.op("Unsqueeze", *inputs, graph.constant([1], np.int64))
        apart = graph.op("Sub", x, graph.constant(array(self.centre)))
        parts = graph.op("Mul", graph.op("Mul", apart, apart), graph.constant(np.exp(array(self.log_factor))))
        total = graph.op("ReduceSum", parts, graph.constant([2], np.int64), keepdims=0)
        return graph.op("Sub", graph.constant(array(self.bias)), total)


class Binarise(Part):
    """1 for numbers above a limit, else 0. No gradient passes."""

    @classmethod
    def of(cls, limit: float, width: int) -> Binarise:
        return cls({}, {}, width=width, limit=float(limit))

    def forward(self, x: Tensor) -> Tensor:
        return (x > self.settings["limit"]).to(x.dtype)

    def export(self, graph: Graph, *inputs: str) -> str:
        above = graph.op("Greater", *inputs, graph.constant(self.settings["limit"], np.float32))
        return graph.op("Cast", above, to=1)


class Distances(Part):
    """Euclidean distances to centres, [outputs, inputs]; negative ones if ``sign`` is -1."""

    @classmethod
    def of(cls, centres: Any, sign: int = 1) -> Distances:
        return cls({"centres": np.asarray(centres, np.float64)}, {}, width=len(centres), sign=sign)

    def forward(self, x: Tensor) -> Tensor:
        apart = x[:, None, :] - self.centres
        return self.settings["sign"] * (apart * apart).sum(2).clamp_min(torch.finfo(x.dtype).tiny).sqrt()

    def export(self, graph: Graph, *inputs: str) -> str:
        x = graph.op("Unsqueeze", *inputs, graph.constant([1], np.int64))
        apart = graph.op("Sub", x, graph.constant(array(self.centres)))
        size = graph.op("ReduceL2", apart, graph.constant([2], np.int64), keepdims=0)
        return size if self.settings["sign"] == 1 else graph.op("Neg", size)
