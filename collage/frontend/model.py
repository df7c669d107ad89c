"""A model that is ready to be placed: its ONNX form, its dataflow graph, and the relation between the two."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import onnx
from onnx import ModelProto

from collage.errors import ModelError
from collage.frontend.read.index_limits import Rows, index_limits
from collage.frontend.read.load import ModelSource, load_onnx
from collage.frontend.read.proto_size import network_bytes
from collage.frontend.read.randomness import Randomness
from collage.frontend.read.scopes import STANDARD, all_nodes, bodies, captures, defines, opset_of, reads
from collage.frontend.read.shapes import Shapes, declared_types, fix_shapes, shape_text
from collage.graph.dataflow import Array, Graph, Node
from collage.graph.decisions import as_written

T = TypeVar("T")

_PACKED = frozenset("int2 uint2 int4 uint4 float4_e2m1fn".split())
"""Types whose elements are a byte each in numpy, and less in engines, so that no buffer serves both."""


@dataclass(frozen=True)
class Model:
    """``onnx`` is the simplified model, ``graph`` has its operators, and ``calls[i]`` is the Relax call of node i.

    ``onnx_values`` maps names of ONNX values to value ids. Several names may share an id, since an Identity vanishes.
    ``prim_funcs`` has the PrimFuncs of call_tir nodes by name. ``opaque`` has, for each ONNX node that TVM's importer
    could not convert, its index and the reason. ``example_inputs`` are the user's inputs by name;
    other inputs are made up to measure and check with. ``assumed`` has inputs for whose other values the graph is wrong
    (see ``taken_branches``).
    """

    onnx: onnx.ModelProto
    graph: Graph
    calls: tuple[Any, ...]
    onnx_values: Mapping[str, int]
    prim_funcs: Mapping[str, Any]
    opaque: Mapping[int, str]
    name: str = "model"
    example_inputs: Mapping[str, Array] = field(default_factory=dict)
    assumed: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def known_edges(self) -> dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
        """Inputs and outputs of subgraphs by their nodes, as far as somebody has looked for them."""
        return {}

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the graph's inputs, in order."""
        return tuple(each.name for each in self.onnx.graph.input)

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """The names of the graph's outputs, in order."""
        return tuple(each.name for each in self.onnx.graph.output)

    @cached_property
    def groups(self) -> Mapping[int, frozenset[int]]:
        """For each ONNX node, by index, the ids of the graph nodes that it became."""
        groups: dict[int, set[int]] = {}
        for node in self.graph.nodes:
            groups.setdefault(node.source, set()).add(node.id)
        return {source: frozenset(nodes) for source, nodes in groups.items()}

    @cached_property
    def parses(self) -> dict[tuple[Any, tuple[int, ...]], Any]:
        """What parts of the model were parsed as, by parser and nodes (see ``Subgraph.parsed``)."""
        return {}

    @cached_property
    def initializers(self) -> Mapping[str, Any]:
        """The model's initializers (``TensorProto``) by name."""
        return {tensor.name: tensor for tensor in self.onnx.graph.initializer}

    @cached_property
    def network_bytes(self) -> int:
        """The bytes of weights of the network: of this model, or of the one that it is a part of."""
        return max(self.graph.constant_bytes, network_bytes(self.onnx))

    @cached_property
    def index_limits(self) -> Mapping[str, Rows]:
        """For inputs that are used as indices, by name, the number of rows that they index."""
        return index_limits(self.onnx)

    def analysed(self, analysis: Callable[[ModelProto], T]) -> T:
        """The result of a backend's analysis of the ONNX model, which is computed once."""
        if analysis not in self._analyses:
            self._analyses[analysis] = analysis(self.onnx)
        found: T = self._analyses[analysis]
        return found

    @cached_property
    def _analyses(self) -> dict[Callable[[ModelProto], Any], Any]:
        return {}

    @cached_property
    def random_nodes(self) -> frozenset[int]:
        """The ids of the graph nodes that draw random numbers."""
        randomness = Randomness(self.onnx)
        drawing = {i for i in self.opaque if randomness.draws(self.onnx.graph.node[i])}
        return frozenset(node.id for node in self.graph.nodes if node.source in drawing)

    @cached_property
    def opset(self) -> int:
        """The version of the default operator set."""
        return opset_of(self.onnx) or 1

    @cached_property
    def inner_operators(self) -> Mapping[int, frozenset[str]]:
        """The types of the operators in the bodies of opaque nodes, by the nodes' ids; with domains but for ONNX's."""
        found: dict[int, frozenset[str]] = {}
        for node in self.graph.nodes:
            if node.op.startswith("onnx."):
                inner = [each for body in bodies(self.onnx.graph.node[node.source]) for each in all_nodes(body)]
                names = (each.op_type if each.domain in STANDARD else f"{each.domain}.{each.op_type}" for each in inner)
                if inner:
                    found[node.id] = frozenset(names)
        return found

    @cached_property
    def node_signatures(self) -> tuple[bytes, ...]:
        """For each node, what determines its kernel apart from its neighbours: operator, attributes, types, origin."""
        return tuple(self._signature(node) for node in self.graph.nodes)

    @cached_property
    def constant_signatures(self) -> Mapping[int, bytes]:
        """For each constant its type, and its content where that can change the kernel.

        The content counts for scalars, short vectors and integers (axes, indices, shapes), and not for weights.
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
        if as_written(self.graph, [node]):
            text += b"decides|"  # no kernel multiplies by a rounded reciprocal, or adds in another order
        if node.id in self.random_nodes:
            text += b"draws|"  # it is compared by type only
        if "prim_func" in node.attrs:
            import tvm_ffi  # TVM takes a second to import, and a first module does without it

            function = self.prim_funcs[str(node.attrs["prim_func"])].without_attr("global_symbol")
            text = f"call_tir|{types}|{tvm_ffi.structural_hash(function, map_free_vars=True)}".encode()
        if node.source >= 0:
            proto = self.onnx.graph.node[node.source]
            text += f"{proto.domain}.{proto.op_type}".encode()
            if node.op.startswith("onnx."):
                given = [[bool(name) for name in side] for side in (proto.input, proto.output)]
                text += f"{given}{_since(self.onnx, proto)}".encode()
                text += nameless_attributes(proto)
                for tensor in map(self.initializers.get, reads(proto)):
                    if tensor is not None and tensor.name not in self.onnx_values:  # TVM does not know its type
                        text += f"{tensor.data_type}{[*tensor.dims]}{[*tensor.string_data]}".encode()
        return text

    def describe_node(self, node: int) -> str:
        """``op (ONNX node name)``, for messages."""
        each = self.graph.nodes[node]
        origin = self.onnx.graph.node[each.source].name if each.source >= 0 else "no ONNX node"
        return f"{each.op} ({origin})"


def _since(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    """The version of its operator set from which on the node's operator means what it does; 0 where nobody knows."""
    versions = {each.domain: each.version for each in model.opset_import}
    version = versions.get(node.domain, versions.get("ai.onnx", 0) if not node.domain else 0)
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return 0


