"""What an algorithm is: which chains it takes, in which variants, and how its kernels are packed and loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from collage.backends.chains.chain import Chain
from collage.kernel.options import Variant
from collage.native import NativeKernel
from collage.native.packed import Packed


class Algorithm(ABC):
    """A family of kernels. Instances hold nothing.

    ``variants`` and ``pack`` raise UnsupportedError with the reason for a chain that the algorithm does not take.
    Where two algorithms take the same chain in the same layouts, their words for the split must differ.
    """

    name: ClassVar[str]
    """Stands in artifacts."""
    roots: ClassVar[frozenset[str]]
    """Relax operators with which its chains begin."""

    def reassociates(self, variant: Variant) -> bool:
        """Whether a variant is one of its own by an algorithm that does; see ``Backend.reassociates``."""
        return False

    def direct_variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """Those for ``BuildOptions.exact``: of ``variants`` the ones that do not reassociate, which may be none."""
        return [each for each in self.variants(chain, threads) if not self.reassociates(each)]

    @abstractmethod
    def variants(self, chain: Chain, threads: int) -> Sequence[Variant]:
        """Layouts and splits among which the fastest may be; at least one."""

    @abstractmethod
    def pack(self, chain: Chain, variant: Variant, threads: int) -> Packed:
        """The kernel of one of these variants."""

    @abstractmethod
    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """The kernel for a team of ``threads`` threads; the arrays begin at multiples of 64 bytes."""
