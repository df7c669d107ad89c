"""Lower bounds on the errors of large regions: the errors of small kernels for the products inside them.

A region's error is measured at its outputs, on one input. If few numbers come out, such as the scores of an image, its
roundings may cancel each other by luck, and the search would pick such luck: the second half of a network was off by
0.0009 on one image, and by 0.03 on others. So a region is charged at least the errors of its products by themselves.
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
    """The number of nodes of a product's smallest measured kernels, and the error that the worst of them adds."""

    size: int
    added: float


@dataclass(frozen=True)
class InnerErrors:
    """The errors of products, by precision and node, in the unit of ``Candidate.error``."""

    products: frozenset[int] = frozenset()
    known: Mapping[str, Mapping[int, _Product]] = field(default_factory=dict)

    @staticmethod
    def of(model: Model, outcomes: Mapping[CandidateRequest, Outcome], errors: ErrorModel) -> InnerErrors:
        """The errors by measured kernels with a single product: for each product the worst of its smallest kernels.

        The worst of them stores its result in the narrow type, as engines do between two products.
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
        """The least error of a region: of all its products for which smaller kernels were measured."""
        known = self.known.get(request.variant.precision)
        if not known:
            return 0.0
        inside = (known.get(node) for node in self.products.intersection(request.nodes))
        return math.fsum(each.added for each in inside if each is not None and each.size < len(request.nodes))
