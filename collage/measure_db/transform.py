"""Measure a layout transform in this process: check it against the formats' own functions, then time it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collage.backends.base import Backend
from collage.graph.dataflow import np_dtype
from collage.graph.storage import stored_type, to_layout
from collage.kernel.buffers import aligned_array, aligned_copy, as_bytes, poison
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure_db.candidate import RejectedError, clocked, stage
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from collage.measure_db.timing import time_calls, time_clocked
from collage.native import NativeKernel


def measure_transform(
    transform: LayoutTransform,
    backend: Backend,
    options: BuildOptions,
    sample_s: float = 0.25,
    keep: Callable[[bytes], None] | None = None,
) -> Outcome:
    """The transform's time in microseconds; a rejection when it does not move every element to its place.

    ``keep`` takes the artifact that was measured.
    """
    kind, source, target = transform.kind, transform.source, transform.target
    plain = np.random.default_rng(0).standard_normal(kind.shape).astype(np_dtype(kind.dtype))
    try:
        with stage("codegen"):
            artifact = backend.codegen_transform(transform, options)
        with stage("load"):
            taken = aligned_copy(to_layout(plain, source))
            given = aligned_array(stored_type(kind, target))
            kernel = backend.load_transform(artifact, options)
        with stage("bind"):
            call = kernel.bind([taken], [given])
        poison(given)
        with stage("run"):
            call()
    except RejectedError as rejected:
        return rejected.rejection
    if not np.array_equal(as_bytes(given), as_bytes(to_layout(plain, target))):
        return Rejection(RejectionKind.INACCURATE, str(transform))
    if isinstance(kernel, NativeKernel):
        timing = time_clocked([clocked(kernel, [taken], [given])], limit_s=sample_s)
    else:
        timing = time_calls([call], limit_s=sample_s)
    if keep is not None:
        keep(artifact)
    return Measurement(timing.median_us, timing.noise_us, timing.min_us, timing.repeats, 0.0)
