"""Scalers and normalisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.frontend.trees.graph import Graph
from collage.windtunnel.modules.part import Part, Tensor, array


class Scale(Part):
    """``x * factor + shift``, column by column, perhaps limited to ``low`` and ``high``."""

    takes_missing = True

    @classmethod
    def of(cls, factor: Any, shift: Any, limits: tuple[float, float] | None = None) -> Scale:
        factor, shift = np.asarray(factor, np.float64), np.asarray(shift, np.float64)
        return cls({"factor": factor, "shift": shift}, {}, width=len(factor), limits=limits and list(limits))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.factor + self.shift
        return x if self.settings["limits"] is None else x.clamp(*self.settings["limits"])

    def export(self, graph: Graph, *inputs: str) -> str:
        x = graph.op("Mul", *inputs, graph.constant(array(self.factor)))
        x = graph.op("Add", x, graph.constant(array(self.shift)))
        if self.settings["limits"] is None:
            return x
        low, high = (graph.constant(each, np.float32) for each in self.settings["limits"])
        return graph.op("Clip", x, low, high)


class Normalise(Part):
    """Each row divided by its norm: l1, l2 or max."""

    @classmethod
    def of(cls, norm: str, width: int) -> Normalise:
        return cls({}, {}, width=width, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        order = {"l1": 1, "l2": 2, "max": torch.inf}[self.settings["norm"]]
        size = torch.linalg.vector_norm(x, order, 1, keepdim=True)
        return x / torch.where(size == 0, torch.ones_like(size), size)

    def export(self, graph: Graph, *inputs: str) -> str:
        axis = graph.constant([1], np.int64)
        if self.settings["norm"] == "max":
            size = graph.op("ReduceMax", graph.op("Abs", *inputs), axis)
        else:
            size = graph.op({"l1": "ReduceL1", "l2": "ReduceL2"}[self.settings["norm"]], *inputs, axis)
        zero = graph.op("Equal", size, graph.constant(0, np.float32))
        return graph.op("Div", *inputs, graph.op("Where", zero, graph.constant(1, np.float32), size))
