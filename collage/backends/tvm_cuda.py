"""TVM for NVIDIA GPUs: kernels by TVM's DLight schedules or tuned ones, compiled by NVRTC, which takes no GPU.

The kernels are generated and compiled in tests, and launched on a stand-in for the GPU's driver and threads, which
computes on the CPU. docs/gpu.md tells what has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, ClassVar

from collage.backends.base import Availability, BackendKind, UnsupportedError
from collage.backends.cuda import CudaBackend, architecture
from collage.backends.tuner import TRIAL_LIMIT_S, Tuner
from collage.backends.tvm_codegen.refused import refusal
from collage.core.interrupts import interruptible
from collage.errors import DatabaseError
from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.graph.storage import CUDA, Storage
from collage.kernel.options import BuildOptions, Variant

if TYPE_CHECKING:
    from collage.backends.tvm_codegen.lower import LoweredKernel
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.kernel.kernel import Kernel
    from collage.patterns.match import MatchSource

ARCHITECTURE = "sm_90"
"""The architecture that kernels are compiled for where no GPU tells its own: that of the H100 and H200."""

_ON_GPU = Storage(CUDA)

_KERNELS = "kernels 2"
"""This is counted up when kernels become other ones than before, for which old measurements do not hold.

Those that are tuned stay as they are."""

TUNED = "tuned"
"""The split of the variant whose schedule was searched for."""


class TvmCuda(Tuner, CudaBackend):
    """Elementwise, broadcast, injective and reduction operators and their fusions, and products, on a GPU.

    Values are plain in the GPU's memory. Sums of float16 are float32. Where there are trials, convolutions and products
    have a second variant, whose schedule MetaSchedule searches for on the GPU.
    """

    name = "tvm_cuda"
    keeps_nan = True
    kind = BackendKind.COMPILER
    ahead_s: ClassVar[float] = 0.3

    def library(self) -> Availability:
        """The versions of TVM and NVRTC."""
        try:
            return Availability(
                f"{metadata.version('apache-tvm')}, NVRTC {metadata.version('nvidia-cuda-nvrtc')}"
            )
        except metadata.PackageNotFoundError:
            return Availability(reason="NVRTC is not installed: pip install '.[gpu]' in Collage's checkout")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """TVM's fusion rules over the operators that it lowers to loops."""
        from collage.patterns.fusion import TunedFusionRule

        return (TunedFusionRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """Kernels with DLight's schedules, and tuned ones where there is something to tune. Values are on the GPU."""
        ends = (_ON_GPU,) * len(subgraph.inputs), (_ON_GPU,) * len(subgraph.outputs)
        tuned = options.tune_trials > 0 and self.tunes(subgraph)
        return (Variant(*ends), *([Variant(*ends, TUNED)] if tuned else []))

    def settings(self, options: BuildOptions) -> str:
        """The number of trials of a tuned variant, and the version of the kernels of the other one."""
        return f"{options.tune_trials} trials" if _is_tuned(options) else _KERNELS

    def tunes(self, subgraph: Subgraph) -> bool:
        """Whether there is a convolution or a matmul among the operators."""
        return any(node.op in COMPUTE_BOUND for node in subgraph.operators)

    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        """Search with MetaSchedule on the GPU. The record is JSON with a trace for each function of the kernel."""
        if not _is_tuned(options) or options.tune_trials < 1 or not self.tunes(subgraph):
            return ""
        from collage.backends.tvm_cuda_codegen.tune import tune

        limit_s = TRIAL_LIMIT_S * options.tune_trials
        return tune(self._lowered(subgraph), architecture(ARCHITECTURE), options.tune_trials, limit_s)

    @interruptible()
    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Lower, fuse, schedule and compile, for the GPU that is here or else for ``ARCHITECTURE``."""
        from collage.backends.tvm_codegen.lower import LoweringError
        from collage.backends.tvm_codegen.tuned import RecordError
        from collage.backends.tvm_cuda_codegen.build import compile_kernel

        tuning = options.tuning if _is_tuned(options) else ""
        if _is_tuned(options) and not tuning:
            raise UnsupportedError("it has no tuned schedule (--tune-trials)")
        lowered = self._lowered(subgraph)
        try:
            return compile_kernel(lowered, architecture(ARCHITECTURE), tuning)
        except RecordError as error:
            raise DatabaseError(
                f"the measurement database holds a schedule for {subgraph} that is not used ({error}). Measure again "
                "with --remeasure, or give another path with --db."
            ) from error
        except LoweringError as error:
            raise UnsupportedError(str(error)) from error

    def _lowered(self, subgraph: Subgraph) -> LoweredKernel:
        """The PrimFuncs of the subgraph. Raises UnsupportedError."""
        from collage.backends.tvm_codegen.lower import LoweringError, lower
        from collage.backends.tvm_cuda_codegen.wide import WIDE_SUMS

        if problem := refusal(subgraph.model.graph, subgraph.operators):
            raise UnsupportedError(problem)
        part = subgraph.to_relax()
        try:
            return lower(part.function, part.prim_funcs, WIDE_SUMS)
        except LoweringError as error:
            raise UnsupportedError(str(error)) from error

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """Load the machine code and the constants on the GPU."""
        from collage.backends.tvm_cuda_codegen.artifact import unpack
        from collage.backends.tvm_cuda_codegen.load import LoadedCudaKernel

        return LoadedCudaKernel(unpack(artifact))


def _is_tuned(options: BuildOptions) -> bool:
    return options.variant.split == TUNED
