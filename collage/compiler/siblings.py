"""Compiling models of one structure with different weights, such as the layers of a decoder.

The first one is measured and placed. The others get its placement, with kernels made of their own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import onnx

from collage.backends.base import VIEW
from collage.backends.registry import Registry
from collage.compiler.lab import WorkerLab
from collage.compiler.options import CompileOptions
from collage.compiler.pipeline import compiled
from collage.compiler.state import Compilation, Context, Source
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.frontend.model import Model, from_simplified
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import load_onnx
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.subgraph import Subgraph
from collage.kernel.frames import Artifact
from collage.kernel.options import BuildOptions
from collage.kernel.target import host
from collage.measure.machine.speeds import machine_speeds
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

    def context(self) -> Context:
        """The context of one compile."""
        backends = self.registry.select(self.options.backends)
        versions = {name: backend.available().version for name, backend in backends.items()}
        target = host(self.options.threads)
        return Context(
            self.registry,
            backends,
            versions,
            target,
            self.options,
            self.database,
            self.workers,
            self.progress,
            WorkerLab(),
            speeds_of=partial(
                machine_speeds, target, self.database, self.workers, self.options.effort.speeds_s
            ),
        )


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
    context = shop.context()
    first = load_onnx(next(models))
    compilation = compiled(context, Source(first, AsLoaded.of(first), name, family=True, share_us=share_us))
    found = _unguarded(compilation.result.parts)
    adopted = [adopt(found)]
    for model in models:
        adopted.append(adopt(_with_weights(context, compilation, found, model)))
    return Family(tuple(adopted), compilation.result.measured_us)


def _unguarded(parts: Parts) -> Parts:
    """The parts without scans, which would look at all rows, also at those that others do not depend on."""
    program = parts.program
    bare = {each: replace(each, scans=(), finite_only=False) for each in program.regions}
    launches = tuple(bare[each] for each in program.launches)
    return replace(
        parts, program=replace(program, regions=tuple(bare.values()), launches=launches), careful=None
    )


def _with_weights(context: Context, compilation: Compilation, parts: Parts, source: onnx.ModelProto) -> Parts:
    """The parts of a model of the same structure as the compilation's."""
    model = from_simplified(simplify(load_onnx(source), halves=context.halves), compilation.source.name)
    wholes = [Subgraph(each, tuple(range(len(each.graph.nodes)))) for each in (compilation.imported, model)]
    if wholes[0].digest != wholes[1].digest:
        raise ModelError(f"{compilation.source.name} has models of different structure.")
    graph = model.graph
    constants = {value: graph.constants[value] for value in parts.constants}
    return replace(parts, artifacts=[*_artifacts(context, compilation, parts, model)], constants=constants)


def _artifacts(context: Context, compilation: Compilation, parts: Parts, model: Model) -> Iterator[Artifact]:
    label = compilation.result.label
    (plan,) = [each for each in compilation.plans if each.label == label]
    chosen: dict[tuple[tuple[int, ...], str], Candidate] = {
        (each.nodes, each.backend): each for each in plan.placement.candidates
    }
    for region, artifact in zip(parts.program.executed, parts.artifacts, strict=True):
        if region.is_transform or region.backend == VIEW:
            yield artifact
            continue
        candidate = chosen[region.nodes, region.backend]
        options = BuildOptions(
            threads=region.threads,
            exclusive=region.exclusive,
            variant=candidate.variant,
            profile=region.profile,
            exact=context.options.exact,
            reassociate=context.options.reassociate,
            precisions=context.options.precisions,
            speeds=context.speeds,
        )
        yield context.backends[region.backend].codegen(Subgraph(model, region.nodes), options)
