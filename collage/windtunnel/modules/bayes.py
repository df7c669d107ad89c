"""Naive Bayes, and distances to the centres of KMeans."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.windtunnel.modules.part import Part, Tensor, array
from collage.windtunnel.writer import Value, Writer


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

    def export(self, to: Writer, *inputs: Value) -> Value:
        x = to.op("Unsqueeze", to.dense(inputs[0]), to.constant([1], np.int64))
        apart = to.op("Sub", x, to.number(array(self.centre)))
        parts = to.op("Mul", to.op("Mul", apart, apart), to.number(np.exp(array(self.log_factor))))
        total = to.op("ReduceSum", parts, to.constant([2], np.int64), keepdims=0)
        return to.plain(to.op("Sub", to.number(array(self.bias)), total), self.width)


class Binarise(Part):
    """1 for numbers above a limit, else 0. No gradient passes."""

    @classmethod
    def of(cls, limit: float, width: int) -> Binarise:
        return cls({}, {}, width=width, limit=float(limit))

    def forward(self, x: Tensor) -> Tensor:
        return (x > self.settings["limit"]).to(x.dtype)

    def export(self, to: Writer, *inputs: Value) -> Value:
        above = to.op("Greater", to.dense(inputs[0]), to.number(self.settings["limit"]))
        return to.plain(to.cast(above, to.dtype), self.width)


class Distances(Part):
    """Euclidean distances to centres, [outputs, inputs]; negative ones if ``sign`` is -1."""

    @classmethod
    def of(cls, centres: Any, sign: int = 1) -> Distances:
        return cls({"centres": np.asarray(centres, np.float64)}, {}, width=len(centres), sign=sign)

    def forward(self, x: Tensor) -> Tensor:
        apart = x[:, None, :] - self.centres
        return self.settings["sign"] * (apart * apart).sum(2).clamp_min(torch.finfo(x.dtype).tiny).sqrt()

    def export(self, to: Writer, *inputs: Value) -> Value:
        x = to.op("Unsqueeze", to.dense(inputs[0]), to.constant([1], np.int64))
        apart = to.op("Sub", x, to.number(array(self.centres)))
        size = to.op("ReduceL2", apart, to.constant([2], np.int64), keepdims=0)
        return to.plain(size if self.settings["sign"] == 1 else to.op("Neg", size), self.width)
