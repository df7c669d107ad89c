"""What the most promising offers lack before a placement can be made of them. It is known before anything is measured.

Largest subgraphs of several libraries may share nodes in such a way that no combination of them covers the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from collage.errors import NoPlacementError
from collage.frontend.model import Model
from collage.graph.storage import PLAIN
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement
from collage.patterns.match import Match
from collage.search.candidates import Offer, candidates_of, possible_transforms
from collage.search.dp import place
from collage.search.placement import Placement

_FEW_US, _OTHER_US = 1.0, 1e3
"""Made-up costs: of a kernel that is measured anyway, or of a layout transform, and of each node of another kernel."""


def filling(model: Model, offers: Sequence[Offer], few: Sequence[Offer], views: Sequence[Match]) -> list[Offer]:
    """The offers that a placement needs beside the ``few``, on as few nodes as possible, by all of their backends.

    There are none where the few suffice, or where no placement exists at all. All are in the plain format and in the
    model's own dtypes.
    """
    chosen = {offer.request for offer in few}
    others = [each for each in offers if each.request not in chosen and _is_plain(each.request)]
    with suppress(NoPlacementError):
        _placed(model, few, (), views)
        return []
    with suppress(NoPlacementError):
        placement = _placed(model, few, others, views)
        needed = {c.nodes for c in placement.candidates if c.cost_us >= _OTHER_US}
        return [each for each in others if each.request.nodes in needed]
    return []


def _placed(model: Model, few: Sequence[Offer], others: Sequence[Offer], views: Sequence[Match]) -> Placement:
    outcomes = {offer.request: _costing(_OTHER_US * len(offer.request.nodes)) for offer in others}
    outcomes |= {offer.request: _costing(_FEW_US) for offer in few}
    candidates = candidates_of(model, [*few, *others], views, outcomes, on_team=())
    transforms_us = dict.fromkeys(possible_transforms(model, candidates), _FEW_US)
    return place(model.graph, candidates, 0.0, transforms_us=transforms_us)


def _costing(us: float) -> Measurement:
    return Measurement(us, 0.0, us, 1, 0.0)


def _is_plain(request: CandidateRequest) -> bool:
    variant = request.variant
    return not variant.precision and all(each == PLAIN for each in (*variant.inputs, *variant.outputs))
