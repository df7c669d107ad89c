"""Engines on the model as its author wrote it: as requests that are measured, and as plans."""

from __future__ import annotations

from dataclasses import replace

from collage.backends.engine import Engine, whole_variant
from collage.compiler.plan import Plan
from collage.compiler.state import Compilation, Context
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.report.words import as_written
from collage.search.candidate import Candidate
from collage.search.placement import finish
from collage.search.transforms import needed_transforms


def whole_requests(context: Context, compilation: Compilation, build: BuildOptions) -> list[CandidateRequest]:
    """Each engine that takes whole models, with each of its profiles, and in each precision that ``build`` allows.

    Engines that reassociate, or lose NaN, are left out if ``build`` asks for that.
    """
    everything = tuple(range(len(compilation.imported.graph.nodes)))
    whole = Subgraph(compilation.imported, everything)
    return [
        CandidateRequest(
            everything, name, whole_variant(backend, whole, precision), original=True, profile=profile
        )
        for name, backend in context.backends.items()
        if isinstance(backend, Engine) and not (build.direct and backend.reassociates(whole, ALL_PLAIN))
        if backend.keeps_nan or not build.exact
        for precision in ("", *backend.precisions(build))
        for profile in backend.profiles(replace(build, variant=Variant(precision=precision)))
    ]


def whole_plan(
    context: Context, compilation: Compilation, candidate: Candidate, profile: str = ""
) -> Plan | None:
    """The plan of an engine that runs the original model, with copies where the engine is on another device.

    There is none where nothing here can make the copies.
    """
    model, measurer = compilation.imported, context.workbench(compilation).measurer
    needed = needed_transforms(model.graph, [candidate])
    known = measurer.measure_transforms(dict.fromkeys(transform for _, transform in needed)) if needed else {}
    costs = {each: known[each[1]] for each in needed if each[1] in known}
    if len(costs) < len(needed):
        return None
    placement = finish(model.graph, [candidate], compilation.epsilon_us, transforms_us=costs)
    label = f"{candidate.backend}, {as_written(profile, candidate.variant.precision)}"
    return Plan(label, placement, exclusive=True, original=True, profile=profile)
