"""One kernel, tried alone, raced against nobody and checked in this process."""

from __future__ import annotations

import tempfile
from pathlib import Path

from collage.check.bound_kernel import KernelSource
from collage.check.samples import Samples
from collage.measure.worker.protocol import CandidateRequest, KernelFailed, RaceKernels, TryKernel
from collage.measure.worker.racing import Racing
from collage.measure_db.results import Measurement, Outcome


def measured_here(source: KernelSource, samples: Samples, candidate_s: float = 0.005) -> Outcome:
    """The outcome of the only candidate of a region."""
    with tempfile.TemporaryDirectory() as folder:
        racing = Racing(samples, Path(folder))
        request = CandidateRequest(source.subgraph.nodes, source.backend.name, source.options.variant)
        tried = racing.try_alone(TryKernel(0, request, source.options, 60.0), source)
        if isinstance(tried, KernelFailed):
            return tried.rejection
        run = racing.race(RaceKernels((0,), (), 0.0, {}, candidate_s, 60.0))
        if isinstance(run, KernelFailed):
            return run.rejection
        checked = racing.check(0, lambda *_: None)
    if isinstance(checked, KernelFailed):
        return checked.rejection
    raced = run.raced[0]
    return Measurement(
        *(raced.us, raced.noise_us, raced.min_us, raced.repeats),
        *(checked.error, tried.tuning, checked.finite_only, run.busy),
    )
