"""cuDNN for NVIDIA GPUs: convolutions of two and three axes, grouped and transposed, with what follows them.

Nothing of it has ever run on a GPU (docs/gpu.md). Tests compare what it describes with what the operators are, and run
it on a stand-in for the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.cuda import CudaLibrary, refuse_other_gpu
from collage.core.cuda import gpu
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.kernel.kernel import Kernel
    from collage.patterns.match import MatchSource


class Cudnn(CudaLibrary):
    """Convolutions of float32, without TF32, with bias, residual and ReLU. Values are plain: N, C, spatial."""

    name = "cudnn"
    title = "cuDNN"
    computes = "convolution"

    def version(self) -> str:
        """The version of cuDNN, or "" where it cannot be loaded."""
        from collage.backends.cudnn_kernels.library import version

        return version()

    def read(self, subgraph: Subgraph) -> object:
        """The subgraph's convolution. Raises UnsupportedError where it is none."""
        from collage.backends.cudnn_kernels.task import task_of

        return task_of(subgraph)

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds convolutions with their epilogues."""
        from collage.backends.cudnn_kernels.rule import CudnnRule

        return (CudnnRule(),)

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """True, since an algorithm of the heuristic may be Winograd's, or go by Fourier transforms."""
        return True

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The description with the variant's algorithm, which the heuristic gives for the GPU that is here."""
        from collage.backends.cudnn_kernels.artifact import CudnnArtifact, pack
        from collage.backends.cudnn_kernels.library import Handles
        from collage.backends.cudnn_kernels.task import task_of

        task = task_of(subgraph)
        chosen = self.chosen(options.variant, Handles(task.description).algorithms())
        return pack(
            CudnnArtifact(
                gpu().architecture,
                task.description,
                chosen.number,
                chosen.workspace_bytes,
                len(subgraph.inputs),
                task.data,
                task.residual,
                task.weights,
                task.bias,
            )
        )

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The convolution, with its constants on the GPU."""
        from collage.backends.cudnn_kernels.artifact import unpack
        from collage.backends.cudnn_kernels.kernel import CudnnKernel

        found = unpack(artifact)
        refuse_other_gpu(found.architecture)
        return CudnnKernel(found)
