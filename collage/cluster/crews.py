"""Crews for a compile: the connection to a cluster, and those of its nodes that match this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from collage.backends.base import Backend
from collage.cluster.address import ClusterAddress
from collage.cluster.connect import connected
from collage.cluster.nodes import Nodes, find_nodes
from collage.cluster.ray_crew import RayCrew
from collage.measure.worker.serialisation import pickle_backend
from collage.measure.worker.session import WorkerSession


@dataclass(frozen=True)
class ClusterCrews:
    """Makes crews whose workers are on the nodes of a cluster."""

    ray: ModuleType
    nodes: Nodes
    slots: int

    def crew(self, session: WorkerSession) -> RayCrew:
        """A crew for the session's model. Nothing is started before it gets jobs."""
        return RayCrew(self.ray, self.nodes.matching, self.slots, session)


@contextmanager
def on_cluster(address: ClusterAddress, backends: Mapping[str, Backend]) -> Iterator[ClusterCrews]:
    """Connect to the cluster inside the block, and find the nodes that can measure these backends for this machine.

    Raises ClusterError where the cluster cannot be reached or has no such node.
    """
    with connected(address) as ray:
        pickles = {name: pickle_backend(name, backend) for name, backend in backends.items()}
        yield ClusterCrews(ray, find_nodes(ray, address, pickles), address.slots)
