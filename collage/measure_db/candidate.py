"""Measure one candidate in this process: build, check the numbers, then time it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx

from collage.backends.base import Backend, UnsupportedError
from collage.frontend.subgraph import Subgraph
from collage.frontend.to_onnx import ExportError
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage, from_layout, stored_type, to_layout
from collage.kernel.buffers import aligned_array, aligned_copy, as_bytes, poison
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions, Variant
from collage.measure_db.coldness import instance_count, weight_bytes, weights_among
from collage.measure_db.compare import region_tolerance
from collage.measure_db.machine import last_level_cache
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from collage.measure_db.samples import Sample, Samples
from collage.measure_db.timing import Clocked, Timing, time_calls, time_clocked
from collage.native import LaunchList, NativeKernel, note_time, team_of, touch_in_turns

_MESSAGE_CHARS = 500


class RejectedError(Exception):
    """A candidate that cannot be used; carries the Rejection."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


@dataclass(frozen=True)
class _Layouts:
    """The layout of each input and output of a subgraph."""

    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]

    @staticmethod
    def of(subgraph: Subgraph, variant: Variant) -> _Layouts:
        return _Layouts(
            variant.inputs or (PLAIN,) * len(subgraph.inputs),
            variant.outputs or (PLAIN,) * len(subgraph.outputs),
        )


@dataclass(frozen=True)
class BoundKernel:
    """An instance of a candidate on buffers that hold its reference inputs, in the layouts of its variant.

    ``another`` makes one more instance, with weights of its own, on the same buffers.
    """

    kernel: Kernel
    call: Call
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    layouts: _Layouts
    another: Callable[[], BoundKernel]
    load_s: float
    artifact: bytes
    runs_us: list[float] = field(default_factory=list)
    """Microseconds of each run that was compared with the reference."""


Keep: TypeAlias = Callable[[BuildOptions, bytes], None]
"""Takes an artifact, and the options that it was built with."""


def measure_candidate(
    subgraph: Subgraph,
    backend: Backend,
    options: BuildOptions,
    samples: Samples,
    sample_s: float = 0.25,
    *,
    original: onnx.ModelProto | None = None,
    keep: Keep | None = None,
    hopeless_us: float = math.inf,
) -> Outcome:
    """Tune and build the kernel, compare its runs with the reference, and time it with cold weights.

    Sampling takes about ``sample_s`` seconds; see ``time_calls``. ``original`` is what the backend compiles instead of
    the subgraph, where that is all of the model. ``keep`` takes what was measured. A kernel that takes longer than
    ``hopeless_us`` microseconds is not timed precisely: a tenth of the time is enough, with its weights in the cache.
    """
    try:
        options = tuned(subgraph, backend, options)
        kernel = build(subgraph, backend, options, samples, original)
        checked = check_numbers(subgraph, kernel, samples)
        timing = _quick_time(kernel, hopeless_us, sample_s)
        if timing is None:
            timing = _time(_instances(subgraph, kernel), sample_s)
        check_run(subgraph, kernel, samples, samples.usual(subgraph), "after being timed, ")
        if keep is not None:
            keep(options, kernel.artifact)
    except RejectedError as rejected:
        return rejected.rejection
    except MemoryError:
        return Rejection(RejectionKind.MEMORY, "run: out of memory")
    except BaseException as failure:  # a kernel that raises only after some runs
        return _rejection("run", failure)
    return Measurement(
        timing.median_us,
        timing.noise_us,
        timing.min_us,
        timing.repeats,
        checked.error,
        options.tuning,
        bool(checked.finite_only),
    )


def tuned(subgraph: Subgraph, backend: Backend, options: BuildOptions) -> BuildOptions:
    """The options with the record of the kernel that tuning found, where there are trials. Raises RejectedError."""
    if not options.tune_trials:
        return options
    with stage("tune"):
        return replace(options, tuning=backend.tune(subgraph, options))


def build(
    subgraph: Subgraph,
    backend: Backend,
    options: BuildOptions,
    samples: Samples,
    original: onnx.ModelProto | None = None,
) -> BoundKernel:
    """Compile, load and bind the candidate. Raises RejectedError."""
    with stage("codegen"):
        if original is None:
            artifact = backend.codegen(subgraph, options)
        else:
            artifact = backend.codegen_model(original, options)
    return load(subgraph, backend, options, samples, artifact)


