"""What engines on NVIDIA GPUs have in common: whole models there, with inputs and outputs in the GPU's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.cuda import CudaBackend
from collage.backends.engine import Engine, whole_variant
from collage.graph.storage import Storage
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

_PATIENCE_S = 600.0
"""Engines on a GPU try many kernels for each operator while they compile, which takes minutes for a network."""


class CudaEngine(CudaBackend, Engine):
    """An engine that computes on the GPU. Its kernels read and write memory there."""

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """One, with all values on the GPU."""
        return (whole_variant(self, subgraph),)

    def whole_storage(self) -> Storage:
        """The GPU's memory, where all of its kernels read and write."""
        return Storage(self.device)

    def patience_s(self, profile: str) -> float:
        """Minutes, since it looks for the fastest kernels while it compiles."""
        return _PATIENCE_S
