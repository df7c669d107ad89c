"""The cheapest placement by guessed costs: what is measured for the first mix.

A guess is what the floating-point operations and the bytes of a region take at typical speeds, times the loss that
is expected of the kernel (``measure.prior``). What was measured counts as measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from collage.backends.base import VIEW, BackendKind
from collage.compiler.bench import Bench
from collage.compiler.placing import Field, place
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Node
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Rejection
from collage.search.candidates import candidates_of, possible_transforms

_LAUNCH_US = 1.0
_MEMORY_GBS, _THREAD_GFLOPS = 34.0, 110.0
"""What a core of Zen 4 reads, and what it multiplies in float32."""
_BUILD = 1.3
"""A kernel that is compiled first has to be guessed faster than others by this factor."""
_ENGINE_US = 10.0
"""What a run of an engine's session costs beside its kernels."""


def wanted(bench: Bench, most: int) -> list[CandidateRequest]:
    """The kernels of the placement that would win by what is known, and their likely rivals on the same nodes.

    At most ``most`` of a region that takes long, one of others, and only what nobody has measured. Compilers' are last,
    since they are built on another core meanwhile. Raises NoPlacementError if what is left covers nothing.
    """
    known, kind = bench.known, {name: each.kind for name, each in bench.task.backends.items()}
    us = _guesses(bench)
    by_nodes: dict[tuple[int, ...], list[CandidateRequest]] = {}
    for request in us:
        by_nodes.setdefault(request.nodes, []).append(request)
    at_once: list[CandidateRequest] = []
    later: list[CandidateRequest] = []
    placed = [each for each in place(bench, field=_field(bench, us)).candidates if each.backend != VIEW]
    mean_us = sum(each.cost_us for each in placed) / max(1, len(placed))
    for candidate in placed:
        chosen = CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)
        rivals = [each for each in by_nodes[candidate.nodes] if kind[each.backend] is not BackendKind.COMPILER]
        likely = dict.fromkeys((chosen, *sorted(rivals, key=us.__getitem__)))
        for request in [*likely][: most if candidate.cost_us >= mean_us else 1]:
            if request not in known.outcomes:
                compiled = kind[request.backend] is BackendKind.COMPILER
                (later if compiled else at_once).append(request)
    return at_once + later


def _field(bench: Bench, us: Mapping[CandidateRequest, float]) -> Field:
    """The candidates at measured and guessed costs."""
    known, model = bench.known, bench.model
    outcomes = {
        request: known.outcomes.get(request, Measurement(each, 0.0, each, 1, 0.0)) for request, each in us.items()
    }
    offers = [each for each in known.offers if each.request in us]
    candidates = candidates_of(model, offers, known.views, outcomes, bench.task.without_switch)
    transforms_us = {
        (value, each): _LAUNCH_US + 2 * each.kind.nbytes / _MEMORY_GBS / 1e3
        for value, each in possible_transforms(model, candidates)
    }
    return Field(tuple(candidates), transforms_us)


def _guesses(bench: Bench) -> dict[CandidateRequest, float]:
    """Microseconds of the offers in the model's own dtypes, without those that were rejected.

    One that has lost a race counts with its lower bound, and is measured to the end if nothing else covers its nodes.

    Engines' kernels fill gaps of single nodes. More of the network on an engine is hardly another plan than the engine.
    """
    known, backends = bench.known, bench.task.backends
    left_out = known.left_out
    regions: dict[tuple[int, ...], float] = {}
    found = {}
    for request in (offer.request for offer in known.offers):
        if (
            request.variant.precision
            or request.backend in left_out
            or isinstance(known.outcomes.get(request), Rejection)
        ):
            continue
        kind = backends[request.backend].kind
        if kind is BackendKind.ENGINE and len(request.nodes) > 1:
            continue
        if request.nodes not in regions:
            regions[request.nodes] = _region_us(bench, bench.measurer.measured.subgraph(request.nodes))
        us = regions[request.nodes] * math.exp(bench.measurer.expected_loss(request))
        us *= _BUILD if kind is BackendKind.COMPILER else 1.0
        found[request] = us + (_ENGINE_US if kind is BackendKind.ENGINE else 0.0)
    return found


def _region_us(bench: Bench, region: Subgraph) -> float:
    type_of, gflops = bench.model.graph.type_of, _THREAD_GFLOPS * bench.task.target.threads
    read = sum(type_of(value).nbytes for value in (*region.inputs, *region.constants))
    moved = read + sum(type_of(value).nbytes for value in region.outputs)
    flop = sum(_flop(bench, node) for node in region.operators)
    return _LAUNCH_US + moved / _MEMORY_GBS / 1e3 + flop / gflops / 1e3


def _flop(bench: Bench, node: Node) -> float:
    """The floating-point operations of a node with weights: each is used once for each position of the output."""
    graph = bench.model.graph
    weights = [graph.type_of(value).shape for value in node.inputs if graph.is_constant(value)]
    shape = max(weights, key=math.prod, default=())
    out = graph.type_of(node.outputs[0]).shape
    if len(shape) < 2 or not out:
        return 0.0
    channels = next((each for each in (shape[0], shape[-1]) if each in out), 1)
    return 2.0 * math.prod(shape) * math.prod(out) / channels
