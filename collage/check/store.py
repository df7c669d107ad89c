"""Reference values on disk, with a file for each value of the graph, so that a fresh worker can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from collage.core.no_room import no_room
from collage.errors import MeasurementError
from collage.graph.dataflow import Array, TensorType, np_dtype

_MAP_ABOVE_BYTES = 1 << 16
_DONE = "complete.json"


class ValueStore:
    """Arrays by value id, as the files ``<id>.npy`` in a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)

    def __contains__(self, value: int) -> bool:
        return self._path(value).exists()

    def save(self, value: int, array: Array) -> None:
        """Write an array. Dtypes that numpy itself does not have (bfloat16) are stored as integers of the same bits.

        Raises MeasurementError when the system refuses, since the disk is full.
        """
        dense = np.ascontiguousarray(array).reshape(array.shape)
        plain = dense if dense.dtype.isbuiltin != 2 else dense.view(f"u{dense.dtype.itemsize}")
        partial = self._path(value).with_suffix(".partial")
        try:
            with no_room("the values of the model"), partial.open("wb") as file:
                np.save(file, plain, allow_pickle=False)
        except MeasurementError:
            partial.unlink(missing_ok=True)
            raise
        os.replace(partial, self._path(value))

    def load(self, value: int, found: TensorType) -> Array:
        """The array of a value, with the shape and dtype of ``found``; a large one is mapped into memory, read-only.

        Raises KeyError for a value that is not known.
        """
        path = self._path(value)
        try:
            large = path.stat().st_size > _MAP_ABOVE_BYTES
            array = np.load(path, mmap_mode="r" if large else None, allow_pickle=False)
        except FileNotFoundError as error:
            raise KeyError(value) from error
        result: Array = np.asarray(array).view(np_dtype(found.dtype)).reshape(found.shape)
        return result

    def mark_complete(self, wrong: Mapping[int, str]) -> None:
        """Note that evaluation has ended, and which conversions are wrong (see ``reference.evaluate``)."""
        partial = self.folder / "complete.partial"
        partial.write_text(json.dumps({str(index): reason for index, reason in wrong.items()}))
        os.replace(partial, self.folder / _DONE)

    def complete(self) -> dict[int, str] | None:
        """What ``mark_complete`` was given, or None before that."""
        try:
            text = (self.folder / _DONE).read_text()
        except FileNotFoundError:
            return None
        return {int(index): reason for index, reason in json.loads(text).items()}

    def _path(self, value: int) -> Path:
        return self.folder / f"{value}.npy"
