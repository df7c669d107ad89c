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
from collage.graph.storage import PLAIN, Storage, from_layout, to_layout
from collage.kernel.device_array import put, to_host
from collage.kernel.kernel import Kernel
from collage.measure.worker.plan_protocol import Plan, Stage
from collage.measure.worker.plan_trace import WorkerPosition
from collage.runtime.executor import Executor
from collage.schedule.region import Region

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
        launches = [self._launch(number, kernel) for number, kernel in enumerate(kernels)]
        for run in range(runs):
            for number, launch in enumerate(launches):
                place.enter(Stage.CHECK, launch=number)
                launch(f"in call {run + 1}, ")

    def _launch(self, number: int, kernel: Kernel) -> Callable[[str], None]:
        """What runs a launch on the plan's buffers, and compares its outputs."""
        region = self._plan.program.launches[number]
        judged, moved = self._judge(region), self._moved(region)
        inputs = [self._executor.array(each) for each in region.inputs]
        outputs = [self._executor.array(each) for each in region.outputs]
        with stage("bind"):
            call = kernel.bind(inputs, outputs)

        def run(about: str) -> None:
            filled = list(zip(inputs, map(self._reference, region.inputs), strict=True))
            for array, stored in filled:
                if stored is not None:
                    put(array, stored)
            run_checked(call, filled, outputs, about)
            for position, (array, buffer) in enumerate(zip(outputs, region.outputs, strict=True)):
                expected = self._reference(buffer) if moved is None else moved
                if judged is not None:
                    judged(position, to_host(array), about)
                elif expected is not None and not same_values(to_host(array), expected):
                    raise inaccurate(f"{about}output {position} is wrong")

        return run

    def _stored(self, buffer: int) -> tuple[int, Storage]:
        """The value in a buffer, and its storage."""
        return self._plan.stored.get(buffer, (buffer, PLAIN))

    def _reference(self, buffer: int) -> Array | None:
        """What the buffer should hold, in its storage, or None for a value inside an ONNX node, which is not known."""
        if buffer in self._references:
            return self._references[buffer]
        value, storage = self._stored(buffer)
        try:
            found = to_layout(self._samples.store.load(value, self._model.graph.type_of(value)), storage)
        except KeyError:
            found = None
        self._kept_bytes += 0 if found is None else found.nbytes
        if self._kept_bytes <= _KEPT_BYTES:
            self._references[buffer] = found
        return found

    def _judge(self, region: Region) -> Callable[[int, Array, str], float] | None:
        """What compares a kernel's outputs; None for transforms and views, which move values, and unknown values."""
        if not region.nodes or any(self._reference(b) is None for b in (*region.inputs, *region.outputs)):
            return None
        subgraph = Subgraph(self._model, region.nodes)
        storages = [self._stored(buffer)[1] for buffer in region.outputs]
        judge = Judge(self._samples, subgraph, storages, region.precision)
        return partial(judge.error, self._samples.usual(subgraph))

    def _moved(self, region: Region) -> Array | None:
        """What a layout transform makes of the reference value that it reads; None for other launches."""
        if not region.is_transform:
            return None
        (read,), (written,) = region.inputs, region.outputs
        stored = self._reference(read)
        if stored is None:
            return None
        value, source = self._stored(read)
        return to_layout(from_layout(stored, source, self._model.graph.type_of(value)), self._stored(written)[1])


def same_values(one: Array, other: Array) -> bool:
    """Whether arrays of one type are identical, or differ in denormals of a narrow type only, which may be zeros."""
    if same_bytes(one, other):
        return True
    if one.dtype.name != "bfloat16":
        return False
    a, b = (np.asarray(each).astype(np.float32) for each in (one, other))
    a, b = (np.where(np.abs(each) < np.finfo(np.float32).tiny, 0.0, each) for each in (a, b))
    return bool(np.array_equal(a, b, equal_nan=True))
