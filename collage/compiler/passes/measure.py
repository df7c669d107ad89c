"""Measure: the cost of every offer, and of a switch between libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from collage.backends.base import BackendKind
from collage.compiler.passes.worthwhile import Worthwhile
from collage.compiler.state import Compilation, Context
from collage.graph.storage import HOST
from collage.measure.rivals import Rivals
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome
from collage.search.candidates import Offer
from collage.search.cuts import Nodes, needless_cuts
from collage.search.filling import filling
from collage.search.promising import promising


@dataclass(frozen=True)
class Measure:
    """Measures all offers, or looks them up.

    With ``few`` it measures only the most promising ones in the model's own dtypes (``search.promising``), and with
    ``between`` also those that are left where largest subgraphs of two libraries share nodes. With ``slowest`` it
    measures the most promising ones of reduced precision instead, where they could take the place of the slowest
    kernels of the placed mix, which take that share of its time together.

    Where the model is placed already, an offer has to beat the kernels of the placed mix that it could replace, with
    ``slack`` for the layout transforms that it could save. Those come first that could replace the slowest kernels, and
    whole models last, so that a compile that is stopped has looked where most could be gained. Measuring ends where it
    gains little (``worthwhile``). What could replace no more than a share of ``negligible`` of the network's time is
    not measured, as far as the effort does not measure everything, and neither is what cuts through a function that a
    compiler has fused where nobody else begins or ends (``search.cuts``).

    The cost of a switch is measured with ``switched`` candidates of each backend: those whose time is nearest to
    ``typical_us`` microseconds. The quickest candidates run on one thread, so they would not show the cost of waking
    the threads of one library after those of another.
    """

    few: bool = False
    between: bool = False
    slowest: float = 0.0
    slack: float = 1.1
    negligible: float = 1e-4
    worthwhile: Worthwhile = field(default_factory=Worthwhile)
    typical_us: float = 200.0
    switched: int = 4

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds outcomes, and sets the cost of a switch. What is placed already has to be calibrated again."""
        measurer = context.workbench(compilation).measurer
        count = len(compilation.imported.graph.nodes)
        offers = self._few(context, compilation) if self.few else compilation.offers
        requests = [offer.request for offer in offers]
        rivals_us = self._rivals_us(compilation, requests)
        thorough = not context.options.effort.worth
        least_us = 0.0 if thorough else self.negligible * measurer.network_us
        cuts = set() if thorough else self._needless_cuts(context, compilation)
        requests.sort(key=lambda r: (len(r.nodes) == count, -rivals_us.get(r.nodes, math.inf), r.nodes))
        asked = [
            each
            for each in requests
            if rivals_us.get(each.nodes, math.inf) >= least_us and (each.backend, each.nodes) not in cuts
        ]
        rivals = Rivals(
            self._covers(compilation, requests),
            share_us=lambda nodes: rivals_us.get(nodes, math.inf),
            switch_us=compilation.epsilon_us,
        )
        measured = self.worthwhile.raced(context, compilation, asked, rivals)
        outcomes = {**compilation.outcomes, **measured}
        outcomes |= measurer.known([each for each in requests if each not in outcomes])
        # Kernels of reduced precision cost no other switch than those in the model's own dtypes.
        switch_us = compilation.epsilon_us if self.slowest else measurer.epsilon_us(self._typical(outcomes))
        calibration = replace(compilation.calibration, converged=False)
        return replace(compilation, outcomes=outcomes, epsilon_us=switch_us, calibration=calibration)

    def _few(self, context: Context, compilation: Compilation) -> list[Offer]:
        """The most promising offers, without engines on the whole model: these are known from the first module."""
        count = len(compilation.imported.graph.nodes)
        done = {node for view in compilation.views for node in view.nodes}
        offers = promising(compilation.offers, count, context.engines, done, between=self.between)
        parts = [each for each in offers if len(each.request.nodes) < count]
        if not self.slowest:
            exact = [each for each in parts if not each.request.variant.precision]
            if context.options.tolerance:  # there are more offers than there is time for a second attempt
                exact += filling(compilation.imported, compilation.offers, exact, compilation.views)
            return exact
        slow = self._slowest(compilation)
        return [
            each for each in parts if each.request.variant.precision and slow.intersection(each.request.nodes)
        ]

    def _slowest(self, compilation: Compilation) -> set[int]:
        """The nodes of the slowest kernels of the mix."""
        mix = compilation.placed.mix
        found: set[int] = set()
        left_us = 0.0 if mix is None else self.slowest * sum(c.cost_us for c in mix.candidates)
        for kernel in sorted(mix.candidates if mix else (), key=lambda c: c.cost_us, reverse=True):
            if left_us <= 0:
                break
            found.update(kernel.nodes)
            left_us -= kernel.cost_us
        return found

    def _rivals_us(
        self, compilation: Compilation, requests: Sequence[CandidateRequest]
    ) -> Mapping[tuple[int, ...], float]:
        """What a request has to beat alone, in microseconds, by its nodes: all kernels of the mix that share some."""
        mix = None if compilation.proposal is None else compilation.proposal.mix
        if mix is None:
            return {}
        alone_us = compilation.calibration.corrections.effect.alone_us
        kernels = [(c.cost_us + compilation.epsilon_us * c.switches, c.nodes) for c in mix.candidates]
        kernel_of = {node: at for at, (_, nodes) in enumerate(kernels) for node in nodes}
        found: dict[tuple[int, ...], float] = {}
        for nodes in {request.nodes for request in requests}:
            shared = {kernel_of[node] for node in nodes}
            found[nodes] = self.slack * alone_us(sum(kernels[at][0] for at in shared))
        return found

    def _covers(
        self, compilation: Compilation, requests: Sequence[CandidateRequest]
    ) -> Mapping[tuple[int, ...], tuple[CandidateRequest, ...]]:
        """The kernels of the mix that do exactly what a region's candidates do."""
        mix = None if compilation.proposal is None else compilation.proposal.mix
        found = {}
        for nodes in {request.nodes for request in requests}:
            parts = [c for c in mix.candidates if set(nodes).issuperset(c.nodes)] if mix is not None else []
            if parts and sum(len(c.nodes) for c in parts) == len(nodes):
                found[nodes] = tuple(CandidateRequest(c.nodes, c.backend, c.variant) for c in parts)
        return found

    def _needless_cuts(self, context: Context, compilation: Compilation) -> set[tuple[str, Nodes]]:
        """The backends and the nodes of offers that cut through a fused function; see ``search.cuts``."""
        known: dict[str, set[Nodes]] = {}
        for request, outcome in compilation.outcomes.items():
            compiles = context.backends[request.backend].kind is BackendKind.COMPILER
            if compiles and isinstance(outcome, Measurement) and not outcome.finite_only:
                known.setdefault(request.backend, set()).add(request.nodes)
        offered: dict[str, set[Nodes]] = {}
        for offer in compilation.offers:
            offered.setdefault(offer.request.backend, set()).add(offer.request.nodes)
        return {
            (name, nodes)
            for name, whole in known.items()
            for nodes in needless_cuts(
                compilation.imported.graph,
                offered[name],
                set().union(*(each for other, each in offered.items() if other != name)),
                whole,
            )
        }

    def _typical(self, outcomes: Mapping[CandidateRequest, Outcome]) -> list[CandidateRequest]:
        """A few candidates of each backend on the host, one backend after another."""
        by_backend: dict[str, list[tuple[float, CandidateRequest]]] = {}
        for request, outcome in outcomes.items():
            storages = (*request.variant.inputs, *request.variant.outputs)
            on_host = all(each.device == HOST for each in storages)
            if isinstance(outcome, Measurement) and not outcome.tuning and on_host:
                distance = abs(math.log(max(outcome.median_us, 1e-3) / self.typical_us))
                by_backend.setdefault(request.backend, []).append((distance, request))
        nearest = [
            [request for _, request in sorted(each, key=_by_distance)[: self.switched]]
            for each in by_backend.values()
        ]
        return [request for turn in zip_longest(*nearest) for request in turn if request is not None]


def _by_distance(pair: tuple[float, CandidateRequest]) -> tuple[float, tuple[int, ...]]:
    return pair[0], pair[1].nodes
