"""Executables: plans that are ready to be run, and the pieces that they are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collage.compiler.plan import Placed
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, TensorType
from collage.graph.storage import HOST, PLAIN, Storage, stored_type
from collage.kernel.target import Target
from collage.measure.worker.plan_protocol import Plan as WorkerPlan
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure_db.database import NetworkKey
from collage.schedule.program import Program
from collage.schedule.region import Region
from collage.search.candidate import Candidate
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
class Executable:
    """A plan with its program. ``launches`` and ``kernels`` tell, for each of ``program.launches``, what it runs.

    ``digests`` identify the regions across models and processes. ``versions`` are the library versions of the backends
    that are used. ``stored`` has the value and the storage of each buffer that is no plain value. If it is
    ``guarded``, the model's inputs are scanned.
    """

    plan: Placed
    program: Program
    launches: Sequence[Candidate | PlacedTransform]
    digests: tuple[str, ...]
    versions: Mapping[str, str]
    kernels: tuple[PlanKernel, ...]
    stored: Mapping[int, tuple[int, Storage]]
    guarded: bool = False

    @cached_property
    def job(self) -> WorkerPlan:
        """The same in the form that the worker takes."""
        return WorkerPlan(self.program, self.kernels, self.stored)

    @property
    def precisions(self) -> frozenset[str]:
        """The reduced precisions that some launches compute in."""
        return frozenset(region.precision for region in self.program.launches if region.precision)

    @property
    def digest(self) -> str:
        """A hash of the regions and their backends, in launch order."""
        return hashlib.sha256("\n".join(self.digests).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Entry:
    """A plan in a race: its ``digest`` identifies what runs, and ``versions`` are those of the libraries."""

    digest: str
    versions: Mapping[str, str]


def network_key(entry: Entry, together: Sequence[Entry], graph: str, target: Target) -> NetworkKey:
    """The database key of a plan's timing in one interleaved run; ``graph`` identifies the model.

    Timings of one run belong together, so the key names all plans that ran ``together``.
    """
    others = hashlib.sha256("\n".join(sorted(each.digest for each in together)).encode()).hexdigest()[:16]
    used = {name: version for each in together for name, version in each.versions.items()}
    return NetworkKey(
        graph,
        f"{entry.digest} of {others}",
        target.threads,
        target.measured_on,
        " ".join(f"{name}={version}" for name, version in sorted(used.items())),
    )


def graph_digest(model: Model) -> str:
    """What identifies a graph in keys of networks."""
    if not model.graph.nodes:
        return "empty"
    return Subgraph(model, tuple(range(len(model.graph.nodes)))).digest
