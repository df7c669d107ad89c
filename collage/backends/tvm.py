"""TVM as a compiler backend: fused memory-bound kernels with CPU schedules of our own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from collage.backends.base import (
    Availability,
    Backend,
    BackendKind,
    BuildOptions,
    Call,
    Kernel,
    UnsupportedError,
)
from collage.graph.dataflow import Array

if TYPE_CHECKING:
    from collage.backends.tvm_codegen import run
    from collage.frontend.subgraph import Subgraph
    from collage.patterns.match import MatchSource


class Tvm(Backend):
    """Elementwise, broadcast, injective and reduction operators and their fusions (TVM's own rules).

    Convolutions and matmuls without a tuned schedule would take seconds a call, so they are not offered.
    """

    name = "tvm"
    kind = BackendKind.COMPILER

    def available(self) -> Availability:
        """Always there: the core dependency."""
        try:
            return Availability(version=metadata.version("apache-tvm"))
        except metadata.PackageNotFoundError:
            return Availability(reason="not installed: pip install 'apache-tvm==0.27.*'")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """TVM's fusion rules over the operators that have a schedule."""
        from collage.patterns.fusion import ScheduledFusionRule

        return (ScheduledFusionRule(),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Lower, fuse, schedule and compile; the artifact is LLVM IR with the constants."""
        from collage.backends.tvm_codegen.build import compile_kernel
        from collage.backends.tvm_codegen.contraction import UnscheduledError
        from collage.backends.tvm_codegen.lower import LoweringError, lower

        part = subgraph.to_relax(all_constants=True)
        try:
            return compile_kernel(lower(part.function, part.prim_funcs), options.threads)
        except (LoweringError, UnscheduledError) as error:
            raise UnsupportedError(str(error)) from None

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        """The compiled functions; TVM's thread pool is set to the number of threads."""
        from collage.backends.tvm_codegen.host import use_threads
        from collage.backends.tvm_codegen.run import load_kernel

        use_threads(options.threads)
        return _Compiled(load_kernel(artifact))


class _Compiled(Kernel):
    def __init__(self, loaded: run.Kernel) -> None:
        self._loaded = loaded

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return self._loaded.bind(inputs, outputs)
