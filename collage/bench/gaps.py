"""Gaps to an engine: its own time by layer beside a module's kernels for the same ONNX nodes."""

from __future__ import annotations

import timeit
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import onnx

from collage.backends.engine import Engine, Layer, artifact_for, as_engine, session_on
from collage.bench.engines import prepare
from collage.core.library_text import library_text
from collage.errors import UsageError, unknown_names
from collage.frontend.read.load import load_onnx
from collage.frontend.read.scopes import reads
from collage.frontend.read.shapes import declared_types, fix_shapes
from collage.frontend.rewrite.simplify import simplify
from collage.graph.dataflow import Array
from collage.kernel.options import BuildOptions
from collage.module.file import closest, read_summary
from collage.report.report import CandidateReport, Report
from collage.runtime.inputs import extents
from collage.schedule.program import Program

T = TypeVar("T")

_INITIALIZERS_ARE_NO_INPUTS = 4
"""The version of ONNX from which on this is so, as it is in a simplified model."""
_LAYER, _PART = "layer", "part"
_RUNS = 20
_MOST_STATES = 300
"""How many ways to cover the first nodes are kept while a cover is looked for."""


@dataclass(frozen=True)
class Part:
    """A kernel of Collage's: its microseconds, its backend, and the ONNX nodes in it.

    A layout transform has none; it belongs to ``partner``, the position of the part that reads its output.
    """

    us: float
    backend: str
    nodes: frozenset[str]
    partner: int | None = None