def nameless_attributes(node: onnx.NodeProto) -> bytes:
    """The node's attributes, equal for nodes whose bodies (those of If, Loop and Scan) differ in names only.

    What the bodies capture is named by its place among all that they capture.
    """
    bare = node
    if any(True for _ in bodies(node)):
        bare = onnx.NodeProto()
        bare.attribute.extend(node.attribute)
        outer = {name: f"outer {place}" for place, name in enumerate(captures(node))}
        for body in bodies(bare):
            _number_names(body, outer)
    return b"".join(each.SerializeToString(deterministic=True) for each in bare.attribute)


def _number_names(body: onnx.GraphProto, outer: Mapping[str, str]) -> None:
    """Rename all values by where they are defined, in place. Other names and texts are left out."""
    made = (name for node in body.node for name in node.output)
    own = [*(each.name for each in (*body.input, *body.initializer)), *made]
    own += sorted(defines(body) - {*own})  # those of sparse initializers
    names = {**outer, **{name: f"{len(outer)}.{place}" for place, name in enumerate(own) if name}}
    del body.value_info[:], body.metadata_props[:]
    body.name = body.doc_string = ""
    for each in (*body.input, *body.initializer, *body.output):
        each.name = names.get(each.name, each.name)
    for sparse in body.sparse_initializer:
        sparse.values.name = names[sparse.values.name]
    for node in body.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in bodies(node):
            _number_names(inner, names)


def import_model(
    source: ModelSource, shapes: Shapes | None = None, name: str = "model", *, halves: bool = False
) -> Model:
    """Run the whole frontend: read the model, fix its shapes, simplify it and convert it.

    With ``halves`` operators of float16 stay float16 (see ``simplify``). Raises ModelError and UsageError.
    """
    from collage.frontend.rewrite.simplify import simplify

    proto = load_onnx(source)
    declared = declared_types(proto)
    fix_shapes(proto, shapes or {})
    return from_simplified(simplify(proto, halves=halves, declared=declared), name)


def from_simplified(
    simple: onnx.ModelProto,
    name: str = "model",
    wrong: Mapping[int, str] = {},
    example_inputs: Mapping[str, Array] = {},
    assumed: Mapping[str, Array] = {},
) -> Model:
    """The model of a simplified ONNX graph. The same graph gives the same ids in every process.

    ``wrong`` has the ONNX nodes, by index, whose conversion is known to give wrong numbers, with the reasons. Raises
    ModelError, also where shapes depend on data (DataDependentError).
    """
    for info in (*simple.graph.input, *simple.graph.output):
        if info.type.WhichOneof("value") != "tensor_type":
            raise ModelError(f"{info.name} is a {info.type.WhichOneof('value')}; only tensors go in and out so far.")
    for info in simple.graph.input:
        dims = info.type.tensor_type.shape.dim
        if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims):
            # TVM's importer takes such an extent for one that is open.
            raise ModelError(
                f"input {info.name} has no elements (its shape is {shape_text(info)}), and such are not placed."
            )
    from collage.frontend.relax.build import build_graph
    from collage.frontend.relax.importer import import_onnx

    imported = import_onnx(simple, wrong)
    built = build_graph(imported, {i: simple.graph.node[i].op_type for i in imported.opaque})
    packed = sorted({v.type.dtype for v in built.graph.values} & _PACKED)
    if packed:
        raise ModelError(f"the model has values of type {', '.join(packed)}, several of which share a byte.")
    return Model(
        simple,
        built.graph,
        built.calls,
        built.onnx_values,
        built.prim_funcs,
        imported.opaque,
        name,
        example_inputs,
        assumed,
    )
