"""MKL as an operator library: products of matrices, packed and batched, on Collage's threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.graph.storage import BF16
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import reduced_precisions

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.patterns.match import MatchSource

_KERNELS = "kernels 1"
"""This is counted up when `mkl_kernels` makes other kernels than before, for which old measurements do not hold."""


class Mkl(Backend):
    """Each thread of the team multiplies its share with MKL's sequential GEMM. It takes float32 only,
    and may multiply it as bfloat16.

    The library is found by the environment variable COLLAGE_MKL, in the system, or as the wheel ``mkl``. Bias,
    activations and residuals are a pass of Collage's own kernels over each block of sums.
    """

    name = "mkl"
    kind = BackendKind.LIBRARY
    worker_imports = ("collage.backends.mkl_kernels.plan", "collage.backends.mkl_kernels.kernel")

    def available(self) -> Availability:
        """The library's version, or why it cannot be used."""
        from collage.backends.mkl_kernels.library import availability

        return availability()

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds products with their epilogues."""
        from collage.backends.mkl_kernels.plan import MklRule

        return (MklRule(),)

    def on_team(self) -> bool:
        """Kernels of MKL always run on the team."""
        return True

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """Splits, with packed weights and without, and dtypes. There are none for a subgraph that it does not take."""
        from collage.backends.mkl_kernels.library import library
        from collage.backends.mkl_kernels.plan import narrow_variants, task_of, variants

        try:
            task = task_of(subgraph)
            found = variants(task, options.threads)
            if BF16 in options.precisions & reduced_precisions() and library().has_bf16:
                found = [*found, *narrow_variants(task, options.threads)]
            return found
        except UnsupportedError:
            return ()

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """An artifact with the variant's shares and the weights."""
        from collage.backends.mkl_kernels.plan import plan, task_of
        from collage.native.packed import to_bytes

        return to_bytes(self.name, plan(task_of(subgraph), options.variant, options.threads))

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The kernel, with weights packed for this machine."""
        from collage.backends.mkl_kernels.kernel import MklKernel
        from collage.native.packed import from_artifact

        return MklKernel(from_artifact(artifact)[1], options.threads)

    def settings(self, options: BuildOptions) -> str:
        """The version of our part of the kernels."""
        return _KERNELS
