"""A part of a model: what patterns match, backends compile, and the measurer times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import onnx

from collage.frontend.model import Model
from collage.frontend.to_onnx import export_onnx
from collage.frontend.to_relax import RelaxPart, export_relax
from collage.graph.dataflow import Array, Node, TensorType

T = TypeVar("T")


@dataclass(frozen=True)
class Subgraph:
    """A convex set of nodes of a model, ascending by id.

    A kernel takes the arrays of ``inputs`` and fills those of ``outputs``, in these orders; constants belong
    to the kernel.
    """

    model: Model
    nodes: tuple[int, ...]

    @cached_property
    def members(self) -> frozenset[int]:
        """The node ids as a set."""
        return frozenset(self.nodes)

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """The nodes themselves."""
        return tuple(self.model.graph.nodes[n] for n in self.nodes)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Ids of the non-constant values read from outside, in order of first use."""
        return tuple(v for v in self._read_from_outside if not self.model.graph.is_constant(v))

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Ids of the constants read, in order of first use."""
        return tuple(v for v in self._read_from_outside if self.model.graph.is_constant(v))

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Ids of the values produced here and used outside or returned by the model, ascending."""
        graph = self.model.graph
        return tuple(
            value
            for node in self.operators
            for value in node.outputs
            if value in graph.output_set or any(user not in self.members for user in graph.users[value])
        )

    @cached_property
    def _read_from_outside(self) -> tuple[int, ...]:
        values = self.model.graph.values
        found: dict[int, None] = {}
        for node in self.operators:
            for value in node.inputs:
                producer = values[value].producer
                if producer is None or producer not in self.members:
                    found[value] = None
        return tuple(found)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """Types of ``inputs``."""
        return tuple(self.model.graph.type_of(v) for v in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of ``outputs``."""
        return tuple(self.model.graph.type_of(v) for v in self.outputs)

    @property
    def weights(self) -> Mapping[int, Array]:
        """Arrays of the constants by value id."""
        return {v: self.model.graph.constants[v] for v in self.constants}

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Short operator names, in order: ``("conv2d", "add", "relu")``."""
        return tuple(
            node.op.rsplit(".", 1)[-1] if not node.op.startswith("onnx.") else node.op
            for node in self.operators
        )

    @cached_property
    def whole_sources(self) -> frozenset[int]:
        """Indices of the ONNX nodes all of whose operators are in here."""
        groups = self.model.groups
        return frozenset(
            s for s in {n.source for n in self.operators} if s >= 0 and groups[s] <= self.members
        )

    @cached_property
    def digest(self) -> str:
        """Canonical hash of structure, attributes, dtypes, shapes, scalar constants and ONNX origin.

        Equal for identical subgraphs anywhere in any model, across processes; free of names and positions.
        """
        model = self.model
        refs: dict[int, int] = {}
        sources: dict[int, int] = {}
        hasher = hashlib.sha256()
        for value in self._read_from_outside:
            refs[value] = len(refs)
            if model.graph.is_constant(value):
                hasher.update(b"c" + model.constant_signatures[value])
            else:
                hasher.update(b"i" + str(model.graph.type_of(value)).encode())
        for node in self.operators:
            origin = (
                sources.setdefault(node.source, len(sources)) if node.source in self.whole_sources else -1
            )
            for value in node.outputs:
                refs[value] = len(refs)
            hasher.update(b"n" + model.node_signatures[node.id])
            hasher.update(f"{[refs[v] for v in node.inputs]}{origin}".encode())
        hasher.update(f"o{[refs[v] for v in self.outputs]}".encode())
        return hasher.hexdigest()[:32]

    def parsed(self, parse: Callable[[Subgraph], T]) -> T:
        """What ``parse`` makes of these nodes, which is done once for all subgraphs of the same nodes.

        ``parse`` is a function of a module, and its result depends on nothing else. The result is kept as long as the
        model is. So it must refer neither to the model nor to a subgraph, which would then never be freed by
        reference counts. What raises is not kept.
        """
        parses, key = self.model.parses, (parse, self.nodes)
        if key not in parses:
            parses[key] = parse(self)
        found: T = parses[key]
        return found

    def to_onnx(self) -> onnx.ModelProto:
        """The part as an ONNX model whose inputs are ``v<id>`` of ``inputs`` and outputs ``v<id>`` of ``outputs``.

        Raises ExportError when an operator has no ONNX form and its ONNX node is cut through.
        """
        return export_onnx(self.model, self.nodes, self.inputs, self.outputs)

    def to_relax(self) -> RelaxPart:
        """The part as a Relax function, constants embedded."""
        return export_relax(self.model, self.nodes, self.inputs, self.outputs)

    def __str__(self) -> str:
        return "+".join(self.ops)

    def __getstate__(self) -> Any:
        raise TypeError("a Subgraph does not travel between processes; send its node ids")
