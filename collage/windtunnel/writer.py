"""An ONNX graph under construction, in which one-hot codes and embeddings stay gathers.

It imports no torch.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from collage.frontend.trees.graph import Graph

LARGEST_TABLE = 1 << 26
"""Bytes up to which the product of a table and weights becomes a table itself."""
_WIDE = 16
"""A gather of a product's row costs as much as a product with about so many columns."""


@dataclass(frozen=True)
class Plain:
    """Columns of the graph, [rows, width]. ``missing`` says whether they may have NaN or infinities."""

    name: str
    width: int
    missing: bool = False


@dataclass(frozen=True, eq=False)
class Hot:
    """The rows of a table that the codes of a column, [rows], choose."""

    code: str
    table: NDArray[np.float64]

    @property
    def missing(self) -> bool:
        return bool(np.isnan(self.table).any())

    @property
    def width(self) -> int:
        return int(self.table.shape[1])


Value: TypeAlias = "tuple[Plain | Hot, ...]"
"""Columns side by side."""


@dataclass(frozen=True)
class Bounded:
    """Columns without NaN and infinities, and for some columns 1 for each NaN that was there, else 0."""

    filled: Value
    absent: tuple[tuple[Plain | Hot, slice], ...]


class Writer(Graph):
    """A graph whose numbers are of one dtype. None of its values has a name that is ``taken``, by an input."""

    def __init__(self, dtype: Any, taken: Collection[str] = ()) -> None:
        super().__init__()
        self.dtype = np.dtype(dtype)
        self._taken = frozenset(taken)

    def name(self, of: str) -> str:
        return self.free(super().name(of))

    def free(self, name: str) -> str:
        """The name, with underscores if it is taken."""
        while name in self._taken:
            name += "_"
        return name

    def of(self, dtype: Any) -> Writer:
        """A writer of the same graph for numbers of another dtype."""
        other = copy.copy(self)
        other.dtype = np.dtype(dtype)
        return other

    def converted(self, value: Value) -> Value:
        """A value of a writer of another dtype."""
        return tuple(
            each if isinstance(each, Hot) else replace(each, name=self.cast(each.name, self.dtype)) for each in value
        )

    def number(self, values: Any) -> str:
        """The name of a constant."""
        return self.constant(np.asarray(values, self.dtype))

    def cast(self, name: str, dtype: Any) -> str:
        return self.op("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def plain(self, name: str, width: int, *, missing: bool = False) -> Value:
        return (Plain(name, width, missing),)

    def dense(self, value: Value) -> str:
        """All columns as one value of the graph."""
        names = [each.name if isinstance(each, Plain) else self._gather(each) for each in value]
        return names[0] if len(names) == 1 else self.op("Concat", *names, axis=1)

    def affine(
        self, value: Value, factor: NDArray[np.float64], shift: NDArray[np.float64], *, divides: bool = False
    ) -> Value:
        """``x * factor + shift``, or ``(x - shift) / factor``, column by column."""
        scale = ("Div" if divides else "Mul", factor, 1)
        move = ("Sub" if divides else "Add", shift, 0)
        found: list[Plain | Hot] = []
        for each, columns in spans(value):
            if isinstance(each, Hot):
                table = each.table * factor[columns] + shift[columns]
                if divides:
                    table = (each.table - shift[columns]) / factor[columns]
                found.append(Hot(each.code, table))
                continue
            name = each.name
            for kind, numbers, nothing in (move, scale) if divides else (scale, move):
                if (numbers[columns] != nothing).any():
                    name = self.op(kind, name, self.number(numbers[columns]))
            found.append(Plain(name, each.width, each.missing))
        return tuple(found)

    def bounded(self, value: Value, most: float) -> Bounded:
        """Columns with 0 for NaN, and at most ``most`` in size."""
        found: list[Plain | Hot] = []
        absent: list[tuple[Plain | Hot, slice]] = []
        for each, columns in spans(value):
            if not each.missing:
                found.append(each)
                continue
            if isinstance(each, Hot):
                gone = np.isnan(each.table)
                found.append(Hot(each.code, np.where(gone, 0.0, each.table)))
                absent.append((Hot(each.code, gone.astype(np.float64)), columns))
                continue
            nan = self.op("IsNaN", each.name)
            name = self.op("Where", nan, self.number(0), each.name)
            found.append(Plain(self.op("Clip", name, self.number(-most), self.number(most)), each.width))
            absent.append((Plain(self.cast(nan, self.dtype), each.width), columns))
        return Bounded(tuple(found), tuple(absent))

    def product(self, value: Value, weight: NDArray[np.float64], bias: NDArray[np.float64] | None = None) -> str:
        """``x @ weight + bias``. If it pays, the product of a table is a table, whose rows are gathered and added."""
        terms: list[str] = []
        rest: list[Plain | Hot] = []
        rows: list[NDArray[np.float64]] = []
        outputs = weight.shape[1]
        for each, columns in spans(value):
            small = isinstance(each, Hot) and len(each.table) * outputs * self.dtype.itemsize <= LARGEST_TABLE
            if isinstance(each, Hot) and small and each.width >= min(_WIDE, outputs):
                terms.append(self._gather(Hot(each.code, each.table @ weight[columns])))
            else:
                rest.append(each)
                rows.append(weight[columns])
        if rest:
            joined = self.number(np.concatenate(rows))
            given = [] if bias is None else [self.number(bias)]
            terms.append(self.op("Gemm" if given else "MatMul", self.dense(tuple(rest)), joined, *given))
        elif bias is not None:
            terms.append(self.number(bias[None]))
        return terms[0] if len(terms) == 1 else self.op("Sum", *terms)

    def _gather(self, hot: Hot) -> str:
        return self.op("Gather", self.number(hot.table), hot.code, axis=0)


def spans(value: Value) -> list[tuple[Plain | Hot, slice]]:
    """The segments of a value with their columns."""
    found, start = [], 0
    for each in value:
        found.append((each, slice(start, start + each.width)))
        start += each.width
    return found
