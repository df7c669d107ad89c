"""cuBLAS for NVIDIA GPUs: products of matrices and their epilogues, by the algorithms that cuBLASLt's heuristic offers.

Tests compare what it describes with what the operators are, and run it on a stand-in for the library. docs/gpu.md tells
what has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.backends.cuda import CudaLibrary, refuse_other_gpu
from collage.core.cuda import gpu
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.kernel.kernel import Kernel
    from collage.patterns.match import MatchSource

_ALGORITHM = "algorithm "
_WIDE = "wide sums, "
"""What the splits of variants in 16 bits begin with. Algorithms that were measured without it had narrow sums."""


class Cublas(CudaLibrary):
    """Products of matrices, with bias, residual, ReLU and the GELU by tanh.

    Models in float16 are computed as they are. For float32 TF32, float16 and bfloat16 are offered where
    the compile allows these precisions. All sums are float32.
    """

    name = "cublas"
    title = "cuBLASLt"
    computes = "product"
    choices = "algorithms"

    def version(self) -> str:
        """The version of cuBLAS, or "" where it cannot be loaded."""
        from collage.backends.cublas_kernels.library import version

        return version()

    def read(self, subgraph: Subgraph) -> object:
        """The subgraph's product. Raises UnsupportedError where it is none."""
        from collage.backends.cublas_kernels.task import task_of

        return task_of(subgraph)

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds products with their epilogues."""
        from collage.backends.cublas_kernels.rule import CublasRule

        return (CublasRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """The heuristic's first algorithms in each precision. There are none for a subgraph that it does not take."""
        from collage.backends.cublas_kernels.task import PRECISIONS, storage_of, task_of
        from collage.backends.cuda_kernels.precisions import is_stored_narrow

        try:
            task = task_of(subgraph)
        except UnsupportedError:
            return ()
        reduced = () if task.own else PRECISIONS
        found = []
        for precision in ("", *(each for each in reduced if each in options.precisions)):
            stored = storage_of(precision)
            split = (_WIDE if is_stored_narrow(precision or task.own) else "") + _ALGORITHM
            ends = (stored,) * len(subgraph.inputs), (stored,) * len(subgraph.outputs)
            for number in range(1, 1 + self.most_algorithms):
                found.append(Variant(*ends, f"{split}{number}", precision))
        return found

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The description with the variant's algorithm, which the heuristic gives for the GPU that is here."""
        from collage.backends.cublas_kernels.artifact import CublasArtifact, ProductOperands, pack
        from collage.backends.cublas_kernels.library import Handles
        from collage.backends.cublas_kernels.task import in_precision, task_of

        variant = options.variant
        read = task_of(subgraph)
        task = in_precision(read, variant.precision or read.own)
        handles = Handles(task.description)
        if task.bias is not None:
            handles.set_bias(1 << 12)  # any address, as long as it is none: the heuristic looks whether there is one
        chosen = self.chosen(
            int(variant.split.removeprefix(_WIDE).removeprefix(_ALGORITHM)),
            handles.algorithms(self.most_algorithms),
        )
        return pack(
            CublasArtifact(
                gpu().architecture,
                task.description,
                chosen.data,
                chosen.workspace_bytes,
                ProductOperands(len(subgraph.inputs), task.left, task.right, task.residual),
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
