"""The nodes of a cluster, and which of them can measure for this machine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from collage.cluster.facts import MachineFacts, differences, facts_here
from collage.core.library_text import library_text
from collage.errors import ClusterError

log = logging.getLogger(__name__)

_FACTS_LIMIT_S = 120.0
"""Seconds for telling facts. Importing the backends' libraries takes some of them, on all nodes at the same time."""


@dataclass(frozen=True)
class ClusterNode:
    """A node: Ray's id, a name for people, and the CPUs that Ray gives out there."""

    id: str
    name: str
    cpus: float


@dataclass(frozen=True)
class Nodes:
    """The nodes that match this machine, and why the others are left out, by name."""

    matching: tuple[ClusterNode, ...]
    refused: Mapping[str, str]

    def __str__(self) -> str:
        count = len(self.matching)
        left = f" ({len(self.refused)} left out)" if self.refused else ""
        return f"{count} node{'s' if count != 1 else ''}{left}"


def find_nodes(ray: ModuleType, address: object, backends: Mapping[str, bytes]) -> Nodes:
    """Ask all nodes for their facts, and compare them with this machine's; ``backends`` are pickled, by name.

    Raises ClusterError where no node matches. It names each with the reason.
    """
    alive = [_node(each) for each in ray.nodes() if each.get("Alive")]
    here = MachineFacts.of_plain(facts_here(backends))
    found = judge(here, _facts_of(ray, [node for node in alive if node.cpus], backends), alive)
    for name, why in found.refused.items():
        log.warning("node %s of the cluster is left out: %s", name, why)
    if not found.matching:
        every = "; ".join(f"{name}: {why}" for name, why in found.refused.items()) or "it has no nodes"
        raise ClusterError(f"no node of the cluster at {address} matches this machine: {every}.")
    return found


def judge(here: MachineFacts, facts: Mapping[ClusterNode, MachineFacts | str], alive: list[ClusterNode]) -> Nodes:
    """The nodes that match; ``facts`` has each node's facts, or the reason why there are none."""
    matching, refused = [], {}
    for node in alive:
        told = facts.get(node, "Ray gives out no CPUs there")
        why = told if isinstance(told, str) else ", ".join(differences(here, told))
        if why:
            refused[node.name] = why
        else:
            matching.append(node)
    return Nodes(tuple(matching), refused)


def pinned(node: ClusterNode) -> Any:
    """The option by which Ray runs something on that node, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def why(error: BaseException) -> str:
    """An error of Ray in short: for one that was raised on a node, that error itself."""
    cause = getattr(error, "cause", None)
    return library_text(f"{type(cause).__name__}: {cause}" if cause else f"{type(error).__name__}: {error}", 200)


def _node(told: Mapping[str, Any]) -> ClusterNode:
    name = f"{told['NodeManagerHostname']} ({told['NodeManagerAddress']})"
    return ClusterNode(str(told["NodeID"]), name, float(told.get("Resources", {}).get("CPU", 0)))


def _facts_of(
    ray: ModuleType, nodes: list[ClusterNode], backends: Mapping[str, bytes]
) -> dict[ClusterNode, MachineFacts | str]:
    """Each node's facts, or why it tells none."""
    ask = ray.remote(facts_here)
    asked = {ask.options(num_cpus=0, scheduling_strategy=pinned(node)).remote(dict(backends)): node for node in nodes}
    if not asked:
        return {}
    ready, _ = ray.wait([*asked], num_returns=len(asked), timeout=_FACTS_LIMIT_S)
    late = f"it did not answer within {_FACTS_LIMIT_S:g} s"
    found: dict[ClusterNode, MachineFacts | str] = dict.fromkeys(asked.values(), late)
    for ref in ready:
        try:
            found[asked[ref]] = MachineFacts.of_plain(ray.get(ref))
        except Exception as error:  # whatever a node lacks
            found[asked[ref]] = f"Collage does not run there ({why(error)})"
    return found
