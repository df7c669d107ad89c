"""Regions that no pattern makes: neighbours on one engine as one region, and engines beside a faster kernel."""

from __future__ import annotations

from collections.abc import Collection, Generator

from collage.backends.base import VIEW
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import field_of, place
from collage.compiler.plan import Plan, Verdict
from collage.compiler.propose.mixes import calibrated, mix_of
from collage.compiler.record import BESIDE, MERGED
from collage.graph.order import branch_order
from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidates import Offer
from collage.search.merge_regions import region_merges
from collage.search.placement import Placement
from collage.search.split_regions import region_splits

_ROUNDS = 4
_LARGE = 0.25
"""An engine's region is large if it has this share of the nodes."""


def regions(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Measures what placements suggest, and places again, until nothing is new."""
    for _ in range(_ROUNDS):
        new = [o for o in _suggestions(bench, place(bench)) if o.request not in bench.known.outcomes]
        if not new:
            return
        bench.known.offer(new)
        bench.race([offer.request for offer in new], mix_of(best))
        yield from calibrated(bench, best, rounds=1)


def _suggestions(bench: Bench, placement: Placement) -> list[Offer]:
    graph, engines = bench.model.graph, bench.task.engines.keys()
    found: dict[CandidateRequest, str] = {}
    for nodes, name in region_merges(placement, engines, {VIEW}):
        found[CandidateRequest(nodes, name, Variant(precision=_precision(placement, nodes)))] = MERGED
    order = branch_order(graph)
    candidates = field_of(bench).candidates
    large = [c for c in placement.candidates if c.backend in engines and len(c.nodes) >= _LARGE * len(graph.nodes)]
    for region in large:
        for nodes in region_splits(order, candidates, region, bench.known.epsilon_us):
            variant = Variant(precision=region.variant.precision)
            found.setdefault(CandidateRequest(nodes, region.backend, variant), BESIDE)
    return [Offer(request, why) for request, why in found.items() if len(request.nodes) < len(graph.nodes)]


def _precision(placement: Placement, nodes: Collection[int]) -> str:
    """The reduced precision that some kernel of the placement computes these nodes in, or ""."""
    inside = set(nodes)
    found = (c.variant.precision for c in placement.candidates if inside.issuperset(c.nodes))
    return max(found, default="")
