"""Running executables in the worker, loading the selected one in this process, and what to blame if one fails."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import onnxruntime

from collage.backends.base import VIEW
from collage.check.accuracy import Accuracy
from collage.check.final_check import FinalCheck, Finding
from collage.check.stages import looks_like_memory
from collage.compiler.assemble import Assembler
from collage.compiler.executable import Entry, Executable, graph_digest, network_key
from collage.compiler.known import Known
from collage.compiler.plan import Failed, RaceFailedError
from collage.core.progress import Progress
from collage.errors import MeasurementError
from collage.graph.dataflow import Array
from collage.kernel.kernel import Kernel
from collage.kernel.target import Target
from collage.measure.measurer import Measurer
from collage.measure.plans import PlanFailedError, Plans
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import Database
from collage.measure_db.keys import Fact, read_numbers, read_text, write_numbers
from collage.measure_db.results import GATE, IN_NETWORK, Rejection, RejectionKind
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, executor_of, load_kernels

_DROPPED: Fact[str] = Fact("plan_dropped", str, read_text)
_LAUNCH_TIMES: Fact[tuple[float, ...]] = Fact("launch_times_us", write_numbers, read_numbers)
_FINDING: Fact[Finding] = Fact("final_check", asdict, lambda value: Finding(**value))
_ERRORS: Fact[tuple[float, ...]] = Fact("errors_on_samples", write_numbers, read_numbers)
_FEW_OPS = 6
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says of a full disk, and of a quota that is used up."""


