"""Matching alone, with backends that take every operator, or refuse some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage.backends.base import UnsupportedError
from collage.compiler.events import Searched
from collage.compiler.passes.match import Match
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions, Variant
from tests.helpers.beside import TakeAll
from tests.helpers.compiler.null import Made, NullBackend


class Picky(NullBackend):
    """Takes every operator, and has a variant for all but exp."""

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)

    def variants(self, subgraph: Subgraph, options: BuildOptions) -> Sequence[Variant]:
        if "exp" in subgraph.ops:
            raise UnsupportedError("no exp today")
        return [Variant(), Variant(split="rows")]


def test_offers_are_the_variants_of_the_matches() -> None:
    made = Made({}, Picky("picky"))
    found = Match()(made.context, made.start)
    assert [match.nodes for match in found.matches if match.backend == "picky"] == [(0,), (1,), (2,), (3,)]
    offered = [(offer.request.nodes, offer.request.variant.split) for offer in found.offers]
    assert offered == [((n,), split) for n in (0, 1, 3) for split in ("", "rows")]
    (refused,) = [each for each in found.refused if each.nodes == (2,)]
    assert (refused.backend, refused.reason) == ("picky", "no exp today")
    assert [type(event) for event in found.log] == [Searched]
    assert made.start.offers == ()
