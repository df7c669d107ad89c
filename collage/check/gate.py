"""The numerics gate of one kernel: its outputs are compared with the reference on usual and on changed inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collage.backends.base import BackendKind
from collage.check.bound_kernel import BoundKernel, usual_sample
from collage.check.compare import (
    reduced_tolerance,
    region_tolerance,
    rounds_each_number,
    saturates,
)
from collage.check.samples import Sample, Samples
from collage.check.stages import RejectedError, stage
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, from_layout, to_layout
from collage.kernel.buffers import as_bytes
from collage.kernel.device_array import poison, put, to_host
from collage.measure_db.results import Rejection, RejectionKind


@dataclass(frozen=True)
class Checked:
    """What the gate has found about a kernel that passes.

    ``error`` is the largest relative error on ordinary inputs (see ``scales``). A kernel of a reduced precision is
    charged for what it does to the usual inputs: its error there is that of noise of equal power (see
    ``Expected.as_noise``). ``finite_only`` tells how the kernel differs on other inputs, or is "" where it does not.
    """

    error: float
    finite_only: str


class Gate:
    """Runs a kernel and compares its outputs."""

    def __init__(self, kernel: BoundKernel, samples: Samples) -> None:
        """Raises RejectedError where no reference values are known."""
        self._kernel = kernel
        self._subgraph = kernel.source.subgraph
        self._samples = samples
        self._precision = kernel.source.options.variant.precision
        self._usual = usual_sample(self._subgraph, samples)

    def check_first(self) -> float:
        """Compare a run on the usual inputs, and return the ``error`` of ``Checked``. Raises RejectedError."""
        error = self._run(self._usual, "")
        return self._as_noise() if self._precision else error

    def check_rest(self, worst: float) -> Checked:
        """Compare runs on changed inputs, and on the usual ones again. ``worst`` is the error of the first run.

        The last run shows what is kept between calls, and what NaN leaves behind. Raises RejectedError for wrong
        numbers, outputs that are not written (they are poisoned before), and inputs that are written to.
        """
        different = ""
        changed = self._samples.changed(self._subgraph)
        for sample in changed:
            self._fill(sample)
            try:
                error = self._run(sample, f"with {sample.kind} in its inputs, ")
            except RejectedError as rejected:
                if sample.ordinary:
                    self._fill(self._usual)
                    self._run(self._usual, "in a later run, ")  # if this fails, too, it tells more
                    raise
                different = different or rejected.rejection.message
            else:
                worst = max(worst, error if sample.ordinary and not self._precision else 0.0)
        different = different or self._not_tried()
        if changed:
            self._fill(self._usual)
        self._run(self._usual, "after other inputs, " if changed else "in a later run, ")
        return Checked(worst, different)

    def _not_tried(self) -> str:
        """What the kernel was not tried on, though it may be wrong there; "" where that is nothing.

        Where it cannot be tried at all, backends that keep NaN are trusted, since others may have no kernel. Where
        there was no time, engines among them are: on a whole model, which takes the longest, scans would not make up
        for it.
        """
        backend, left_out = self._kernel.source.backend, self._samples.left_out(self._subgraph)
        if not backend.keeps_nan:
            kinds = (*left_out.late, *left_out.refused)
        else:
            kinds = () if backend.kind is BackendKind.ENGINE else left_out.late
        return f"not tried on {', '.join(kinds)}" if kinds else ""

    def _as_noise(self) -> float:
        """The largest error of the outputs that the last run has left, as noise of equal power."""
        buffers = self._kernel.buffers
        outputs = enumerate(zip(buffers.output_storages, buffers.outputs, strict=True))
        return max(
            (self._usual.expected(at, storage).as_noise(to_host(array)) for at, (storage, array) in outputs),
            default=0.0,
        )

    def _fill(self, sample: Sample) -> None:
        """Put the sample's inputs into the kernel's buffers."""
        buffers = self._kernel.buffers
        for position, (storage, array) in enumerate(zip(buffers.input_storages, buffers.inputs, strict=True)):
            put(array, sample.stored(position, storage))

    def _run(self, sample: Sample, about: str) -> float:
        """Run the kernel once, on a sample that its buffers hold, and return the largest relative error.

        Raises RejectedError, whose message begins with ``about``.
        """
        buffers = self._kernel.buffers
        for output in buffers.outputs:
            poison(output)
        with stage("run"):
            self._kernel.call()
        for position, (storage, array) in enumerate(zip(buffers.input_storages, buffers.inputs, strict=True)):
            if not _same_bytes(to_host(array), sample.stored(position, storage)):
                raise _inaccurate(f"{about}writes to its inputs")
        errors = [
            self._error(sample, position, to_host(array), about)
            for position, array in enumerate(buffers.outputs)
        ]
        return max(errors, default=0.0)

    def _error(self, sample: Sample, position: int, array: Array, about: str) -> float:
        """The error of an output, or what is allowed where rounding explains it. Raises RejectedError."""
        # Outputs are compared as they are stored: the padding of a blocked value must be zero, as its readers expect.
        storage = self._kernel.buffers.output_storages[position]
        expected = sample.expected(position, storage)
        allowed = allowed_error(self._subgraph, sample, self._precision)
        error = expected.error(array)
        if error <= allowed:
            return error
        plain = from_layout(array, storage, self._subgraph.output_types[position])
        padded = storage != PLAIN and not np.array_equal(as_bytes(to_layout(plain, storage)), as_bytes(array))
        output = CheckedOutput(position, plain, error, self._precision)
        cut = sample is not self._usual and saturates(self._precision) and bool(np.isfinite(error))
        if not padded and (cut or self._may_decide_otherwise(sample, error)):
            return error
        if padded or not may_be_rounding(self._samples, self._subgraph, sample, output):
            raise _inaccurate(
                f"{about}output {position} {_difference(array, expected.value, error, allowed)}"
            )
        return error if self._precision else allowed

    def _may_decide_otherwise(self, sample: Sample, error: float) -> bool:
        """Whether an engine on a whole model may be so far off on inputs that it was not made for.

        A network that classifies may decide otherwise there for the sake of a few roundings. Errors on inputs that it
        was made for are bounded by the user's tolerance. An error that is not finite is always wrong.
        """
        whole = len(self._subgraph.nodes) == len(self._subgraph.model.graph.nodes)
        engine = whole and self._kernel.source.backend.kind is BackendKind.ENGINE
        changed = sample is not self._usual
        return engine and changed and rounds_each_number(self._precision) and bool(np.isfinite(error))


@dataclass(frozen=True)
class CheckedOutput:
    """A kernel's output ``position`` as a plain array, with its error and the precision of the kernel."""

    position: int
    plain: Array
    error: float
    precision: str


