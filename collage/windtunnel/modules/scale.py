"""Scalers and normalisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from collage.windtunnel.modules.part import Part, Tensor, array
from collage.windtunnel.writer import Value, Writer


class Scale(Part):
    """``x * factor + shift``, or ``(x - shift) / factor``, column by column, perhaps limited to ``low`` and ``high``.

    Each as scikit-learn computes it: a tree behind it may have its threshold at a number of the training rows.
    """

    takes_missing = True

    @classmethod
    def of(cls, factor: Any, shift: Any, limits: tuple[float, float] | None = None, *, divides: bool = False) -> Scale:
        """``divides``: the second form."""
        factor, shift = np.asarray(factor, np.float64), np.asarray(shift, np.float64)
        about = {"width": len(factor), "limits": limits and list(limits), "divides": divides}
        return cls({"factor": factor, "shift": shift}, {}, **about)

    def forward(self, x: Tensor) -> Tensor:
        divides = self.settings.get("divides", False)
        x = (x - self.shift) / self.factor if divides else x * self.factor + self.shift
        return x if self.settings["limits"] is None else x.clamp(*self.settings["limits"])

    def export(self, to: Writer, *inputs: Value) -> Value:
        divides = self.settings.get("divides", False)
        found = to.affine(inputs[0], array(self.factor), array(self.shift), divides=divides)
        if self.settings["limits"] is None:
            return found
        missing = any(segment.missing for segment in found)
        low, high = map(to.number, self.settings["limits"])
        return to.plain(to.op("Clip", to.dense(found), low, high), self.width, missing=missing)


class Fill(Part):
    """Missing numbers replaced by one for each column: an imputer."""

    takes_missing = settles = True

    @classmethod
    def of(cls, values: Any) -> Fill:
        """``values`` are NaN for columns that stay."""
        values = np.asarray(values, np.float64)
        return cls({"values": values}, {}, width=len(values))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.isnan(x), self.values, x)

    def export(self, to: Writer, *inputs: Value) -> Value:
        x = to.dense(inputs[0])
        values = array(self.values)
        found = to.op("Where", to.op("IsNaN", x), to.number(values), x)
        return to.plain(found, self.width, missing=bool(np.isnan(values).any()))


class Absent(Part):
    """1 for NaN in some columns, else 0. No gradient passes."""

    takes_missing = settles = True

    @classmethod
    def of(cls, columns: Any) -> Absent:
        return cls({}, {"columns": np.asarray(columns, np.int64)}, width=len(columns))

    def forward(self, x: Tensor) -> Tensor:
        return torch.isnan(x.index_select(1, self.columns)).to(x.dtype)

    def export(self, to: Writer, *inputs: Value) -> Value:
        x = to.op("Gather", to.dense(inputs[0]), to.constant(array(self.columns)), axis=1)
        return to.plain(to.cast(to.op("IsNaN", x), to.dtype), self.width)


class Normalise(Part):
    """Each row divided by its norm: l1, l2 or max."""

    @classmethod
    def of(cls, norm: str, width: int) -> Normalise:
        return cls({}, {}, width=width, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        order = {"l1": 1, "l2": 2, "max": torch.inf}[self.settings["norm"]]
        size = torch.linalg.vector_norm(x, order, 1, keepdim=True)
        return x / torch.where(size == 0, torch.ones_like(size), size)

    def export(self, to: Writer, *inputs: Value) -> Value:
        x, axis = to.dense(inputs[0]), to.constant([1], np.int64)
        if self.settings["norm"] == "max":
            size = to.op("ReduceMax", to.op("Abs", x), axis)
        else:
            size = to.op({"l1": "ReduceL1", "l2": "ReduceL2"}[self.settings["norm"]], x, axis)
        safe = to.op("Where", to.op("Equal", size, to.number(0)), to.number(1), size)
        return to.plain(to.op("Div", x, safe), self.width)
