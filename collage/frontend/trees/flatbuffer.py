"""Reading a flatbuffer without its schema's code: tables, whose fields are numbered, vectors and text.

See https://flatbuffers.dev/internals. Each offset is checked before it is followed.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.errors import ModelError


class FlatBuffer:
    """The bytes of a flatbuffer; ``what`` names them in messages."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self._what = data, what
        # Parts that overlap would be read again and again.
        self._left = 4 * len(data)

    def root(self) -> Table:
        """The outermost table."""
        return Table(self, self.number("<I", 0))

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self._what} is no flatbuffer, or is damaged: {text}.")

    def number(self, form: str, at: int) -> Any:
        """The number of a format of ``struct`` at a position."""
        self.check(at, struct.calcsize(form))
        return struct.unpack_from(form, self.data, at)[0]

    def check(self, at: int, size: int) -> None:
        """Raise ModelError if the bytes from ``at`` on are outside, or if too many have been read."""
        if not 0 <= at <= len(self.data) - size:
            raise self.error(f"it refers to {size:,} bytes at {at:,}, and has {len(self.data):,}")
        self._left -= size
        if self._left < 0:
            raise self.error("its parts overlap")

    def vector(self, at: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The numbers that an offset at ``at`` leads to."""
        start = at + self.number("<I", at)
        count = self.number("<I", start)
        self.check(start + 4, count * dtype.itemsize)
        return np.frombuffer(self.data, dtype, count, start + 4)


class Table:
    """A table, whose fields have numbers. A field that is not there has its default."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer, self._at = buffer, at
        self._fields = at - buffer.number("<i", at)
        self._size = buffer.number("<H", self._fields)

    def _place(self, field: int) -> int | None:
        """Where the field is."""
        index = 4 + 2 * field
        if index + 2 > self._size:
            return None
        offset = self._buffer.number("<H", self._fields + index)
        return self._at + int(offset) if offset else None

    def number(self, field: int, form: str, default: Any) -> Any:
        at = self._place(field)
        return default if at is None else self._buffer.number(form, at)

    def text(self, field: int) -> str:
        try:
            return self.vector(field, "<u1").tobytes().decode()
        except UnicodeDecodeError as error:
            raise self._buffer.error("text is no UTF-8") from error

    def vector(self, field: int, dtype: Any) -> NDArray[Any]:
        """Numbers; none if the field is not there."""
        at = self._place(field)
        return np.zeros(0, dtype) if at is None else self._buffer.vector(at, np.dtype(dtype))

    def table(self, field: int) -> Table | None:
        at = self._place(field)
        return None if at is None else Table(self._buffer, at + self._buffer.number("<I", at))

    def tables(self, field: int) -> list[Table]:
        at = self._place(field)
        if at is None:
            return []
        start = at + self._buffer.number("<I", at) + 4
        offsets = self._buffer.vector(at, np.dtype("<u4"))
        return [Table(self._buffer, start + 4 * i + offset) for i, offset in enumerate(offsets.tolist())]
