"""Running finalists in the worker: a kernel that fails in the network is rejected, which the database remembers.

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
from collage.compiler.final_check import FinalCheck, Finding
from collage.compiler.finalist import Finalist, network_key
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.kernel.kernel import Kernel
from collage.kernel.target import Target
from collage.measure_db.database import Database
from collage.measure_db.effort import Effort
from collage.measure_db.interleave import FEWEST, SURE
from collage.measure_db.measurer import Measurer
from collage.measure_db.plan_protocol import PlanKernel
from collage.measure_db.plans import PlanFailedError, Plans, Raced
from collage.measure_db.protocol import Request
from collage.measure_db.results import GATE, IN_NETWORK, Rejection, RejectionKind
from collage.measure_db.timing import Timing
from collage.runtime.executor import Executor
from collage.runtime.parts import executor_of, load_kernels

log = logging.getLogger(__name__)

_DROPPED = "plan_dropped"
_CHECKED = "final_check"
_FEW_OPS = 6


class KernelRejectedError(Exception):
    """A kernel of a plan cannot be used in it, and is not to be used any more: the search has to be repeated."""

    def __init__(self, kernel: PlanKernel, rejection: Rejection) -> None:
        super().__init__(f"{rejection.kind.value}: {rejection.message}")
        self.kernel = kernel


class PlanDroppedError(CollageError):
    """A plan fails, and nobody can tell which of its kernels it is; ``label`` is the finalist's."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(f"fails as a whole: {reason}")
        self.label = label


