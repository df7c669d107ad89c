"""Errors of regions with a product and more, by those of the smallest kernels that have the product.

A region's error is measured at its outputs, on one input. Where it ends with few numbers that count, such as the scores
of an image, its roundings may cancel each other there, and on other inputs they do not: a network's second half was off
by 0.0009 once, and by 0.03 on other images. The search would pick such luck. So a region is charged at least what the
products inside it add by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from collage.frontend.model import Model
from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.frontend.subgraph import edges
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome
from collage.search.errors import ErrorModel


@dataclass(frozen=True)
class _Product:
    """The smallest measured kernels of a product have so many nodes, and the worst of them adds so much."""

    size: int
    added: float


@dataclass(frozen=True)
class InnerErrors:
    """What products add to the error of the outputs, by precision and node, in the unit of ``Candidate.error``."""

    products: frozenset[int] = frozenset()
    known: Mapping[str, Mapping[int, _Product]] = field(default_factory=dict)

    @staticmethod
    def of(model: Model, outcomes: Mapping[CandidateRequest, Outcome], errors: ErrorModel) -> InnerErrors:
        """What the smallest measured kernels of a product add, the worst of those that have no other product.

        Engines store what is between two products in the narrow type, too, as the worst of these kernels does.
        """
        products = frozenset(n for n, node in enumerate(model.graph.nodes) if node.op in COMPUTE_BOUND)
        found: dict[str, dict[int, _Product]] = {}
        for request, outcome in outcomes.items():
            if not request.variant.precision or not isinstance(outcome, Measurement):
                continue
            inside = products.intersection(request.nodes)
            if len(inside) == 1:
                (node,) = inside
                added = errors.without_factor(edges(model, request.nodes)[1], outcome.max_error)
                known, size = found.setdefault(request.variant.precision, {}), len(request.nodes)
                before = known.get(node)
                if before is None or (size, -added) < (before.size, -before.added):
                    known[node] = _Product(size, added)
        return InnerErrors(products, found)

    def within(self, request: CandidateRequest) -> float:
        """What the products of a region add at least, where smaller kernels for them were measured."""
        known = self.known.get(request.variant.precision)
        if not known:
            return 0.0
        inside = (known.get(node) for node in self.products.intersection(request.nodes))
        return math.fsum(each.added for each in inside if each is not None and each.size < len(request.nodes))
