"""Plans and requests of a model as the plain values of ``finished``, and these as plans of the model again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from collage.backends.base import VIEW
from collage.compiler.finished import NamedCandidate, NamedPlan, NamedRequest, NamedStreams, NamedVariant
from collage.compiler.plan import Placed, StreamPlan
from collage.compiler.propose.single_threaded import Launch
from collage.frontend.model import Model
from collage.graph.formats import StorageFormat
from collage.graph.storage import parse_storage
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.schedule.dag import Dag
from collage.schedule.schedule import TEAM, Schedule, check
from collage.search.candidate import Candidate
from collage.search.candidates import ports_of
from collage.search.placement import Placement, check_placement
from collage.search.transforms import PlacedTransform, needed_transforms


@dataclass(frozen=True)
class Naming:
    """Names plans and requests in plain values; each variant gets a number when it is first met."""

    numbers: dict[Variant, int] = field(default_factory=dict)

    @property
    def variants(self) -> tuple[NamedVariant, ...]:
        """All variants so far, by number."""
        return tuple(
            (tuple(map(str, v.inputs)), tuple(map(str, v.outputs)), v.split, v.precision)
            for v in self.numbers
        )

    def request(self, request: CandidateRequest) -> NamedRequest:
        """The request in plain values."""
        return request.nodes, request.backend, self._number(request.variant)

    def plan(self, plan: Placed) -> NamedPlan:
        """The plan in plain values."""
        placement = plan.placement
        return NamedPlan(
            plan.label,
            plan.suffix,
            tuple(map(self._candidate, placement.candidates)),
            tuple(each.cost_us for each in placement.transforms),
            placement.predicted_us,
            placement.exact,
            None if plan.streams is None else self._streams(plan.streams),
        )

    def _number(self, variant: Variant) -> int:
        return self.numbers.setdefault(variant, len(self.numbers))

    def _candidate(self, c: Candidate) -> NamedCandidate:
        number = self._number(c.variant)
        return NamedCandidate(c.nodes, c.backend, number, c.cost_us, c.noise_us, c.error, c.finite_only)

    def _streams(self, streams: StreamPlan) -> NamedStreams:
        single = tuple(
            self._candidate(each) if isinstance(each, Candidate) else (None if each is None else each.cost_us)
            for each in streams.single_threaded
        )
        return NamedStreams(streams.algorithm, streams.schedule.order, streams.schedule.streams, single)


@dataclass(frozen=True)
class Assembled:
    """The launches of a plan, which of them are on a GPU, and the graph of which needs which."""

    dag: Dag
    launches: Sequence[Launch]
    on_gpu: Sequence[bool]


@dataclass(frozen=True)
class Reading:
    """Makes plans and requests of ``model`` out of named ones, whose variants are ``variants``.

    ``backends`` are the names of those that there are, and ``on_team`` of those whose kernels pay no context switch.
    All methods raise ValueError for what is no part of such a model.
    """

    model: Model
    backends: Collection[str]
    on_team: Collection[str]
    variants: tuple[Variant, ...]

    def request(self, named: NamedRequest) -> CandidateRequest:
        """The request of those names."""
        nodes, backend, variant = named
        return CandidateRequest(self._nodes(nodes), self._backend(backend), self._variant(variant))

    def placement(self, named: NamedPlan) -> Placement:
        """The placement of a plan, without streams."""
        graph = self.model.graph
        candidates = check_placement(graph, [self._candidate(each) for each in named.candidates])
        needed = needed_transforms(graph, candidates)
        transforms = tuple(
            PlacedTransform(*each, us) for each, us in zip(needed, named.transforms_us, strict=True)
        )
        return Placement(candidates, named.predicted_us, named.exact, transforms)

    def plan(self, named: NamedPlan, assemble: Callable[[Placed], Assembled]) -> Placed:
        """The plan of those names. ``assemble`` gives the launches of a plan without streams."""
        plan = Placed(named.label, self.placement(named), suffix=named.suffix)
        if named.streams is None:
            return plan
        return replace(plan, streams=self._streams(named.streams, assemble(plan)))

    def _streams(self, named: NamedStreams, there: Assembled) -> StreamPlan:
        """The schedule, where each launch on a stream has a kernel that does the same on one thread, or is on a GPU."""
        schedule = Schedule(named.order, named.streams)
        check(there.dag, schedule)
        single = tuple(
            self._alone(launch, each)
            for launch, each in zip(there.launches, named.single_threaded, strict=True)
        )
        for on_gpu, stream, each in zip(there.on_gpu, schedule.streams, single, strict=True):
            if stream < TEAM or (stream != TEAM and each is None and not on_gpu):
                raise ValueError("a launch on a stream has no kernel for one thread")
        return StreamPlan(schedule, single, named.algorithm)

    def _alone(self, launch: Launch, named: NamedCandidate | float | None) -> Launch | None:
        if named is None:
            return None
        if isinstance(launch, PlacedTransform) and isinstance(named, float):
            return PlacedTransform(launch.value, launch.transform, named)
        if not isinstance(launch, Candidate) or isinstance(named, float):
            raise ValueError("a layout transform stands in the place of a kernel")
        found = self._candidate(named)
        if (found.nodes, found.reads, found.writes) != (launch.nodes, launch.reads, launch.writes):
            raise ValueError(f"the nodes {found.nodes} stand in the place of {launch.nodes}")
        return found

    def _candidate(self, named: NamedCandidate) -> Candidate:
        nodes, backend, variant = (
            self._nodes(named.nodes),
            self._backend(named.backend),
            self._variant(named.variant),
        )
        reads, writes = ports_of(self.model, CandidateRequest(nodes, backend, variant))
        return Candidate(
            nodes,
            backend,
            named.cost_us,
            named.noise_us,
            0 if backend == VIEW or backend in self.on_team else 1,
            variant,
            reads,
            writes,
            named.finite_only,
            error=named.error,
        )

    def _nodes(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        ascending = all(a < b for a, b in pairwise(nodes))
        if not nodes or not ascending or nodes[0] < 0 or nodes[-1] >= len(self.model.graph.nodes):
            raise ValueError(f"the graph has no nodes {nodes[:20]}")
        return nodes

    def _backend(self, name: str) -> str:
        if name not in self.backends:
            raise ValueError(f"there is no backend {name}")
        return name

    def _variant(self, number: int) -> Variant:
        if not 0 <= number < len(self.variants):
            raise ValueError(f"there is no variant {number}")
        return self.variants[number]


def read_variants(named: Iterable[NamedVariant], formats: Iterable[StorageFormat]) -> tuple[Variant, ...]:
    """The variants of those names, whose storages have one of the formats. Raises ValueError for another one."""
    known = tuple(formats)
    return tuple(
        Variant(
            tuple(parse_storage(each, known) for each in inputs),
            tuple(parse_storage(each, known) for each in outputs),
            split,
            precision,
        )
        for inputs, outputs, split, precision in named
    )
