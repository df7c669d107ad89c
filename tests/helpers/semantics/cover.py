"""Running a model region by region on any inputs, with a backend's kernels for as much of it as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.backends.base import Backend, UnsupportedError
from collage.frontend.export.to_onnx import ExportError, export_onnx
from collage.frontend.model import Model
from collage.frontend.session import reference_run
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN, from_layout, stored_type, to_layout
from collage.kernel.buffers import aligned_array, aligned_copy, poison
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches

__all__ = ["Cover", "covers"]

_MOST_VARIANTS = 6


@dataclass(frozen=True)
class _Region:
    """Nodes, and the kernel's artifact; None where ONNX Runtime runs them without optimisations."""

    subgraph: Subgraph
    artifact: bytes | None
    options: BuildOptions


@dataclass(frozen=True)
class Cover:
    """Regions that have every node of a model once."""

    model: Model
    backend: Backend | None
    regions: tuple[_Region, ...]
    text: str

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The model's outputs, in order."""
        graph = self.model.graph
        values: dict[int, Array] = dict(graph.constants)
        values |= {v: feeds[n] for n, v in zip(self.model.input_names, graph.inputs, strict=True)}
        waiting = list(self.regions)
        while waiting:
            ready = next((r for r in waiting if all(v in values for v in r.subgraph.inputs)), None)
            if ready is None:
                raise UnsupportedError("regions wait for each other")
            waiting.remove(ready)
            given = [values[v] for v in ready.subgraph.inputs]
            made = self._reference(ready, given) if ready.artifact is None else self._kernel(ready, given)
            values.update(zip(ready.subgraph.outputs, made, strict=True))
        return [values[v] for v in graph.outputs]

    def _reference(self, region: _Region, given: Sequence[Array]) -> list[Array]:
        part = region.subgraph
        proto = export_onnx(self.model, part.nodes, part.inputs, part.outputs)
        return reference_run(proto, {f"v{v}": a for v, a in zip(part.inputs, given, strict=True)})

    def _kernel(self, region: _Region, given: Sequence[Array]) -> list[Array]:
        assert self.backend is not None
        variant, part = region.options.variant, region.subgraph
        before = variant.inputs or (PLAIN,) * len(given)
        after = variant.outputs or (PLAIN,) * len(part.outputs)
        inputs = [aligned_copy(to_layout(array, layout)) for array, layout in zip(given, before, strict=True)]
        outputs = [aligned_array(stored_type(t, layout)) for t, layout in zip(part.output_types, after, strict=True)]
        call = self.backend.load(region.artifact, region.options).bind(inputs, outputs)
        for output in outputs:
            poison(output)
        call()
        plain = zip(outputs, after, part.output_types, strict=True)
        return [from_layout(array, layout, kind).copy() for array, layout, kind in plain]


def covers(model: Model, name: str, backend: Backend, options: BuildOptions) -> tuple[list[Cover], str]:
    """The model in the largest and in the smallest kernels of the backend, in its variants, or why there are none."""
    matches, rejected = find_matches(MatchContext(model), name, backend.sources(options))
    why = "; ".join(dict.fromkeys(each.reason for each in rejected)) or "no pattern matches"
    found: dict[tuple[object, ...], Cover] = {}
    for largest in (True, False):
        order = sorted(matches, key=lambda match: -len(match.nodes) if largest else len(match.nodes))
        for index in range(_MOST_VARIANTS):
            try:
                made = _cover(model, backend, options, [match.nodes for match in order], index)
            except UnsupportedError as error:
                why = str(error) or why
                break
            if made is None:
                break
            key = tuple((r.subgraph.nodes, str(r.options.variant), r.artifact is None) for r in made.regions)
            found.setdefault(key, made)
    return list(found.values()), why


def _cover(
    model: Model, backend: Backend, options: BuildOptions, groups: Sequence[tuple[int, ...]], index: int
) -> Cover | None:
    taken: set[int] = set()
    regions: list[_Region] = []
    refused, more = "", False
    for nodes in groups:
        if taken & set(nodes):
            continue
        part = Subgraph(model, nodes)
        try:
            variants: Sequence[Variant] = backend.variants(part, options) or (ALL_PLAIN,)
            more = more or index < len(variants)
            chosen = BuildOptions(threads=options.threads, variant=variants[min(index, len(variants) - 1)])
            regions.append(_Region(part, backend.codegen(part, chosen), chosen))
        except UnsupportedError as error:
            refused = str(error)
            continue
        taken |= set(nodes)
    if not regions:
        raise UnsupportedError(refused)
    if not more:
        return None
    text = " ".join(f"[{r.subgraph}; {r.options.variant}]" for r in regions)
    regions += _rest(model, taken)
    return Cover(model, backend, tuple(regions), text)


def _rest(model: Model, taken: set[int]) -> list[_Region]:
    """Regions of the nodes that the backend leaves, one by one, or whole ONNX nodes where a part has no ONNX form."""
    regions: list[_Region] = []
    for node in model.graph.nodes:
        if node.id in taken:
            continue
        part = Subgraph(model, (node.id,))
        try:
            part.to_onnx()
        except ExportError as error:
            group = model.groups[node.source]
            if group & taken:
                raise UnsupportedError("the rest of it has no ONNX form") from error
            part = Subgraph(model, tuple(sorted(group)))
        taken |= set(part.nodes)
        regions.append(_Region(part, None, BuildOptions()))
    return regions


def conversion(model: Model) -> Cover:
    """The imported model, operator by operator in ONNX Runtime, which tests the import itself."""
    return Cover(model, None, tuple(_rest(model, set())), "operator by operator")
