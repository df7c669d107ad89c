"""The numerics gate of one kernel: its outputs are compared with the reference on usual and on changed inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from collage.backends.base import BackendKind
from collage.check.bound_kernel import BoundKernel, usual_sample
from collage.check.compare import ROUNDINGS
from collage.check.sample import Sample
from collage.check.samples import Samples
from collage.check.stages import RejectedError, stage
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage, from_layout, to_layout
from collage.kernel.buffers import as_bytes
from collage.kernel.device_array import poison, put, to_host
from collage.kernel.kernel import Call
from collage.measure_db.results import Rejection, RejectionKind

_ROUNDING = 0.05
"""Errors of a single rounding in sums that cancel are not larger than this, in units of the scale."""

Filled: TypeAlias = "tuple[Array, Array | None]"
"""A buffer, and what it holds in its storage, if that is known."""


@dataclass(frozen=True)
class Checked:
    """What the gate has found about a kernel that passes.

    ``error`` is the largest relative error on ordinary inputs (see ``scales``). A kernel of a reduced precision is
    charged for what it does to the usual inputs: its error there is that of noise of equal power (see
    ``Expected.as_noise``). ``finite_only`` tells that the kernel differs on other inputs, or was not tried on them.
    """

    error: float
    finite_only: bool = False


class Gate:
    """Runs a kernel and compares its outputs."""

    def __init__(self, kernel: BoundKernel, samples: Samples) -> None:
        """Raises RejectedError where no reference values are known."""
        self._kernel = kernel
        self._subgraph = kernel.source.subgraph
        self._samples = samples
        self._precision = kernel.source.options.variant.precision
        self._usual = usual_sample(self._subgraph, samples)
        backend, model = kernel.source.backend, self._subgraph.model
        storages = kernel.buffers.output_storages
        whole = len(self._subgraph.nodes) == len(model.graph.nodes)
        engine = whole and backend.kind is BackendKind.ENGINE
        self._judge = Judge(samples, self._subgraph, storages, self._precision, engine)

    def check_first(self) -> float:
        """Compare a run on the usual inputs, and return the ``error`` of ``Checked``. Raises RejectedError."""
        error = self._run(self._usual, "")
        return self._as_noise() if self._precision else error

    def check_rest(self, worst: float) -> Checked:
        """Compare runs on changed inputs, and on the usual ones again. ``worst`` is the error of the first run.

        The last run shows what is kept between calls, and what NaN leaves behind. Raises RejectedError for wrong
        numbers, outputs that are not written (they are poisoned before), and inputs that are written to.
        """
        different = False
        changed = self._samples.changed(self._subgraph)
        for sample in changed:
            self._fill(sample)
            try:
                error = self._run(sample, f"with {sample.kind} in its inputs, ")
            except RejectedError:
                if sample.ordinary:
                    self._fill(self._usual)
                    self._run(self._usual, "in a later run, ")  # if this fails, too, it tells more
                    raise
                different = True
            else:
                worst = max(worst, error if sample.ordinary and not self._precision else 0.0)
        different = different or self._is_left_out()
        if changed:
            self._fill(self._usual)
        self._run(self._usual, "after other inputs, " if changed else "in a later run, ")
        return Checked(worst, different)

    def _is_left_out(self) -> bool:
        """Whether the kernel was not tried on inputs where it may be wrong.

        Where it cannot be tried at all, backends that keep NaN are trusted, since others may have no kernel. Where
        there was no time, engines among them are: on a whole model, which takes the longest, scans would not make up
        for it.
        """
        backend, left_out = self._kernel.source.backend, self._samples.left_out(self._subgraph)
        if not backend.keeps_nan:
            return bool(left_out.late or left_out.refused)
        return backend.kind is not BackendKind.ENGINE and bool(left_out.late)

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
        for array, stored in self._inputs(sample):
            put(array, stored)

    def _inputs(self, sample: Sample) -> list[tuple[Array, Array]]:
        buffers = self._kernel.buffers
        inputs = enumerate(zip(buffers.inputs, buffers.input_storages, strict=True))
        return [(array, sample.stored(position, storage)) for position, (array, storage) in inputs]

    def _run(self, sample: Sample, about: str) -> float:
        """Run the kernel once, on a sample that its buffers hold, and return the largest relative error.

        Raises RejectedError, whose message begins with ``about``.
        """
        outputs = self._kernel.buffers.outputs
        run_checked(self._kernel.call, self._inputs(sample), outputs, about)
        errors = (self._judge.error(sample, position, to_host(array), about) for position, array in enumerate(outputs))
        return max(errors, default=0.0)


@dataclass(frozen=True)
class Judge:
    """Compares outputs of a kernel, which are in these storages, with those of samples.

    ``engine`` says that an engine runs the whole model. It may be wrong on inputs that the model was not made for: a
    network that classifies may decide otherwise there for the sake of a few roundings. Errors on inputs that it was
    made for are bounded by the user's tolerance. An error that is not finite is always wrong.
    """

    samples: Samples
    subgraph: Subgraph
    storages: Sequence[Storage]
    precision: str = ""
    engine: bool = False

    def error(self, sample: Sample, position: int, array: Array, about: str) -> float:
        """The error of an output, or what is allowed if rounding explains it. Raises RejectedError."""
        # Outputs are compared as they are stored: the padding of a blocked value must be zero, as its readers expect.
        precision, storage, rounding = self.precision, self.storages[position], ROUNDINGS[self.precision]
        expected, allowed = sample.expected(position, storage), sample.rules[position].allowed
        allowed = max(allowed, rounding.allowed)
        error = expected.error(array)
        if error <= allowed:
            return error
        plain = from_layout(array, storage, self.subgraph.output_types[position])
        filled = storage == PLAIN or same_bytes(to_layout(plain, storage), array)
        if filled and self.engine and rounding.of_each and not sample.usual and np.isfinite(error):
            return error
        doubtful = precision or error <= _ROUNDING or sample.outputs[position].dtype.kind in "iub"
        if (
            filled
            and doubtful
            and sample.may_be_rounding(position, error)
            and self.samples.tolerates(self.subgraph, sample, position, plain, allowed, precision)
        ):
            return error if precision else allowed
        raise inaccurate(f"{about}output {position} {_difference(array, expected.value, error, allowed)}")


def run_checked(call: Call, inputs: Sequence[Filled], outputs: Sequence[Array], about: str) -> None:
    """Poison the outputs and run. Inputs must stay as they are, unless they share memory with outputs.

    Raises RejectedError.
    """
    for array in outputs:
        if not any(np.may_share_memory(array, other) for other, _ in inputs):
            poison(array)
    with stage("run"):
        call()
    for array, stored in inputs:
        if stored is None or any(np.may_share_memory(array, other) for other in outputs):
            continue
        if not same_bytes(to_host(array), stored):
            raise inaccurate(f"{about}writes to its inputs")


def inaccurate(text: str) -> RejectedError:
    """The rejection of a kernel whose outputs are wrong."""
    return RejectedError(Rejection(RejectionKind.INACCURATE, text))


def same_bytes(one: Array, other: Array) -> bool:
    """Whether two arrays of one type are identical, NaN and all; words are compared faster than bytes."""
    a, b = as_bytes(one), as_bytes(np.ascontiguousarray(other))
    words = a.size // 8 * 8
    whole = np.array_equal(a[:words].view(np.uint64), b[:words].view(np.uint64))
    return whole and np.array_equal(a[words:], b[words:])


def _difference(actual: Array, expected: Array, error: float, allowed: float) -> str:
    """What is wrong with an output, for people."""
    if np.isfinite(error):
        return f"differs by {error:.1e} of its scale from the reference (allowed: {allowed:.0e})"
    if "float" in actual.dtype.name:
        wrong = int(np.count_nonzero(np.isnan(actual.astype(np.float64)) & ~np.isnan(expected.astype(np.float64))))
        if wrong:
            return f"has {wrong} elements that are NaN or never written"
        return "has infinities or NaN in other places than the reference"
    return f"has {int(np.count_nonzero(actual != expected))} wrong elements"
