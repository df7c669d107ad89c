"""What to blame when a plan fails: a kernel, which is rejected, or the plan as a whole, which is dropped.

The database remembers both.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from collage.backends.base import VIEW
from collage.check.stages import looks_like_memory
from collage.compiler.events import Failed
from collage.compiler.executable import Executable, graph_digest, network_key
from collage.errors import CollageError, MeasurementError
from collage.kernel.target import Target
from collage.measure.measurer import Measurer
from collage.measure.plans import PlanFailedError
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.database import Database
from collage.measure_db.keys import Fact, read_text
from collage.measure_db.results import IN_NETWORK, Rejection, RejectionKind

log = logging.getLogger(__name__)

_DROPPED: Fact[str] = Fact("plan_dropped", str, read_text)
_FEW_OPS = 6
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says of a full disk, and of a quota that is used up."""


class KernelRejectedError(Exception):
    """A kernel of a plan failed and must not be used any more, so the search has to be repeated."""

    def __init__(self, kernel: PlanKernel, rejection: Rejection) -> None:
        super().__init__(f"{rejection.kind.value}: {rejection.message}")
        self.kernel = kernel
        self.rejection = rejection


class PlanDroppedError(CollageError):
    """A plan fails, and it is not known which of its kernels is to blame. ``label`` is the executable's."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(f"fails as a whole: {reason}")
        self.label = label


@dataclass
class PlanFailures:
    """The failures of one model's plans. ``told`` has an event for each rejected kernel or dropped plan, in order."""

    measurer: Measurer
    database: Database
    target: Target
    told: list[Failed] = field(default_factory=list, init=False)
    _rejected: set[PlanKernel] = field(default_factory=set, init=False)
    _dropped: dict[str, str] = field(default_factory=dict, init=False)

    def key(self, executable: Executable) -> str:
        """The database key of facts about the executable by itself."""
        return str(network_key(executable, [executable], graph_digest(self.measurer.model), self.target))

    @contextmanager
    def here(self, executable: Executable, launch: int) -> Iterator[None]:
        """Blame a launch's kernel for whatever is raised in this context. Raises as ``blaming`` does.

        A lack of memory drops the plan for this compile. A full disk is nobody's fault: MeasurementError is raised as
        it is, and for what the system says.
        """
        try:
            yield
        except MeasurementError:
            raise
        except OSError as error:
            if error.errno in _FULL:
                raise MeasurementError(
                    f"{error.strerror}. Make room in the folder for temporary files."
                ) from error
            raise self._here(executable, launch, error) from error
        except Exception as error:  # a backend raises anything
            raise self._here(executable, launch, error) from error

    def _here(
        self, executable: Executable, launch: int, error: Exception
    ) -> KernelRejectedError | PlanDroppedError:
        """What a failure of a launch's kernel means in the process that compiles. The database remembers it."""
        short = isinstance(error, MemoryError) or looks_like_memory(str(error))
        kind = RejectionKind.MEMORY if short else RejectionKind.FAILED
        rejection = Rejection(kind, f"in the process that compiles: {error}")
        # A lack of memory is nobody's fault: others may have it at the moment.
        failed = PlanFailedError(executable.job, None if short else launch, rejection, by_itself=True)
        return self._blamed(executable, failed)

    def refuse_dropped(self, executable: Executable) -> None:
        """Raise PlanDroppedError for a plan that was dropped, now or in an earlier compile."""
        self._refuse([executable])

    def dropped(self, executables: Sequence[Executable]) -> list[PlanDroppedError]:
        """An error for each of the executables that was dropped, in order. They are looked up in one query."""
        keys = [self.key(executable) for executable in executables]
        known = _DROPPED.known(self.database, keys) | self._dropped
        pairs = zip(executables, keys, strict=True)
        return [PlanDroppedError(executable.label, known[key]) for executable, key in pairs if key in known]

    def _refuse(self, executables: Sequence[Executable]) -> None:
        """Raise PlanDroppedError for the first of the executables that was dropped."""
        for error in self.dropped(executables):
            raise error

    @contextmanager
    def blaming(self, executables: Sequence[Executable]) -> Iterator[None]:
        """Refuse plans that were dropped, and turn a PlanFailedError about one of the executables into its meaning.

        Raises KernelRejectedError and PlanDroppedError.
        """
        self._refuse(executables)
        try:
            yield
        except PlanFailedError as failed:
            executable = next(each for each in executables if each.job.name == failed.plan.name)
            raise self._blamed(executable, failed) from failed

    def _blamed(
        self, executable: Executable, failed: PlanFailedError
    ) -> KernelRejectedError | PlanDroppedError:
        """What the failure means. The database remembers it."""
        rejection = _told(executable, failed)
        kernel = None if failed.launch is None else executable.kernels[failed.launch]
        if kernel is None or kernel in self._rejected or _is_view(kernel):
            reason = f"{rejection.kind.value}: {rejection.message}"
            self._dropped[self.key(executable)] = reason
            if rejection.kind is not RejectionKind.MEMORY:  # there may be more memory another time
                _DROPPED.at(self.key(executable)).record(self.database, reason)
            dropped = PlanDroppedError(executable.label, reason)
            self._note(f"{executable.label}: {dropped}; not used")
            return dropped
        self.measurer.kernels.reject(kernel, rejection)
        self._rejected.add(kernel)
        error = KernelRejectedError(kernel, rejection)
        self._note(f"{executable.label}: {_name(executable, failed.launch)}: {error}; not used")
        return error

    def _note(self, text: str) -> None:
        self.told.append(Failed(text))
        log.warning("%s", text)


def _told(executable: Executable, failed: PlanFailedError) -> Rejection:
    """The rejection, with the place of the failure in its message."""
    if failed.by_itself:
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
    """Whether the kernel is a view. The search has no other candidate for it."""
    return isinstance(kernel.what, CandidateRequest) and kernel.what.backend == VIEW
