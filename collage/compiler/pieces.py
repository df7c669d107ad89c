"""Pieces: the regions of a plan, each with the kernel that it launches and the buffers that this reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from collage.backends.base import Backend
from collage.backends.source_digest import source_digest
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, TensorType
from collage.graph.storage import HOST, PLAIN, Storage, stored_type
from collage.kernel.options import BuildOptions, Variant
from collage.measure.measurer import Measurer
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.schedule.region import TRANSFORM, Region
from collage.search.candidate import Candidate
from collage.search.errors import of_outputs
from collage.search.transforms import PlacedTransform


@dataclass(frozen=True)
class Piece:
    """A region, and the candidate or the layout transform of the placement that it runs.

    ``digest`` identifies its kernel in any model, and ``kernel`` in this one.
    """

    region: Region
    what: Candidate | PlacedTransform
    digest: str
    kernel: PlanKernel

    @property
    def timed_as(self) -> str:
        """What the piece's time in a network depends on, apart from its neighbours."""
        scans = self.region.scans
        return f"{self.digest} after {len(scans)} scans" if scans else self.digest


class Buffers:
    """Ids of buffers. A plain value has its own id, and there is a new id for each other storage of a value."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ids: dict[tuple[int, Storage], int] = {}
        self._types: dict[int, TensorType] = {}

    def stored(self, value: int, storage: Storage) -> int:
        """The buffer that holds the value in this storage."""
        if storage == PLAIN:
            return value
        if (value, storage) not in self._ids:
            new = len(self._graph.values) + len(self._ids)
            self._ids[value, storage] = new
            self._types[new] = stored_type(self._graph.type_of(value), storage)
        return self._ids[value, storage]

    @property
    def other_storages(self) -> dict[int, tuple[int, Storage]]:
        """The value and the storage of each buffer that is no plain value."""
        return {buffer: key for key, buffer in self._ids.items()}

    @property
    def devices(self) -> dict[int, str]:
        """The device of each buffer that is not on the host."""
        return {buffer: key[1].device for buffer, key in self.other_storages.items() if key[1].device != HOST}

    def type_of(self, buffer: int) -> TensorType:
        """Shape and dtype of what the buffer holds."""
        return self._types[buffer] if buffer in self._types else self._graph.type_of(buffer)


@dataclass(frozen=True)
class PieceMaker:
    """Makes the pieces of plans of one model; ``measurer`` is that model's."""

    measurer: Measurer
    backends: Mapping[str, Backend]

    @cached_property
    def _sources(self) -> Mapping[str, str]:
        """A digest of the source of each backend from outside of the package, "" for the others."""
        return {name: source_digest(type(each)) for name, each in self.backends.items()}

    def kernel(self, candidate: Candidate, options: BuildOptions, buffers: Buffers) -> Piece:
        """The piece that runs a candidate's kernel, built with ``options``."""
        model = self.measurer.model
        subgraph = Subgraph(model, candidate.nodes)
        nodes = model.onnx.graph.node
        sources = dict.fromkeys(node.source for node in subgraph.operators)
        reads, writes = dict(candidate.reads), dict(candidate.writes)
        backend = self.backends[candidate.backend]
        region = Region(
            backend=candidate.backend,
            ops=subgraph.ops,
            nodes=candidate.nodes,
            sources=tuple(nodes[s].name for s in sources if s >= 0),
            inputs=tuple(buffers.stored(v, reads.get(v, PLAIN)) for v in subgraph.inputs),
            outputs=tuple(buffers.stored(v, writes.get(v, PLAIN)) for v in subgraph.outputs),
            layout=candidate.variant.layout,
            split=candidate.variant.split,
            precision=candidate.variant.precision,
            threads=options.threads,
            cost_us=candidate.cost_us,
            noise_us=candidate.noise_us,
            exclusive=options.exclusive,
            in_place=tuple(backend.in_place(subgraph)),
            finite_only=candidate.finite_only,
            reassociates=backend.reassociates(subgraph, candidate.variant),
            error=of_outputs(candidate.error),
        )
        about = [candidate.backend, subgraph.digest, options.exclusive, candidate.variant, options.tuning]
        # Such as the edition of its kernels, which its library's version does not tell.
        if settings := backend.settings(replace(options, tune_trials=0)):
            about.append(settings)
        if source := self._sources[candidate.backend]:
            about.append(source)
        request = CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)
        return Piece(region, candidate, ":".join(map(str, about)), PlanKernel(request, options))

    def transform(self, placed: PlacedTransform, build: BuildOptions, buffers: Buffers) -> Piece:
        """The piece that brings a value from one storage to another."""
        transform = placed.transform
        variant = Variant((transform.source,), (transform.target,))
        maker = self.measurer.transform_backend(transform)
        assert maker is not None  # a transform that was measured has a backend that makes it
        region = Region(
            backend=maker.name,
            ops=TRANSFORM,
            nodes=(),
            sources=(),
            inputs=(buffers.stored(placed.value, transform.source),),
            outputs=(buffers.stored(placed.value, transform.target),),
            layout=variant.layout,
            threads=build.threads,
            cost_us=placed.cost_us,
        )
        kernel = PlanKernel(transform, build)
        return Piece(region, placed, f"{maker.name}:{transform.kind}:{variant}", kernel)
