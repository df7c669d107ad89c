"""A model ready to be placed: its ONNX form, its dataflow graph, and how the two belong together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx
import tvm_ffi

from collage.errors import ModelError
from collage.frontend.build import build_graph
from collage.frontend.importer import import_onnx
from collage.frontend.index_limits import Rows, index_limits
from collage.frontend.load import ModelSource, load_onnx
from collage.frontend.narrow import narrowed_nodes
from collage.frontend.shapes import Shapes, fix_shapes
from collage.frontend.simplify import simplify
from collage.graph.dataflow import Array, Graph, Node

_PACKED = frozenset("int2 uint2 int4 uint4 float4_e2m1fn".split())
"""Types that numpy gives a byte and engines less: no buffer serves both."""


@dataclass(frozen=True)
class Model:
    """``onnx`` is the simplified model; ``graph`` its operators; ``calls[i]`` the Relax call of node i.

    ``onnx_values`` maps ONNX value names to value ids (several names may share one: Identity vanishes);
    ``opaque`` tells for each ONNX node, by index, why TVM's importer could not convert it. ``samples`` are inputs
    of the user's to measure and check with, by name; the others are made up.
    """

    onnx: onnx.ModelProto
    graph: Graph
    calls: tuple[Any, ...]
    onnx_values: Mapping[str, int]
    prim_funcs: Mapping[str, Any]
    opaque: Mapping[int, str]
    name: str = "model"
    samples: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """Names of the graph inputs, in order."""
        return tuple(each.name for each in self.onnx.graph.input)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Names of the graph outputs, in order."""
        return tuple(each.name for each in self.onnx.graph.output)

    @cached_property
    def groups(self) -> Mapping[int, frozenset[int]]:
        """For each ONNX node (index) the graph nodes it became."""
        groups: dict[int, set[int]] = {}
        for node in self.graph.nodes:
            groups.setdefault(node.source, set()).add(node.id)
        return {source: frozenset(nodes) for source, nodes in groups.items()}

    @cached_property
    def initializers(self) -> Mapping[str, Any]:
        """The model's initializers (``TensorProto``) by name."""
        return {tensor.name: tensor for tensor in self.onnx.graph.initializer}

    @cached_property
    def index_limits(self) -> Mapping[str, Rows]:
        """For inputs that are used as indices, by name, how many rows there are."""
        return index_limits(self.onnx)

    @cached_property
    def narrowed(self) -> Mapping[int, str]:
        """ONNX nodes, by index, that an engine which computes in 32 bits may get wrong, and why."""
        return narrowed_nodes(self.onnx)

    @cached_property
    def opset(self) -> int:
        """Version of the default operator set."""
        return next((o.version for o in self.onnx.opset_import if o.domain in ("", "ai.onnx")), 1)

    @cached_property
    def node_signatures(self) -> tuple[bytes, ...]:
        """For each node, what determines its kernel beside its neighbours: operator, attributes, types, origin."""
        return tuple(self._signature(node) for node in self.graph.nodes)

    @cached_property
    def constant_signatures(self) -> Mapping[int, bytes]:
        """For each constant, its type, and its content where that can change the kernel.

        Scalars, short vectors and integers (axes, indices, shapes) count; the content of weights does not.
        """
        signatures: dict[int, bytes] = {}
        for value, array in self.graph.constants.items():
            text = str(self.graph.type_of(value)).encode()
            if array.size <= 8 or array.dtype.kind not in "fV":
                text += hashlib.sha256(array.tobytes()).digest()
            signatures[value] = text
        return signatures

    def _signature(self, node: Node) -> bytes:
        types = [str(self.graph.type_of(v)) for v in node.outputs]
        attrs = {k: v for k, v in sorted(node.attrs.items()) if k != "prim_func"}
        text = f"{node.op}|{attrs}|{types}|".encode()
        if "prim_func" in node.attrs:
            function = self.prim_funcs[str(node.attrs["prim_func"])].without_attr("global_symbol")
            text = f"call_tir|{types}|{tvm_ffi.structural_hash(function, map_free_vars=True)}".encode()
        if node.source >= 0:
            proto = self.onnx.graph.node[node.source]
            text += f"{proto.domain}.{proto.op_type}".encode()
            if node.op.startswith("onnx."):
                text += b"".join(a.SerializeToString(deterministic=True) for a in proto.attribute)
        return text

    def describe_node(self, node: int) -> str:
        """``op (ONNX node name)``, for messages."""
        each = self.graph.nodes[node]
        origin = self.onnx.graph.node[each.source].name if each.source >= 0 else "no ONNX node"
        return f"{each.op} ({origin})"


def import_model(source: ModelSource, shapes: Shapes | None = None, name: str = "model") -> Model:
    """Read, fix shapes, simplify and convert: the whole frontend. Raises ModelError and UsageError."""
    proto = load_onnx(source)
    fix_shapes(proto, shapes or {})
    return from_simplified(simplify(proto), name)


def from_simplified(
    simple: onnx.ModelProto,
    name: str = "model",
    wrong: Mapping[int, str] = {},
    samples: Mapping[str, Array] = {},
) -> Model:
    """The model of a simplified ONNX graph. Deterministic: the same graph gives the same ids everywhere.

    ``wrong`` names ONNX nodes, by index, whose conversion is known to give wrong numbers, with the reason.
    """
    for info in (*simple.graph.input, *simple.graph.output):
        if info.type.WhichOneof("value") != "tensor_type":
            raise ModelError(
                f"{info.name} is a {info.type.WhichOneof('value')}; only tensors go in and out so far."
            )
    imported = import_onnx(simple, wrong)
    built = build_graph(imported, {i: simple.graph.node[i].op_type for i in imported.opaque})
    packed = sorted({v.type.dtype for v in built.graph.values} & _PACKED)
    if packed:
        raise ModelError(f"it has values of type {', '.join(packed)}, several of which share a byte.")
    return Model(
        simple, built.graph, built.calls, built.onnx_values, built.prim_funcs, imported.opaque, name, samples
    )
