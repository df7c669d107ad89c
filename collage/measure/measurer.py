"""Costs of candidates: from the database where they are known, else measured in a worker process, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import Any

import onnx

from collage.backends.base import Backend, BackendKind
from collage.backends.engine import as_engine
from collage.backends.tuner import TRIAL_LIMIT_S
from collage.core.progress import Progress
from collage.errors import unknown_names
from collage.frontend.model import Model
from collage.kernel.frames import Framed
from collage.kernel.transform import LayoutTransform
from collage.measure.ahead import Ahead
from collage.measure.contenders import Charges, Contenders, Field, Losses
from collage.measure.crew import MeasuringCrew
from collage.measure.jobs import RegionJob, TransformJob, ask_fairly
from collage.measure.known_losses import known_losses
from collage.measure.machine.busy_progress import BusyProgress
from collage.measure.machine.free_memory import after_death
from collage.measure.machine.launch_cost import LaunchCost
from collage.measure.plan_kernels import PlanKernels
from collage.measure.request_keys import RequestKeys
from collage.measure.timing.calls import Enough
from collage.measure.timing.effort import QUICK
from collage.measure.worker.protocol import CandidateRequest, Measure, MeasureTransform
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database, Json, KernelKey
from collage.measure_db.keys import Fact
from collage.measure_db.results import Measurement, Outcome, Slower


def _write_reasons(reasons: Mapping[int, str]) -> Json:
    return {str(index): reason for index, reason in reasons.items()}


def _read_reasons(value: Any) -> Mapping[int, str]:
    return {int(index): str(reason) for index, reason in value.items()}


_WRONG_CONVERSIONS: Fact[Mapping[int, str]] = Fact("wrong_conversions", _write_reasons, _read_reasons)
_EXTRAORDINARY: Fact[tuple[int, ...]] = Fact("out_of_range_values", list, lambda found: (*map(int, found),))

_CLEARLY = 1.1
"""A kernel that lost a race is raced again where its present rival takes so many times what it takes at least."""
_AHEAD_S, _BYTES_A_SECOND = 5.0, 40 << 20
"""Processes that build ahead are started for kernels that take so many seconds to build, and one more for each so many
bytes of weights: their start takes some seconds of a core, and reads all weights."""

Show = Callable[[Progress], None]
"""Shows how far the work has come."""


class Measurer:
    """Measures candidates of one model.

    It is a context manager that closes the session. Methods that measure raise MeasurementError when the worker cannot
    be started, or when a backend cannot be sent to it.
    """

    def __init__(
        self,
        session: WorkerSession,
        database: Database,
        progress: Show | None = None,
        threads: int | None = None,
        crew: MeasuringCrew | None = None,
    ) -> None:
        """``threads`` is the number that candidates are built for, by default that of the session's settings.

        Kernels and layout transforms are measured by the ``crew``; without one, by the session's worker.
        """
        self.session = session
        self.measured = session.measured
        self.settings = session.settings if threads is None else session.settings.on_threads(threads)
        self.measurements_made = 0
        self.network_us = 0.0
        """The time of the fastest module so far in microseconds, or 0: what the network's kernels are parts of."""
        self._database = database
        self._progress = BusyProgress(progress or _silent)
        self._crew = crew
        self._keys = RequestKeys(self.measured, self.settings)
        self._others: dict[int, Measurer] = {}
        self._engines = frozenset(n for n, b in self.backends.items() if b.kind is BackendKind.ENGINE)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the crew and the session, which ends the workers and removes the folder. Closing twice does nothing."""
        try:
            if self._crew is not None:
                self._crew.close()
        finally:
            self.session.close()

    @property
    def model(self) -> Model:
        """The model whose candidates are measured."""
        return self.measured.model

    @property
    def original(self) -> onnx.ModelProto | None:
        """The model as its author wrote it, in the place of the whole graph, where that is measured, too."""
        return self.measured.original

    @property
    def as_loaded(self) -> bytes | Framed | None:
        """The artifact of the model that goes with programs of guarded kernels, if there is one."""
        return self.measured.serialised

    @property
    def as_loaded_digest(self) -> str | None:
        """A hash of that; None where there is none."""
        return self.measured.serialised_digest

    @property
    def extraordinary(self) -> Set[int]:
        """Values whose usual numbers a scan does not let through (see ``MeasuredModel``)."""
        return self.measured.extraordinary

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The backends by name."""
        return self.settings.backends

    @property
    def made_in_all(self) -> int:
        """The number of measurements made so far, also on other numbers of threads."""
        return self.measurements_made + sum(other.made_in_all for other in self._others.values())

    @cached_property
    def kernels(self) -> PlanKernels:
        """The kernels of the model's plans."""
        return PlanKernels(self.session, self._database)

    @cached_property
    def _losses(self) -> Losses:
        """Losses of races so far, of all models in the database."""
        return known_losses(self._database, self.settings)

    def on_threads(self, threads: int) -> Measurer:
        """A measurer of the same model on that many threads. It shares the session, so it need not be closed."""
        if threads == self.settings.threads:
            return self
        if threads not in self._others:
            self._others[threads] = Measurer(
                self.session, self._database, self._progress, threads, self._crew
            )
        self._others[threads].network_us = self.network_us
        return self._others[threads]

    def key(self, request: CandidateRequest) -> KernelKey:
        """The key that the request's outcome is recorded under."""
        return self._keys.key(request)

    def _usable(self, request: CandidateRequest, outcome: Outcome) -> Outcome:
        return self.measured.usable(request, outcome)

    def known(self, requests: Collection[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        """The recorded outcomes of the requests, looked up in one query. Requests without one are left out."""
        keys = {request: self.key(request) for request in requests}
        found = self._recorded(keys)
        return {request: self._usable(request, found[key]) for request, key in keys.items() if key in found}

    def _recorded(self, keys: Mapping[CandidateRequest, KernelKey]) -> dict[KernelKey, Outcome]:
        """The recorded outcomes that are not doubted, looked up in one query."""
        request_of = {key: request for request, key in keys.items()}
        return self._database.get(request_of, lambda key: self._limit_s(request_of[key]))

    def recorded(self, requests: Collection[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        """What ``known`` gives where no outcome is doubted for the circumstances that it was measured in."""
        with self.trusting():
            return self.known(requests)

    def trusting(self) -> AbstractContextManager[None]:
        """Inside the block no outcome is doubted for the circumstances that it was measured in."""
        return self._database.trusting_kernels()

    def race(
        self,
        requests: Sequence[CandidateRequest],
        rivals_us: Mapping[tuple[int, ...], float] | None = None,
        switch_us: float = 0.0,
    ) -> dict[CandidateRequest, Outcome]:
        """Outcomes of the requests, where those of the same nodes race against each other, region by region.

        One that is slower than another of the same nodes is let go after a few samples (``Slower``), unless the
        settings' effort measures all to the end. One that is hopeless by what is known is not measured at all (see
        ``Contenders.hopeless``). ``rivals_us`` are times in microseconds, by nodes, that candidates have to beat as
        well, and ``switch_us`` is what a call of an engine costs on top. All else is as in ``measure``.
        """
        if not self.settings.effort.races:
            return self.measure(requests)
        charges = Charges(self._engines, switch_us)
        about = Field(charges, self._operators, rivals_us or {}, self._losses)
        return self._outcomes(requests, Contenders(about), self._progress)

    def measure(
        self, requests: Sequence[CandidateRequest], progress: Show | None = None
    ) -> dict[CandidateRequest, Outcome]:
        """An outcome for each request, each measured to the end. Candidates of the same subgraph are measured once.

        What is known is looked up in one query. A candidate that crashes, hangs, or runs out of memory or time is
        rejected, which is remembered like a measurement, and the next one gets a fresh worker. Each outcome is in the
        database before the next candidate starts, so that an interruption loses nothing. ``progress`` is called
        instead of the measurer's own. Raises UsageError for an unknown backend.
        """
        return self._outcomes(requests, None, progress or self._progress)

    def _operators(self, nodes: tuple[int, ...]) -> str:
        return str(self.measured.subgraph(nodes))

    def _outcomes(
        self, requests: Sequence[CandidateRequest], races: Contenders | None, show: Show
    ) -> dict[CandidateRequest, Outcome]:
        """The outcomes, known or measured. Without ``races`` no candidate is let go."""
        unknown = {request.backend for request in requests} - self.backends.keys()
        if unknown:
            raise unknown_names("backends", unknown, self.backends)
        keys = {request: self.key(request) for request in requests}
        outcomes = self._recorded(keys)
        contenders = Contenders() if races is None else races
        for request, key in keys.items():
            if key in outcomes:
                contenders.note(request, outcomes[key], new=False)
        missing: dict[KernelKey, CandidateRequest] = {}
        for request, key in keys.items():
            known = outcomes.get(key)
            if isinstance(known, Slower) and (
                races is None or contenders.rival_us(request) > _CLEARLY * known.least_us
            ):
                known = None  # what it lost against takes no part in this compile
            if known is None:
                missing.setdefault(key, request)
        outcomes.update(self._measure_missing(missing, contenders, show, to_the_end=races is None))
        return {
            request: self._usable(request, outcomes[key]) for request, key in keys.items() if key in outcomes
        }

    def _measure_missing(
        self,
        missing: Mapping[KernelKey, CandidateRequest],
        contenders: Contenders,
        show: Show,
        *,
        to_the_end: bool,
    ) -> Iterable[tuple[KernelKey, Outcome]]:
        """Outcomes of what is not known, each measured and recorded."""
        key_of = {request: key for key, request in missing.items()}
        done = 0
        for request, outcome in self._by_crew([*key_of], contenders, to_the_end=to_the_end):
            text = self.measured.describe(request)
            contenders.note(request, outcome)
            key = key_of.pop(request)
            recorded = self._record(key, outcome, text)
            done += 1
            show(Progress("measure", done, len(missing), f"{request.backend}: {text}"))
            yield key, recorded
        # Without a crew, or where it has lost a job, the session's worker measures.
        # Candidates of one region follow each other, so that the worker makes the region's samples once.
        regions = _regions(key_of)
        ahead = self._ahead(regions, contenders)
        for number, region in enumerate(regions):
            for request in contenders.in_order(region):
                done += 1
                text = self.measured.describe(request)
                if ahead is not None:
                    ahead.come_to(number, request)
                lost = None if to_the_end else contenders.hopeless(request)
                if lost is not None:
                    self._database.put(key_of[request], lost, text)
                    yield key_of[request], lost
                    continue
                show(Progress("measure", done - 1, len(missing), f"{request.backend}: {text}"))
                rival_us = math.inf if to_the_end else contenders.rival_us(request)
                message, what = self._asked(request, rival_us)
                outcome = ask_fairly(self.session, message, what, self.settings.threads)
                contenders.note(request, outcome)
                yield key_of[request], self._record(key_of[request], outcome, text)
        if missing:
            show(Progress("measure", len(missing), len(missing)))

    def _ahead(self, regions: Sequence[Sequence[CandidateRequest]], contenders: Contenders) -> Ahead | None:
        """What has candidates built ahead, where that is worth it."""
        if self.settings.effort is QUICK or self._crew is not None:
            return None
        wanted_s = sum(self.backends[request.backend].ahead_s for region in regions for request in region)
        worth_s = _AHEAD_S + self.session.weights_bytes / _BYTES_A_SECOND
        builder = self.session.builder(start=wanted_s >= worth_s)
        if builder is None:
            return None
        return Ahead(builder, regions, contenders, self.backends, self._keys.options)

    def _record(self, key: KernelKey, outcome: Outcome, text: str) -> Outcome:
        """Record the outcome, with the memory that there was where it tells none; and return it."""
        limit = self.settings.limits.worker_memory()
        outcome = after_death(self.backends[key.backend], outcome, limit)
        self._database.put(key, outcome, text)
        self._progress.note(outcome)
        self.measurements_made += 1
        return outcome

    def _by_crew(
        self, requests: Sequence[CandidateRequest], contenders: Contenders, *, to_the_end: bool
    ) -> Iterator[tuple[CandidateRequest, Outcome]]:
        """The outcomes that the crew finds, one region a job."""
        if self._crew is None or not requests:
            return
        jobs = []
        for region in _regions(requests):
            asked = []
            for request in contenders.in_order(region):
                if to_the_end:
                    asked.append(self._asked(request, math.inf))
                elif contenders.hopeless(request) is None:
                    asked.append(self._asked(request, contenders.rival_us(request)))
            jobs.append(
                RegionJob(tuple(asked), self.settings.threads, contenders.about.charges, not to_the_end)
            )
        jobs = [job for job in jobs if job.asked]
        for done in self._crew.run(jobs):
            for position, outcome in done.parts:
                yield jobs[done.job].asked[position][0].request, outcome

    def _asked(self, request: CandidateRequest, rival_us: float) -> tuple[Measure, str]:
        """The message about a candidate, and the candidate in words."""
        options, settings, limit_s = self._keys.options(request), self.settings, self._limit_s(request)
        what = f"{request.backend} on {self.measured.subgraph(request.nodes)}"
        enough = Enough(settings.effort.worth * self.network_us)
        return Measure(request, options, limit_s, settings.effort.kernel_s, rival_us, enough), what

    def _limit_s(self, request: CandidateRequest) -> float:
        """The most seconds that a candidate may take."""
        limit_s = self.settings.limits.time_s + TRIAL_LIMIT_S * self._keys.options(request).tune_trials
        if request.original:
            limit_s += as_engine(self.backends[request.backend]).patience_s(request.profile)
        return limit_s

    def measure_transforms(self, transforms: Collection[LayoutTransform]) -> dict[LayoutTransform, float]:
        """Costs of layout transforms in microseconds. Those that cannot be made are left out.

        A transform is made by the first of the backends that can. Where it runs outside the team of threads it costs a
        context switch, too, which is not part of this.
        """
        keys, known = self._look_up(transforms)
        unknown = {key: transform for transform, key in keys.items() if key not in known}
        missing = {transform: key for key, transform in unknown.items()}
        for done, (transform, outcome) in enumerate(self._transformed(missing)):
            key, text = missing[transform], str(transform)
            self._progress(Progress("measure", done, len(missing), f"{key.backend}: {text}"))
            known[key] = self._record(key, outcome, text)
        if missing:
            self._progress(Progress("measure", len(missing), len(missing)))
        return _costs_us(keys, known)

    def known_transforms(self, transforms: Collection[LayoutTransform]) -> dict[LayoutTransform, float]:
        """Look up the costs that ``measure_transforms`` would not measure."""
        return _costs_us(*self._look_up(transforms))

    def _look_up(
        self, transforms: Collection[LayoutTransform]
    ) -> tuple[dict[LayoutTransform, KernelKey], dict[KernelKey, Outcome]]:
        """The keys of the transforms that some backend makes, and the recorded outcomes."""
        made = [each for each in transforms if self.transform_backend(each) is not None]
        keys = {transform: self._keys.transform_key(transform) for transform in made}
        return keys, self._database.get(keys.values(), lambda _: self.settings.limits.time_s)

    def _transformed(
        self, missing: Mapping[LayoutTransform, KernelKey]
    ) -> Iterator[tuple[LayoutTransform, Outcome]]:
        """The outcomes of transforms that are not known."""
        settings, left = self.settings, [*missing]
        jobs = [
            TransformJob(
                MeasureTransform(
                    *(transform, key.backend, settings.build),
                    *(settings.limits.time_s, settings.effort.transform_s),
                ),
                settings.threads,
            )
            for transform, key in missing.items()
        ]
        for done in self._crew.run(jobs) if self._crew is not None and jobs else ():
            for _, outcome in done.parts:
                transform = jobs[done.job].message.transform
                left.remove(transform)
                yield transform, outcome
        for job in jobs:
            if job.message.transform in left:
                for _, outcome in job.run(self.session):
                    yield job.message.transform, outcome

    def transform_backend(self, transform: LayoutTransform) -> Backend | None:
        """The first of the backends that makes the transform, or None."""
        return self._keys.transform_backend(transform)

    def verify(self) -> dict[int, str]:
        """The ONNX nodes (by index) that TVM's importer converted to something else, with the reasons.

        ``from_simplified(model.onnx, model.name, {**model.opaque, **wrong})`` makes them opaque; measure that model
        with a new Measurer. The measured model is told of its extraordinary values, too, where they are guarded. What
        was found is remembered for the model and the libraries' versions.
        """
        key, evaluated = self._keys.conversions_key(), self.session.evaluated
        found = self._database.remember(_WRONG_CONVERSIONS.at(key), lambda: evaluated().wrong)
        if self.measured.guards:
            self.measured.extraordinary.update(self._extraordinary())
        return dict(found)

    def _extraordinary(self) -> Collection[int]:
        key, evaluated = self._keys.values_key(), self.session.evaluated
        if key is None:
            return evaluated().extraordinary
        return self._database.remember(_EXTRAORDINARY.at(key), lambda: evaluated().extraordinary)

    def epsilon_us(self, requests: Sequence[CandidateRequest]) -> float:
        """Eq. 2.2's cost of one more kernel launch, in microseconds; see ``LaunchCost.epsilon_us``."""
        return LaunchCost(self.session, self.settings, self._database, self.kernels).epsilon_us(requests)


def _regions(requests: Iterable[CandidateRequest]) -> list[list[CandidateRequest]]:
    """The requests of each region, in the order of the regions' first requests."""
    found: dict[tuple[int, ...], list[CandidateRequest]] = {}
    for request in requests:
        found.setdefault(request.nodes, []).append(request)
    return list(found.values())


def _costs_us(
    keys: Mapping[LayoutTransform, KernelKey], outcomes: Mapping[KernelKey, Outcome]
) -> dict[LayoutTransform, float]:
    """The times of the transforms that were measured."""
    found = {transform: outcomes.get(key) for transform, key in keys.items()}
    return {each: outcome.median_us for each, outcome in found.items() if isinstance(outcome, Measurement)}


def _silent(_: Progress) -> None:
    """Nobody is told."""
