"""Match: the subgraphs that each backend can run, and the offers that are measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from collage.backends.base import VIEW
from collage.compiler.devices import offers_on
from collage.compiler.events import Searched
from collage.compiler.state import Compilation, Context
from collage.patterns.context import MatchContext
from collage.patterns.match import Match as Matched
from collage.patterns.match import RejectedMatch, find_matches
from collage.search.candidates import offers_of


@dataclass(frozen=True)
class Match:
    """Finds the patterns of all backends, and asks these for the variants of each match."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the matches, the offers and the refused matches."""
        started = time.perf_counter()
        model = compilation.imported
        about = MatchContext(model)
        matches: list[Matched] = []
        refused: list[RejectedMatch] = []
        for name in context.backends:
            found, rejected = find_matches(about, name, context.registry.sources(name, context.build))
            matches += found
            if name != VIEW:  # a rejected view says only that its operator does some work
                refused += rejected
        searched = Searched(time.perf_counter() - started)
        offers, without = offers_of(model, matches, context.backends, context.build, compilation.ranges)
        offers = offers_on(context.options.device, offers)
        found_all = replace(
            compilation,
            matches=tuple(matches),
            offers=tuple(offers),
            refused=(*refused, *without),
        )
        return found_all.told(searched)
