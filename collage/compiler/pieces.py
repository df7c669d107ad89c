"""Pieces: the regions of a plan, each with the kernel that it launches and the buffers that this reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from collage.graph.dataflow import Graph, TensorType
from collage.graph.storage import HOST, PLAIN, Storage, stored_type
from collage.measure.worker.plan_protocol import PlanKernel
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
