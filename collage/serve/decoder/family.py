"""Compiling models of one structure with different weights, such as the layers of a decoder.

The first one is measured and placed. The others get its placement, with kernels made of their own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import onnx

from collage.backends.base import VIEW
from collage.backends.registry import Registry
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.clock import Clock
from collage.compiler.compile import compiled
from collage.compiler.plan import Placed
from collage.compiler.task import CompileOptions, Source, Task
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.frontend.model import Model, from_simplified
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import load_onnx
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.subgraph import Subgraph
from collage.kernel.frames import Artifact
from collage.kernel.target import host
from collage.measure.worker.process import Workers
from collage.measure_db.database import Database
from collage.runtime.parts import Parts
from collage.search.candidate import Candidate


@dataclass(frozen=True)
class Family:
    """The parts of each model, in order, and the measured time of the first one in microseconds.

    The parts have neither scans nor the original model: kernels that are right on finite numbers only are right on
    the rows that are finite, and nothing is said of the others.
    """

    parts: tuple[Parts, ...]
    measured_us: float


@dataclass(frozen=True)
class Shop:
    """What compiles of many models share: backends, options, database, workers, and where progress goes."""

    registry: Registry
    options: CompileOptions
    database: Database
    workers: Workers
    progress: Callable[[Progress], None]

    def bench(self, source: Source) -> tuple[Bench, Best]:
        """The bench of one compile, and what is best in it."""
        registry, options = self.registry, self.options
        backends = registry.select(options.backends)
        versions = {name: backend.available().version for name, backend in backends.items()}
        task = Task(source, options, registry, backends, versions, host(options.threads))
        clock = Clock(options.budget)
        self.workers.deadline = clock.deadline
        best = Best(self.progress, clock)
        return Bench(task, self.database, self.workers, clock, best.show), best


def compile_family(
    shop: Shop,
    models: Iterator[onnx.ModelProto],
    name: str,
    adopt: Callable[[Parts], Parts],
    *,
    share_us: float = 0.0,
) -> Family:
    """Compile the first model, and give the others its placement. All shapes are fixed.

    Models are taken one at a time, and ``adopt`` gets the parts of each, to put their weights where they are to stay.
    ``share_us`` is as in ``Source``. Raises ModelError where a model differs in its structure, and what
    ``collage.compile`` raises with ``strict``.
    """
    first = load_onnx(next(models))
    source = Source(first, AsLoaded.of(first), name, family=True, share_us=share_us)
    bench, best = shop.bench(source)
    try:
        selected = compiled(bench, best)
        assert isinstance(selected.plan, Placed)  # engines take no part
        found = _unguarded(selected.parts)
        adopted = [adopt(found)]
        for model in models:
            adopted.append(adopt(_instantiated(bench, selected.plan, found, model)))
    finally:
        bench.close()
    return Family(tuple(adopted), selected.measured_us)


def _unguarded(parts: Parts) -> Parts:
    """The parts without scans, which would look at all rows, also at those that others do not depend on."""
    program = parts.program
    bare = {each: replace(each, scans=(), finite_only=False) for each in program.regions}
    launches = tuple(bare[each] for each in program.launches)
    return replace(parts, program=replace(program, regions=tuple(bare.values()), launches=launches), original=None)


def _instantiated(bench: Bench, plan: Placed, parts: Parts, source: onnx.ModelProto) -> Parts:
    """The plan with the weights of another model of the same structure. Raises ModelError."""
    name = bench.task.source.name
    model = from_simplified(simplify(load_onnx(source), halves=bench.task.halves), name)
    wholes = [Subgraph(each, tuple(range(len(each.graph.nodes)))) for each in (bench.model, model)]
    if wholes[0].digest != wholes[1].digest:
        raise ModelError(f"{name} has models of different structure.")
    graph = model.graph
    constants = {value: graph.constants[value] for value in parts.constants}
    return replace(parts, artifacts=[*_artifacts(bench.task, plan, parts, model)], constants=constants)


def _artifacts(task: Task, plan: Placed, parts: Parts, model: Model) -> Iterator[Artifact]:
    chosen: dict[tuple[tuple[int, ...], str], Candidate] = {
        (each.nodes, each.backend): each for each in plan.placement.candidates
    }
    single = () if plan.streams is None else plan.streams.single_threaded
    alone = {(each.nodes, each.backend): each for each in single if isinstance(each, Candidate)}
    for region, artifact in zip(parts.program.executed, parts.artifacts, strict=True):
        if region.is_transform or region.backend == VIEW:
            yield artifact
            continue
        key = region.nodes, region.backend
        candidate = chosen.get(key) or alone[key]
        if region.stream and key in alone:
            candidate = alone[key]
        options = replace(
            task.build,
            threads=region.threads,
            tune_trials=0,
            exclusive=region.exclusive,
            variant=candidate.variant,
            profile=region.profile,
        )
        yield task.backends[region.backend].codegen(Subgraph(model, region.nodes), options)
