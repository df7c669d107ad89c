"""TVM as a compiler backend: memory-bound kernels with CPU schedules of our own, contractions with tuned ones."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from collage.backends.base import Availability, Backend, BackendKind, UnsupportedError
from collage.backends.tuner import TRIAL_LIMIT_S, Tuner
from collage.backends.tvm_codegen.refused import refusal
from collage.core.interrupts import interruptible
from collage.errors import DatabaseError
from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.graph.dataflow import Array
from collage.graph.decisions import as_written
from collage.graph.storage import BF16, PLAIN, PLAIN_BF16, Storage, is_narrow
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.target import reduced_precisions
from collage.native.launch import NativeKernel, Step
from collage.native.library import core_problem

if TYPE_CHECKING:
    from collage.backends.tvm_codegen import run
    from collage.frontend.subgraph import Subgraph
    from collage.kernel.frames import Artifact
    from collage.patterns.match import MatchSource


_SCHEDULES = "schedules 7"
"""This is counted up when `tvm_codegen` makes other kernels than before, for which old measurements do not hold."""
_TUNED_SCHEDULES = "schedules 6"
"""The same for what is tuned, which takes minutes to measure again."""


class Tvm(Tuner, Backend):
    """Elementwise, broadcast, injective and reduction operators and their fusions (TVM's own rules).

    Convolutions and matmuls without a tuned schedule would take seconds a call, so they are offered only when
    there are trials to tune them in.
    """

    name = "tvm"
    keeps_nan = True
    kind = BackendKind.COMPILER
    worker_imports = ("collage.backends.tvm_codegen.build", "collage.backends.tvm_codegen.run")

    def available(self) -> Availability:
        """The version of TVM, which Collage depends on."""
        try:
            return Availability(version=metadata.version("apache-tvm"))
        except metadata.PackageNotFoundError:
            return Availability(reason="not installed: pip install 'apache-tvm==0.27.*'")

    def misfit(self, version: str, same_cpu: bool) -> str:
        """Kernels are machine code, which needs no TVM; ``load`` compares instruction sets."""
        return ""

    def sources(self, options: BuildOptions) -> Sequence[MatchSource]:
        """TVM's fusion rules over the operators that have a schedule, or can get one."""
        from collage.patterns.fusion import ScheduledFusionRule, TunedFusionRule

        return (TunedFusionRule() if options.tune_trials else ScheduledFusionRule(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        """The model's own dtypes, and bfloat16 in what is read, in what is written, or in both.

        Arithmetic is float32 all the same. What is smaller than the largest buffers stays float32, such as biases and
        means. Contractions stay float32, too, since their schedules would read and round numbers many times.
        """
        if BF16 not in options.precisions & reduced_precisions() or self.tunes(subgraph):
            return (ALL_PLAIN,)
        graph = subgraph.model.graph
        types = [graph.type_of(value) for value in (*subgraph.inputs, *subgraph.outputs)]
        largest = max((each.size for each in types if each.dtype == "float32"), default=0)
        large = [each.dtype == "float32" and each.size == largest for each in types]
        count = len(subgraph.inputs)
        taken, given = _narrow(large[:count]), _narrow(large[count:])
        none = _narrow([False] * count), _narrow([False] * len(given))
        ends = [(taken, given), (taken, none[1]), (none[0], given)]
        if sum(large[count:]) > 1:  # a sum stays float32 if what is normalised of it does not
            alone = ([at == only for at in range(len(given))] for only in range(len(given)) if large[count + only])
            ends += [(none[0], _narrow(each)) for each in alone]
        return (ALL_PLAIN, *(Variant(*each, precision=BF16) for each in dict.fromkeys(ends) if each != none))

    def settings(self, options: BuildOptions) -> str:
        """The version of our schedules, whether TVM's threads run them, and the number of trials if there are any."""
        pool = ", TVM's threads" if core_problem() else ""
        if options.tune_trials:
            return f"{_TUNED_SCHEDULES}{pool}, {options.tune_trials} trials"
        return _SCHEDULES + pool

    def on_team(self) -> bool:
        """True if the native core was built."""
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

        _refuse(subgraph)
        part = subgraph.to_relax()
        try:
            lowered = lower(part.function, part.prim_funcs)
        except LoweringError as error:
            raise UnsupportedError(str(error)) from error
        return tune(lowered, options.threads, options.tune_trials, TRIAL_LIMIT_S * options.tune_trials)

    @interruptible()
    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        """Lower, fuse, schedule and compile. The artifact is machine code with the constants."""
        from collage.backends.tvm_codegen.build import compile_kernel
        from collage.backends.tvm_codegen.contraction import UnscheduledError
        from collage.backends.tvm_codegen.lower import LoweringError, lower
        from collage.backends.tvm_codegen.narrow import narrow
        from collage.backends.tvm_codegen.tuned import RecordError

        _refuse(subgraph)
        part, variant = subgraph.to_relax(), options.variant
        graph = subgraph.model.graph
        try:
            lowered = lower(part.function, part.prim_funcs)
            if variant.precision:
                lowered = narrow(lowered, [*map(is_narrow, variant.inputs)], [*map(is_narrow, variant.outputs)])
            in_order = as_written(graph, subgraph.operators)
            return compile_kernel(lowered, options.threads, options.tuning, in_order=in_order)
        except RecordError as error:
            raise DatabaseError(
                f"the measurement database holds a schedule for {subgraph} that is not used ({error}). Measure again "
                "with --remeasure, or give another path with --db."
            ) from error
        except (LoweringError, UnscheduledError) as error:
            raise UnsupportedError(str(error)) from error

    def load(self, artifact: Artifact, options: BuildOptions) -> Kernel:
        """The compiled functions on Collage's team of threads, or in TVM's pool if there is no native core."""
        from collage.backends.tvm_codegen.run import load_kernel

        loaded = load_kernel(artifact)
        if loaded.addresses:
            return _Compiled(loaded, options.threads)
        from collage.backends.tvm_codegen.host import use_threads

        use_threads(options.threads)
        return _Pooled(loaded)


def _refuse(subgraph: Subgraph) -> None:
    """Raises UnsupportedError for operators that TVM would simplify to others."""
    if problem := refusal(subgraph.model.graph, subgraph.operators):
        raise UnsupportedError(problem)


def _narrow(chosen: Sequence[bool]) -> tuple[Storage, ...]:
    return tuple(PLAIN_BF16 if each else PLAIN for each in chosen)


class _Compiled(NativeKernel):
    def __init__(self, loaded: run.TvmKernel, threads: int) -> None:
        super().__init__(threads)
        self._loaded = loaded

    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        return self._loaded.steps([*map(_bits, inputs)], [*map(_bits, outputs)])


class _Pooled(Kernel):
    own_threads = True

    def __init__(self, loaded: run.TvmKernel) -> None:
        self._loaded = loaded

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return self._loaded.bind([*map(_bits, inputs)], [*map(_bits, outputs)])


def _bits(array: Array) -> Array:
    """The array as the code sees it, for which bfloat16 is an integer of 16 bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
