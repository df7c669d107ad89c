"""Measure one candidate in this process: build it, check its numbers, then time it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from collage.graph.dataflow import Array
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.measure_db.bound_kernel import BoundKernel, KernelSource, build
from collage.measure_db.cache_state import instance_count, weight_bytes, weights_among
from collage.measure_db.gate import Gate
from collage.measure_db.machine import last_level_cache
from collage.measure_db.quiet import timed_quietly
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from collage.measure_db.samples import Samples
from collage.measure_db.stages import RejectedError, rejection_of
from collage.measure_db.timing import Clocked, Timing, time_calls, time_clocked
from collage.native import LaunchList, NativeKernel, note_time, team_of, touch_interleaved

Keep: TypeAlias = Callable[[BuildOptions, bytes], None]
"""Takes an artifact, and the options that it was built with."""


def measure_candidate(
    source: KernelSource,
    samples: Samples,
    *,
    sample_s: float = 0.25,
    hopeless_us: float = math.inf,
    keep: Keep | None = None,
) -> Outcome:
    """Tune and build the kernel, compare its runs with the reference, and time it in the cache state of its network.

    Sampling takes about ``sample_s`` seconds; see ``time_calls``. A kernel that takes longer than ``hopeless_us``
    microseconds is not timed precisely: a tenth of the time is enough, with its weights in the cache. ``keep`` is
    called with what was measured. Nothing is raised: whatever goes wrong is a Rejection.
    """
    try:
        source = source.tuned()
        kernel = build(source, samples)
        gate = Gate(kernel, samples)
        checked = gate.check()
        timing = _quick_time(kernel, sample_s, hopeless_us) if gate.fastest_us > hopeless_us else None
        if timing is None:
            timing = _time(_instances(kernel), sample_s)
        gate.check_again("after being timed, ")
        if keep is not None:
            keep(source.options, kernel.artifact)
    except RejectedError as rejected:
        return rejected.rejection
    except MemoryError:
        return Rejection(RejectionKind.MEMORY, "run: out of memory")
    except BaseException as failure:  # a kernel may raise anything, and only after some runs
        return rejection_of("run", failure)
    return Measurement(
        timing.median_us,
        timing.noise_us,
        timing.min_us,
        timing.repeats,
        checked.error,
        source.options.tuning,
        bool(checked.finite_only),
        timing.busy,
    )


def clocked(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array]) -> Clocked:
    """A call of a kernel on the team that takes its own time, with the buffers' cache lines on all cores."""
    assert isinstance(kernel, NativeKernel)
    clock = np.zeros(2, np.int64)
    before, after = (note_time(int(clock[side:].ctypes.data)) for side in (0, 1))
    touches = [touch_interleaved(array) for array in (*outputs, *inputs) if array.nbytes]
    run = LaunchList(team_of(kernel.threads), [*touches, before, *kernel.steps(inputs, outputs), after])

    def call() -> int:
        run()
        return int(clock[1] - clock[0])

    return call


def _instances(kernel: BoundKernel) -> list[BoundKernel]:
    """The kernel, and others with weights of their own to rotate with."""
    subgraph = kernel.source.subgraph
    weights, among = weight_bytes(subgraph), weights_among(subgraph)
    count = instance_count(weights, among, last_level_cache(), kernel.load_s)
    return [kernel, *(kernel.another() for _ in range(count - 1))]


def _quick_time(kernel: BoundKernel, sample_s: float, hopeless_us: float) -> Timing | None:
    """The time from a few samples, or None where it turns out to be shorter than ``hopeless_us``."""
    found = _time([kernel], 0.1 * sample_s)
    return found if found.min_us > hopeless_us else None


def _time(instances: Sequence[BoundKernel], sample_s: float) -> Timing:
    """The time of a kernel, over instances that run in turn.

    A kernel on the team finds its buffers' cache lines on all cores, as the network's kernels leave them.
    """
    if not isinstance(instances[0].kernel, NativeKernel):
        plain = [each.call for each in instances]
        return timed_quietly(lambda patience: time_calls(plain, limit_s=patience * sample_s))
    calls = [clocked(each.kernel, each.buffers.inputs, each.buffers.outputs) for each in instances]
    return timed_quietly(lambda patience: time_clocked(calls, limit_s=patience * sample_s))
