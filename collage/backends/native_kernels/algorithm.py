"""What an algorithm is: which tasks it takes, in which variants, and how its kernels are packed and loaded."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from collage.backends.native_kernels.kernel import CKernel, SharedKernel
from collage.backends.native_kernels.task import NativeTask, read_task
from collage.graph.storage import Storage
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

T = TypeVar("T")

ROWS, COLUMNS, CHANNELS, WHOLE = "rows", "columns", "output channels", ""
"""Words for the split of a variant."""

_SMALL_FLOP = 1.8e7
"""Less work may be left to one thread: that can run beside another branch of the model."""


class Algorithm(ABC, Generic[T]):
    """A family of kernels for tasks of one kind, which ``task`` reads. Instances hold nothing.

    ``variants`` and ``pack`` raise UnsupportedError with the reason for a task that the algorithm does not take.
    Where two algorithms take the same task in the same layouts, their words for the split must differ.
    """

    name: ClassVar[str]
    """Its name in artifacts."""
    roots: ClassVar[frozenset[str]]
    """Relax operators with which its tasks begin. Algorithms with one in common have tasks of the same kind."""
    precision: ClassVar[str] = ""
    """The precision of all of its variants. It is asked for them only if that is allowed."""

    def reassociates(self, variant: Variant) -> bool:
        """Whether a variant is one of its own that reassociates (see ``Backend.reassociates``)."""
        return False

    @staticmethod
    @abstractmethod
    def read(subgraph: Subgraph) -> T:
        """The subgraph as a task. Raises UnsupportedError with the reason if it is none."""

    def task(self, subgraph: Subgraph) -> T:
        """What ``read`` makes of the subgraph, which it is asked once."""
        return subgraph.parsed(self.read)

    def direct_variants(self, task: T, build: BuildOptions) -> Sequence[Variant]:
        """The variants for ``BuildOptions.direct``: those that do not reassociate. There may be none."""
        return [each for each in self.variants(task, build) if not self.reassociates(each)]

    @abstractmethod
    def variants(self, task: T, build: BuildOptions) -> Sequence[Variant]:
        """Layouts and splits, at least one, among which the fastest may be on the threads that ``build`` names."""

    @abstractmethod
    def pack(self, task: T, build: BuildOptions) -> Packed:
        """The numbers and arrays of the kernel for ``build.variant``, which is one of these."""

    @abstractmethod
    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel for a team of ``threads`` threads. The arrays begin at multiples of 64 bytes."""


class ChainAlgorithm(Algorithm[NativeTask]):
    """One for chains: an operator and the functions that follow it."""

    read = staticmethod(read_task)
    kernel: ClassVar[CKernel]

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read the same arrays."""
        return SharedKernel(self.kernel, packed, threads)


def is_small(flop: float, build: BuildOptions) -> bool:
    """Whether one thread may do all of that work, since there is only one, or since it takes little time."""
    return build.threads == 1 or flop < _SMALL_FLOP


def shared_or_whole(split: str, flop: float, build: BuildOptions, units: float = math.inf) -> list[str]:
    """The split, if there are as many units of work as threads, and "" if one thread may do all of it."""
    splits = [split] if 1 < build.threads <= units else []
    return splits if splits and not is_small(flop, build) else [*splits, WHOLE]


def in_layout(task: NativeTask, layout: Storage, split: str) -> Variant:
    """The variant with everything that has the data's or the result's shape in that layout."""
    return Variant((layout,) * len(task.chain.inputs), (layout,), split)