def load(
    subgraph: Subgraph, backend: Backend, options: BuildOptions, samples: Samples, artifact: bytes
) -> BoundKernel:
    """Load and bind what was compiled. Raises RejectedError."""
    layouts = _Layouts.of(subgraph, options.variant)
    usual = _usual(subgraph, samples)
    inputs = tuple(
        aligned_copy(usual.stored(position, layout)) for position, layout in enumerate(layouts.inputs)
    )
    outputs = tuple(
        aligned_array(stored_type(found, layout))
        for found, layout in zip(subgraph.output_types, layouts.outputs, strict=True)
    )

    def instance() -> BoundKernel:
        start = time.perf_counter()
        with stage("load"):
            loaded = backend.load(artifact, options)
        with stage("bind"):
            call = loaded.bind(inputs, outputs)
        load_s = time.perf_counter() - start
        return BoundKernel(loaded, call, inputs, outputs, layouts, instance, load_s, artifact)

    return instance()


@dataclass(frozen=True)
class Checked:
    """The largest relative error on ordinary inputs (see ``scales``), and where a kernel is right for ordinary inputs
    only, how it differs on others ("" where it does not)."""

    error: float
    finite_only: str


def check_numbers(subgraph: Subgraph, kernel: BoundKernel, samples: Samples) -> Checked:
    """Compare the kernel's runs with the reference: on the usual inputs, on changed ones, and on the usual again.

    The last run finds what is kept between calls, and what NaN leaves behind.

    Raises RejectedError: wrong numbers, outputs left unwritten (they are poisoned before), inputs written to.
    """
    usual = _usual(subgraph, samples)
    worst = check_run(subgraph, kernel, samples, usual, "")
    different = ""
    changed = samples.changed(subgraph)
    for sample in changed:
        _fill(kernel, sample)
        about = f"with {sample.kind} in its inputs, "
        try:
            error = check_run(subgraph, kernel, samples, sample, about)
        except RejectedError as rejected:
            if sample.ordinary:
                _fill(kernel, usual)
                check_run(subgraph, kernel, samples, usual, "in a later run, ")  # which tells more, if it is
                raise
            different = different or rejected.rejection.message
        else:
            worst = max(worst, error if sample.ordinary else 0.0)
    if changed:
        _fill(kernel, usual)
    check_run(subgraph, kernel, samples, usual, "after other inputs, " if changed else "in a later run, ")
    return Checked(worst, different)


def check_run(subgraph: Subgraph, kernel: BoundKernel, samples: Samples, sample: Sample, about: str) -> float:
    """Run the kernel once, on a sample that its buffers hold; the largest relative error.

    Raises RejectedError, whose message begins with ``about``.
    """
    for output in kernel.outputs:
        poison(output)
    with stage("run"):
        begin = time.perf_counter()
        kernel.call()
        kernel.runs_us.append((time.perf_counter() - begin) * 1e6)
    for position, (layout, buffer) in enumerate(zip(kernel.layouts.inputs, kernel.inputs, strict=True)):
        if not _same_bytes(buffer, sample.stored(position, layout)):
            raise RejectedError(Rejection(RejectionKind.INACCURATE, f"{about}writes to its inputs"))
    allowed = allowed_error(subgraph, sample)
    worst = 0.0
    for position, (layout, buffer) in enumerate(zip(kernel.layouts.outputs, kernel.outputs, strict=True)):
        # Compared as stored: the padding of a blocked value has to be zero, since its readers rely on it.
        expected = sample.expected(position, layout)
        error = expected.error(buffer)
        if not error <= allowed:
            kind = subgraph.output_types[position]
            plain = from_layout(buffer, layout, kind)
            padded = layout != PLAIN and not np.array_equal(
                as_bytes(to_layout(plain, layout)), as_bytes(buffer)
            )
            if padded or not may_be_rounding(samples, subgraph, sample, position, plain, error):
                text = f"{about}output {position} {_difference(buffer, expected.value, error, allowed)}"
                raise RejectedError(Rejection(RejectionKind.INACCURATE, text))
            error = allowed
        worst = max(worst, error)
    return worst


def allowed_error(subgraph: Subgraph, sample: Sample) -> float:
    """The error that outputs may have, in units of their scale."""
    return region_tolerance(_dtypes(subgraph), rounded=sample.rounded)


def may_be_rounding(
    samples: Samples, subgraph: Subgraph, sample: Sample, position: int, plain: Array, error: float
) -> bool:
    """Whether a plain output that is off by more than is allowed is as good as can be expected all the same."""
    if sample.rounded or not sample.is_doubtful(position, error):
        return False
    return samples.tolerates(subgraph, sample, position, plain, allowed_error(subgraph, sample))


def _fill(kernel: BoundKernel, sample: Sample) -> None:
    """Put the sample's inputs into the kernel's buffers."""
    for position, (layout, buffer) in enumerate(zip(kernel.layouts.inputs, kernel.inputs, strict=True)):
        np.copyto(buffer, sample.stored(position, layout))


