"""Measure a layout transform in this process: compare it with the formats' own functions, then time it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from collage.backends.base import Backend
from collage.check.stages import RejectedError, made_artifact, stage
from collage.core.quiet import quiet_machine
from collage.graph.dataflow import np_dtype
from collage.graph.storage import CUDA, stored_type, to_layout
from collage.kernel.buffers import as_bytes
from collage.kernel.device_array import empty_on, lock_pages, poison, put, to_host
from collage.kernel.device_call import DeviceCall
from collage.kernel.device_clock import clocks_at_work, device_clocked
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure.timing.race import time_alone
from collage.measure.worker.racing import clocked, turn_of
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from collage.native import NativeKernel

_VALUES = 251
"""The number of different values in the array that is transformed. It is prime, so that no block of it repeats."""


def measure_transform(
    transform: LayoutTransform,
    backend: Backend,
    options: BuildOptions,
    sample_s: float = 0.25,
    keep: Callable[[bytes], None] | None = None,
) -> Outcome:
    """The transform's time in microseconds, or a rejection when it does not move every element to its place.

    Samples are taken for about ``sample_s`` seconds. ``keep`` is called with the artifact that was measured.
    """
    kind, source, target = transform.kind, transform.source, transform.target
    count = math.prod(kind.shape)
    plain = (np.arange(count) % _VALUES).astype(np_dtype(kind.dtype)).reshape(kind.shape)
    try:
        artifact = made_artifact(lambda: backend.codegen_transform(transform, options))
        with stage("load"):
            stored, made = to_layout(plain, source), stored_type(kind, target)
            source_array = empty_on(source.device, stored.shape, stored.dtype)
            target_array = empty_on(target.device, made.shape, made.dtype)
            put(source_array, stored)
            between_devices = source.device != target.device
            if between_devices and CUDA in (source.device, target.device):
                lock_pages(source_array if target.device == CUDA else target_array)
            kernel = backend.load_transform(artifact, options)
        with stage("bind"):
            call = kernel.bind([source_array], [target_array])
        poison(target_array)
        with stage("run"):
            call()
    except RejectedError as rejected:
        return rejected.rejection
    if not np.array_equal(as_bytes(to_host(target_array)), as_bytes(to_layout(plain, target))):
        return Rejection(RejectionKind.INACCURATE, str(transform))
    timed: Callable[[], object] = call
    if isinstance(kernel, NativeKernel):
        timed = clocked(kernel, [source_array], [target_array])
    elif isinstance(call, DeviceCall) and not call.with_host:
        timed = device_clocked(call)
    turn = turn_of(own=timed is not call)
    with quiet_machine(alone=options.threads > 1 or isinstance(call, DeviceCall)) as watch:
        found = time_alone(lambda count: turn([timed] * count), sample_s)
    if keep is not None:
        keep(artifact)
    return Measurement(
        *(found.us, found.noise_us, found.min_us, found.repeats, 0.0),
        busy=watch.busy,
        clocks=clocks_at_work() if isinstance(call, DeviceCall) else None,
    )
