"""The compiler's side of plans: whole networks run in the worker, and the kernel that brings it down is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage.graph.dataflow import Array
from collage.measure.plan_kernels import PlanKernels
from collage.measure.worker.plan_protocol import Plan, PlanFailed
from collage.measure.worker.plan_trace import blame
from collage.measure.worker.process import WorkerDiedError, WorkerProcess
from collage.measure.worker.protocol import AskPlan, plan_folder
from collage.measure.worker.session import WorkerSession
from collage.measure_db.results import Rejection, RejectionKind

_SEARCH_S = 1.0
"""Seconds of noted runs that find the launch which fails, when a plan has failed in runs without notes."""
_LAUNCH_S = 1.0
"""Seconds by which each kernel that is loaded raises the time limit."""
_RUNS = 30
"""The time limit of a message allows for this many runs of the network."""
_OPEN = 6
"""At most this many plans are open at once, since each holds the network's weights."""


class PlanFailedError(Exception):
    """A plan crashed, hung, raised or was wrong; ``launch`` is the one that is to blame, or None where it is not known.

    ``by_itself`` tells that the kernel failed outside the plan, when it was built once more for the plan.
    """

    def __init__(self, plan: Plan, launch: int | None, rejection: Rejection, *, by_itself: bool = False) -> None:
        super().__init__(rejection.message)
        self.plan = plan
        self.launch = launch
        self.rejection = rejection
        self.by_itself = by_itself


class Plans:
    """Plans of one model. All methods raise PlanFailedError, and MeasurementError when no worker can be started.

    A plan is checked each time that it is opened: each launch runs a few times, and is compared with the reference.
    """

    def __init__(self, session: WorkerSession, kernels: PlanKernels) -> None:
        self._session = session
        self._kernels = kernels
        self._worker: WorkerProcess | None = None
        self._opened: dict[str, float] = {}
        """Seconds of a run by the plan's name, the one that was used last at the end."""

    def turn(self, plan: Plan, settle_s: float, turn_s: float) -> list[float]:
        """Nanoseconds of the calls of a turn (see ``interleave.take_turn``)."""
        self.open(plan)
        taken: list[float] = self._ask(plan, "turn", plan.name, settle_s, turn_s)
        return taken

    def outputs(self, plan: Plan, inputs: Sequence[Array]) -> tuple[list[Any], bool]:
        """The plan's outputs for inputs in the model's order, and whether guards made it a careful run."""
        self.open(plan)
        found: tuple[list[Any], bool] = self._ask(plan, "run", plan.name, tuple(inputs))
        return found

    def open_alone(self, plan: Plan) -> None:
        """Open the plan as in the process that it is handed over to, with no kernel that was loaded for another plan.

        A kernel may be right in one plan, and fail in the next one that it is loaded for.
        """
        self._make(plan)
        self._opened.clear()  # the worker may close all others
        more_s = _LAUNCH_S * len(plan.kernels)
        self._opened[plan.name] = self._ask(plan, "open_alone", plan, more_s=more_s)

    def times(self, plan: Plan, seconds: float, *, search: bool = True) -> tuple[float, ...]:
        """The microseconds that each launch takes in its place in the network, from runs for so many seconds.

        If a plan fails in runs without notes, it is run again to ``search`` for the launch.
        """
        self.open(plan, search=search)
        found: tuple[float, ...] = self._ask(plan, "note", plan.name, seconds, more_s=2 * seconds, search=search)
        return found

    def open(self, plan: Plan, *, search: bool = True) -> None:
        """Make the kernels that are missing, and have the worker open the plan, unless it is open."""
        self._make(plan)
        self._meet()
        if plan.name in self._opened:
            self._opened[plan.name] = self._opened.pop(plan.name)
            return
        for name in [*self._opened][: max(0, len(self._opened) - _OPEN + 1)]:
            del self._opened[name]
        more_s = _LAUNCH_S * len(plan.kernels)
        self._opened[plan.name] = self._ask(plan, "open", plan, tuple(self._opened), more_s=more_s, search=search)

    def _make(self, plan: Plan) -> None:
        """Make the kernels that are missing."""
        for launch, kernel in enumerate(plan.kernels):
            rejection = self._kernels.make(kernel)
            if rejection is not None:
                raise PlanFailedError(plan, launch, rejection, by_itself=True)
        if plan.program.is_guarded:
            self._kernels.keep_as_loaded()

    def _limit_s(self, plan: Plan) -> float:
        predicted_s = sum(region.cost_us for region in plan.program.launches) / 1e6
        run_s = max(predicted_s, self._opened.get(plan.name, 0.0))
        return self._session.settings.limits.time_s + _RUNS * run_s

    def _meet(self) -> WorkerProcess:
        """Return the worker that the plans are in. A new one has no plans open."""
        worker = self._session.worker(self._session.settings.threads)
        if worker is not self._worker:
            self._worker = worker
            self._opened.clear()
        return worker

    def _ask(self, plan: Plan, method: str, *args: Any, more_s: float = 0.0, search: bool = True) -> Any:
        """What the method of the worker's plans gives; it may take ``more_s`` seconds more than usual."""
        limit_s = self._limit_s(plan) + more_s
        try:
            reply = self._meet().ask(AskPlan(method, args, limit_s), limit_s)
        except WorkerDiedError as died:
            reply = PlanFailed(died.rejection, blame(plan_folder(self._session.folder), plan))
        if not isinstance(reply, PlanFailed):
            return reply
        self._opened.pop(plan.name, None)
        if reply.rejection.kind is RejectionKind.MEMORY:  # the plan's kernels share the blame
            raise PlanFailedError(plan, None, reply.rejection)
        if reply.launch is None and search:
            self._find(plan)
        raise PlanFailedError(plan, reply.launch, reply.rejection)

    def _find(self, plan: Plan) -> None:
        """Run the plan again with notes of each launch. Raises PlanFailedError where that shows which one fails."""
        try:
            self.times(plan, _SEARCH_S, search=False)
        except PlanFailedError as failed:
            if failed.launch is not None:
                raise
