"""MeasureFew: a few candidates with few samples, for a quick compile.

A quick compile is for trying a model out, and for the many one-node models of ONNX's own tests. It leaves out what
makes the choice certain: other storage formats, the parts of large regions, times in the network, and the last
comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.compiler.state import Compilation, Context
from collage.graph.storage import PLAIN
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Outcome
from collage.search.candidates import Offer
from collage.search.promising import promising


@dataclass(frozen=True)
class MeasureFew:
    """Measures the most promising offers in the plain format, on every device; with ``every`` all in that format.

    Nodes that nothing takes in that format, such as grouped convolutions, have their offers in other formats measured.

    With ``between`` it also measures what is left where largest subgraphs of two libraries share nodes.
    """

    every: bool = False
    between: bool = False

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the outcomes and the cost of a switch, and keeps only the offers that it has measured."""
        offers = _plain_first(compilation.offers)
        if not self.every:
            done = {node for view in compilation.views for node in view.nodes}
            count = len(compilation.imported.graph.nodes)
            offers = promising(offers, count, context.engines, done, between=self.between)
        compilation = replace(compilation, offers=tuple(offers))
        context.course.reached(compilation)
        outcomes = _measured(context, compilation, offers)
        epsilon_us = context.workbench(compilation).measurer.epsilon_us(())
        return replace(compilation, outcomes=outcomes, epsilon_us=epsilon_us)


def _measured(
    context: Context, compilation: Compilation, offers: Sequence[Offer]
) -> dict[CandidateRequest, Outcome]:
    """Measure the offers: each engine on the whole model, then kernels, and those of reduced precision last.

    So there is a placement as soon as possible.
    """
    measurer, count = context.workbench(compilation).measurer, len(compilation.imported.graph.nodes)
    requests = [offer.request for offer in offers]
    kernels = [request for request in requests if len(request.nodes) < count]
    found: dict[CandidateRequest, Outcome] = {}
    for part in (
        [request for request in requests if len(request.nodes) == count],
        [request for request in kernels if not request.variant.precision],
        [request for request in kernels if request.variant.precision],
    ):
        if part:
            found |= measurer.race(part)
    return found


def _plain_first(offers: Sequence[Offer]) -> list[Offer]:
    """The offers in the plain format, and others on nodes that have none in it without a reduced precision."""
    plain = [_is_plain(offer) for offer in offers]
    covered = {
        node
        for offer, is_plain in zip(offers, plain, strict=True)
        if is_plain and not offer.request.variant.precision
        for node in offer.request.nodes
    }
    return [
        offer
        for offer, is_plain in zip(offers, plain, strict=True)
        if is_plain or not covered.issuperset(offer.request.nodes)
    ]


def _is_plain(offer: Offer) -> bool:
    variant = offer.request.variant
    return all(layout.format == PLAIN.format for layout in (*variant.inputs, *variant.outputs))