@dataclass
class PlanRuns:
    """Runs the finalists of one model. All methods raise KernelRejectedError and PlanDroppedError.

    ``made`` counts the networks that were timed. ``notes`` tell of kernels that were rejected.
    """

    measurer: Measurer
    database: Database
    target: Target
    seed: int = 0
    """Of the numbers that finalists are checked on."""
    made: int = 0
    notes: list[str] = field(default_factory=list)
    _rejected: set[PlanKernel] = field(default_factory=set)
    _dropped: dict[str, str] = field(default_factory=dict)

    @cached_property
    def plans(self) -> Plans:
        """Those of the measurer's worker."""
        return Plans(self.measurer)

    def times_us(self, finalist: Finalist) -> list[float]:
        """Microseconds of each launch in its place."""
        with self._blaming([finalist]):
            found = self.plans.times_us(finalist.plan)
        self.made += 1
        return [*found]

    def compare(
        self,
        finalists: Sequence[Finalist],
        effort: Effort,
        *,
        early: int = FEWEST,
        least: int = SURE,
        noted: bool = False,
    ) -> Mapping[str, Raced]:
        """The finalists against each other, by label; see ``Effort.compare``."""
        plans = {finalist.label: finalist.plan for finalist in finalists}
        with self._blaming(finalists):
            found = self.plans.compare(plans, effort, early=early, least=least, noted=noted)
        self.made += len(found) if noted else 1
        return found

    def outputs(self, finalist: Finalist, inputs: Sequence[Array]) -> tuple[list[Any], bool]:
        """What the finalist makes of inputs, and whether that was a careful run."""
        with self._blaming([finalist]):
            return self.plans.outputs(finalist.plan, inputs)

    def finding(self, finalist: Finalist, check: Callable[[], FinalCheck]) -> Finding:
        """What the last check finds, now or in an earlier compile of the same model with the same libraries."""
        key = self._checked_as(finalist)
        known: Any = None if key is None else self.database.get_fact(_CHECKED, key)
        if isinstance(known, dict):
            return Finding(**known)
        found = check().look(partial(self.outputs, finalist))
        if key is not None:
            self.database.put_fact(_CHECKED, key, asdict(found))
        return found

    def _checked_as(self, finalist: Finalist) -> str | None:
        """A key for what was found: weights and all. None where the model is too large to be hashed as a whole."""
        model = self.measurer.as_loaded
        if model is None:
            return None
        about = (hashlib.sha256(model).hexdigest(), self.seed, GATE, onnxruntime.__version__)
        return f"{self._key(finalist)} {about}"

    def timing(self, finalist: Finalist, sample_s: float) -> Timing:
        """Of the finalist alone, now or in an earlier compile."""
        key = network_key(finalist, [finalist], self.measurer.model, self.target)
        key = replace(key, placement=f"{key.placement} alone for {sample_s} s")
        known = self.database.get_network(key)
        if known is not None:
            return known
        with self._blaming([finalist]):
            found = self.plans.timing(finalist.plan, sample_s)
        self.made += 1
        self.database.put_network(key, found, f"{self.measurer.model.name}: {finalist.label}")
        return found

    def load(self, finalist: Finalist) -> Executor:
        """The finalist in this process, to be handed over: what went well in the worker may yet fail here."""
        for launch, kernel in enumerate(finalist.kernels):
            with self._here(finalist, launch):
                self.measurer.make_here(kernel)
        kernels: list[Kernel] = []
        loading = load_kernels(finalist.program, finalist.parts.artifacts, self.measurer.backends)
        for launch in range(len(finalist.kernels)):
            with self._here(finalist, launch):
                kernels.append(next(loading))
        return executor_of(finalist.parts, kernels)

    @contextmanager
    def _here(self, finalist: Finalist, launch: int) -> Iterator[None]:
        """Blame a launch's kernel for what is raised in this process."""
        try:
            yield
        except Exception as error:  # a backend raises anything
            rejection = Rejection(RejectionKind.FAILED, f"in the process that compiles: {error}")
            failed = PlanFailedError(finalist.plan, launch, rejection, alone=True)
            raise self._blamed(finalist, failed) from error

    def refuse_dropped(self, finalist: Finalist) -> None:
        """Raise PlanDroppedError for a plan that was dropped, now or in an earlier compile."""
        key = self._key(finalist)
        known = self._dropped.get(key) or self.database.get_fact(_DROPPED, key)
        if isinstance(known, str):
            raise PlanDroppedError(finalist.label, known)

    @contextmanager
    def _blaming(self, finalists: Sequence[Finalist]) -> Iterator[None]:
        for finalist in finalists:
            self.refuse_dropped(finalist)
        try:
            yield
        except PlanFailedError as failed:
            finalist = next(each for each in finalists if each.plan.name == failed.plan.name)
            raise self._blamed(finalist, failed) from None

    def _blamed(self, finalist: Finalist, failed: PlanFailedError) -> KernelRejectedError | PlanDroppedError:
        """What the failure means, which is remembered."""
        rejection = _told(finalist, failed)
        kernel = None if failed.launch is None else finalist.kernels[failed.launch]
        if kernel is None or kernel in self._rejected or _is_view(kernel):
            reason = f"{rejection.kind.value}: {rejection.message}"
            self._dropped[self._key(finalist)] = reason
            if rejection.kind is not RejectionKind.MEMORY:  # of which there may be more another time
                self.database.put_fact(_DROPPED, self._key(finalist), reason)
            dropped = PlanDroppedError(finalist.label, reason)
            self._note(f"{finalist.label}: {dropped}; not used")
            return dropped
        self.measurer.reject(kernel, rejection)
        self._rejected.add(kernel)
        error = KernelRejectedError(kernel, rejection)
        self._note(f"{finalist.label}: {_name(finalist, failed.launch)}: {error}; not used")
        return error

    def _note(self, text: str) -> None:
        self.notes.append(text)
        log.warning("%s", text)

    def _key(self, finalist: Finalist) -> str:
        return str(network_key(finalist, [finalist], self.measurer.model, self.target))


def _told(finalist: Finalist, failed: PlanFailedError) -> Rejection:
    """The rejection with where it was."""
    if failed.alone:
        return failed.rejection
    where = IN_NETWORK
    if failed.launch:
        where += f", after {_name(finalist, failed.launch - 1)}"
    return replace(failed.rejection, message=f"{where}: {failed.rejection.message}")


def _name(finalist: Finalist, launch: int | None) -> str:
    assert launch is not None
    region = finalist.program.launches[launch]
    more = "+..." if len(region.ops) > _FEW_OPS else ""
    return f"{region.backend} {'+'.join(region.ops[:_FEW_OPS])}{more}"


def _is_view(kernel: PlanKernel) -> bool:
    """Whether the search has nothing else in its place."""
    return isinstance(kernel.what, Request) and kernel.what.backend == VIEW
