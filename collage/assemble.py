"""From placements to modules that can be run against each other: the rivals, and building one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from collage.backends.base import Backend, BackendKind, BuildOptions
from collage.finalists import Finalist
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.placing import Placing
from collage.runtime.module import Parts
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region
from collage.search.placement import Candidate, Placement, finish
from collage.target import Target


@dataclass(frozen=True)
class Rival:
    """A placement for the last round; ``exclusive`` lets its engine's idle threads spin."""

    label: str
    placement: Placement
    exclusive: bool


def find_rivals(
    model: Model, placing: Placing, epsilon_us: float, backends: Mapping[str, Backend]
) -> list[Rival]:
    """The search's placement, the best one in several parts, and each engine on the whole model.

    The additive model (Eq. 2.2) sees neither what neighbours do to each other nor what an engine gains from
    having the cores to itself, so what it finds close is decided by running. A placement in which one engine
    shares the cores with no other is also tried with that engine's threads spinning.
    """
    everything = tuple(range(len(model.graph.nodes)))
    placements = {"collage": placing.placement}
    if placing.mix is not None and placing.mix is not placing.placement:
        placements["mix"] = placing.mix
    for candidate in placing.found.candidates:
        if candidate.nodes == everything and placing.placement.candidates != (candidate,):
            placements[candidate.backend] = finish(model.graph, [candidate], epsilon_us)
    rivals: list[Rival] = []
    for label, each in placements.items():
        alone = len(each.candidates) == 1
        rivals.append(Rival(label, each, exclusive=alone))
        engines = {c.backend for c in each.candidates if backends[c.backend].kind is BackendKind.ENGINE}
        if not alone and len(engines) == 1:
            rivals.append(Rival(f"{label}, spinning", each, exclusive=True))
    return rivals


def assemble(
    rival: Rival,
    model: Model,
    backends: Mapping[str, Backend],
    build: BuildOptions,
    target: Target,
    versions: Mapping[str, str],
    tunings: Mapping[tuple[tuple[int, ...], str], str],
) -> Finalist:
    """Plan the rival's launch list and memory; its kernels are compiled when somebody needs them.

    ``tunings`` has the records of Backend.tune by nodes and backend.
    """
    graph = model.graph
    regions: list[Region] = []
    digests: list[str] = []
    for candidate in rival.placement.candidates:
        subgraph = Subgraph(model, candidate.nodes)
        regions.append(_region(candidate, subgraph, build, rival.exclusive))
        tuning = tunings.get((candidate.nodes, candidate.backend), "")
        digests.append(f"{candidate.backend}:{subgraph.digest}:{rival.exclusive}{tuning}")
    inputs = [Port(n, v, graph.type_of(v)) for n, v in zip(model.input_names, graph.inputs, strict=True)]
    outputs = [Port(n, v, graph.type_of(v)) for n, v in zip(model.output_names, graph.outputs, strict=True)]
    used = {v for r in regions for v in (*r.inputs, *r.outputs)} | {p.value for p in (*inputs, *outputs)}
    program = make_program(regions, inputs, outputs, {v: graph.type_of(v) for v in sorted(used)})
    used_versions = {r.backend: versions[r.backend] for r in program.launches}

    def parts() -> Parts:
        artifacts = [
            backends[region.backend].codegen(
                Subgraph(model, region.nodes),
                replace(
                    build,
                    exclusive=region.exclusive,
                    tuning=tunings.get((region.nodes, region.backend), ""),
                ),
            )
            for region in program.launches
        ]
        constants = {v: graph.constants[v] for v in graph.outputs if graph.is_constant(v)}
        return Parts(program, artifacts, constants, target, used_versions)

    return Finalist(rival.label, rival.placement, program, tuple(digests), used_versions, parts)


def _region(candidate: Candidate, subgraph: Subgraph, build: BuildOptions, exclusive: bool) -> Region:
    nodes = subgraph.model.onnx.graph.node
    sources = dict.fromkeys(node.source for node in subgraph.operators)
    return Region(
        backend=candidate.backend,
        ops=subgraph.ops,
        nodes=candidate.nodes,
        sources=tuple(nodes[s].name for s in sources if s >= 0),
        inputs=subgraph.inputs,
        outputs=subgraph.outputs,
        threads=build.threads,
        cost_us=candidate.cost_us,
        noise_us=candidate.noise_us,
        exclusive=exclusive,
    )
