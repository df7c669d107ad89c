"""Running executables in the worker: a kernel that fails in the network is rejected, which the database remembers.

The search is then asked again, without it. A plan that fails where nobody can tell which kernel it was is dropped as a
whole, which is remembered, too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import onnxruntime

from collage.backends.base import VIEW
from collage.compiler.assemble import Assembler
from collage.compiler.events import Failed
from collage.compiler.executable import Executable, network_key
from collage.compiler.final_check import FinalCheck, Finding
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.kernel.kernel import Kernel
from collage.kernel.target import Target
from collage.measure_db.database import Database
from collage.measure_db.effort import Effort
from collage.measure_db.interleave import FEWEST, SURE
from collage.measure_db.keys import (
    Fact,
    Raced,
    RaceKey,
    TimingKey,
    read_numbers,
    read_text,
    write_numbers,
    write_text,
)
from collage.measure_db.measurer import Measurer
from collage.measure_db.plan_protocol import PlanKernel
from collage.measure_db.plans import PlanFailedError, Plans
from collage.measure_db.protocol import Request
from collage.measure_db.results import GATE, IN_NETWORK, Rejection, RejectionKind
from collage.measure_db.timing import Timing
from collage.runtime.executor import Executor
from collage.runtime.parts import Parts, executor_of, load_kernels

log = logging.getLogger(__name__)

_DROPPED: Fact[str] = Fact("plan_dropped", write_text, read_text)
_LAUNCH_TIMES: Fact[tuple[float, ...]] = Fact("launch_times_us", write_numbers, read_numbers)
_FEW_OPS = 6


def _read_finding(value: Any) -> Finding:
    return Finding(**value)


_FINDING: Fact[Finding] = Fact("final_check", asdict, _read_finding)


@dataclass(frozen=True)
class _LaunchTimes:
    """Where the times of a network's launches are, of which there are ``count``."""

    key: str
    count: int

    def look_up(self, database: Database) -> tuple[float, ...] | None:
        found = _LAUNCH_TIMES.at(self.key).look_up(database)
        return found if found is not None and len(found) == self.count else None

    def record(self, database: Database, value: tuple[float, ...]) -> None:
        _LAUNCH_TIMES.at(self.key).record(database, value)


@dataclass(frozen=True)
class Race:
    """How executables are run against each other; see ``Effort.compare``.

    ``noted`` also takes the time of each launch in its place. ``mark`` tells the run apart from others of the same
    executables, ``about`` describes it to people, and ``shown`` lets them follow it.
    """

    effort: Effort
    early: int = FEWEST
    least: int = SURE
    noted: bool = False
    mark: str = ""
    about: str = ""
    shown: bool = False


class KernelRejectedError(Exception):
    """A kernel of a plan cannot be used in it, and is not to be used any more: the search has to be repeated."""

    def __init__(self, kernel: PlanKernel, rejection: Rejection) -> None:
        super().__init__(f"{rejection.kind.value}: {rejection.message}")
        self.kernel = kernel
        self.rejection = rejection


