"""Eq. 2.2's epsilon, the cost of one more kernel launch: measured in the worker once, then remembered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from collage.measure.machine.quiet import quiet_machine
from collage.measure.plan_kernels import PlanKernels
from collage.measure.request_keys import RequestKeys
from collage.measure.settings import MeasureSettings
from collage.measure.timing.switch_cost import switch_cost_us
from collage.measure.worker.plan_protocol import PlanKernel, Stage
from collage.measure.worker.plan_trace import WorkerPosition
from collage.measure.worker.process import WorkerDiedError
from collage.measure.worker.protocol import CandidateRequest, MeasureSwitch, SwitchCost, plan_folder
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database, Json
from collage.measure_db.keys import Fact, as_number
from collage.measure_db.results import RejectionKind

log = logging.getLogger(__name__)


def _write_cost(cost: SwitchCost) -> Json:
    return cost.us


def _read_cost(value: Any) -> SwitchCost | None:
    us = as_number(value)
    return None if us is None else SwitchCost(us)


_EPSILON_US: Fact[SwitchCost] = Fact("epsilon_us", _write_cost, _read_cost, attrgetter("busy"))
_LAUNCH_US: Fact[SwitchCost] = Fact("launch_us", _write_cost, _read_cost, attrgetter("busy"))


class LaunchCost:
    """Measures the cost with the kernels of one model; ``kernels`` takes the rejection of one that fails."""

    def __init__(
        self, session: WorkerSession, settings: MeasureSettings, database: Database, kernels: PlanKernels
    ) -> None:
        self._session = session
        self._settings = settings
        self._database = database
        self._kernels = kernels
        self._key = RequestKeys(session.measured, settings).launch_cost_key()

    def epsilon_us(self, requests: Sequence[CandidateRequest]) -> float:
        """The cost in microseconds; see ``switch_cost_us``.

        It is measured with the kernels of ``requests`` the first time, and remembered for the backends' versions, the
        machine and the threads. There should be two or more quick kernels of different backends. With fewer there is
        nothing to switch between, so it is the cost of a launch that does nothing. A kernel that was measured without
        trouble, and brings the worker down among the others, is rejected. One that was at work when the time was over
        is left out.
        """
        if len(requests) < 2:
            key = _LAUNCH_US.at(self._settings.hardware)
            return self._database.remember(key, _empty_launch).us
        measure = partial(self._measure, tuple(requests))
        try:
            return self._database.remember(_EPSILON_US.at(self._key), measure).us
        except WorkerDiedError as died:
            culprit = self._blamed(requests, died)
        return self.epsilon_us([each for each in requests if each != culprit])

    def _measure(self, requests: tuple[CandidateRequest, ...]) -> SwitchCost:
        """The cost, measured in the worker. Raises WorkerDiedError."""
        settings = self._settings
        limit_s = len(requests) * settings.limits.time_s  # all of them are built and run
        message = MeasureSwitch(requests, settings.build, limit_s, settings.effort.kernel_s)
        found: SwitchCost = self._session.worker(settings.threads).ask(message, message.limit_s)
        return found

    def _blamed(self, requests: Sequence[CandidateRequest], died: WorkerDiedError) -> CandidateRequest:
        """The request whose kernel was loaded, or ran, when the worker died. It is rejected."""
        stage, number, launch = WorkerPosition(plan_folder(self._session.folder)).now
        culprit = requests[launch if stage is Stage.SWITCH else number]
        log.info("%s among other kernels: %s", culprit.backend, died.rejection)
        if died.rejection.kind is RejectionKind.TIMEOUT:
            return culprit  # it may be that the others took the time
        text = f"beside kernels of other backends: {died.rejection.message}"
        rejection = replace(died.rejection, message=text)
        self._kernels.reject(PlanKernel(culprit, self._settings.build), rejection)
        return culprit


def _empty_launch() -> SwitchCost:
    """The cost of a launch that does nothing, measured in this process."""
    with quiet_machine() as watch:
        us = switch_cost_us(())
    return SwitchCost(us, watch.busy)
