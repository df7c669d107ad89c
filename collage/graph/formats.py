"""Storage formats: the order of a value's elements in memory. A backend may add formats of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.graph.dataflow import Array, TensorType, np_dtype


@dataclass(frozen=True)
class StorageFormat(ABC):
    """A storage format: a frozen value that can be pickled. Two formats are the same when they are equal.

    ``name`` stands for it in databases, module files and reports. It has small letters, digits and hyphens.
    """

    name: str

    def problem(self, kind: TensorType) -> str:
        """The reason why no value of logical type ``kind`` can be stored so, or "" (the default) if it can."""
        return ""

    @abstractmethod
    def stored_type(self, kind: TensorType) -> TensorType:
        """The dense type that a value of logical type ``kind`` has in memory."""

    @abstractmethod
    def store(self, array: Array) -> Array:
        """Convert a plain array into a C-contiguous one in this format, with zeros as padding."""

    @abstractmethod
    def restore(self, stored: Array, kind: TensorType) -> Array:
        """The plain array of logical type ``kind`` that ``stored`` holds; the inverse of ``store``."""

    @property
    def in_order(self) -> bool:
        """Whether elements lie in their logical order, so that renaming the axes changes nothing in memory."""
        return False

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        """The stored axis along which the stored parts of a concatenation along ``axis`` follow each other.

        It is None (the default) where the format interleaves or cuts the parts. Then no concatenation is free in it.
        """
        return None


@dataclass(frozen=True)
class Plain(StorageFormat):
    """The format with the axes in their logical order, such as N, C, spatial..."""

    def stored_type(self, kind: TensorType) -> TensorType:
        """The logical type itself."""
        return kind

    def store(self, array: Array) -> Array:
        """Return the array itself."""
        return array

    def restore(self, stored: Array, kind: TensorType) -> Array:
        """Return the array itself."""
        return stored

    @property
    def in_order(self) -> bool:
        """Elements lie in their logical order here."""
        return True

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        """The same axis in memory."""
        return axis


class _OfChannels(StorageFormat):
    """A format of values of 3 to 5 dimensions, of which the second one is the channels."""

    def problem(self, kind: TensorType) -> str:
        """The reason "no channels" for a value that has none."""
        return "" if has_channels(kind) else "no channels"


@dataclass(frozen=True)
class ChannelsLast(_OfChannels):
    """The format N, spatial..., C."""

    def stored_type(self, kind: TensorType) -> TensorType:
        """The type with the channels as its last axis."""
        batch, channels, *spatial = kind.shape
        return TensorType((batch, *spatial, channels), kind.dtype)

    def store(self, array: Array) -> Array:
        """Return a transposed copy."""
        return np.ascontiguousarray(np.moveaxis(array, 1, -1))

    def restore(self, stored: Array, kind: TensorType) -> Array:
        """Return a transposed copy."""
        return np.ascontiguousarray(np.moveaxis(stored, -1, 1))

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        """The position of the axis in the stored type."""
        if axis == 0:
            return 0
        return len(parts[0].shape) - 1 if axis == 1 else axis - 1


@dataclass(frozen=True)
class Blocked(_OfChannels):
    """The format N, C/block, spatial..., block, with padded channels."""

    block: int

    def stored_type(self, kind: TensorType) -> TensorType:
        """The padded type, with the channels in two axes."""
        batch, channels, *spatial = kind.shape
        return TensorType((batch, -(-channels // self.block), *spatial, self.block), kind.dtype)

    def store(self, array: Array) -> Array:
        """Return a padded copy."""
        batch, channels, *spatial = array.shape
        blocks = -(-channels // self.block)
        padded = np.zeros((batch, blocks * self.block, *spatial), array.dtype)
        padded[:, :channels] = array
        return np.ascontiguousarray(np.moveaxis(padded.reshape(batch, blocks, self.block, *spatial), 2, -1))

    def restore(self, stored: Array, kind: TensorType) -> Array:
        """Return a copy without the padding."""
        batch, channels, *spatial = kind.shape
        merged = np.moveaxis(stored, -1, 2).reshape(batch, -1, *spatial)
        return np.ascontiguousarray(merged[:, :channels])

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        """The same axis, or None if a part other than the last one ends within a block."""
        if axis == 1 and any(each.shape[1] % self.block for each in parts[:-1]):
            return None
        return axis


@dataclass(frozen=True)
class Narrow(StorageFormat):
    """The format ``wide``, with float32 values rounded to ``dtype``, which has fewer bits.

    It rounds to the nearest value, and to the even one of two. NaN and infinities stay what they are. ``precision`` is
    the name of the precision that kernels have which read or write it (see ``Variant.precision``).
    """

    wide: StorageFormat
    dtype: str
    precision: str

    def problem(self, kind: TensorType) -> str:
        """The reason for a value that is no float32, or that of the wide format."""
        return "no float32" if kind.dtype != "float32" else self.wide.problem(kind)

    def stored_type(self, kind: TensorType) -> TensorType:
        """The wide format's type, with the narrow dtype."""
        return TensorType(self.wide.stored_type(kind).shape, self.dtype)

    def store(self, array: Array) -> Array:
        """Return a rounded copy. It takes narrow arrays, too."""
        with np.errstate(all="ignore"):  # what is too large becomes infinite
            return self.wide.store(np.asarray(array)).astype(np_dtype(self.dtype), order="C")

    def restore(self, stored: Array, kind: TensorType) -> Array:
        """Return a copy in float32."""
        return self.wide.restore(self.widened(stored), kind)

    @property
    def in_order(self) -> bool:
        """Whether those of the wide format do."""
        return self.wide.in_order

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        """That of the wide format."""
        return self.wide.joined_axis(parts, axis)

    def widened(self, stored: Array) -> Array:
        """What narrow numbers stand for, in float32 and in the same order."""
        return stored.astype(np.float32)


