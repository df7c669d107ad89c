"""Single-threaded counterparts of launches: the same work on one thread, as fast as any backend does it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from collage.compiler.bench import Bench
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


def single_threaded_field(bench: Bench, launches: Sequence[Launch]) -> list[Candidate]:
    """Measure kernels on one thread that do what the launches do, in the same storages and the same precision."""
    task, known, model = bench.task, bench.known, bench.model
    kernels = [each for each in launches if isinstance(each, Candidate)]
    nodes, wanted = {each.nodes for each in kernels}, {_work(each) for each in kernels}
    matches = [m for m in known.matches if m.nodes in nodes and m.backend in task.on_team]
    build = replace(task.build, threads=1, tune_trials=0)
    offers, _ = offers_of(model, matches, task.backends, build, bench.assembler.ranges)
    offers = [o for o in offers if _asked(model, o.request) in wanted]
    outcomes = bench.measurer.on_threads(1).race([offer.request for offer in offers])
    known.single_threaded.update(
        (o.request, (o.pattern, outcomes[o.request])) for o in offers if o.request in outcomes
    )
    errors = None if known.errors is None else known.errors.model
    found = candidates_of(model, offers, (), outcomes, task.on_team, errors)
    return [each for each in found if not each.outrun]


def single_threaded(bench: Bench, launches: Sequence[Launch], beside: Collection[int]) -> list[Launch | None]:
    """The fastest counterparts on one thread of the launches with the indices ``beside``.

    There is None for the others, and for launches of engines.
    """
    measurer = bench.measurer.on_threads(1)
    wanted_launches = [each for at, each in enumerate(launches) if at in beside]
    fastest: dict[_Work, Candidate] = {}
    for candidate in single_threaded_field(bench, wanted_launches):
        before = fastest.get(_work(candidate))
        if before is None or candidate.cost_us < before.cost_us:
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
    return found


def _runs_on_team(measurer: Measurer, transform: LayoutTransform) -> bool:
    maker = measurer.transform_backend(transform)
    return maker is not None and maker.on_team()


def _work(candidate: Candidate) -> _Work:
    return candidate.nodes, candidate.reads, candidate.writes, candidate.variant.precision


def _asked(model: Model, request: CandidateRequest) -> _Work:
    return request.nodes, *ports_of(model, request), request.variant.precision