@dataclass
class PlanRuns:
    """Runs the executables of one model. ``seed`` is that of the numbers that they are checked on.

    All methods raise RaceFailedError. A kernel that is to blame is rejected; if none is known, the plan is dropped. The
    database remembers both. ``made`` counts the networks that were timed.
    """

    measurer: Measurer
    database: Database
    known: Known
    target: Target
    seed: int
    progress: Callable[[Progress], None]
    made: int = field(default=0, init=False)
    _dropped: dict[str, str] = field(default_factory=dict, init=False)
    """The reasons against plans by their keys; "" if there is none."""
    _rejected: set[PlanKernel] = field(default_factory=set, init=False)

    @cached_property
    def _plans(self) -> Plans:
        return Plans(self.measurer.session, self.measurer.kernels)

    def open(self, executable: Executable) -> None:
        """Load the executable in the worker, and check each of its launches, unless it is open."""
        with self._running(executable):
            self._plans.open(executable.job)

    def turn(self, executable: Executable, settle_s: float, turn_s: float) -> list[float]:
        """Nanoseconds of the calls of a turn (see ``interleave.take_turn``)."""
        with self._running(executable):
            return self._plans.turn(executable.job, settle_s, turn_s)

    def launch_times_us(self, executable: Executable) -> tuple[float, ...]:
        """Microseconds of each launch in its place in the network, measured now or in an earlier compile."""
        with self._running(executable):
            key = _LAUNCH_TIMES.at(self._key(executable))
            return self.database.remember(key, partial(self._time_launches, executable))

    def _time_launches(self, executable: Executable) -> tuple[float, ...]:
        self.progress(Progress("run", 0, 1, f"a mix of {len(executable.launches)} kernels"))
        found = self._plans.times(executable.job, self.measurer.settings.effort.noted_s)
        self.made += 1
        return tuple(round(each, 3) for each in found)

    def _outputs(self, executable: Executable, inputs: Sequence[Array]) -> tuple[list[Any], bool]:
        """The outputs for inputs in the model's order, and whether that was a careful run."""
        with self._running(executable):
            return self._plans.outputs(executable.job, inputs)

    def finding(self, executable: Executable, check: Callable[[], FinalCheck], about: str = "") -> Finding:
        """What the last check finds, now or in an earlier compile of the same model with the same libraries.

        ``check`` makes the check if it is needed; ``about`` tells checks of a plan apart.
        """

        def look() -> Finding:
            # What passes is handed over, so the worker loads and runs it first as the user's process will.
            self._plans.open_alone(executable.job)
            return check().look(partial(self._outputs, executable))

        with self._running(executable):
            key = self._checked_as(executable)
            return look() if key is None else self.database.remember(_FINDING.at(key + about), look)

    def error_and_foreseen(self, executable: Executable, accuracy: Accuracy) -> tuple[float, float]:
        """The error on samples, and the bound on the errors of other inputs. Raises MetricError, too."""
        look = partial(accuracy.errors, lambda inputs: self._outputs(executable, inputs)[0])
        about, samples = self._checked_as(executable), accuracy.digest
        if about is None or samples is None:
            errors = look()
        else:
            errors = self.database.remember(_ERRORS.at(f"{about} {samples}"), look)
        return accuracy.asked.metric.of_all(errors), accuracy.asked.metric.foreseen(errors)

    def load(self, executable: Executable, assembler: Assembler) -> tuple[Parts, Executor]:
        """Load the executable in this process, for the user. What went well in the worker may still fail here."""
        for launch, kernel in enumerate(executable.kernels):
            with self._loading(executable, launch):
                self.measurer.kernels.make_here(kernel)
        parts = assembler.parts(executable)
        kernels: list[Kernel] = []
        loading = load_kernels(executable.program, parts.artifacts, self.measurer.backends)
        for launch in range(len(executable.kernels)):
            with self._loading(executable, launch):
                kernels.append(next(loading))
        return parts, executor_of(parts, kernels)

    def _key(self, executable: Executable) -> str:
        """The database key of facts about the executable by itself."""
        entry = Entry(executable.digest, executable.versions)
        return str(network_key(entry, [entry], graph_digest(self.measurer.model), self.target))

    def _checked_as(self, executable: Executable) -> str | None:
        """The database key of a finding, which covers the weights. None if the model is too large to be hashed."""
        digest = self.measurer.as_loaded_digest
        if digest is None:
            return None
        about = (digest, self.seed, GATE, onnxruntime.__version__)
        return f"{self._key(executable)} {about}"

    # Failures

    @contextmanager
    def _running(self, executable: Executable) -> Iterator[None]:
        """Refuse a plan that was dropped, now or in an earlier compile, and blame somebody if it fails."""
        key = self._key(executable)
        if key not in self._dropped:
            self._dropped[key] = _DROPPED.at(key).look_up(self.database) or ""
        if reason := self._dropped[key]:
            raise RaceFailedError(Failed(executable.plan, reason))
        try:
            yield
        except PlanFailedError as failed:
            rejection = failed.rejection
            if not failed.by_itself:
                after = f", after {_name(executable, failed.launch - 1)}" if failed.launch else ""
                rejection = replace(rejection, message=f"{IN_NETWORK}{after}: {rejection.message}")
            raise self._failure(executable, failed.launch, rejection) from failed

    @contextmanager
    def _loading(self, executable: Executable, launch: int) -> Iterator[None]:
        """Blame a launch's kernel for whatever is raised in this context.

        A lack of memory drops the plan for this compile. A full disk is nobody's fault: it is a MeasurementError.
        """
        try:
            yield
        except MeasurementError:
            raise
        except Exception as error:  # a backend raises anything
            if isinstance(error, OSError) and error.errno in _FULL:
                text = f"{error.strerror}. Make room in the folder for temporary files."
                raise MeasurementError(text) from error
            short = isinstance(error, MemoryError) or looks_like_memory(str(error))
            kind = RejectionKind.MEMORY if short else RejectionKind.FAILED
            rejection = Rejection(kind, f"in the process that compiles: {error}")
            raise self._failure(executable, None if short else launch, rejection) from error

    def _failure(self, executable: Executable, launch: int | None, rejection: Rejection) -> RaceFailedError:
        """The error for a plan that has failed. The search has no other candidate for a view."""
        kernel = None if launch is None else executable.kernels[launch]
        reason = f"{rejection.kind.value}: {rejection.message}"
        is_view = kernel is not None and isinstance(kernel.what, CandidateRequest) and kernel.what.backend == VIEW
        if kernel is None or launch is None or is_view or kernel in self._rejected:
            kernel, reason = None, f"fails as a whole: {reason}"
            key = self._key(executable)
            self._dropped[key] = reason
            if rejection.kind is not RejectionKind.MEMORY:  # there may be more memory another time
                _DROPPED.at(key).record(self.database, reason)
        else:
            reason = f"{_name(executable, launch)}: {reason}"
            self.measurer.kernels.reject(kernel, rejection)
            self._rejected.add(kernel)
            self.known.outcomes.update(self.measurer.known(self.known.outcomes))
        self.known.fail(executable.plan.label, reason)
        return RaceFailedError(Failed(executable.plan, reason, kernel))


def _name(executable: Executable, launch: int) -> str:
    region = executable.program.launches[launch]
    more = "+..." if len(region.ops) > _FEW_OPS else ""
    return f"{region.backend} {'+'.join(region.ops[:_FEW_OPS])}{more}"
