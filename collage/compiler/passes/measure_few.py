"""MeasureFew: a few candidates with few samples, for a quick compile.

A quick compile is for trying a model out, and for the many one-node models of ONNX's own tests. It leaves out what
makes the choice certain: other storage formats, the parts of large regions, times in the network, and the last
comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context
from collage.graph.storage import PLAIN
from collage.measure_db.protocol import Request
from collage.measure_db.results import Outcome
from collage.search.candidates import Offer


@dataclass(frozen=True)
class MeasureFew:
    """Measures the most promising offers in the plain format; with ``every`` it measures all offers in that format."""

    every: bool = False

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the outcomes and the cost of a switch, and keeps only the offers that it has measured."""
        offers = [offer for offer in compilation.offers if _is_plain(offer)]
        if not self.every:
            offers = _promising(context, compilation, offers)
        compilation = replace(compilation, offers=tuple(offers))
        context.course.reached(compilation)
        outcomes = _measured(context, compilation, offers)
        epsilon_us = context.workbench(compilation).measurer.epsilon_us(())
        return replace(compilation, outcomes=outcomes, epsilon_us=epsilon_us)


@dataclass(frozen=True)
class MeasureCover:
    """Measures the most promising offers first where the compile has a budget.

    They cover the graph, so that there is a placement when the budget is over before all candidates are measured.
    """

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets nothing: what is measured here is looked up by the pass that measures all offers."""
        if context.options.budget_s is not None:
            plain = [offer for offer in compilation.offers if _is_plain(offer)]
            _measured(context, compilation, _promising(context, compilation, plain))
        return compilation


def _measured(context: Context, compilation: Compilation, offers: Sequence[Offer]) -> dict[Request, Outcome]:
    """The outcomes. Each engine on the whole model comes first, so that there is a placement as soon as possible."""
    measurer, count = context.workbench(compilation).measurer, len(compilation.imported.graph.nodes)
    requests = [offer.request for offer in offers]
    whole = measurer.measure([request for request in requests if len(request.nodes) == count])
    return {**whole, **measurer.measure([request for request in requests if len(request.nodes) < count])}


def _promising(context: Context, compilation: Compilation, offers: Sequence[Offer]) -> list[Offer]:
    done = {node for view in compilation.views for node in view.nodes}
    return _few(offers, len(compilation.imported.graph.nodes), context.engines, done)


def _is_plain(offer: Offer) -> bool:
    variant = offer.request.variant
    return all(layout == PLAIN for layout in (*variant.inputs, *variant.outputs))


def _few(offers: Sequence[Offer], count: int, engines: Collection[str], done: Collection[int]) -> list[Offer]:
    """The most promising offers.

    They are each engine on the whole model, each library on its largest subgraphs, and engines on single nodes that no
    library takes. ``count`` is the number of all nodes, and ``done`` are the nodes of views, which cost nothing.
    """
    nodes_of: dict[str, set[tuple[int, ...]]] = {}
    for offer in offers:
        nodes_of.setdefault(offer.request.backend, set()).add(offer.request.nodes)
    largest = {
        name: {n for n in sets if not any(set(n) < set(other) for other in sets)}
        for name, sets in nodes_of.items()
        if name not in engines
    }
    covered = set(done).union(*(nodes for sets in largest.values() for nodes in sets))

    def wanted(offer: Offer) -> bool:
        nodes = offer.request.nodes
        if offer.request.backend in engines:
            return len(nodes) == count or (len(nodes) == 1 and nodes[0] not in covered)
        return nodes in largest[offer.request.backend]

    return [offer for offer in offers if wanted(offer)]
