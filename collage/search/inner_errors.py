"""Errors of regions with several products, by those of kernels for each product alone.

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
from collage.frontend.op_kinds import COMPUTE_BOUND
from collage.frontend.subgraph import edges
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome
from collage.search.errors import ErrorModel


@dataclass(frozen=True)
class InnerErrors:
    """What products add to the error of the outputs, by precision and node, in the unit of ``Candidate.error``."""

    products: frozenset[int] = frozenset()
    of_products: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @staticmethod
    def of(model: Model, outcomes: Mapping[Request, Outcome], errors: ErrorModel) -> InnerErrors:
        """The least that a measured kernel of that precision adds which has the product and no other one."""
        products = frozenset(n for n, node in enumerate(model.graph.nodes) if node.op in COMPUTE_BOUND)
        found: dict[str, dict[int, float]] = {}
        for request, outcome in outcomes.items():
            if not request.variant.precision or not isinstance(outcome, Measurement):
                continue
            inside = products.intersection(request.nodes)
            if len(inside) == 1:
                (node,) = inside
                added = errors.without_factor(edges(model, request.nodes)[1], outcome.max_error)
                known = found.setdefault(request.variant.precision, {})
                known[node] = min(added, known.get(node, added))
        return InnerErrors(products, found)

    def within(self, request: Request) -> float:
        """What the products of a region with several ones add at least. Those that nothing is known of add nothing."""
        known = self.of_products.get(request.variant.precision, {})
        inside = self.products.intersection(request.nodes) if known else ()
        return math.fsum(known.get(node, 0.0) for node in inside) if len(inside) > 1 else 0.0
