"""TVM for NVIDIA GPUs: kernels by TVM's DLight schedules, compiled by NVRTC, which takes no GPU.

The kernels are generated and compiled in tests, and launched on a stand-in for the GPU's driver and threads, which
computes on the CPU. docs/gpu.md tells what has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from collage.backends.base import Availability, BackendKind, UnsupportedError
from collage.backends.cuda import CudaBackend, architecture
from collage.backends.tvm_codegen.refused import refusal
from collage.core.interrupts import interruptible
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

_KERNELS = "kernels 2"
"""This is counted up when kernels become other ones than before, for which old measurements do not hold."""


class TvmCuda(CudaBackend):
    """Elementwise, broadcast, injective and reduction operators and their fusions, and products, on a GPU.

    Values are plain in the GPU's memory. Sums of float16 are float32.
    """

    name = "tvm_cuda"
    keeps_nan = True
    kind = BackendKind.COMPILER
    ahead_s: ClassVar[float] = 0.3

    def library(self) -> Availability:
        """The versions of TVM and NVRTC."""
        try:
            return Availability(f"{metadata.version('apache-tvm')}, NVRTC {metadata.version('nvidia-cuda-nvrtc')}")
        except metadata.PackageNotFoundError:
            return Availability(reason="NVRTC is not installed: pip install 'collage-compiler[gpu]'")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """TVM's fusion rules over the operators that it lowers to loops."""
        from collage.patterns.fusion import TunedFusionRule

        return (TunedFusionRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """One variant, with all values on the GPU."""
        return (Variant((_ON_GPU,) * len(subgraph.inputs), (_ON_GPU,) * len(subgraph.outputs)),)

    def settings(self, options: BuildOptions) -> str:
        """The version of the kernels."""
        return _KERNELS

    @interruptible()
    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Lower, fuse, schedule and compile, for the GPU that is here or else for ``ARCHITECTURE``."""
        from collage.backends.tvm_codegen.lower import LoweringError, lower
        from collage.backends.tvm_cuda_codegen.build import compile_kernel
        from collage.backends.tvm_cuda_codegen.wide import WIDE_SUMS

        if problem := refusal(subgraph.model.graph, subgraph.operators):
            raise UnsupportedError(problem)
        part = subgraph.to_relax()
        try:
            lowered = lower(part.function, part.prim_funcs, WIDE_SUMS)
            return compile_kernel(lowered, architecture(ARCHITECTURE))
        except LoweringError as error:
            raise UnsupportedError(str(error)) from error

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """Load the machine code and the constants on the GPU."""
        from collage.backends.tvm_cuda_codegen.artifact import unpack
        from collage.backends.tvm_cuda_codegen.load import LoadedCudaKernel

        return LoadedCudaKernel(unpack(artifact))
