"""What measures and runs one model: its measurer with a worker, and what makes executables of plans and runs them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx

from collage.compiler.assemble import Assembler
from collage.compiler.events import Event, Measured
from collage.compiler.executable import Executable
from collage.compiler.final_check import FinalCheck, Finding
from collage.compiler.plan_runs import PlanRuns
from collage.frontend.model import Model
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workbench:
    """All of these are for one model; ``original`` is what it was made from."""

    measurer: Measurer
    assembler: Assembler
    runs: PlanRuns
    original: onnx.ModelProto

    @property
    def model(self) -> Model:
        """The model that is measured."""
        return self.measurer.model

    @cached_property
    def final_check(self) -> FinalCheck:
        """What is expected of modules; made when it is needed, which takes a run of the original."""
        return FinalCheck.of(self.original, self.model, self.runs.seed)

    def checked(self, executable: Executable, tunings: Mapping[Request, str]) -> tuple[Executable, Finding]:
        """The executable and what the last check finds; guarded at its inputs where it errs on unusual ones only."""
        finding = self.runs.finding(executable, self._check)
        if not finding.complaint or finding.ordinary or executable.guarded:
            return executable, finding
        log.info("%s: %s; its inputs are guarded", executable.label, finding.complaint)
        guarded = self.assembler.assemble(executable.plan, tunings, guard_inputs=True)
        return guarded, self.runs.finding(guarded, self._check)

    def _check(self) -> FinalCheck:
        return self.final_check

    def journal(self) -> tuple[Event, ...]:
        """What has happened in the worker so far, whatever became of the searches that asked for it."""
        return (Measured(self.measurer.made_in_all + self.runs.made), *self.runs.failures.told)