def _same_bytes(one: Array, other: Array) -> bool:
    """Whether two arrays of the same type are identical, NaN and all; words are compared faster than bytes."""
    a, b = as_bytes(one), as_bytes(np.ascontiguousarray(other))
    words = a.size // 8 * 8
    whole = np.array_equal(a[:words].view(np.uint64), b[:words].view(np.uint64))
    return whole and np.array_equal(a[words:], b[words:])


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Turn whatever is raised into RejectedError with the stage's name: tune, codegen, load, bind or run."""
    try:
        yield
    except RejectedError:
        raise
    except BaseException as error:  # also SystemExit; SIGINT is ignored in the worker
        raise RejectedError(_rejection(name, error)) from error


def _rejection(name: str, error: BaseException) -> Rejection:
    text = " ".join(str(error).split())[:_MESSAGE_CHARS]
    if isinstance(error, (UnsupportedError, ExportError)):
        return Rejection(RejectionKind.UNSUPPORTED, text or type(error).__name__)
    message = f"{name}: {type(error).__name__}" + (f": {text}" if text else "")
    out_of_memory = isinstance(error, MemoryError) or looks_like_memory(text)
    return Rejection(RejectionKind.MEMORY if out_of_memory else RejectionKind.FAILED, message)


def looks_like_memory(text: str) -> bool:
    """Whether a library's message says that an allocation failed."""
    return any(
        each in text for each in ("bad_alloc", "bad allocation", "out of memory", "Failed to allocate memory")
    )


def _usual(subgraph: Subgraph, samples: Samples) -> Sample:
    try:
        return samples.usual(subgraph)
    except KeyError as missing:
        name = subgraph.model.graph.values[missing.args[0]].name
        text = f"no reference value for {name or 'a value inside an ONNX node'}"
        raise RejectedError(Rejection(RejectionKind.UNSUPPORTED, text)) from None


def _dtypes(subgraph: Subgraph) -> Iterator[str]:
    graph = subgraph.model.graph
    for node in subgraph.operators:
        for value in (*node.inputs, *node.outputs):
            yield graph.type_of(value).dtype


def _difference(actual: Array, expected: Array, error: float, allowed: float) -> str:
    if np.isfinite(error):
        return f"differs by {error:.1e} of its scale from the reference (allowed: {allowed:.0e})"
    if "float" in actual.dtype.name:
        wrong = int(
            np.count_nonzero(np.isnan(actual.astype(np.float64)) & ~np.isnan(expected.astype(np.float64)))
        )
        if wrong:
            return f"has {wrong} elements that are NaN or never written"
        return "has infinities or NaN in other places than the reference"
    return f"has {int(np.count_nonzero(actual != expected))} wrong elements"


def _instances(subgraph: Subgraph, kernel: BoundKernel) -> list[BoundKernel]:
    """The kernel, and others with weights of their own to rotate with."""
    weights, among = weight_bytes(subgraph), weights_among(subgraph)
    count = instance_count(weights, among, last_level_cache(), kernel.load_s)
    return [kernel, *(kernel.another() for _ in range(count - 1))]


def _quick_time(kernel: BoundKernel, hopeless_us: float, sample_s: float) -> Timing | None:
    """The time of a kernel that takes longer than ``hopeless_us``, from a few samples; None for any other."""
    if min(kernel.runs_us) <= hopeless_us:
        return None
    found = _time([kernel], 0.1 * sample_s)
    return found if found.min_us > hopeless_us else None


def _time(instances: Sequence[BoundKernel], sample_s: float) -> Timing:
    """A kernel on the team finds its buffers' cache lines on all cores, as the network's kernels leave them."""
    if not isinstance(instances[0].kernel, NativeKernel):
        return time_calls([each.call for each in instances], limit_s=sample_s)
    calls = [clocked(each.kernel, each.inputs, each.outputs) for each in instances]
    return time_clocked(calls, limit_s=sample_s)


def clocked(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array]) -> Clocked:
    """A call of a kernel on the team that takes its own time, with the buffers' cache lines on all cores."""
    assert isinstance(kernel, NativeKernel)
    clock = np.zeros(2, np.int64)
    before, after = (note_time(int(clock[side:].ctypes.data)) for side in (0, 1))
    touches = [touch_in_turns(array) for array in (*outputs, *inputs) if array.nbytes]
    run = LaunchList(team_of(kernel.threads), [*touches, before, *kernel.steps(inputs, outputs), after])

    def call() -> int:
        run()
        return int(clock[1] - clock[0])

    return call
