"""The check of a plan: each launch runs on reference values, among the buffers and the state of the other launches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collage.check.gate import CheckedOutput, allowed_error, may_be_rounding
from collage.check.samples import Samples
from collage.check.stages import RejectedError, stage
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, Storage, from_layout, to_layout
from collage.kernel.buffers import as_bytes
from collage.kernel.device_array import poison, put, to_host
from collage.kernel.kernel import Call, Kernel
from collage.measure.worker.plan_protocol import Plan, Stage
from collage.measure.worker.plan_trace import WorkerPosition
from collage.measure_db.results import Rejection, RejectionKind
from collage.runtime.executor import Executor

_KEPT_BYTES = 256 << 20
"""At most this many bytes of reference values are kept from one run to the next."""


class PlanCheck:
    """Runs the launches one after another. Errors do not add up, since inputs are always the reference's values."""

    def __init__(self, plan: Plan, executor: Executor, model: Model, samples: Samples) -> None:
        self._plan = plan
        self._executor = executor
        self._model = model
        self._samples = samples
        self._references: dict[int, Array | None] = {}
        self._kept_bytes = 0

    def run(self, kernels: Sequence[Kernel], place: WorkerPosition, runs: int) -> None:
        """Run all launches so many times. Raises RejectedError; ``place`` then tells which launch is wrong."""
        launches = [_Launch(self, number, kernel) for number, kernel in enumerate(kernels)]
        for run in range(runs):
            for number, launch in enumerate(launches):
                place.enter(Stage.CHECK, launch=number)
                launch.run(run + 1)

    def array(self, buffer: int) -> Array:
        """The array that the plan has for a buffer."""
        return self._executor.array(buffer)

    def reference(self, buffer: int) -> Array | None:
        """What the buffer should hold, in its storage, or None where the reference does not know."""
        if buffer in self._references:
            return self._references[buffer]
        found = self._load(buffer)
        self._kept_bytes += 0 if found is None else found.nbytes
        if self._kept_bytes <= _KEPT_BYTES:
            self._references[buffer] = found
        return found

    def _load(self, buffer: int) -> Array | None:
        value, layout = self._plan.stored.get(buffer, (buffer, PLAIN))
        try:
            return to_layout(self._samples.store.load(value, self._model.graph.type_of(value)), layout)
        except KeyError:  # the value is inside an ONNX node
            return None

    def judge(self, launch: int) -> _Judge | None:
        """What compares the outputs of a launch, or None for layout transforms and views, which move values only."""
        region = self._plan.program.launches[launch]
        if not region.nodes:
            return None
        subgraph = Subgraph(self._model, region.nodes)
        if any(self.reference(buffer) is None for buffer in (*region.inputs, *region.outputs)):
            return None  # the values are inside an ONNX node, where the reference knows none
        layouts = [self._plan.stored.get(buffer, (buffer, PLAIN))[1] for buffer in region.outputs]
        return _Judge(self._samples, subgraph, layouts, region.precision)

    def moved(self, launch: int) -> Array | None:
        """What a launch that is a layout transform gives for the reference value that it reads, or None."""
        region = self._plan.program.launches[launch]
        if not region.is_transform:
            return None
        (read,), (written,) = region.inputs, region.outputs
        stored = self.reference(read)
        if stored is None:
            return None
        (value, source), (_, target) = (self._plan.stored.get(b, (b, PLAIN)) for b in (read, written))
        plain = from_layout(stored, source, self._model.graph.type_of(value))
        return to_layout(plain, target)

    def buffers(self, launch: int) -> tuple[Sequence[int], Sequence[int]]:
        """The buffers that a launch reads, and those that it writes."""
        region = self._plan.program.launches[launch]
        return region.inputs, region.outputs


class _Judge:
    """Compares outputs as the numerics gate of each kernel does."""

    def __init__(
        self, samples: Samples, subgraph: Subgraph, layouts: Sequence[Storage], precision: str
    ) -> None:
        self._samples = samples
        self._precision = precision
        self._subgraph = subgraph
        self._layouts = layouts
        self._sample = samples.usual(subgraph)

    def complaint(self, position: int, stored: Array) -> str:
        """What is wrong with an output, or "" where nothing is."""
        allowed = allowed_error(self._subgraph, self._sample, self._precision)
        error = self._sample.expected(position, self._layouts[position]).error(stored)
        if error <= allowed:
            return ""
        plain = from_layout(stored, self._layouts[position], self._subgraph.output_types[position])
        output = CheckedOutput(position, plain, error, self._precision)
        if may_be_rounding(self._samples, self._subgraph, self._sample, output):
            return ""
        what = f"differs by {error:.1e} of its scale" if np.isfinite(error) else "is wrong"
        return f"output {position} {what} (allowed: {allowed:.0e})"


class _Launch:
    """One launch, bound to the plan's buffers."""

    def __init__(self, check: PlanCheck, number: int, kernel: Kernel) -> None:
        self._check = check
        self._judge = check.judge(number)
        self._moved = check.moved(number)
        read, written = check.buffers(number)
        self._inputs = [(check.array(each), each) for each in read]
        self._outputs = [(check.array(each), each) for each in written]
        with stage("bind"):
            self._call: Call = kernel.bind([a for a, _ in self._inputs], [a for a, _ in self._outputs])

    def run(self, number: int) -> None:
        for array, buffer in self._inputs:
            expected = self._check.reference(buffer)
            if expected is not None:
                put(array, expected)
        for array, _ in self._outputs:
            if not self._overlaps(array, self._inputs):
                poison(array)
        with stage("run"):
            self._call()
        for array, buffer in self._inputs:
            expected = self._check.reference(buffer)
            if expected is None or self._overlaps(array, self._outputs):
                continue
            if not np.array_equal(as_bytes(to_host(array)), as_bytes(np.ascontiguousarray(expected))):
                raise _inaccurate(f"in call {number}, writes to its inputs")
        for position, (array, buffer) in enumerate(self._outputs):
            expected = self._check.reference(buffer) if self._moved is None else self._moved
            if expected is None:
                continue
            array = to_host(array)
            if self._judge is not None:
                complaint = self._judge.complaint(position, array)
            else:
                complaint = "" if same_values(array, expected) else f"output {position} is wrong"
            if complaint:
                raise _inaccurate(f"in call {number}, {complaint}")

    @staticmethod
    def _overlaps(array: Array, others: Sequence[tuple[Array, int]]) -> bool:
        return any(np.may_share_memory(array, other) for other, _ in others)


def same_values(one: Array, other: Array) -> bool:
    """Whether arrays of one type are identical, or differ in denormals of a narrow type only, which may be zeros."""
    if np.array_equal(as_bytes(one), as_bytes(np.ascontiguousarray(other))):
        return True
    if one.dtype.name != "bfloat16":
        return False
    a, b = (np.asarray(each).astype(np.float32) for each in (one, other))
    a, b = (np.where(np.abs(each) < np.finfo(np.float32).tiny, 0.0, each) for each in (a, b))
    return bool(np.array_equal(a, b, equal_nan=True))


def _inaccurate(text: str) -> RejectedError:
    return RejectedError(Rejection(RejectionKind.INACCURATE, text))
