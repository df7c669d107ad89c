"""A subgraph: the part of a model that a pattern matches, a backend compiles, and the measurer times."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from collage.graph.convexity import escaping
from collage.graph.dataflow import Array, Node, TensorType

if TYPE_CHECKING:  # a process that only loads kernels needs neither ONNX nor TVM
    import onnx

    from collage.frontend.model import Model
    from collage.frontend.relax.to_relax import RelaxPart

T = TypeVar("T")


@dataclass(frozen=True)
class Subgraph:
    """A convex set of nodes of a model, ascending by id.

    A kernel reads the arrays of ``inputs`` and writes those of ``outputs``, in these orders. Constants belong to the
    kernel.
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
        """The ids of the values that are read from outside and are no constants, in order of first use."""
        return tuple(v for v in self._read_from_outside if not self.model.graph.is_constant(v))

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """The ids of the constants that are read, in order of first use."""
        return tuple(v for v in self._read_from_outside if self.model.graph.is_constant(v))

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The ids of the values that are made here and used outside, or returned by the model, ascending."""
        return escaping(self.model.graph, self.nodes)

    @cached_property
    def drawn(self) -> frozenset[int]:
        """The positions of the outputs that depend on random numbers which are drawn here."""
        if self.members.isdisjoint(self.model.random_nodes):
            return frozenset()
        found: set[int] = set()
        for node in self.operators:
            if node.id in self.model.random_nodes or not found.isdisjoint(node.inputs):
                found.update(node.outputs)
        return frozenset(at for at, value in enumerate(self.outputs) if value in found)

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
        """The types of ``inputs``, in order."""
        return tuple(self.model.graph.type_of(v) for v in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of ``outputs``, in order."""
        return tuple(self.model.graph.type_of(v) for v in self.outputs)

    @property
    def weights(self) -> Mapping[int, Array]:
        """The arrays of the constants by value id."""
        return {v: self.model.graph.constants[v] for v in self.constants}

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """The short names of the operators, in order, such as ``("conv2d", "add", "relu")``."""
        return tuple(
            node.op.rsplit(".", 1)[-1] if not node.op.startswith("onnx.") else node.op for node in self.operators
        )

    @cached_property
    def whole_sources(self) -> frozenset[int]:
        """The indices of the ONNX nodes all of whose operators are in the subgraph."""
        groups = self.model.groups
        return frozenset(s for s in {n.source for n in self.operators} if s >= 0 and groups[s] <= self.members)

    @cached_property
    def digest(self) -> str:
        """A canonical hash of structure, attributes, dtypes, shapes, scalar constants and ONNX origin.

        It is equal for identical subgraphs in any model and any process, and does not depend on names or positions.
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
            origin = sources.setdefault(node.source, len(sources)) if node.source in self.whole_sources else -1
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

    def to_onnx(self, *, apart: bool = False) -> onnx.ModelProto:
        """The subgraph as an ONNX model. Its inputs and outputs are named ``v<id>``, in the order of those here.

        With ``apart``, weights that are in files stay there (``collage.frontend.read.weights``). Raises ExportError if
        an operator has no ONNX form and only a part of its ONNX node is in the subgraph.
        """
        from collage.frontend.export.to_onnx import export_onnx

        return export_onnx(self.model, self.nodes, self.inputs, self.outputs, apart=apart)

    def to_relax(self) -> RelaxPart:
        """The subgraph as a Relax function with its constants embedded."""
        from collage.frontend.relax.to_relax import export_relax

        return export_relax(self.model, self.nodes, self.inputs, self.outputs)

    def __str__(self) -> str:
        return "+".join(self.ops)

    def __getstate__(self) -> Any:
        raise TypeError("a Subgraph cannot be sent to another process; send its node ids")


def edges(model: Model, nodes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs and outputs of a subgraph. Each search asks for those of all candidates, so they are kept."""
    found = model.known_edges.get(nodes)
    if found is None:
        subgraph = Subgraph(model, nodes)
        found = model.known_edges[nodes] = subgraph.inputs, subgraph.outputs
    return found
