"""TVM as a compiler backend: memory-bound kernels with CPU schedules of our own, contractions with tuned ones."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.backends.tuner import TRIAL_LIMIT_S, Tuner
from collage.errors import DatabaseError
from collage.frontend.op_kinds import COMPUTE_BOUND
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.native.launch import NativeKernel, Step
from collage.native.library import core_problem

if TYPE_CHECKING:
    from collage.backends.tvm_codegen import run
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.patterns.match import MatchSource


_SCHEDULES = "schedules 4"
"""This is counted up when `tvm_codegen` makes other kernels than before, for which old measurements do not hold."""


class Tvm(Tuner, Backend):
    """Elementwise, broadcast, injective and reduction operators and their fusions (TVM's own rules).

    Convolutions and matmuls without a tuned schedule would take seconds a call, so they are offered only when
    there are trials to tune them in.
    """

    name = "tvm"
    kind = BackendKind.COMPILER

    def available(self) -> Availability:
        """The version of TVM, which Collage depends on."""
        try:
            return Availability(version=metadata.version("apache-tvm"))
        except metadata.PackageNotFoundError:
            return Availability(reason="not installed: pip install 'apache-tvm==0.27.*'")

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """TVM's fusion rules over the operators that have a schedule, or can get one."""
        from collage.patterns.fusion import ScheduledFusionRule, TunedFusionRule

        return (TunedFusionRule() if options.tune_trials else ScheduledFusionRule(),)

    def settings(self, options: BuildOptions) -> str:
        """The version of our schedules, whether TVM's threads run them, and the number of trials if there are any."""
        pool = ", TVM's threads" if core_problem() else ""
        return _SCHEDULES + pool + (f", {options.tune_trials} trials" if options.tune_trials else "")

    def on_team(self) -> bool:
        """True where the native core was built."""
        return not core_problem()

    def tunes(self, subgraph: Subgraph) -> bool:
        """Whether there is a convolution or a matmul among the operators."""
        return any(node.op in COMPUTE_BOUND for node in subgraph.operators)

    def tune(self, subgraph: Subgraph, options: BuildOptions) -> str:
        """Search with MetaSchedule. The record is JSON with a trace for each function of the kernel."""
        if not self.tunes(subgraph) or options.tune_trials < 1:
            return ""
        from collage.backends.tvm_codegen.lower import LoweringError, lower
        from collage.backends.tvm_codegen.tune import tune

        part = subgraph.to_relax()
        try:
            lowered = lower(part.function, part.prim_funcs)
        except LoweringError as error:
            raise UnsupportedError(str(error)) from error
        return tune(lowered, options.threads, options.tune_trials, TRIAL_LIMIT_S * options.tune_trials)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Lower, fuse, schedule and compile. The artifact is machine code with the constants."""
        from collage.backends.tvm_codegen.build import compile_kernel
        from collage.backends.tvm_codegen.contraction import UnscheduledError
        from collage.backends.tvm_codegen.lower import LoweringError, lower
        from collage.backends.tvm_codegen.tuned import RecordError

        part = subgraph.to_relax()
        try:
            return compile_kernel(lower(part.function, part.prim_funcs), options.threads, options.tuning)
        except RecordError as error:
            raise DatabaseError(
                f"the measurement database holds a schedule for {subgraph} that is not used ({error}). Measure again "
                "with --remeasure, or give another path with --db."
            ) from error
        except (LoweringError, UnscheduledError) as error:
            raise UnsupportedError(str(error)) from error

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The compiled functions on Collage's team of threads, or in TVM's pool where there is no native core."""
        from collage.backends.tvm_codegen.run import load_kernel

        loaded = load_kernel(artifact)
        if loaded.addresses:
            return _Compiled(loaded, options.threads)
        from collage.backends.tvm_codegen.host import use_threads

        use_threads(options.threads)
        return _Pooled(loaded)


class _Compiled(NativeKernel):
    def __init__(self, loaded: run.Kernel, threads: int) -> None:
        super().__init__(threads)
        self._loaded = loaded

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        return self._loaded.steps(inputs, outputs)


class _Pooled(Kernel):
    own_threads = True

    def __init__(self, loaded: run.Kernel) -> None:
        self._loaded = loaded

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return self._loaded.bind(inputs, outputs)
