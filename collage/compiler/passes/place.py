"""Place: the fastest cover of the graph by measured candidates. It suggests more candidates, and is repeated."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from collage.backends.base import VIEW
from collage.compiler.by_known import candidates_in, expected, transform_costs_us
from collage.compiler.cheapest import NOISE_MARGIN, cheapest
from collage.compiler.events import Searched
from collage.compiler.proposal import Proposal
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from collage.graph.order import branch_order
from collage.kernel.options import Variant
from collage.measure.measurer import Measurer
from collage.measure.rivals import Rivals
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import IN_NETWORK, Outcome, Rejection, RejectionKind
from collage.search.candidate import Candidate
from collage.search.candidates import Offer
from collage.search.merge_regions import region_merges
from collage.search.placement import Placement
from collage.search.split_regions import region_splits

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Places the model by dynamic programming, with times in the network where calibration knows them.

    A placement suggests candidates. One kind is neighbours on the same engine as one region. Another kind is a large
    region (a share of at least ``large`` of the operators) without a kernel that another backend does faster. They are
    measured, and the model is placed again, in at most ``rounds`` rounds, until no candidate is new. Layout transforms
    that a placement may need are measured, too.

    Kernels that lost a race (``results.Slower``) are not placed. Their lower bounds show what they could gain at most:
    where a placement with them would cost less by a share of more than ``least_gain``, those in it are measured to the
    end, and the model is placed again, in at most ``doubts`` rounds: bounds promise more than kernels keep. A compile
    that has measured less than a share of ``fresh`` itself has no doubts: the one that measured the rest had them.

    A pass that does not suggest (``suggests``) leaves regions to a later one.

    A backend is left out when ``most_faults`` of its kernels have failed in networks, since each failure costs a worker
    or a time limit.
    """

    suggests: bool = True
    rounds: int = 6
    doubts: int = 2
    least_gain: float = 0.005
    fresh: float = 0.1
    most_faults: int = 5
    large: float = 0.25

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the proposal, and adds offers and outcomes. Raises NoPlacementError."""
        for _ in range(self.rounds):
            compilation, searched = self._certain(context, compilation)
            new = self._suggestions(context, compilation) if self.suggests else []
            if not new:
                break
            measurer = context.workbench(compilation).measurer
            rivals = Rivals(_covers(compilation, new), switch_us=compilation.epsilon_us)
            measured = measurer.race([offer.request for offer in new], rivals)
            if not measured:
                break
            compilation = replace(
                compilation,
                offers=(*compilation.offers, *new),
                outcomes={**compilation.outcomes, **measured},
            )
        return compilation.told(searched)

    def _certain(self, context: Context, compilation: Compilation) -> tuple[Compilation, Searched]:
        """Search, and measure to the end what lost a race and could be part of a better placement all the same."""
        made = context.workbench(compilation).measurer.made_in_all
        doubts = self.doubts if made > self.fresh * len(compilation.outcomes) else 0
        for number in count():
            try:
                compilation, searched, doubtful = self._search(context, compilation, number < doubts)
            except NoPlacementError as error:
                raise _told_of_memory(error, compilation) from error
            if not doubtful:
                return compilation, searched
            log.info("%d kernels that lost a race are measured to the end", len(doubtful))
            measured = context.workbench(compilation).measurer.finish(doubtful)
            compilation = replace(compilation, outcomes={**compilation.outcomes, **measured})
        raise AssertionError("the loop ends by returning")

    def _search(
        self, context: Context, compilation: Compilation, doubts: bool
    ) -> tuple[Compilation, Searched, list[CandidateRequest]]:
        """The compilation with a proposal, and the requests that are worth measuring to the end.

        Without ``doubts`` these are only those without which there is no placement.
        """
        measurer = context.workbench(compilation).measurer
        graph, corrections = compilation.imported.graph, compilation.calibration.corrections
        candidates = candidates_in(context, compilation, expected(compilation))
        transforms_us = transform_costs_us(measurer, compilation, candidates, measurer.measure_transforms)
        started = time.perf_counter()
        best = partial(cheapest, context, compilation, transforms_us=transforms_us)
        left_out = compilation.left_out | self._faulty(measurer, compilation.outcomes)
        possible = [c for c in candidates if c.backend not in left_out]
        parts = [c for c in possible if len(c.nodes) < len(graph.nodes)]
        placement, needed = _placed(best, possible)
        mix = placement
        if placement is not None and len(placement.candidates) == 1:
            try:
                mix, needed = _placed(best, parts)
            except NoPlacementError:
                mix = None  # some operator has no candidate of its own
        if placement is None or needed:
            return compilation, Searched(time.perf_counter() - started), [_request(c) for c in needed]
        proposal = Proposal(placement, mix, tuple(candidates), transforms_us, corrections)
        proposed = replace(compilation, proposal=proposal)
        doubtful = []
        if doubts and mix is not None and any(c.outrun for c in parts):
            doubtful = self._doubtful(mix, hoped=cheapest(context, proposed, parts, transforms_us))
        return proposed, Searched(time.perf_counter() - started), doubtful

    def _doubtful(self, known: Placement, hoped: Placement) -> list[CandidateRequest]:
        """The kernels of the hoped-for placement that lost a race, where it gains enough beside the known one."""
        if _charged_us(hoped) > (1 - self.least_gain) * _charged_us(known):
            return []
        return [_request(c) for c in hoped.candidates if c.outrun]

    def _faulty(self, measurer: Measurer, outcomes: Mapping[CandidateRequest, Outcome]) -> frozenset[str]:
        """The backends with ``most_faults`` or more kernels that failed in networks."""
        failed = {
            measurer.key(request)
            for request, outcome in outcomes.items()
            if isinstance(outcome, Rejection) and outcome.message.startswith(IN_NETWORK)
        }
        counts = Counter(key.backend for key in failed)
        return frozenset(name for name, count in counts.items() if count >= self.most_faults)

    def _suggestions(self, context: Context, compilation: Compilation) -> list[Offer]:
        """Regions of engines to measure before the next round."""
        graph, proposal = compilation.imported.graph, compilation.placed
        engines = context.engines.keys()
        suggested: dict[CandidateRequest, str] = {}
        for nodes, name in region_merges(proposal.mix, engines, {VIEW}) if proposal.mix else []:
            variant = Variant(precision=_precision(proposal.mix, nodes))
            suggested[CandidateRequest(nodes, name, variant)] = "neighbours on one engine"
        order = branch_order(graph)
        for region in self._large_regions(context, proposal, len(graph.nodes)):
            for nodes in region_splits(order, proposal.candidates, region, compilation.epsilon_us):
                request = CandidateRequest(nodes, region.backend, Variant(precision=region.variant.precision))
                suggested.setdefault(request, "beside a kernel that another does faster")
        return [
            Offer(request, why)
            for request, why in suggested.items()
            if request not in compilation.outcomes and len(request.nodes) < len(graph.nodes)
        ]

    def _large_regions(self, context: Context, proposal: Proposal, count: int) -> list[Candidate]:
        """The whole model (of ``count`` nodes) on the fastest engine, and large regions of engines in placements."""
        on_engines = [c for c in proposal.candidates if c.backend in context.engines]
        whole = [c for c in on_engines if len(c.nodes) == count]
        found = sorted(whole, key=lambda c: (c.cost_us, c.backend))[:1]
        for each in (proposal.placement, proposal.mix):
            if each is not None:
                found += [
                    c
                    for c in each.candidates
                    if c.backend in context.engines and len(c.nodes) >= self.large * count
                ]
        return list(dict.fromkeys(found))


def _placed(
    best: Callable[[Sequence[Candidate]], Placement], candidates: Sequence[Candidate]
) -> tuple[Placement | None, list[Candidate]]:
    """The best placement of the candidates, and those that have to be measured to the end before there is one.

    What ran fastest may have been rejected since, and all others of its operators may have lost a race against it.
    Raises NoPlacementError where there is no placement either way.
    """
    try:
        return best([c for c in candidates if not c.outrun]), []
    except NoPlacementError:
        if not any(c.outrun for c in candidates):
            raise
    return None, [c for c in best(candidates).candidates if c.outrun]


def _precision(mix: Placement | None, nodes: Collection[int]) -> str:
    """The reduced precision that some kernel of the mix computes these nodes in, or ""."""
    inside = set(nodes)
    found = (c.variant.precision for c in mix.candidates if inside.issuperset(c.nodes)) if mix else ()
    return max(found, default="")


def _request(candidate: Candidate) -> CandidateRequest:
    return CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)


def _charged_us(placement: Placement) -> float:
    """The cost that the search gives a placement in microseconds, with the noise of its kernels."""
    return placement.predicted_us + NOISE_MARGIN * sum(c.noise_us for c in placement.candidates)


def _covers(
    compilation: Compilation, offers: Sequence[Offer]
) -> dict[tuple[int, ...], tuple[CandidateRequest, ...]]:
    """The kernels of the mix that do exactly what offers do, by their nodes."""
    mix = compilation.placed.mix
    found: dict[tuple[int, ...], tuple[CandidateRequest, ...]] = {}
    for nodes in {offer.request.nodes for offer in offers}:
        inside = set(nodes)
        parts = [c for c in mix.candidates if inside.issuperset(c.nodes)] if mix is not None else []
        if sum(len(c.nodes) for c in parts) == len(nodes):
            found[nodes] = tuple(map(_request, parts))
    return found


def without_mix(context: Context, compilation: Compilation) -> Compilation:
    """The same compilation without a mix: one kernel runs all of the model. Raises NoPlacementError."""
    proposal = compilation.placed
    if proposal.placement is not proposal.mix:
        return replace(compilation, proposal=replace(proposal, mix=None))
    graph = compilation.imported.graph
    idle = {n for view in compilation.views for n in view.nodes}
    whole = [c for c in proposal.candidates if not c.outrun and len({*c.nodes, *idle}) == len(graph.nodes)]
    placement = cheapest(context, compilation, whole, proposal.transforms_us)
    return replace(compilation, proposal=replace(proposal, mix=None, placement=placement))


def _told_of_memory(error: NoPlacementError, compilation: Compilation) -> NoPlacementError:
    """The error, and what a kernel was told that had too little memory, if there is one: that may be why."""
    reasons = sorted(
        each.message
        for each in compilation.outcomes.values()
        if isinstance(each, Rejection) and each.kind is RejectionKind.MEMORY
    )
    return (
        NoPlacementError(f"{error}, and a kernel had too little memory ({reasons[0]}).") if reasons else error
    )
