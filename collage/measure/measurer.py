"""Costs of candidates: from the database where they are known, else measured in a worker process, once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, cached_property, partial
from types import TracebackType

from collage.backends.base import Backend, BackendKind
from collage.backends.tuner import TRIAL_LIMIT_S
from collage.core.progress import Progress
from collage.errors import unknown_names
from collage.frontend.model import Model
from collage.kernel.transform import LayoutTransform
from collage.measure.crew import MeasuringCrew
from collage.measure.jobs import Pace, Racer, RegionJob, TransformJob
from collage.measure.machine.free_memory import after_death
from collage.measure.plan_kernels import PlanKernels
from collage.measure.prior import REGION, Losses, class_of, known_losses
from collage.measure.request_keys import RequestKeys, variant_text
from collage.measure.rivals import NO_RIVALS, Rivals
from collage.measure.timing.calls import Enough, batch_ns
from collage.measure.timing.effort import QUICK
from collage.measure.timing.race import EXACT, rivals_of, time_alone
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.keys import Fact, as_number
from collage.measure_db.results import Measurement, Outcome, Slower

_WRONG_CONVERSIONS: Fact[Mapping[int, str]] = Fact(
    "wrong_conversions",
    lambda reasons: {str(index): reason for index, reason in reasons.items()},
    lambda value: {int(index): str(reason) for index, reason in value.items()},
)
_EXTRAORDINARY: Fact[tuple[int, ...]] = Fact("out_of_range_values", list, lambda found: (*map(int, found),))

_LAUNCH_US: Fact[float] = Fact("launch_us", float, as_number)

_CLEARLY = 1.1
"""A kernel that lost a race is raced again if its present rivals take so many times what its rival took."""
_WHOLE_SHARE, _LEAST_PART = 0.01, 0.1
"""The candidates of a region with this share of the network's time have all the time of the effort; those with less
have less in proportion, but this part of it."""
_LAUNCH_S = 0.01
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
        self._progress = progress or (lambda _: None)
        self._crew = crew
        self._keys = RequestKeys(self.measured, self.settings)
        self._others: dict[int, Measurer] = {}
        self._expected: set[CandidateRequest] = set()
        self._classes: dict[tuple[int, ...], str] = {}
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
    def as_loaded_digest(self) -> str | None:
        """A hash of the model as it was loaded, if guarded kernels need it."""
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
        """Losses of races before this compile, of all models in the database and in the file of Collage."""
        return known_losses(self._database, self.settings.hardware, self.settings.threads)

    def on_threads(self, threads: int) -> Measurer:
        """A measurer of the same model on that many threads. It shares the session, so it need not be closed."""
        if threads == self.settings.threads:
            return self
        if threads not in self._others:
            self._others[threads] = Measurer(self.session, self._database, self._progress, threads, self._crew)
        self._others[threads].network_us = self.network_us
        return self._others[threads]

    def key(self, request: CandidateRequest) -> KernelKey:
        """The key that the request's outcome is recorded under."""
        return self._keys.key(request)

    def expected_loss(self, request: CandidateRequest) -> float:
        """The logarithm of how many times as long as its fastest rival a kernel is expected to take."""
        about = self._classes.get(request.nodes)
        if about is None:
            about = self._classes[request.nodes] = class_of(self.measured.subgraph(request.nodes))
        return self._losses.expected(about, (request.backend, variant_text(request.variant)))

    def known(self, requests: Collection[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        """The recorded outcomes of the requests, looked up in one query. Requests without one are left out."""
        keys = {request: self.key(request) for request in requests}
        found = self._recorded(keys)
        return {request: self.measured.usable(request, found[key]) for request, key in keys.items() if key in found}

    def _recorded(self, keys: Mapping[CandidateRequest, KernelKey]) -> dict[KernelKey, Outcome]:
        """The recorded outcomes that are not doubted, looked up in one query."""
        request_of = {key: request for request, key in keys.items()}
        return self._database.get(request_of, lambda key: self._limit_s(request_of[key]))

    def race(self, requests: Sequence[CandidateRequest], rivals: Rivals = NO_RIVALS) -> dict[CandidateRequest, Outcome]:
        """An outcome for each request. Those of the same nodes race, in the order of the regions' first requests.

        What is known is looked up in one query; candidates of the same key are measured once. The best of a region are
        measured and compared on all inputs, and the others are ``Slower``. A candidate that crashes, hangs, or runs out
        of memory or time is rejected, which is remembered like a measurement, and the others are raced again. Outcomes
        are in the database before the next region begins. Raises UsageError for an unknown backend.
        """
        return self._outcomes(requests, rivals, to_the_end=not self.settings.effort.races)

    def measure(self, requests: Sequence[CandidateRequest]) -> dict[CandidateRequest, Outcome]:
        """Outcomes of candidates that are measured to the end, also of those that have lost a race before."""
        return self._outcomes(requests, NO_RIVALS, to_the_end=True)

    def _describe(self, regions: Iterable[Sequence[CandidateRequest]]) -> None:
        """Record the classes of regions that are raced, which the rows of kernels do not tell."""
        subgraphs = (self.measured.subgraph(region[0].nodes) for region in regions)
        found = {f"{each.digest} {self.model.name}": each for each in subgraphs}
        new = found.keys() - REGION.known(self._database, found).keys()
        if new:
            with self._database.together():
                for key in sorted(new):
                    REGION.at(key).record(self._database, class_of(found[key]))

    def _outcomes(
        self, requests: Sequence[CandidateRequest], rivals: Rivals, *, to_the_end: bool
    ) -> dict[CandidateRequest, Outcome]:
        unknown = {request.backend for request in requests} - self.backends.keys()
        if unknown:
            raise unknown_names("backends", unknown, self.backends)
        keys = {request: self.key(request) for request in requests}
        outcomes = self._recorded(keys)
        region_of = {region[0].nodes: region for region in _regions(keys)}
        cover_us = cache(lambda nodes: self._known_us(rivals.cover.get(nodes, ())))

        def best(nodes: tuple[int, ...], precision: str) -> tuple[float, CandidateRequest | None]:
            """The fastest kernel of these nodes that a candidate of that precision races against."""
            allowed = rivals_of(precision)
            times = [
                (found.median_us, at, each)
                for at, each in enumerate(region_of[nodes])
                if each.variant.precision in allowed and isinstance(found := outcomes.get(keys[each]), Measurement)
            ]
            us, _, each = min(times, default=(math.inf, 0, None))
            return us, each

        def is_missed(lost: Slower, request: CandidateRequest) -> bool:
            """Whether none of the candidate's present rivals is known to be as fast as what it lost against."""
            nodes = request.nodes
            rival_us = best(nodes, request.variant.precision)[0]
            best_us = min(rival_us, cover_us(nodes), rivals.share_us(nodes))
            return lost.repeats > 0 and best_us > _CLEARLY * max(lost.rival_us, lost.least_us)

        missing: dict[KernelKey, CandidateRequest] = {}
        for request, key in keys.items():
            known = outcomes.get(key)
            if known is None or (isinstance(known, Slower) and (to_the_end or is_missed(known, request))):
                missing.setdefault(key, request)
        key_of = {request: key for key, request in missing.items()}
        regions = [
            self._losses.in_order(region, self.measured.subgraph(region[0].nodes)) for region in _regions(key_of)
        ]
        self._describe(regions)
        done = 0
        if missing:
            self._progress(Progress("measure", 0, len(missing)))

        def job(region: Sequence[CandidateRequest]) -> RegionJob:
            return self._job(region, rivals, best(region[0].nodes, EXACT)[1], to_the_end)

        for request, outcome in self._raced(regions, job):
            text = self.measured.describe(request)
            key = self.key(request)
            outcomes[key] = self._record(key, outcome, text)
            done += request in key_of
            self._progress(Progress("measure", done, len(missing), f"{request.backend}: {text}"))
        return {
            request: self.measured.usable(request, outcomes[key]) for request, key in keys.items() if key in outcomes
        }

    def _raced(
        self,
        regions: Sequence[Sequence[CandidateRequest]],
        job: Callable[[Sequence[CandidateRequest]], RegionJob],
    ) -> Iterator[tuple[CandidateRequest, Outcome]]:
        """The outcomes of regions that race, by the crew or by the session's worker."""
        got: set[CandidateRequest] = set()
        for part in self._crew.run([job(each) for each in regions]) if self._crew and regions else ():
            got.add(part[0])
            yield part
        # Without a crew, or if it has lost a job, the session's worker measures.
        left = [[each for each in region if each not in got] for region in regions]
        left = [region for region in left if region]
        self.build_ahead([request for region in left[1:] for request in region], first=True)
        for region in left:
            yield from job(region).run(self.session)

    def _job(
        self,
        region: Sequence[CandidateRequest],
        rivals: Rivals,
        best: CandidateRequest | None,
        to_the_end: bool,
    ) -> RegionJob:
        """The race of a region with the incumbent's kernels, if all of these are known, else with the best known."""
        nodes, effort = region[0].nodes, self.settings.effort
        cover: tuple[CandidateRequest, ...] = ()
        known_us = math.inf
        for kernels in (rivals.cover.get(nodes, ()), () if best is None else (best,)):
            if math.isinf(known_us) and not {*region}.intersection(kernels):
                cover, known_us = kernels, self._known_us(kernels)
        if math.isinf(known_us):
            cover, known_us = (), 0.0
        network_us = rivals.network_us or self.network_us
        share_us = rivals.share_us(nodes)
        share = share_us / network_us if network_us > 0 and not to_the_end else 1.0
        candidate_s = effort.kernel_s * min(1.0, max(_LEAST_PART, share / _WHOLE_SHARE))
        pace = Pace(candidate_s, Enough(effort.worth * network_us), effort.settle_s)
        racer = partial(self._racer, switch_us=rivals.switch_us)
        return RegionJob(
            tuple(map(racer, region, self._tunings(region))),
            self.settings.threads,
            tuple(map(racer, cover, self._tunings(cover))),
            known_us,
            pace,
            share_us,
            to_the_end,
        )

    def _known_us(self, kernels: Collection[CandidateRequest]) -> float:
        """The time of the kernels in all; infinite without kernels, or if one of them is not measured."""
        times = [each.median_us for each in self.known(kernels).values() if isinstance(each, Measurement)]
        return sum(times) if kernels and len(times) == len(kernels) else math.inf

    def _tunings(self, kernels: Sequence[CandidateRequest]) -> list[str]:
        """The records of tuning that build kernels again that were tuned before; "" for others."""
        known = self.known(kernels) if self.settings.build.tune_trials else {}
        return [getattr(known.get(each), "tuning", "") for each in kernels]

    def _racer(self, request: CandidateRequest, tuning: str = "", *, switch_us: float) -> Racer:
        charge_us = switch_us if request.backend in self._engines else 0.0
        options = replace(self._keys.options(request), tuning=tuning)
        return Racer(request, options, self._limit_s(request), charge_us)

    def build_ahead(self, requests: Iterable[CandidateRequest], *, first: bool = False) -> None:
        """Have candidates built on other cores before the worker comes to them, if they take long enough in all.

        They come ``first``, or after the others that it comes to, and without those that are known.
        """
        if self.settings.effort is QUICK or self._crew is not None:
            return
        wanted = [each for each in requests if self.backends[each.backend].ahead_s > 0]
        known = {} if first else self.known(wanted)
        kernels = [PlanKernel(each, self._keys.options(each)) for each in wanted if each not in known]
        kernels = [each for each in kernels if not each.options.tune_trials]
        self._expected |= {*wanted}
        worth_s = _AHEAD_S + self.session.weights_bytes / _BYTES_A_SECOND
        wanted_s = sum(self.backends[each.backend].ahead_s for each in self._expected)
        if (builder := self.session.builder(start=wanted_s >= worth_s)) is not None:
            builder.expect(kernels, first=first)

    def _record(self, key: KernelKey, outcome: Outcome, text: str) -> Outcome:
        """Record the outcome, with the memory that there was where it tells none; and return it."""
        limit = self.settings.limits.worker_memory()
        outcome = after_death(self.backends[key.backend], outcome, limit)
        self._database.put(key, outcome, text)
        self.measurements_made += 1
        return outcome

    def _limit_s(self, request: CandidateRequest) -> float:
        """The most seconds that a candidate may take."""
        return self.settings.limits.time_s + TRIAL_LIMIT_S * self._keys.options(request).tune_trials

    def measure_transforms(self, transforms: Collection[LayoutTransform]) -> dict[LayoutTransform, float]:
        """Costs of layout transforms in microseconds. Those that cannot be made are left out.

        A transform is made by the first of the backends that can. Where it runs outside the team of threads it costs a
        context switch, too, which is not part of this.
        """
        made = [each for each in transforms if self.transform_backend(each) is not None]
        keys = {transform: self._keys.transform_key(transform) for transform in made}
        known = self._database.get(keys.values(), lambda _: self.settings.limits.time_s)
        unknown = {key: transform for transform, key in keys.items() if key not in known}
        missing = {transform: key for key, transform in unknown.items()}
        for done, (transform, outcome) in enumerate(self._transformed(missing)):
            key, text = missing[transform], str(transform)
            self._progress(Progress("measure", done, len(missing), f"{key.backend}: {text}"))
            known[key] = self._record(key, outcome, text)
        if missing:
            self._progress(Progress("measure", len(missing), len(missing)))
        found = {transform: known.get(key) for transform, key in keys.items()}
        return {each: outcome.median_us for each, outcome in found.items() if isinstance(outcome, Measurement)}

    def _transformed(self, missing: Mapping[LayoutTransform, KernelKey]) -> Iterator[tuple[LayoutTransform, Outcome]]:
        """The outcomes of transforms that are not known."""
        settings, got = self.settings, set[LayoutTransform]()
        limit_s, sample_s = settings.limits.time_s, settings.effort.kernel_s
        jobs = [
            TransformJob(transform, key.backend, settings.build, limit_s, sample_s)
            for transform, key in missing.items()
        ]
        for part in self._crew.run(jobs) if self._crew is not None and jobs else ():
            got.add(part[0])
            yield part
        for job in jobs:
            if job.transform not in got:
                yield from job.run(self.session)

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

    def epsilon_us(self, _: Sequence[CandidateRequest] = ()) -> float:
        """Eq. 2.2's cost of one more kernel launch, in microseconds, measured once on a machine.

        It is that of a launch that does nothing: what libraries do to each other is in the times of races.
        """
        return self._database.remember(_LAUNCH_US.at(self.settings.hardware), _empty_launch_us)


def _empty_launch_us() -> float:
    """The cost of a launch that does nothing, in this process."""

    def run(count: int) -> float:
        return batch_ns([lambda: None] * count, time.perf_counter_ns, 0) / count

    return time_alone(run, _LAUNCH_S).us


def _regions(requests: Iterable[CandidateRequest]) -> list[list[CandidateRequest]]:
    """The requests of each region, in the order of the regions' first requests."""
    found: dict[tuple[int, ...], list[CandidateRequest]] = {}
    for request in requests:
        found.setdefault(request.nodes, []).append(request)
    return list(found.values())
