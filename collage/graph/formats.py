"""Storage formats: the order of a value's elements in memory. A backend may add formats of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.graph.dataflow import Array, TensorType


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

    def joined_axis(self, parts: Sequence[TensorType], axis: int) -> int | None:
        """The same axis in memory."""
        return axis


@dataclass(frozen=True)
class ChannelsLast(StorageFormat):
    """The format N, spatial..., C for values of 3 to 5 dimensions whose second one is the channels."""

    def problem(self, kind: TensorType) -> str:
        """The reason "no channels" for a value that has none."""
        return "" if has_channels(kind) else "no channels"

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
class Blocked(StorageFormat):
    """The format N, C/block, spatial..., block for values of 3 to 5 dimensions, with padded channels."""

    block: int

    def problem(self, kind: TensorType) -> str:
        """The reason "no channels" for a value that has none."""
        return "" if has_channels(kind) else "no channels"

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
        """The same axis, or None where a part other than the last one ends within a block."""
        if axis == 1 and any(each.shape[1] % self.block for each in parts[:-1]):
            return None
        return axis


def has_channels(kind: TensorType) -> bool:
    """Whether values of that type have channels: 3 to 5 dimensions, of which the second one is the channels."""
    return 3 <= len(kind.shape) <= 5
