"""TVM for NVIDIA GPUs: kernels by TVM's DLight schedules, compiled by NVRTC, which takes no GPU.

The kernels are generated and compiled in tests, and what they compute is tested on a CPU that stands in for the GPU's
threads. None has ever run on a GPU, and nothing launches them yet, so the backend is never available (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.core.cuda import NoGpuError, gpu, needed
from collage.graph.storage import CUDA, Storage
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.kernel.kernel import Kernel
    from collage.patterns.match import MatchSource

ARCHITECTURE = "sm_90"
"""The architecture that kernels are compiled for where no GPU tells its own: that of the H100 and H200."""

_ON_GPU = Storage(CUDA)
_NOT_RUN = "its kernels are compiled and have never run on a GPU: nothing launches them yet (docs/gpu.md)"


class TvmCuda(Backend):
    """Elementwise, broadcast, injective and reduction operators and their fusions, and small products, on a GPU.

    Values are plain in the GPU's memory.
    """

    name = "tvm_cuda"
    kind = BackendKind.COMPILER
    device = CUDA

    def available(self) -> Availability:
        """The reason why it cannot be used, which is what is missing of a GPU, or that nothing launches its kernels."""
        try:
            gpu()
        except NoGpuError as error:
            return Availability(reason=f"{error}; it needs {needed()}. {_NOT_RUN[0].upper()}{_NOT_RUN[1:]}")
        return Availability(reason=_NOT_RUN)

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """TVM's fusion rules over the operators that it lowers to loops."""
        from collage.patterns.fusion import TunedFusionRule

        return (TunedFusionRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """One: all values in the GPU's memory."""
        return (Variant((_ON_GPU,) * len(subgraph.inputs), (_ON_GPU,) * len(subgraph.outputs)),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Lower, fuse, schedule and compile, for the GPU that is here or else for ``ARCHITECTURE``."""
        from collage.backends.tvm_codegen.lower import LoweringError, lower
        from collage.backends.tvm_cuda_codegen.build import compile_kernel

        part = subgraph.to_relax()
        try:
            return compile_kernel(lower(part.function, part.prim_funcs), _architecture())
        except LoweringError as error:
            raise UnsupportedError(str(error)) from error

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """Raises UnsupportedError, since nothing launches its kernels yet."""
        raise UnsupportedError(_NOT_RUN)


def _architecture() -> str:
    try:
        return gpu().architecture
    except NoGpuError:
        return ARCHITECTURE
