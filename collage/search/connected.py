"""Kernels that only move or map numbers are offered in reduced precision where a product or a convolution is near.

A product in bfloat16 is faster by itself. What only adds, normalises or transposes gains by it where it takes the place
of a conversion: its neighbours have the value in bfloat16, too, and one of these, or one of theirs, multiplies. All
other such offers would be measured in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage, is_narrow

if TYPE_CHECKING:
    from collage.frontend.model import Model
    from collage.measure.worker.protocol import CandidateRequest

Port: TypeAlias = "tuple[int, Storage]"
"""A value in a narrow storage. Values that are views of each other count as one."""


@dataclass(frozen=True)
class _Ends:
    """The narrow ports of a request, and whether it multiplies."""

    reads: frozenset[Port]
    writes: frozenset[Port]
    multiplies: bool

    @property
    def ports(self) -> frozenset[Port]:
        return self.reads | self.writes


def connected(
    model: Model, requests: Iterable[CandidateRequest], views: Iterable[tuple[int, ...]]
) -> set[CandidateRequest]:
    """The requests without those of reduced precision that no product or convolution is near; ``views`` are nodes.

    What stays as it is: all requests without narrow values, and all that multiply.
    """
    asked = {*requests}
    ends = _ends_by_request(model, asked, _same_values(model, views))
    return asked - (ends.keys() - _near(_matched(ends)))


def _ends_by_request(
    model: Model, requests: Iterable[CandidateRequest], same: Mapping[int, int]
) -> dict[CandidateRequest, _Ends]:
    found: dict[CandidateRequest, _Ends] = {}
    edges: dict[tuple[int, ...], tuple[Sequence[int], Sequence[int], bool]] = {}
    for request in requests:
        variant = request.variant
        if not any(map(is_narrow, (*variant.inputs, *variant.outputs))):
            continue
        if request.nodes not in edges:
            subgraph = Subgraph(model, request.nodes)
            multiplies = any(node.op in COMPUTE_BOUND for node in subgraph.operators)
            edges[request.nodes] = subgraph.inputs, subgraph.outputs, multiplies
        inputs, outputs, multiplies = edges[request.nodes]
        reads, writes = (
            frozenset((same.get(v, v), s) for v, s in zip(values, storages, strict=bool(storages)) if is_narrow(s))
            for values, storages in ((inputs, variant.inputs), (outputs, variant.outputs))
        )
        found[request] = _Ends(reads, writes, multiplies)
    return found


def _same_values(model: Model, views: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """For each value that is a view the value that it is one of."""
    same: dict[int, int] = {}
    for nodes in sorted(views):
        subgraph = Subgraph(model, nodes)
        for value in subgraph.outputs:
            source = subgraph.inputs[0] if subgraph.inputs else value
            same[value] = same.get(source, source)
    return same


def _matched(ends: Mapping[CandidateRequest, _Ends]) -> dict[CandidateRequest, _Ends]:
    """Leave out those that read what no other one writes so, or write what no other one reads so."""
    while True:
        given = {port for each in ends.values() for port in each.writes}
        wanted = {port for each in ends.values() for port in each.reads}
        kept = {
            request: each
            for request, each in ends.items()
            if each.multiplies or (each.reads <= given and each.writes <= wanted)
        }
        if len(kept) == len(ends):
            return kept
        ends = kept


def _near(ends: Mapping[CandidateRequest, _Ends]) -> set[CandidateRequest]:
    """Find those that multiply, and those that share a narrow value with one that is near."""
    by_port: dict[Port, list[CandidateRequest]] = {}
    for request, each in ends.items():
        for port in each.ports:
            by_port.setdefault(port, []).append(request)
    near = {request for request, each in ends.items() if each.multiplies}
    left = [*near]
    while left:
        for port in ends[left.pop()].ports:
            found = [request for request in by_port.pop(port, ()) if request not in near]
            near.update(found)
            left += found
    return near
