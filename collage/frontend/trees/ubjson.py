"""UBJSON, as XGBoost writes it, to the values that ``json`` gives. Numbers of one type become an array.

See https://ubjson.org, draft 12. A container with a type and a count has no markers between its values.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from collage.errors import ModelError

_DEEPEST = 64
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_FORMATS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_CONSTANTS = {"Z": None, "T": True, "F": False}


def read_ubjson(data: bytes, what: str) -> Any:
    """The value in ``data``. Raises ModelError, which ``what`` names the file in."""
    reader = _Reader(data, what)
    found = reader.value(reader.marker(), 0)
    if reader.at != len(data):
        raise reader.error("more follows its end")
    return found


class _Reader:
    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what, self.at = data, what, 0

    def error(self, text: str) -> ModelError:
        return ModelError(f"{self._what} is no UBJSON, or is damaged: at byte {self.at:,}, {text}.")

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self.at:
            raise self.error(f"{count:,} bytes are announced, and {len(self._data) - self.at:,} are left")
        self.at += count
        return self._data[self.at - count : self.at]

    def marker(self) -> str:
        """The next marker. ``N`` means nothing, and is skipped."""
        while (found := self.take(1)) == b"N":
            pass
        return found.decode("latin-1")

    def value(self, kind: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise self.error(f"values are nested deeper than {_DEEPEST}")
        if kind == "{":
            return self._object(depth)
        if kind == "[":
            return self._array(depth)
        if kind in _FORMATS:
            fmt = _FORMATS[kind]
            return struct.unpack(fmt, self.take(struct.calcsize(fmt)))[0]
        if kind == "S":
            return self._text()
        if kind == "C":
            return self.take(1).decode("latin-1")
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        raise self.error(f"the marker {kind!r} is unknown")

    def _count(self) -> int:
        kind = self.marker()
        if kind not in "iUIlL":
            raise self.error(f"{kind!r} is no marker of a count")
        count = self.value(kind, 0)
        if count < 0:
            raise self.error("a count is negative")
        return int(count)

    def _text(self) -> str:
        try:
            return self.take(self._count()).decode()
        except UnicodeDecodeError as error:
            raise self.error("text is no UTF-8") from error

    def _header(self) -> tuple[str, int | None, str]:
        """The type and the count of the container that starts here, and the marker that follows without a type."""
        marker, kind = self.marker(), ""
        if marker == "$":
            kind = self.take(1).decode("latin-1")
            marker = self.marker()
            if marker != "#":
                raise self.error("a container has a type and no count")
        if marker == "#":
            return kind, self._count(), ""
        return "", None, marker

    def _array(self, depth: int) -> Any:
        kind, count, marker = self._header()
        if count is not None and kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))
        self._check_room(kind, count)
        found: list[Any] = []
        while (count is None and marker != "]") or (count is not None and len(found) < count):
            found.append(self.value(kind or marker or self.marker(), depth + 1))
            marker = self.marker() if count is None else ""
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        kind, count, marker = self._header()
        self._check_room(kind, count)
        found: dict[str, Any] = {}
        read = 0
        while (count is None and marker != "}") or (count is not None and read < count):
            if count is None:
                self.at -= 1  # the marker of the name's length
            name = self._text()
            if name in found:
                raise self.error(f"the name {name[:40]!r} is there twice")
            found[name] = self.value(kind or self.marker(), depth + 1)
            read += 1
            marker = self.marker() if count is None else ""
        return found

    def _check_room(self, kind: str, count: int | None) -> None:
        """Raise ModelError for more values than bytes: constants of one type would take none."""
        if count is not None and count > len(self._data) - self.at:
            raise self.error(f"{count:,} values are announced, and {len(self._data) - self.at:,} bytes are left")