@dataclass(frozen=True)
class Stepped(Narrow):
    """The format ``wide``, with float32 values as integers of 8 bits: so many steps of ``scale``, from zero on.

    The scale belongs to the value: it follows from the range that the value had on samples. Numbers beyond the steps
    saturate, infinities, too, and NaN becomes 0. Zero is always 0, so that padding is the same as in float32.
    """

    scale: float

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest number of steps."""
        found = np.iinfo(self.dtype)
        return int(found.min), int(found.max)

    def store(self, array: Array) -> Array:
        """Return a copy with every number rounded to the nearest step, and to the even one of two."""
        steps = np.asarray(array, np.float32) * np.float32(1 / self.scale)
        with np.errstate(invalid="ignore"):
            steps = np.clip(np.rint(np.nan_to_num(steps, posinf=np.inf, neginf=-np.inf)), *self.ends)
        return self.wide.store(steps.astype(self.dtype))

    def widened(self, stored: Array) -> Array:
        """The steps times the scale, in float32 and in the same order."""
        return np.asarray(stored.astype(np.float32) * np.float32(self.scale))


_SHORT = {"uint8": "u8", "int8": "s8"}
"""The dtypes of steps, as formats' names have them."""


def stepped(wide: StorageFormat, dtype: str, scale: float, precision: str) -> Stepped:
    """The format of steps of that scale, rounded to float32. Raises ValueError for a scale that has no inverse."""
    with np.errstate(all="ignore"):
        rounded = np.float32(scale)
        if not (rounded > 0 and np.isfinite(rounded) and np.isfinite(np.float32(1 / rounded))):
            raise ValueError(f"steps of {scale}")
    name = f"{wide.name}-{_SHORT[dtype]}-{rounded.view(np.uint32):08x}"
    return Stepped(name, wide, dtype, precision, float(rounded))


def has_channels(kind: TensorType) -> bool:
    """Whether values of that type have channels: 3 to 5 dimensions, of which the second one is the channels."""
    return 3 <= len(kind.shape) <= 5
