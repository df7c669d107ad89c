"""Encoders of categories as embeddings, which start equal to the encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from collage.windtunnel.modules.part import Part, Tensor, array
from collage.windtunnel.writer import Hot, Value, Writer


class Embed(Part):
    """Source: a table for each column of categories, [categories + 1, width], whose last row is for unknown ones."""

    @classmethod
    def of(cls, columns: Sequence[int], tables: Sequence[Any]) -> Embed:
        """``columns`` are the places of the codes of the columns."""
        width = sum(each.shape[1] for each in tables)
        parameters = {f"table{index}": np.asarray(each, np.float64) for index, each in enumerate(tables)}
        return cls(parameters, {}, width=width, columns=list(map(int, columns)))

    @property
    def tables(self) -> list[Tensor]:
        return [getattr(self, f"table{index}") for index in range(len(self.settings["columns"]))]

    def forward(self, codes: Tensor) -> Tensor:
        columns = self.settings["columns"]
        found = [functional.embedding(codes[:, at], table) for at, table in zip(columns, self.tables, strict=True)]
        return torch.cat(found, 1) if len(found) > 1 else found[0]

    def randomise(self, generator: Any) -> None:
        for table in self.tables:
            spread = table.data.std() if table.numel() > 1 else 1.0
            table.data = torch.randn(table.shape, generator=generator, dtype=table.dtype) * spread

    def export(self, to: Writer, *inputs: Value) -> Value:
        codes = (to.dense(each) for each in inputs)
        return tuple(Hot(code, array(table)) for code, table in zip(codes, self.tables, strict=True))


class OneHot(Part):
    """Source: the identity of a column with many categories. Nothing is learnt here, but in the weights that follow."""

    @classmethod
    def of(cls, column: int, rows: Any) -> OneHot:
        """``rows`` has, for each code, the number of its column, or -1 if it has none."""
        rows = np.asarray(rows, np.int64)
        return cls({}, {"rows": rows}, width=int(rows.max(initial=-1)) + 1, columns=[int(column)])

    def forward(self, codes: Tensor) -> Tensor:
        found = self.rows[codes[:, self.settings["columns"][0]]]
        hot = functional.one_hot(found + 1, self.width + 1)[:, 1:]
        return hot.double()

    def export(self, to: Writer, *inputs: Value) -> Value:
        return (Hot(to.dense(inputs[0]), np.eye(self.width + 1)[:, 1:][array(self.rows) + 1]),)


class Lookup(Part):
    """Source: what a linear operator makes of a one-hot column: the weights of the category, [categories, width]."""

    @classmethod
    def of(cls, hot: OneHot, weights: Any) -> Lookup:
        """``weights`` is [width of the one-hot column, outputs]."""
        known = np.concatenate((np.zeros((1, weights.shape[1])), weights))
        return cls({"table": known[array(hot.rows) + 1]}, {}, width=weights.shape[1], columns=hot.settings["columns"])

    def forward(self, codes: Tensor) -> Tensor:
        return functional.embedding(codes[:, self.settings["columns"][0]], self.table)

    def randomise(self, generator: Any) -> None:
        self.table.data.zero_()

    def export(self, to: Writer, *inputs: Value) -> Value:
        return (Hot(to.dense(inputs[0]), array(self.table)),)


class Sum(Part):
    """The sum of inputs of one width."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return sum(inputs[1:], inputs[0])

    def export(self, to: Writer, *inputs: Value) -> Value:
        return to.plain(to.op("Sum", *map(to.dense, inputs)), self.width)
