"""Engines on the model as its author wrote it: as requests that are measured, and as plans."""

from __future__ import annotations

from dataclasses import replace

from collage.backends.engine import Engine
from collage.compiler.plan import Plan
from collage.compiler.state import Compilation, Context
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.measure_db.protocol import Request
from collage.report.words import as_written
from collage.search.candidate import Candidate
from collage.search.placement import finish


def whole_requests(context: Context, compilation: Compilation, build: BuildOptions) -> list[Request]:
    """Each engine that takes whole models, with each of its profiles, and in each precision that ``build`` allows.

    Engines that reassociate are left out where the compile has to be exact.
    """
    everything = tuple(range(len(compilation.imported.graph.nodes)))
    whole = Subgraph(compilation.imported, everything)
    return [
        Request(everything, name, Variant(precision=precision), original=True, profile=profile)
        for name, backend in context.backends.items()
        if isinstance(backend, Engine) and not (build.exact and backend.reassociates(whole, ALL_PLAIN))
        for precision in ("", *backend.precisions(build))
        for profile in backend.profiles(replace(build, variant=Variant(precision=precision)))
    ]


def whole_plan(compilation: Compilation, candidate: Candidate, profile: str = "") -> Plan:
    """The plan of an engine that runs the original model."""
    placement = finish(compilation.imported.graph, [candidate], compilation.epsilon_us)
    label = f"{candidate.backend}, {as_written(profile, candidate.variant.precision)}"
    return Plan(label, placement, exclusive=True, original=True, profile=profile)
