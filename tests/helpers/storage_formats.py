"""A storage format, and a device, that Collage does not know: a plug-in's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.graph.dataflow import Array, TensorType
from collage.graph.formats import StorageFormat
from collage.graph.storage import Storage


@dataclass(frozen=True)
class ColumnMajor(StorageFormat):
    """Matrices with their columns one after another, each padded with zeros to a multiple of ``pad`` elements."""

    pad: int

    def problem(self, kind: TensorType) -> str:
        return "" if len(kind.shape) == 2 else "no matrix"

    def stored_type(self, kind: TensorType) -> TensorType:
        rows, columns = kind.shape
        return TensorType((columns, -(-rows // self.pad) * self.pad), kind.dtype)

    def store(self, array: Array) -> Array:
        rows, columns = array.shape
        stored = np.zeros((columns, -(-rows // self.pad) * self.pad), array.dtype)
        stored[:, :rows] = array.T
        return stored

    def restore(self, stored: Array, kind: TensorType) -> Array:
        return np.ascontiguousarray(stored[:, : kind.shape[0]].T)

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        return 0 if axis == 1 else None


COLUMNS = Storage(format=ColumnMajor("column-major", 8))
DEVICE = Storage("npu")
DEVICE_COLUMNS = Storage("npu", COLUMNS.format)
