"""Measure a layout conversion in this process: check it against numpy, then time it."""

from __future__ import annotations

import numpy as np

from collage.backends.layout import LayoutChange
from collage.graph.dataflow import np_dtype
from collage.graph.layout import stored_type, to_layout
from collage.kernel.buffers import aligned_array, aligned_copy, as_bytes, poison
from collage.kernel.options import BuildOptions
from collage.measure_db.candidate import RejectedError, clocked, stage
from collage.measure_db.protocol import Change
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from collage.measure_db.timing import time_clocked


def measure_change(change: Change, options: BuildOptions, sample_s: float = 0.25) -> Outcome:
    """The conversion's time in microseconds; a rejection when it does not move every element to its place."""
    plain = np.random.default_rng(0).standard_normal(change.kind.shape).astype(np_dtype(change.kind.dtype))
    taken = aligned_copy(to_layout(plain, change.source))
    given = aligned_array(stored_type(change.kind, change.target))
    backend = LayoutChange()
    try:
        with stage("load"):
            kernel = backend.load(backend.artifact(change.kind, change.source, change.target), options)
        with stage("bind"):
            call = kernel.bind([taken], [given])
        poison(given)
        with stage("run"):
            call()
    except RejectedError as rejected:
        return rejected.rejection
    if not np.array_equal(as_bytes(given), as_bytes(to_layout(plain, change.target))):
        return Rejection(RejectionKind.INACCURATE, f"{change.source} -> {change.target} of {change.kind}")
    timing = time_clocked([clocked(kernel, [taken], [given])], limit_s=sample_s)
    return Measurement(timing.median_us, timing.noise_us, timing.min_us, timing.repeats, 0.0)
