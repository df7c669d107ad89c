"""The most promising offers. They are measured first: they cover the model, and the best mix seldom needs others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import TypeAlias

from collage.search.candidates import Offer

_Nodes: TypeAlias = "frozenset[int]"
_Maker: TypeAlias = "tuple[str, str]"
"""The name of a backend, and a precision of its kernels."""


def promising(
    offers: Sequence[Offer],
    count: int,
    engines: Collection[str],
    done: Collection[int],
) -> list[Offer]:
    """The offers of libraries on their largest subgraphs, and of engines on the whole model and on what is left.

    Each reduced precision has largest subgraphs of its own. They may be larger than those in the model's own dtypes,
    and a placement without an error budget has to do without them.

    Two of the largest subgraphs may share nodes, as the two convolutions before a residual sum do. So what is left of
    each of them without the other is taken, too, if they are of one library. Engines are taken on single nodes that no
    library takes. ``count`` is the number of all nodes, and ``done`` are the nodes of views, which cost nothing.
    """
    nodes_of: dict[_Maker, set[_Nodes]] = {}
    for offer in offers:
        nodes_of.setdefault(_maker(offer), set()).add(frozenset(offer.request.nodes))
    taken = {maker: _largest(sets) for maker, sets in nodes_of.items() if maker[0] not in engines}
    exact = {maker: sets for maker, sets in taken.items() if not maker[1]}
    covered = set(done).union(*(nodes for sets in exact.values() for nodes in sets))

    def wanted(offer: Offer) -> bool:
        nodes, maker = offer.request.nodes, _maker(offer)
        if maker[0] in engines:
            alone = len(nodes) == 1 and nodes[0] not in covered and not maker[1]
            return alone or len(nodes) == count
        return frozenset(nodes) in taken[maker]

    return [offer for offer in offers if wanted(offer)]


def _maker(offer: Offer) -> _Maker:
    return offer.request.backend, offer.request.variant.precision


def _largest(sets: Collection[_Nodes]) -> set[_Nodes]:
    """The sets that are part of no other one, and what is left of those that overlap."""
    containing: dict[int, list[_Nodes]] = {}
    for nodes in sets:
        for node in nodes:
            containing.setdefault(node, []).append(nodes)
    largest = {nodes for nodes in sets if not any(nodes < other for other in containing[next(iter(nodes))])}
    found = set(largest)
    for sharing in containing.values():
        for one, other in combinations([nodes for nodes in sharing if nodes in largest], 2):
            found.update(rest for rest in (one - other, other - one) if rest in sets)
    return found