def gaps_to_engine(
    file: Path, model: Path, engine: str | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """The JSON contract of ``collage show --gaps --json``; the largest loss comes first.

    The kernels are the module's. If that is an engine, they are the cheapest cover of all nodes by what was measured on
    other backends, without layout transforms. Their times are the compile's, times what the module takes now over what
    it took then. ``engine`` defaults to the fastest one. Raises ModelError, ModuleFileError and UsageError.
    """
    from collage.api import default_registry, load

    report, program = closest(read_summary(file), shapes)
    open_shapes = {each.name: extents(each) for each in program.model_inputs}
    setup = prepare(model, threads=report.threads, shapes=shapes, open_shapes=open_shapes)
    proto = load_onnx(model)
    declared = declared_types(proto)
    fix_shapes(proto, setup.shapes)
    simple = simplify(proto, declared=declared)
    simple.ir_version = max(simple.ir_version, _INITIALIZERS_ARE_NO_INPUTS)
    registry, size = default_registry(), len(report.nodes)
    engines = {each: as_engine(registry[each]) for each in registry.names if isinstance(registry[each], Engine)}
    whole = any(each.backend in engines and len(each.nodes) in (0, size) for each in program.regions)
    kernels = [
        each
        for each in report.candidates
        if each.cost_us is not None and each.threads == report.threads and not each.precision
        if each.backend not in engines or len(each.nodes) < size
    ]
    if whole and not kernels:
        raise UsageError(f"{file} is an engine, and its compile has measured no kernels. Give the compile more time.")
    names = {node.name for node in simple.graph.node}
    if strange := sorted({each.source for each in report.nodes} - names - {""}):
        raise UsageError(f"{file} is no module of {model}: that has no node {strange[0]}.")
    if engine is not None and engine not in engines:
        raise unknown_names("engine", [engine], [*engines])
    asked = engines if engine is None else {engine: engines[engine]}
    options = BuildOptions(threads=report.threads, exclusive=True)
    module_us = _median_us(partial(load(file).run, setup.inputs))  # no engine's idle threads spin beside it
    engine_us, name, layers = _profiled(asked, simple, [*setup.inputs.values()], options)
    others = [each for each in kernels if each.backend != name]
    scale = module_us / report.measured_us if report.measured_us else 1.0
    parts = cheapest_cover(report, others) if whole else _regions(program, report)
    parts = [replace(each, us=each.us * scale) for each in parts]
    return {
        "model": model.name,
        "threads": report.threads,
        "engine": name,
        "engine_us": engine_us,
        "layers_us": sum(each.us for each in layers),
        "module_us": module_us,
        "ours": "cheapest cover" if whole else "module",
        "ours_us": sum(each.us for each in parts),
        "gaps": compare(simple.graph, layers, parts),
    }


def compare(graph: onnx.GraphProto, layers: Sequence[Layer], parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Layers and parts that share nodes, directly or through others, beside each other; largest loss first.

    ``ours_us`` is None if no part has any of the nodes. Such entries come last.
    """
    leaders: dict[Any, Any] = {}

    def leader(key: Any) -> Any:
        while (above := leaders.setdefault(key, key)) != key:
            key = above
        return key

    names = {node.name for node in graph.node}
    owners = {name: at for at, layer in reversed([*enumerate(layers)]) for name in layer.nodes}
    makers = {value: node.name for node in graph.node for value in node.output}
    _spread(owners, {node.name: [makers[each] for each in reads(node) if each in makers] for node in graph.node})
    named = {at: at for at, layer in enumerate(layers) if layer.nodes & names}
    _spread(named, {at: layer.reads for at, layer in enumerate(layers)})
    joined: list[tuple[Any, Any]] = [(name, (_LAYER, at)) for name, at in owners.items()]
    for at, layer in enumerate(layers):
        joined += [(name, (_LAYER, at)) for name in layer.nodes & names]
        joined.append(((_LAYER, at), (_LAYER, named.get(at, at))))
    for at, part in enumerate(parts):
        joined += [(node, (_PART, at)) for node in part.nodes]
        joined += [] if part.partner is None else [((_PART, at), (_PART, part.partner))]
    for one, other in joined:
        leaders[leader(one)] = leader(other)
    groups: dict[Any, tuple[list[onnx.NodeProto], list[Layer], list[Part]]] = defaultdict(lambda: ([], [], []))
    for node in graph.node:
        groups[leader(node.name)][0].append(node)
    for at, layer in enumerate(layers):
        groups[leader((_LAYER, at))][1].append(layer)
    for at, part in enumerate(parts):
        groups[leader((_PART, at))][2].append(part)
    all_us = sum(each.us for each in parts)
    found = []
    for nodes, theirs, ours in groups.values():
        engine_us = sum(each.us for each in theirs)
        ours_us = sum(each.us for each in ours) if ours else None
        if engine_us or ours_us:
            found.append(
                {
                    "nodes": [each.name for each in nodes],
                    "ops": dict(Counter(each.op_type for each in nodes).most_common()),
                    "layers": [each.kind for each in sorted(theirs, key=lambda each: -each.us) if each.us],
                    "engine_us": engine_us,
                    "backends": [*dict.fromkeys(each.backend for each in ours if each.us)],
                    "ours_us": ours_us,
                    "loss_us": None if ours_us is None else ours_us - engine_us,
                    "share": None if ours_us is None else (ours_us - engine_us) / (all_us or 1.0),
                }
            )
    return sorted(found, key=lambda each: (each["loss_us"] is None, -(each["loss_us"] or 0.0)))


def _spread(owners: dict[T, int], before: Mapping[T, Sequence[T]]) -> None:
    """Give each node without an owner that of a node that reads it, else that of one that it reads, in place.

    ``before`` says what each node reads, in topological order. What an engine has fused is named by no layer.
    """
    after: dict[T, list[T]] = defaultdict(list)
    for node, others in before.items():
        for other in others:
            after[other].append(node)
    for order, near in ((reversed([*before]), after), (iter(before), before)):
        for node in order:
            known = next((owners[each] for each in near[node] if each in owners), None)
            if known is not None:
                owners.setdefault(node, known)


def _regions(program: Program, report: Report) -> list[Part]:
    """The module's regions, with their times in the network."""
    regions = program.regions
    readers = {value: at for at, region in reversed([*enumerate(regions)]) for value in region.inputs}
    return [
        Part(
            region.cost_us,
            region.backend,
            _sources(report, region.nodes),
            readers.get(region.outputs[0]) if region.is_transform else None,
        )
        for region in regions
    ]


def cheapest_cover(report: Report, candidates: Sequence[CandidateReport]) -> list[Part]:
    """The cheapest of the candidates that cover each node once, as far as there are any.

    Times alone are added up; what layout transforms between the kernels would take is not known.
    """
    starts: dict[int, dict[frozenset[int], CandidateReport]] = defaultdict(dict)
    for each in candidates:
        nodes = frozenset(each.nodes)
        known = starts[min(nodes)]
        known[nodes] = min(each, known.get(nodes, each), key=_cost)
    # By what is covered of the nodes to come: nodes without a kernel, microseconds, and the kernels, last one first.
    states: dict[frozenset[int], tuple[int, float, Any]] = {frozenset(): (0, 0.0, None)}
    for node in range(len(report.nodes)):
        following: dict[frozenset[int], tuple[int, float, Any]] = {}
        for covered, (missing, us, chain) in states.items():
            ways = [(covered | {node}, (missing + 1, us, chain))]
            if node in covered:
                ways = [(covered, (missing, us, chain))]
            elif fitting := [nodes for nodes in starts[node] if not nodes & covered]:
                taken = ((nodes, starts[node][nodes]) for nodes in fitting)
                ways = [(covered | nodes, (missing, us + _cost(each), (each, chain))) for nodes, each in taken]
            for left, state in ways:
                following[left - {node}] = min(state, following.get(left - {node}, state), key=itemgetter(0, 1))
        states = dict(sorted(following.items(), key=lambda item: item[1][:2])[:_MOST_STATES])
    *_, chain = next(iter(states.values()))
    parts = []
    while chain is not None:
        each, chain = chain
        parts.append(Part(_cost(each), each.backend, _sources(report, each.nodes)))
    return parts


def _cost(each: CandidateReport) -> float:
    return each.cost_us or 0.0


def _sources(report: Report, nodes: Sequence[int]) -> frozenset[str]:
    return frozenset(report.nodes[node].source for node in nodes) - {""}


def _profiled(
    engines: Mapping[str, Engine], model: onnx.ModelProto, inputs: Sequence[Array], options: BuildOptions
) -> tuple[float, str, Sequence[Layer]]:
    """The microseconds of a run, the name and the layers of the fastest engine.

    Raises UsageError if none is there and has a profile of the model.
    """
    found: list[tuple[float, str, Sequence[Layer]]] = []
    failed = []
    for name, engine in engines.items():
        try:
            artifact = artifact_for(engine, model, options)
            layers = engine.layer_times(artifact, inputs, options)
            call = session_on(engine, artifact, options).bind_inputs(inputs)
            found.append((_median_us(call), name, layers))
        except Exception as error:  # whatever the engine does with a model that it cannot take
            failed.append(f"{name} has no profile of it: {library_text(error)}")
    if not found:
        raise UsageError("; ".join(failed))
    return min(found, key=itemgetter(0))


def _median_us(call: Callable[[], Any]) -> float:
    return median(timeit.repeat(call, number=1, repeat=_RUNS)) * 1e6
