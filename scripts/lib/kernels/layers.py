"""The layers of a model on Collage's own kernels and on oneDNN's, both on Collage's team of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.base import Backend, UnsupportedError
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph
from collage.graph.ranges import Range
from collage.graph.storage import INT8, PLAIN, stored_type
from collage.kernel.buffers import aligned_array
from collage.kernel.options import BuildOptions
from collage.native import LaunchList, NativeKernel, Step, team_of
from collage.patterns.context import MatchContext
from scripts.lib.kernels.turns import Turn, in_turns

BACKENDS: tuple[Backend, ...] = (Native(), OneDnn())
COLD_BYTES = 100_000_000
LEAST_ROUNDS = 7


@dataclass(frozen=True)
class Layer:
    """A distinct layer, and the number of times that the model has it."""

    name: str
    subgraph: Subgraph
    count: int
    weight_bytes: int


def layers(model: Model, precisions: frozenset[str] = frozenset()) -> Iterator[Layer]:
    """Convolutions and products with constant weights, each with the longest chain that both backends take.

    In 8 bits, values may also be stored so, with ranges that are made up.
    """
    context, graph = MatchContext(model), model.graph
    chains: dict[int, list[set[tuple[int, ...]]]] = {}
    for place, backend in enumerate(BACKENDS):
        for source in backend.sources(BuildOptions(precisions=precisions)):
            for found in source.find(context):
                op = graph.nodes[min(found.nodes)].op
                if not found.reason and op.startswith(("nn.conv", "matmul")):
                    chains.setdefault(min(found.nodes), [set() for _ in BACKENDS])[place].add(found.nodes)
    ranges = _made_up_ranges(graph) if INT8 in precisions else {}
    kinds: dict[tuple[Any, ...], list[Subgraph]] = {}
    for root, (ours, theirs) in chains.items():
        node = graph.nodes[root]
        if not ours & theirs or not graph.is_constant(node.inputs[1]):
            continue
        subgraph = Subgraph(model, max(ours & theirs, key=len), ranges)
        shapes = tuple(graph.type_of(value).shape for value in node.inputs)
        kinds.setdefault((node.op, shapes, node.attrs.get("strides"), subgraph.ops), []).append(subgraph)
    for (op, (data, weights), strides, ops), alike in kinds.items():
        then = " + ".join(each for each in ops[1:])
        name = f"{op.removeprefix('nn.')} {data} * {weights} at {strides}, {then}"
        yield Layer(name, alike[0], len(alike), 4 * math.prod(weights))


def _made_up_ranges(graph: Graph) -> dict[int, Range]:
    """Ranges of about the right sign, so that kernels on values that are stored in 8 bits are offered."""
    relus = {value for node in graph.nodes if node.op == "nn.relu" for value in node.outputs}
    return {each.id: Range(0.0 if each.id in relus else -4.0, 4.0) for each in graph.values}


def kernels(
    layer: Layer, threads: int, copies: int, precisions: frozenset[str] = frozenset()
) -> dict[str, LaunchList]:
    """``copies`` kernels in sequence, with weights of their own, by backend and variant, of backends that are here."""
    made = {}
    for backend in (each for each in BACKENDS if each.available()):
        for variant in backend.variants(layer.subgraph, BuildOptions(threads=threads, precisions=precisions)):
            options = BuildOptions(threads=threads, variant=variant)
            try:
                artifact = backend.codegen(layer.subgraph, options)
            except UnsupportedError:
                continue
            made[f"{backend.name}: {variant}"] = launch_list(layer, backend, artifact, options, copies)
    return made


def launch_list(
    layer: Layer, backend: Backend, artifact: bytes, options: BuildOptions, copies: int
) -> LaunchList:
    """``copies`` kernels of an artifact in sequence, on random data and with weights of their own."""
    rng, sides = np.random.default_rng(0), []
    variant, subgraph = options.variant, layer.subgraph
    types = subgraph.input_types, subgraph.output_types
    for kinds, layouts in zip(types, (variant.inputs, variant.outputs), strict=True):
        arrays = []
        for kind, layout in zip(kinds, layouts or (PLAIN,) * len(kinds), strict=True):
            stored = stored_type(kind, layout)
            arrays.append(aligned_array(stored))
            if arrays[-1].dtype.kind in "iu":
                arrays[-1][...] = rng.integers(0, 100, stored.shape)
            else:
                arrays[-1][...] = rng.standard_normal(stored.shape, np.float32)
        sides.append(arrays)
    steps: list[Step] = []
    for _ in range(copies):
        kernel = backend.load(artifact, options)
        assert isinstance(kernel, NativeKernel)
        steps += kernel.steps(*sides)
    return LaunchList(team_of(options.threads), steps)


def copies_of(layer: Layer, cold: bool) -> int:
    """How many kernels follow each other: so many that the last cache does not hold all weights, if they are cold."""
    return min(16, max(3, COLD_BYTES // layer.weight_bytes)) if cold else 1


def race(
    layer: Layer, threads: int, seconds: float, *, cold: bool, precisions: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Microseconds of the layer by backend and variant; ``cold`` reads its weights from memory.

    A round is then several kernels in sequence, each with weights of its own that together exceed the last cache: that
    is what a layer meets inside its network. Variants of the reduced ``precisions`` take part, too. Times are the 15th
    percentile of the rounds, since other processes only ever add to them.
    """
    copies = copies_of(layer, cold)
    times = in_turns(kernels(layer, threads, copies, precisions), seconds, Turn(), rounds=LEAST_ROUNDS)
    return {name: 1e6 * float(np.quantile(each, 0.15)) / copies for name, each in times.items()}


def best_by_precision(us: Mapping[str, float], reduced: Sequence[str]) -> dict[str, tuple[float, str]]:
    """The time and the name of the fastest kernel of ``race`` in each precision that has one; float32's is ""."""
    best: dict[str, tuple[float, str]] = {}
    for name, time_us in us.items():
        precision = next((each for each in reduced if name.endswith(f"; {each}")), "")
        best[precision] = min((time_us, name), best.get(precision, (math.inf, "")))
    return {each: best[each] for each in ("", *reduced) if each in best}
