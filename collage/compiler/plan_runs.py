"""Running executables in the worker: turns, times of launches and checks. Loading the selected one in here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import onnxruntime

from collage.check.accuracy import Accuracy
from collage.check.final_check import FinalCheck, Finding
from collage.compiler.assemble import Assembler
from collage.compiler.executable import Executable
from collage.compiler.plan_failures import PlanFailures
from collage.core.progress import Progress
from collage.graph.dataflow import Array
from collage.kernel.kernel import Kernel
from collage.kernel.target import Target
from collage.measure.measurer import Measurer
from collage.measure.plans import Plans
from collage.measure_db.database import Database
from collage.measure_db.keys import (
    Fact,
    read_numbers,
    write_numbers,
)
from collage.measure_db.results import GATE
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, executor_of, load_kernels

log = logging.getLogger(__name__)


_LAUNCH_TIMES: Fact[tuple[float, ...]] = Fact("launch_times_us", write_numbers, read_numbers)


def _read_finding(value: Any) -> Finding:
    return Finding(**value)


_FINDING: Fact[Finding] = Fact("final_check", asdict, _read_finding)
_ERRORS: Fact[tuple[float, ...]] = Fact("errors_on_samples", write_numbers, read_numbers)


@dataclass(frozen=True)
class _LaunchTimes:
    """Where the database keeps the times of a network's launches. There are ``count`` of them."""

    key: str
    count: int

    def look_up(self, database: Database) -> tuple[float, ...] | None:
        found = _LAUNCH_TIMES.at(self.key).look_up(database)
        return found if found is not None and len(found) == self.count else None

    def record(self, database: Database, value: tuple[float, ...]) -> None:
        _LAUNCH_TIMES.at(self.key).record(database, value)


@dataclass
class PlanRuns:
    """Runs the executables of one model. All methods raise KernelRejectedError and PlanDroppedError.

    ``seed`` is that of the numbers that executables are checked on. ``made`` counts the networks that were timed.
    """

    measurer: Measurer
    database: Database
    target: Target
    seed: int
    progress: Callable[[Progress], None]
    made: int = field(default=0, init=False)

    @cached_property
    def failures(self) -> PlanFailures:
        """All failures of this model's plans, also those of searches that were repeated."""
        return PlanFailures(self.measurer, self.database, self.target)

    @cached_property
    def plans(self) -> Plans:
        """The plans in the measurer's worker."""
        return Plans(self.measurer.session, self.measurer.kernels)

    def open(self, executable: Executable) -> None:
        """Load the executable in the worker, and check each of its launches, unless it is open."""
        with self.failures.blaming([executable]):
            self.plans.open(executable.job)

    def turn(self, executable: Executable, settle_s: float, turn_s: float) -> list[float]:
        """Nanoseconds of the calls of a turn (see ``interleave.take_turn``)."""
        with self.failures.blaming([executable]):
            return self.plans.turn(executable.job, settle_s, turn_s)

    def launch_times_us(self, executable: Executable) -> tuple[float, ...]:
        """Microseconds of each launch in its place in the network, measured now or in an earlier compile."""
        self.failures.refuse_dropped(executable)
        key = _LaunchTimes(self.failures.key(executable), len(executable.launches))
        return self.database.remember(key, partial(self._time_launches, executable))

    def _time_launches(self, executable: Executable) -> tuple[float, ...]:
        self.progress(Progress("run", 0, 1, f"a mix of {len(executable.launches)} kernels"))
        with self.failures.blaming([executable]):
            found = self.plans.times(executable.job, self.measurer.settings.effort.noted_s)
        self.made += 1
        return tuple(round(each, 3) for each in found)

    def outputs(self, executable: Executable, inputs: Sequence[Array]) -> tuple[list[Any], bool]:
        """The executable's outputs, in order, for inputs in the model's order, and whether that was a careful run."""
        with self.failures.blaming([executable]):
            return self.plans.outputs(executable.job, inputs)

    def finding(self, executable: Executable, check: Callable[[], FinalCheck], about: str = "") -> Finding:
        """What the last check finds, now or in an earlier compile of the same model with the same libraries.

        ``check`` makes the check where it is needed; ``about`` tells checks of a plan apart. A plan that has failed
        since is refused.
        """
        self.failures.refuse_dropped(executable)
        look = partial(self._look, executable, check)
        key = self._checked_as(executable)
        return look() if key is None else self.database.remember(_FINDING.at(key + about), look)

    def _look(self, executable: Executable, check: Callable[[], FinalCheck]) -> Finding:
        # What passes the check is handed over, so the worker loads and runs it first as the user's process will.
        with self.failures.blaming([executable]):
            self.plans.open_alone(executable.job)
        return check().look(partial(self.outputs, executable))

    def error(self, executable: Executable, accuracy: Accuracy) -> float:
        """The executable's error on samples, measured now or in an earlier compile. Raises MetricError, too."""
        return accuracy.asked.metric.of_all(self._errors(executable, accuracy))

    def error_and_foreseen(self, executable: Executable, accuracy: Accuracy) -> tuple[float, float]:
        """The same, and the bound on the errors of other inputs (``Metric.foreseen``)."""
        errors, metric = self._errors(executable, accuracy), accuracy.asked.metric
        return metric.of_all(errors), metric.foreseen(errors)

    def _errors(self, executable: Executable, accuracy: Accuracy) -> tuple[float, ...]:
        look = partial(accuracy.errors, lambda inputs: self.outputs(executable, inputs)[0])
        about, samples = self._checked_as(executable), accuracy.digest
        if about is None or samples is None:
            return look()
        return self.database.remember(_ERRORS.at(f"{about} {samples}"), look)

    def _checked_as(self, executable: Executable) -> str | None:
        """The database key of a finding, which covers the weights. None where the model is too large to be hashed."""
        digest = self.measurer.as_loaded_digest
        if digest is None:
            return None
        about = (digest, self.seed, GATE, onnxruntime.__version__)
        return f"{self.failures.key(executable)} {about}"

    def load(self, executable: Executable, assembler: Assembler) -> tuple[Parts, Executor]:
        """Load the executable in this process, for the user. What went well in the worker may still fail here."""
        for launch, kernel in enumerate(executable.kernels):
            with self.failures.here(executable, launch):
                self.measurer.kernels.make_here(kernel)
        parts = assembler.parts(executable)
        kernels: list[Kernel] = []
        loading = load_kernels(executable.program, parts.artifacts, self.measurer.backends)
        for launch in range(len(executable.kernels)):
            with self.failures.here(executable, launch):
                kernels.append(next(loading))
        return parts, executor_of(parts, kernels)
