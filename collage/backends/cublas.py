"""cuBLAS for NVIDIA GPUs: products of matrices and their epilogues, by the algorithms that cuBLASLt's heuristic offers.

Nothing of it has ever run on a GPU (docs/gpu.md). Tests compare what it describes with what the operators are, and run
it on a stand-in for the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import Availability, BackendKind, UnsupportedError
from collage.backends.cuda import CudaBackend, refuse_other_gpu
from collage.core.cuda import gpu
from collage.graph.storage import CUDA, Storage
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.kernel.kernel import Kernel
    from collage.patterns.match import MatchSource

_ON_GPU = Storage(CUDA)
_ALGORITHMS = 4
"""So many of the heuristic's algorithms are measured. The first one is the best by its estimate."""


class Cublas(CudaBackend):
    """Products of float32 matrices, without TF32, with bias, residual, ReLU and the GELU by tanh."""

    name = "cublas"
    kind = BackendKind.LIBRARY

    def library(self) -> Availability:
        """The version of cuBLAS."""
        from collage.backends.cublas_kernels.library import version

        found = version()
        return (
            Availability(found)
            if found
            else Availability(reason="not installed: pip install 'collage[cuda]'")
        )

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds products with their epilogues."""
        from collage.backends.cublas_kernels.rule import CublasRule

        return (CublasRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """One for each of the heuristic's first algorithms. There are none for a subgraph that it does not take."""
        from collage.backends.cublas_kernels.task import task_of

        try:
            task_of(subgraph)
        except UnsupportedError:
            return ()
        ends = (_ON_GPU,) * len(subgraph.inputs), (_ON_GPU,) * len(subgraph.outputs)
        return [Variant(*ends, f"algorithm {number}") for number in range(1, _ALGORITHMS + 1)]

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The description with the variant's algorithm, which the heuristic gives for the GPU that is here."""
        from collage.backends.cublas_kernels.artifact import CublasArtifact, Operands, pack
        from collage.backends.cublas_kernels.library import Handles
        from collage.backends.cublas_kernels.task import task_of

        task = task_of(subgraph)
        handles = Handles(task.description)
        if task.bias is not None:
            handles.set_bias(
                1 << 12
            )  # any address, as long as it is none: the heuristic looks whether there is one
        number = int(options.variant.split.removeprefix("algorithm "))
        offered = handles.algorithms(_ALGORITHMS)
        if number > len(offered):
            raise UnsupportedError(f"cuBLASLt offers {len(offered)} algorithms for this product")
        chosen = offered[number - 1]
        return pack(
            CublasArtifact(
                gpu().architecture,
                task.description,
                chosen.data,
                chosen.workspace_bytes,
                Operands(len(subgraph.inputs), task.left, task.right, task.residual),
                task.weights,
                task.bias,
            )
        )

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The product, with its constants on the GPU."""
        from collage.backends.cublas_kernels.artifact import unpack
        from collage.backends.cublas_kernels.kernel import CublasKernel

        found = unpack(artifact)
        refuse_other_gpu(found.architecture)
        return CublasKernel(found)