def allowed_error(subgraph: Subgraph, sample: Sample, precision: str) -> float:
    """The error that outputs of a kernel of that precision may have, in units of their scale (see ``scales``)."""
    exact = region_tolerance(_dtypes(subgraph), rounded=sample.rounded)
    return max(exact, reduced_tolerance(precision)) if precision else exact


def may_be_rounding(samples: Samples, subgraph: Subgraph, sample: Sample, output: CheckedOutput) -> bool:
    """Whether an output that is off by more than is allowed is as good as can be expected all the same.

    What rounding to a reduced precision changes may be large, as where a softmax reads large numbers.
    """
    position, precision = output.position, output.precision
    reduced = bool(precision) and np.isfinite(output.error)
    if sample.rounded or not (reduced or sample.is_doubtful(position, output.error)):
        return False
    allowed = allowed_error(subgraph, sample, precision)
    return samples.tolerates(subgraph, sample, position, output.plain, allowed, precision)


def _inaccurate(text: str) -> RejectedError:
    return RejectedError(Rejection(RejectionKind.INACCURATE, text))


def _same_bytes(one: Array, other: Array) -> bool:
    """Whether two arrays of the same type are identical, NaN and all; words are compared faster than bytes."""
    a, b = as_bytes(one), as_bytes(np.ascontiguousarray(other))
    words = a.size // 8 * 8
    whole = np.array_equal(a[:words].view(np.uint64), b[:words].view(np.uint64))
    return whole and np.array_equal(a[words:], b[words:])


def _dtypes(subgraph: Subgraph) -> Iterator[str]:
    """The dtypes of all values that the subgraph's operators read and write."""
    graph = subgraph.model.graph
    for node in subgraph.operators:
        for value in (*node.inputs, *node.outputs):
            yield graph.type_of(value).dtype


def _difference(actual: Array, expected: Array, error: float, allowed: float) -> str:
    """What is wrong with an output, for people."""
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