class PlanDroppedError(CollageError):
    """A plan fails, and nobody can tell which of its kernels it is; ``label`` is the executable's."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(f"fails as a whole: {reason}")
        self.label = label


@dataclass
class PlanRuns:
    """Runs the executables of one model. All methods raise KernelRejectedError and PlanDroppedError.

    ``made`` counts the networks that were timed, and ``failures`` tells of what was rejected or dropped: they happened,
    whatever becomes of the search that asked for them.
    """

    measurer: Measurer
    database: Database
    target: Target
    seed: int
    """Of the numbers that executables are checked on."""
    progress: Callable[[Progress], None]
    made: int = field(default=0, init=False)
    failures: list[Failed] = field(default_factory=list, init=False)
    _rejected: set[PlanKernel] = field(default_factory=set, init=False)
    _dropped: dict[str, str] = field(default_factory=dict, init=False)

    @cached_property
    def plans(self) -> Plans:
        """Those of the measurer's worker."""
        return Plans(self.measurer)

    def launch_times_us(self, executable: Executable) -> tuple[float, ...]:
        """Microseconds of each launch in its place, now or in an earlier compile."""
        self.refuse_dropped(executable)
        key = _LaunchTimes(self._key(executable), len(executable.launches))
        return self.database.remember(key, partial(self._time_launches, executable))

    def _time_launches(self, executable: Executable) -> tuple[float, ...]:
        self.progress(Progress("run", 0, 1, f"a mix of {len(executable.launches)} kernels"))
        with self._blaming([executable]):
            found = self.plans.times_us(executable.job)
        self.made += 1
        return tuple(round(each, 3) for each in found)

    def race(self, executables: Sequence[Executable], race: Race) -> Mapping[str, Raced]:
        """Timings of one interleaved run, by label, now or in an earlier compile."""
        keys = {}
        for each in executables:
            key = network_key(each, executables, self.measurer.model, self.target)
            key = replace(key, placement=key.placement + race.mark)
            keys[each.label] = TimingKey(key, f"{self.measurer.model.name}: {race.about}{each.label}")
        return self.database.remember(RaceKey(keys), partial(self._race, executables, race))

    def _race(self, executables: Sequence[Executable], race: Race) -> Mapping[str, Raced]:
        if race.shown:
            self.progress(Progress("compare", 0, 1, ", ".join(each.label for each in executables)))
        jobs = {executable.label: executable.job for executable in executables}
        with self._blaming(executables):
            raced = self.plans.compare(
                jobs, race.effort, early=race.early, least=race.least, noted=race.noted
            )
        self.made += len(raced) if race.noted else 1
        return {
            label: replace(each, launches_us=tuple(round(us, 3) for us in each.launches_us))
            for label, each in raced.items()
        }

    def outputs(self, executable: Executable, inputs: Sequence[Array]) -> tuple[list[Any], bool]:
        """What the executable makes of inputs, and whether that was a careful run."""
        with self._blaming([executable]):
            return self.plans.outputs(executable.job, inputs)

    def finding(self, executable: Executable, check: Callable[[], FinalCheck]) -> Finding:
        """What the last check finds, now or in an earlier compile of the same model with the same libraries."""
        look = partial(self._look, executable, check)
        key = self._checked_as(executable)
        return look() if key is None else self.database.remember(_FINDING.at(key), look)

    def _look(self, executable: Executable, check: Callable[[], FinalCheck]) -> Finding:
        return check().look(partial(self.outputs, executable))

    def _checked_as(self, executable: Executable) -> str | None:
        """A key for what was found: weights and all. None where the model is too large to be hashed as a whole."""
        model = self.measurer.as_loaded
        if model is None:
            return None
        about = (hashlib.sha256(model).hexdigest(), self.seed, GATE, onnxruntime.__version__)
        return f"{self._key(executable)} {about}"

    def timing(self, executable: Executable, sample_s: float) -> Timing:
        """Of the executable alone, now or in an earlier compile."""
        key = network_key(executable, [executable], self.measurer.model, self.target)
        key = replace(key, placement=f"{key.placement} alone for {sample_s} s")
        description = f"{self.measurer.model.name}: {executable.label}"
        make = partial(self._time, executable, sample_s)
        return self.database.remember(TimingKey(key, description), make)

    def _time(self, executable: Executable, sample_s: float) -> Timing:
        with self._blaming([executable]):
            found = self.plans.timing(executable.job, sample_s)
        self.made += 1
        return found

    def load(self, executable: Executable, assembler: Assembler) -> tuple[Parts, Executor]:
        """The executable in this process, to be handed over: what went well in the worker may yet fail here."""
        for launch, kernel in enumerate(executable.kernels):
            with self._here(executable, launch):
                self.measurer.make_here(kernel)
        parts = assembler.parts(executable)
        kernels: list[Kernel] = []
        loading = load_kernels(executable.program, parts.artifacts, self.measurer.backends)
        for launch in range(len(executable.kernels)):
            with self._here(executable, launch):
                kernels.append(next(loading))
        return parts, executor_of(parts, kernels)

    @contextmanager
    def _here(self, executable: Executable, launch: int) -> Iterator[None]:
        """Blame a launch's kernel for what is raised in this process."""
        try:
            yield
        except Exception as error:  # a backend raises anything
            rejection = Rejection(RejectionKind.FAILED, f"in the process that compiles: {error}")
            failed = PlanFailedError(executable.job, launch, rejection, alone=True)
            raise self._blamed(executable, failed) from error

    def refuse_dropped(self, executable: Executable) -> None:
        """Raise PlanDroppedError for a plan that was dropped, now or in an earlier compile."""
        key = self._key(executable)
        known = self._dropped.get(key) or _DROPPED.at(key).look_up(self.database)
        if known is not None:
            raise PlanDroppedError(executable.label, known)

    @contextmanager
    def _blaming(self, executables: Sequence[Executable]) -> Iterator[None]:
        for executable in executables:
            self.refuse_dropped(executable)
        try:
            yield
        except PlanFailedError as failed:
            executable = next(each for each in executables if each.job.name == failed.plan.name)
            raise self._blamed(executable, failed) from None

    def _blamed(
        self, executable: Executable, failed: PlanFailedError
    ) -> KernelRejectedError | PlanDroppedError:
        """What the failure means, which is remembered."""
        rejection = _told(executable, failed)
        kernel = None if failed.launch is None else executable.kernels[failed.launch]
        if kernel is None or kernel in self._rejected or _is_view(kernel):
            reason = f"{rejection.kind.value}: {rejection.message}"
            self._dropped[self._key(executable)] = reason
            if rejection.kind is not RejectionKind.MEMORY:  # of which there may be more another time
                _DROPPED.at(self._key(executable)).record(self.database, reason)
            dropped = PlanDroppedError(executable.label, reason)
            self._note(f"{executable.label}: {dropped}; not used")
            return dropped
        self.measurer.reject(kernel, rejection)
        self._rejected.add(kernel)
        error = KernelRejectedError(kernel, rejection)
        self._note(f"{executable.label}: {_name(executable, failed.launch)}: {error}; not used")
        return error

    def _note(self, text: str) -> None:
        self.failures.append(Failed(text))
        log.warning("%s", text)

    def _key(self, executable: Executable) -> str:
        return str(network_key(executable, [executable], self.measurer.model, self.target))


def _told(executable: Executable, failed: PlanFailedError) -> Rejection:
    """The rejection with where it was."""
    if failed.alone:
        return failed.rejection
    where = IN_NETWORK
    if failed.launch:
        where += f", after {_name(executable, failed.launch - 1)}"
    return replace(failed.rejection, message=f"{where}: {failed.rejection.message}")


def _name(executable: Executable, launch: int | None) -> str:
    assert launch is not None
    region = executable.program.launches[launch]
    more = "+..." if len(region.ops) > _FEW_OPS else ""
    return f"{region.backend} {'+'.join(region.ops[:_FEW_OPS])}{more}"


def _is_view(kernel: PlanKernel) -> bool:
    """Whether the search has nothing else in its place."""
    return isinstance(kernel.what, Request) and kernel.what.backend == VIEW
