"""cuDNN for NVIDIA GPUs: convolutions of two and three axes, grouped and transposed, with what follows them.

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


class Cudnn(CudaBackend):
    """Convolutions of float32, without TF32, with bias, residual and ReLU. Values are plain: N, C, spatial."""

    name = "cudnn"
    kind = BackendKind.LIBRARY

    def library(self) -> Availability:
        """The version of cuDNN."""
        from collage.backends.cudnn_kernels.library import version

        found = version()
        return (
            Availability(found)
            if found
            else Availability(reason="not installed: pip install 'collage[cuda]'")
        )

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """The rule that finds convolutions with their epilogues."""
        from collage.backends.cudnn_kernels.rule import CudnnRule

        return (CudnnRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """One for each of the heuristic's first algorithms. There are none for a subgraph that it does not take."""
        from collage.backends.cudnn_kernels.task import task_of

        try:
            task_of(subgraph)
        except UnsupportedError:
            return ()
        ends = (_ON_GPU,) * len(subgraph.inputs), (_ON_GPU,) * len(subgraph.outputs)
        return [Variant(*ends, f"algorithm {number}") for number in range(1, _ALGORITHMS + 1)]

    def reassociates(self, subgraph: Subgraph, variant: Variant) -> bool:
        """True, since an algorithm of the heuristic may be Winograd's, or go by Fourier transforms."""
        return True

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """The description with the variant's algorithm, which the heuristic gives for the GPU that is here."""
        from collage.backends.cudnn_kernels.artifact import CudnnArtifact, pack
        from collage.backends.cudnn_kernels.library import Handles
        from collage.backends.cudnn_kernels.task import task_of

        task = task_of(subgraph)
        number = int(options.variant.split.removeprefix("algorithm "))
        offered = Handles(task.description).algorithms()
        if number > len(offered):
            raise UnsupportedError(f"cuDNN offers {len(offered)} algorithms for this convolution")
        chosen = offered[number - 1]
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
