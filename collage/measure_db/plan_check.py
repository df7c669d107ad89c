"""Each launch of a plan on the values that the reference has for it, among the others' buffers and state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collage.backends.base import Call, Kernel
from collage.frontend.model import Model
from collage.frontend.op_kinds import rounds
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.layout import Layout, to_layout
from collage.measure_db.candidate import RejectedError, stage
from collage.measure_db.compare import region_tolerance, relative_error
from collage.measure_db.plan_protocol import Plan, Stage
from collage.measure_db.plan_trace import Place
from collage.measure_db.results import Rejection, RejectionKind
from collage.measure_db.store import ValueStore
from collage.runtime.buffers import as_bytes, poison
from collage.runtime.executor import Executor

_RUNS = 4
"""Two more than each candidate had alone: what goes wrong in the third call shows."""


class PlanCheck:
    """Runs the launches one after another. Errors do not add up: inputs are the reference's, whoever made them."""

    def __init__(self, plan: Plan, executor: Executor, model: Model, store: ValueStore) -> None:
        self._plan = plan
        self._executor = executor
        self._model = model
        self._store = store

    def run(self, kernels: Sequence[Kernel], place: Place) -> None:
        """All launches a few times. Raises RejectedError for the one at which ``place`` is then."""
        launches = [_Launch(self, number, kernel) for number, kernel in enumerate(kernels)]
        for run in range(_RUNS):
            for number, launch in enumerate(launches):
                place.enter(Stage.CHECK, launch=number)
                launch.run(run + 1)

    def array(self, buffer: int) -> Array:
        """Where the plan has it."""
        return self._executor.array(buffer)

    def reference(self, buffer: int) -> Array | None:
        """What the buffer should hold, if anybody knows."""
        value, layout = self._plan.stored.get(buffer, (buffer, Layout.PLAIN))
        try:
            return to_layout(self._store.load(value, self._model.graph.type_of(value)), layout)
        except KeyError:  # a value inside an ONNX node
            return None

    def tolerance(self, launch: int) -> tuple[float, bool]:
        """The error that the launch may have, and whether it rounds on the way."""
        region = self._plan.program.launches[launch]
        operators = Subgraph(self._model, region.nodes).operators
        rounded = any(rounds(node.op) for node in operators)
        values = [v for node in operators for v in (*node.inputs, *node.outputs)]
        dtypes = [self._model.graph.type_of(v).dtype for v in values]
        dtypes += [self._plan.program.types[v].dtype for v in region.outputs]
        return region_tolerance(dtypes, rounded=rounded), rounded

    def buffers(self, launch: int) -> tuple[Sequence[int], Sequence[int]]:
        """What it reads and what it writes."""
        region = self._plan.program.launches[launch]
        return region.inputs, region.outputs


class _Launch:
    """One launch, bound to the plan's buffers."""

    def __init__(self, check: PlanCheck, number: int, kernel: Kernel) -> None:
        self._check = check
        self._allowed, self._rounded = check.tolerance(number)
        read, written = check.buffers(number)
        self._inputs = [(check.array(each), each) for each in read]
        self._outputs = [(check.array(each), each) for each in written]
        with stage("bind"):
            self._call: Call = kernel.bind([a for a, _ in self._inputs], [a for a, _ in self._outputs])

    def run(self, number: int) -> None:
        for array, buffer in self._inputs:
            expected = self._check.reference(buffer)
            if expected is not None:
                np.copyto(array, expected)
        for array, _ in self._outputs:
            if not self._overlaps(array, self._inputs):
                poison(array)
        with stage("run"):
            self._call()
        for array, buffer in self._inputs:
            expected = self._check.reference(buffer)
            if expected is None or self._overlaps(array, self._outputs):
                continue
            if not np.array_equal(as_bytes(array), as_bytes(np.ascontiguousarray(expected))):
                raise _inaccurate(f"in call {number}, writes to its inputs")
        for position, (array, buffer) in enumerate(self._outputs):
            expected = self._check.reference(buffer)
            if expected is None:
                continue
            error = relative_error(array, expected, rounded=self._rounded)
            if not error <= self._allowed:
                what = f"differs by {error:.1e} of its scale" if np.isfinite(error) else "is wrong"
                raise _inaccurate(
                    f"in call {number}, output {position} {what} (allowed: {self._allowed:.0e})"
                )

    @staticmethod
    def _overlaps(array: Array, others: Sequence[tuple[Array, int]]) -> bool:
        return any(np.may_share_memory(array, other) for other, _ in others)


def _inaccurate(text: str) -> RejectedError:
    return RejectedError(Rejection(RejectionKind.INACCURATE, text))
