"""The workbench of one model: its measurer with a worker, and what assembles and runs its executables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import onnx

from collage.compiler.accuracy import Accuracy, Asked
from collage.compiler.assemble import Assembler
from collage.compiler.events import Event, Measured
from collage.compiler.executable import Executable
from collage.compiler.final_check import BEYOND_GUARDS, FinalCheck, Finding
from collage.compiler.plan_runs import PlanRuns
from collage.core.deadline import Deadline
from collage.frontend.model import Model
from collage.measure.measurer import Measurer
from collage.measure.worker.protocol import CandidateRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workbench:
    """The tools for one model; ``original`` is the ONNX model that it was made from, and ``deadline`` the compile's.

    ``asked`` is what the user asks of the error of outputs, where that may be more than float32's.
    """

    measurer: Measurer
    assembler: Assembler
    runs: PlanRuns
    original: onnx.ModelProto
    deadline: Deadline = field(default_factory=Deadline)
    asked: Asked | None = None

    @property
    def model(self) -> Model:
        """The model that is measured."""
        return self.measurer.model

    @cached_property
    def final_check(self) -> FinalCheck:
        """What is expected of the model's modules. It is made on first use, which takes runs of the original."""
        return FinalCheck.of(self.original, self.model, self.runs.seed, self.deadline)

    @cached_property
    def accuracy(self) -> Accuracy:
        """The samples that errors of outputs are measured on. It is made on first use. Raises ModelError."""
        assert self.asked is not None
        return Accuracy.of(self.original, self.model, self.asked, self.runs.seed, self.deadline)

    @property
    def knows_accuracy(self) -> bool:
        """Whether the reference has been run on the samples."""
        return "accuracy" in self.__dict__

    def checked(
        self, executable: Executable, tunings: Mapping[CandidateRequest, str]
    ) -> tuple[Executable, Finding]:
        """The executable, and what the last check finds.

        Where it errs on unusual inputs only, it is replaced by one that scans its inputs, and that is checked. Where
        usual inputs lead to infinities in a model of float16, those are no sign that a number was too large.
        """
        check: Callable[[], FinalCheck] = self._check
        about = ""
        if executable.reduced:
            check = partial(self._check_of_reduced, executable.precisions)
            about = " by outputs" if self._by_outputs else ""
        finding = self.runs.finding(executable, check, about)
        if finding.complaint == BEYOND_GUARDS and self.assembler.guards_halves:
            self.assembler.guards_halves = False
            without = self.assembler.assemble(executable.plan, tunings)
            if without.digest != executable.digest:
                executable, finding = without, self.runs.finding(without, check, about)
            self.assembler.guards_halves = finding.complaint == BEYOND_GUARDS
        if not finding.complaint or finding.ordinary or executable.guarded:
            return executable, finding
        log.info("%s: %s; its inputs are guarded", executable.label, finding.complaint)
        guarded = self.assembler.assemble(executable.plan, tunings, guard_inputs=True)
        return guarded, self.runs.finding(guarded, check, about)

    def _check(self) -> FinalCheck:
        return self.final_check

    def _check_of_reduced(self, precisions: frozenset[str]) -> FinalCheck:
        return self.final_check.of_reduced(precisions, of_outputs=self._by_outputs)

    @property
    def _by_outputs(self) -> bool:
        """Whether the user's metric looks at other things than single elements."""
        return self.asked is not None and not self.asked.metric.is_max

    def journal(self) -> tuple[Event, ...]:
        """The events of the worker so far, also those of searches that were repeated."""
        return (Measured(self.measurer.made_in_all + self.runs.made), *self.runs.failures.told)
