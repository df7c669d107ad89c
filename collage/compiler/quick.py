"""A quick compile: few candidates with few samples, placed once. The answers are checked as always.

For trying a model out, and for the many one-node models of ONNX's own tests. What it leaves out is what makes the
choice certain: other layouts, the parts of large regions, times inside the network, and the last comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage.backends.base import Backend, BackendKind
from collage.compiler.assemble import Assembler, Rival
from collage.compiler.final_check import FinalCheck
from collage.compiler.finalists import Verdict, checked
from collage.compiler.placing import NOISE_MARGIN
from collage.compiler.plan_runs import KernelRejectedError, PlanDroppedError, PlanRuns
from collage.errors import NoPlacementError
from collage.graph.storage import PLAIN
from collage.measure_db.measurer import Measurer
from collage.patterns.match import Match, RejectedMatch
from collage.search.candidates import CandidateSet, Offer, collect
from collage.search.dp import place
from collage.search.placement import Placement


@dataclass(frozen=True)
class Quick:
    """One model, what its backends offer, and what measures it."""

    measurer: Measurer
    backends: Mapping[str, Backend]
    assembler: Assembler
    runs: PlanRuns
    check: Callable[[], FinalCheck]
    sample_s: float

    def place(
        self,
        offers: Sequence[Offer],
        views: Sequence[Match],
        rejected: Sequence[RejectedMatch],
        epsilon_us: float,
    ) -> tuple[Verdict, CandidateSet]:
        """The checked placement. Raises NoPlacementError where nothing covers the model, or its outputs are wrong."""
        model = self.measurer.model
        engines = {name for name, each in self.backends.items() if each.kind is BackendKind.ENGINE}
        on_team = {name for name, each in self.backends.items() if each.on_team()}
        plain = [offer for offer in offers if _is_plain(offer)]
        chosen = _few(plain, len(model.graph.nodes), engines, {n for view in views for n in view.nodes})
        tried = chosen
        while True:
            outcomes = self.measurer.measure([offer.request for offer in tried])
            found = collect(model, tried, views, outcomes, rejected, on_team)
            try:
                placement = place(model.graph, found.candidates, epsilon_us, margin=NOISE_MARGIN)
                return self._checked(placement), found
            except KernelRejectedError:
                continue  # which the measurer knows now
            except NoPlacementError:
                if tried is plain:
                    raise
                tried = plain

    def _checked(self, placement: Placement) -> Verdict:
        alone = len(placement.candidates) == 1
        finalist = self.assembler.assemble(Rival("quick", placement, exclusive=alone), {})
        try:
            finalist, finding = checked(finalist, self.runs, self.check)
            timing = self.runs.timing(finalist, self.sample_s)
            executor = self.runs.load(finalist)
        except PlanDroppedError as dropped:
            raise NoPlacementError(f"the placement {dropped}") from None
        if finding.complaint:
            raise NoPlacementError(f"the {finding.complaint}")
        notes = ("a quick compile: few candidates, few samples, no comparison of whole networks",)
        return Verdict(finalist, executor, {"quick": timing}, finding.absolute, finding.relative, notes)


def _is_plain(offer: Offer) -> bool:
    variant = offer.request.variant
    return all(layout == PLAIN for layout in (*variant.inputs, *variant.outputs))


def _few(offers: Sequence[Offer], count: int, engines: set[str], done: set[int]) -> list[Offer]:
    """Of each engine the whole model, of each library the largest pieces, and engines for single nodes in no piece.

    ``count`` is that of all nodes; ``done`` are those that cost nothing.
    """
    nodes_of: dict[str, set[tuple[int, ...]]] = {}
    for offer in offers:
        nodes_of.setdefault(offer.request.backend, set()).add(offer.request.nodes)
    largest = {
        name: {n for n in sets if not any(set(n) < set(other) for other in sets)}
        for name, sets in nodes_of.items()
        if name not in engines
    }
    covered = done.union(*(nodes for sets in largest.values() for nodes in sets))

    def wanted(offer: Offer) -> bool:
        nodes = offer.request.nodes
        if offer.request.backend in engines:
            return len(nodes) == count or (len(nodes) == 1 and nodes[0] not in covered)
        return nodes in largest[offer.request.backend]

    return [offer for offer in offers if wanted(offer)]
