"""Measure one candidate in this process: build it, check its numbers, then time it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import TypeAlias

import numpy as np

from collage.check.bound_kernel import BoundKernel, KernelSource, build
from collage.check.gate import Gate
from collage.check.samples import Samples
from collage.check.spent import BUILD, CHECK, COPIES, RACE, SAMPLES, spent
from collage.check.stages import RejectedError, looks_like_memory, rejection_of
from collage.core.library_text import library_text
from collage.core.nvml import Clocks
from collage.graph.dataflow import Array
from collage.kernel.device_call import DeviceCall
from collage.kernel.device_clock import clocks_at_work, device_clocked
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.measure.machine.memory import last_level_cache
from collage.measure.machine.quiet import quiet_machine, timed_quietly
from collage.measure.timing.cache_state import instance_count, weight_bytes, weights_among
from collage.measure.timing.calls import (
    PRECISE,
    Clocked,
    Enough,
    no_gc,
    sample_calls,
    sample_clocked,
    samples_ns,
)
from collage.measure.timing.race import race
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind, Slower, Timing
from collage.native import LaunchList, NativeKernel, note_time, team_of, touch_interleaved

Keep: TypeAlias = Callable[[BuildOptions, bytes], None]
"""Takes an artifact, and the options that it was built with."""


def measure_candidate(
    source: KernelSource,
    samples: Samples,
    *,
    sample_s: float = 0.25,
    enough: Enough = PRECISE,
    rival_us: float = math.inf,
    keep: Keep | None = None,
) -> Outcome:
    """Tune and build the kernel, compare its runs with the reference, and time it in the cache state of its network.

    Sampling takes at most about ``sample_s`` seconds, and less where that is ``enough``; see ``sample_calls``. A kernel
    that turns out to be slower than one which takes ``rival_us`` microseconds is let go at once, unless it was tuned:
    see ``race``. It races with its weights in the cache first, where it is not slower than in its network, and then as
    it is timed. ``keep`` is called with what was measured to the end. Nothing is raised: whatever goes wrong is a
    Rejection.
    """
    try:
        with spent(BUILD):
            source = source.tuned()
            kernel = build(source, samples)
        gate = Gate(kernel, samples)
        with spent(CHECK):
            error = gate.check_first()
        rival_us = math.inf if source.options.tuning else rival_us
        instances = [kernel]
        slower = _raced(instances, rival_us)
        if slower is None:
            with spent(COPIES):
                instances = _instances(kernel)
            slower = _raced(instances, rival_us) if len(instances) > 1 else None
        if slower is not None:
            return slower
        with spent(CHECK):
            checked = gate.check_rest(error)
        with spent(SAMPLES):
            timing, clocks = _time(instances, sample_s, enough), _clocks(instances)
        with spent(CHECK):
            gate.check_again("after being timed, ")
        if keep is not None:
            keep(source.options, kernel.artifact)
    except RejectedError as rejected:
        return rejected.rejection
    except MemoryError as error:
        text = library_text(error)  # that of a GPU says whose memory it is, and what to do
        said = text if looks_like_memory(text) else "out of memory"
        return Rejection(RejectionKind.MEMORY, f"run: {said}")
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
        clocks,
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
    """The kernel, and others with weights of their own to rotate with. A GPU's cache is flushed instead."""
    if isinstance(kernel.call, DeviceCall):
        return [kernel]
    subgraph = kernel.source.subgraph
    weights, among = weight_bytes(subgraph), weights_among(subgraph)
    count = instance_count(weights, among, last_level_cache(), kernel.load_s)
    return [kernel, *(kernel.another() for _ in range(count - 1))]


def _own_clocks(instances: Sequence[BoundKernel]) -> list[Clocked] | None:
    """Calls that are timed by the GPU that they run on, or None where they run on the host."""
    found = [device_clocked(each.call) for each in instances if isinstance(each.call, DeviceCall)]
    return found or None


def _raced(instances: Sequence[BoundKernel], rival_us: float) -> Slower | None:
    """What a race of the kernel's instances shows: that it takes more than ``rival_us`` microseconds, or None."""
    if math.isinf(rival_us):
        return None
    with spent(RACE), quiet_machine() as watch, no_gc():
        calls = _own_clocks(instances)
        if calls is None and not isinstance(instances[0].kernel, NativeKernel):
            samples = samples_ns([each.call for each in instances])
        else:
            calls = calls or [
                clocked(each.kernel, each.buffers.inputs, each.buffers.outputs) for each in instances
            ]
            samples = (float(call()) for call in cycle(calls))
        slower = race(samples, rival_us, watch.patience)
    return None if slower is None else replace(slower, busy=watch.busy, clocks=_clocks(instances))


def _clocks(instances: Sequence[BoundKernel]) -> Clocks | None:
    """The clocks of the GPU that has just run them; None where they run on the host."""
    return clocks_at_work() if isinstance(instances[0].call, DeviceCall) else None


def _time(instances: Sequence[BoundKernel], sample_s: float, enough: Enough) -> Timing:
    """The time of a kernel, over instances that run in turn.

    A kernel on the team finds its buffers' cache lines on all cores, as the network's kernels leave them.
    """
    if (own := _own_clocks(instances)) is not None:
        return timed_quietly(lambda patience: sample_clocked(own, limit_s=patience * sample_s, enough=enough))
    if not isinstance(instances[0].kernel, NativeKernel):
        plain = [each.call for each in instances]
        return timed_quietly(lambda patience: sample_calls(plain, limit_s=patience * sample_s, enough=enough))
    calls = [clocked(each.kernel, each.buffers.inputs, each.buffers.outputs) for each in instances]
    return timed_quietly(lambda patience: sample_clocked(calls, limit_s=patience * sample_s, enough=enough))
