"""The check of a plan: each launch runs on reference values, among the buffers and the state of the other launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from collage.check.gate import Judge, inaccurate, run_checked, same_bytes
from collage.check.samples import Samples
from collage.check.stages import stage
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, from_layout, to_layout
from collage.kernel.device_array import put, to_host
from collage.kernel.kernel import Call, Kernel
from collage.measure.worker.plan_protocol import Plan, Stage
from collage.measure.worker.plan_trace import WorkerPosition
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

    def judge(self, launch: int) -> Callable[[int, Array, str], float] | None:
        """What compares the outputs of a launch, or None for layout transforms and views, which move values only."""
        region = self._plan.program.launches[launch]
        if not region.nodes or any(self.reference(b) is None for b in (*region.inputs, *region.outputs)):
            return None  # values inside an ONNX node are not known
        subgraph = Subgraph(self._model, region.nodes)
        storages = [self._plan.stored.get(buffer, (buffer, PLAIN))[1] for buffer in region.outputs]
        judge = Judge(self._samples, subgraph, storages, region.precision)
        return partial(judge.error, self._samples.usual(subgraph))

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
        about = f"in call {number}, "
        inputs = [(array, self._check.reference(buffer)) for array, buffer in self._inputs]
        for array, stored in inputs:
            if stored is not None:
                put(array, stored)
        run_checked(self._call, inputs, [array for array, _ in self._outputs], about)
        for position, (array, buffer) in enumerate(self._outputs):
            expected = self._check.reference(buffer) if self._moved is None else self._moved
            if self._judge is not None:
                self._judge(position, to_host(array), about)
            elif expected is not None and not same_values(to_host(array), expected):
                raise inaccurate(f"{about}output {position} is wrong")


def same_values(one: Array, other: Array) -> bool:
    """Whether arrays of one type are identical, or differ in denormals of a narrow type only, which may be zeros."""
    if same_bytes(one, other):
        return True
    if one.dtype.name != "bfloat16":
        return False
    a, b = (np.asarray(each).astype(np.float32) for each in (one, other))
    a, b = (np.where(np.abs(each) < np.finfo(np.float32).tiny, 0.0, each) for each in (a, b))
    return bool(np.array_equal(a, b, equal_nan=True))
