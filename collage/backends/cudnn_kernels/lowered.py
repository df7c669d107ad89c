"""What a match becomes: a graph with its constants, in one format and one precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from collage.backends.cuda_kernels.precisions import dtype_of
from collage.backends.cudnn_kernels.graph import (
    CONSTANT,
    INPUT,
    OUTPUT,
    CudnnGraph,
    GraphMaker,
    Tensor,
    dense,
)
from collage.graph.dataflow import Array, np_dtype
from collage.graph.formats import StorageFormat
from collage.graph.storage import CHANNELS_LAST, PLAIN

__all__ = ["CudnnTask", "Lowered", "Lowering"]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph, and the arrays of its constants: of the tensors' dtypes, with elements as they lie in memory."""

    graph: CudnnGraph
    constants: tuple[Array, ...]


@dataclass(frozen=True)
class CudnnTask(ABC):
    """A match that cuDNN takes. All its inputs are stored in one format, and its output in the same one or plain."""

    formats: ClassVar[tuple[StorageFormat, ...]] = (PLAIN.format,)
    """The formats that it can be in."""
    precisions: ClassVar[tuple[str, ...]] = ()
    """The reduced precisions that it can be in where the model is float32."""
    exact: ClassVar[bool] = True
    """Whether it can be in float32."""
    transformed: ClassVar[bool] = False
    """Whether an engine may form other sums than the definition, as Winograd's algorithm does."""
    own: str = field(default="", kw_only=True)
    """The precision of the model's own dtype: "" for float32."""

    @property
    def offered(self) -> tuple[str, ...]:
        """The precisions that variants have: "" for the model's own dtype, and reduced ones."""
        if self.own:
            return ("",)
        return (*([""] if self.exact else []), *self.precisions)

    def output_format(self, format: StorageFormat) -> StorageFormat:
        """The format of the output where the inputs are in ``format``: by default the same."""
        return format

    @abstractmethod
    def lower(self, format: StorageFormat, precision: str) -> Sequence[Lowered]:
        """The graphs that compute it, of which the first one that the library takes is used."""


class Lowering:
    """Makes a graph whose tensors lie in one format, and gathers its constants."""

    def __init__(self, format: StorageFormat, precision: str) -> None:
        self.maker = GraphMaker()
        self.dtype = dtype_of(precision)
        self._last = format == CHANNELS_LAST.format
        self._constants: list[Array] = []

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor in the format."""
        if not self._last:
            return dense(shape)
        return dense(shape, (0, *range(2, len(shape)), 1))

    def input(self, shape: Sequence[int], place: int) -> int:
        """The position of one of the kernel's inputs."""
        return self.maker.add(Tensor(tuple(shape), self.strides(shape), self.dtype, INPUT, place))

    def output(self, shape: Sequence[int]) -> int:
        """The position of the kernel's output."""
        return self.maker.add(Tensor(tuple(shape), self.strides(shape), self.dtype, OUTPUT))

    def virtual(self, shape: Sequence[int]) -> int:
        """The position of a float32 tensor between two operations."""
        return self.maker.virtual(shape, self.strides(shape))

    def constant(self, array: Array, *, wide: bool = False) -> int:
        """The position of a constant; a ``wide`` one stays float32."""
        dtype = "float32" if wide else self.dtype
        place = len(self._constants)
        stored = np.moveaxis(array, 1, -1) if self._last else array
        with np.errstate(over="ignore"):
            self._constants.append(np.ascontiguousarray(stored, np_dtype(dtype)))
        return self.maker.add(Tensor(array.shape, self.strides(array.shape), dtype, CONSTANT, place))

    def done(self, since: int = 90000) -> Lowered:
        """The graph, for versions of the library from ``since`` on, and its constants."""
        return Lowered(self.maker.graph(since), tuple(self._constants))
