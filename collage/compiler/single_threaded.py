"""Single-threaded counterparts of launches: the same work on one thread, as fast as any backend does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from collage.compiler.events import Considered
from collage.compiler.state import Compilation, Context
from collage.frontend.model import Model
from collage.graph.storage import Storage
from collage.kernel.transform import LayoutTransform
from collage.measure.measurer import Measurer
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of, offers_of, ports_of
from collage.search.transforms import PlacedTransform

Launch: TypeAlias = "Candidate | PlacedTransform"
_Storages: TypeAlias = "tuple[tuple[int, Storage], ...]"
_Work: TypeAlias = "tuple[tuple[int, ...], _Storages, _Storages, str]"
"""The nodes of a launch, the storages of its inputs and outputs, and its precision."""


def single_threaded(
    context: Context, compilation: Compilation, launches: Sequence[Launch], beside: Collection[int]
) -> tuple[list[Launch | None], list[Considered]]:
    """Measure the counterparts of the launches with the indices ``beside``, in the same storages and
    the same precision.

    There is None for the others, and for launches of engines. The second result are the candidates that were measured
    for it.
    """
    measurer = context.workbench(compilation).measurer.on_threads(1)
    model = compilation.imported
    wanted_launches = [each for at, each in enumerate(launches) if at in beside]
    nodes = {each.nodes for each in wanted_launches if isinstance(each, Candidate)}
    matches = [m for m in compilation.matches if m.nodes in nodes and m.backend in context.on_team]
    wanted = {_work(each) for each in wanted_launches if isinstance(each, Candidate)}
    build = replace(context.build, threads=1, tune_trials=0)
    offers, _ = offers_of(model, matches, context.backends, build, compilation.ranges)
    offers = [o for o in offers if _asked(model, o.request) in wanted]
    outcomes = measurer.race([offer.request for offer in offers])
    fastest: dict[_Work, Candidate] = {}
    errors = None if compilation.budget is None else compilation.budget.model
    for candidate in candidates_of(model, offers, (), outcomes, context.on_team, errors):
        if candidate.outrun:
            continue
        known = fastest.get(_work(candidate))
        if known is None or candidate.cost_us < known.cost_us:
            fastest[_work(candidate)] = candidate
    transforms = {each.transform: None for each in wanted_launches if isinstance(each, PlacedTransform)}
    costs = measurer.measure_transforms([each for each in transforms if _runs_on_team(measurer, each)])
    found: list[Launch | None] = []
    for at, each in enumerate(launches):
        if at not in beside:
            found.append(None)
        elif isinstance(each, Candidate):
            found.append(fastest.get(_work(each)))
        else:
            cost = costs.get(each.transform)
            found.append(None if cost is None else replace(each, cost_us=cost))
    considered = [Considered(o.request, o.pattern, outcomes[o.request], single_threaded=True) for o in offers]
    return found, considered


def _runs_on_team(measurer: Measurer, transform: LayoutTransform) -> bool:
    maker = measurer.transform_backend(transform)
    return maker is not None and maker.on_team()


def _work(candidate: Candidate) -> _Work:
    return candidate.nodes, candidate.reads, candidate.writes, candidate.variant.precision


def _asked(model: Model, request: CandidateRequest) -> _Work:
    return request.nodes, *ports_of(model, request), request.variant.precision
