"""A part of the graph as an ONNX model of its own, which ONNX Runtime and OpenVINO get.

Whole ONNX nodes go back as they are, so that the engine's own fusions apply to what the author wrote. Parts of nodes
are written operator by operator. Makers are a table: each takes an ``ExportedCall``, writes the ONNX nodes of a family
of Relax operators (valid from operator set 18 on, see ``ExportedCall.need_opset``), and returns the names of the
results, or raises ``InexpressibleError``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from collage.frontend.export.compute import COMPUTE
from collage.frontend.export.data import DATA
from collage.frontend.export.elementwise import ELEMENTWISE
from collage.frontend.export.emit import (
    Emitter,
    ExportedCall,
    InexpressibleError,
    Maker,
    element_type,
    fill_tensor,
    fill_type,
)
from collage.frontend.model import Model
from collage.frontend.read.apart import filled
from collage.frontend.read.scopes import STANDARD, bodies, defines, reads

EXPORT_OPSET = 18
"""The least operator set of a part that is written operator by operator."""

_MIXED_OPSET = 13
"""From this operator set on, what the makers write is valid beside the model's own nodes, or they refuse."""

MAKERS: Mapping[str, Maker] = {**ELEMENTWISE, **COMPUTE, **DATA}
"""The makers by Relax name (without ``relax.``)."""


class ExportError(Exception):
    """A part of the graph has no ONNX form. The message names the operator, its ONNX node, and the reason."""


def _make(c: ExportedCall) -> None:
    """Write the operator's ONNX nodes. Raises InexpressibleError."""
    c.finish(_maker(c.node.op)(c))


def _maker(op: str) -> Maker:
    if op in MAKERS:
        return MAKERS[op]
    if op.startswith("onnx."):
        raise InexpressibleError("TVM's importer cannot convert it, so it only goes back as a whole ONNX node")
    if op.startswith("call_"):
        raise InexpressibleError("it is a loop nest without a name")
    raise InexpressibleError("there is no rule for it")


@dataclass
class _Exporter:
    """Exports the nodes ``order`` of a model, those of the ONNX nodes ``whole`` as they are.

    ``inputs`` and ``outputs`` are the ids of the part's inputs and outputs, and ``opset`` is its default operator set.
    """

    model: Model
    order: Sequence[int]
    inputs: Sequence[int]
    outputs: Sequence[int]
    opset: int
    whole: Collection[int]

    def export(self) -> onnx.ModelProto:
        """The part as an ONNX model. Raises ExportError."""
        self.proto = onnx.ModelProto()
        self.emitter = Emitter(self.model.graph, self.opset, frozenset(self.inputs), self.proto.graph)
        self.defined = set(self.inputs)
        self.weights: dict[str, None] = {}
        self.called: dict[tuple[str, str], None] = {}
        done: set[int] = set()
        for node_id in self.order:
            source = self.model.graph.nodes[node_id].source
            if source not in self.whole:
                self._operator(node_id)
            elif source not in done:
                done.add(source)
                self._whole_node(source)
        try:
            self._interface()
        except InexpressibleError as reason:
            raise ExportError(f"part of {self.model.name}: {reason}.") from reason
        self._finish()
        return self.proto

    def _operator(self, node_id: int) -> None:
        node = self.model.graph.nodes[node_id]
        try:
            for value in node.inputs:
                if value not in self.defined and not self.model.graph.is_constant(value):
                    raise InexpressibleError(f"it reads v{value}, which is no input of the part")
            _make(ExportedCall(self.emitter, node))
        except InexpressibleError as reason:
            raise ExportError(f"{self.model.describe_node(node_id)} has no ONNX form: {reason}.") from reason
        self.defined.update(node.outputs)

    def _whole_node(self, source: int) -> None:
        original = self.model.onnx.graph.node[source]
        made = {v for n in self.model.groups[source] for v in self.model.graph.nodes[n].outputs}
        proto = self.proto.graph.node.add()
        proto.CopyFrom(original)
        if proto.domain in STANDARD:
            proto.domain = ""
        for position, name in enumerate(original.input):
            proto.input[position] = self._outer(name)
        for position, name in enumerate(original.output):
            value = self.model.onnx_values.get(name)
            if value is not None and value in made and value not in self.defined and self._is_read(value):
                self.defined.add(value)
                proto.output[position] = f"v{value}"
            elif name:
                optional = _is_optional(original, position, self.opset)
                proto.output[position] = "" if optional else self.emitter.fresh()
        for body in bodies(proto):
            self._rename(body, {})
        self._note_calls(proto)

    def _is_read(self, value: int) -> bool:
        """Whether the value is read. An optional output that is not read is left out, since it would take time."""
        graph = self.model.graph
        return bool(graph.users[value]) or value in graph.output_set or value in self.outputs

    def _outer(self, name: str) -> str:
        """The name that an ONNX value of the model has in the part."""
        value = self.model.onnx_values.get(name)
        if value in self.defined:
            return f"v{value}"
        if value is not None and self.model.graph.is_constant(value):
            return self.emitter.value(value)
        if name:
            self.weights[name] = None
        return name and f"w_{name}"

    def _rename(self, body: onnx.GraphProto, scope: Mapping[str, str]) -> None:
        """Rename what the body captures, in place. Its own names get a prefix, so that they clash with no others."""
        scope = {**scope, **{name: f"i_{name}" for name in defines(body) if name}}
        del body.value_info[:]  # it may have outer values by their old names
        for each in [*body.input, *body.initializer]:
            each.name = scope.get(each.name, each.name)
        for sparse in body.sparse_initializer:
            sparse.values.name = scope.get(sparse.values.name, sparse.values.name)
        for out in body.output:
            out.name = scope[out.name] if out.name in scope else self._outer(out.name)
        for node in body.node:
            node.input[:] = [scope[name] if name in scope else self._outer(name) for name in node.input]
            node.output[:] = [scope.get(name, name) for name in node.output]
            for inner in bodies(node):
                self._rename(inner, scope)

    def _note_calls(self, proto: onnx.NodeProto) -> None:
        self.called[proto.domain, proto.op_type] = None
        for body in bodies(proto):
            for node in body.node:
                self._note_calls(node)

    def _interface(self) -> None:
        graph, types = self.proto.graph, self.model.graph.type_of
        for value in self.inputs:
            fill_type(graph.input.add(), f"v{value}", types(value))
        given = frozenset(self.inputs)
        seen: set[int] = set()
        for position, value in enumerate(self.outputs):
            name = f"v{value}"
            if value in given or value in seen or value not in self.defined:
                if value not in self.defined and not self.model.graph.is_constant(value):
                    raise InexpressibleError(f"its output {name} is made outside")
                name = f"v{value}_out{position}"
                self.emitter.identity(self.emitter.value(value), name)
            seen.add(value)
            fill_type(graph.output.add(), name, types(value))

    def _finish(self) -> None:
        proto, model = self.proto, self.model
        for value in self.emitter.constants:
            tensor = proto.graph.initializer.add()
            original = model.initializers.get(model.graph.values[value].name)
            if original is None or original.data_type != element_type(model.graph.type_of(value).dtype):
                fill_tensor(tensor, f"v{value}", model.graph.constants[value])
            else:
                tensor.CopyFrom(original)
                tensor.name = f"v{value}"
        for name in self.weights:
            tensor = proto.graph.initializer.add()
            tensor.CopyFrom(model.initializers[name])
            tensor.name = f"w_{name}"
        self._functions()
        domains = {domain for domain, _ in self.called} - set(STANDARD)
        for opset in model.onnx.opset_import:
            if opset.domain in domains:
                proto.opset_import.add(domain=opset.domain, version=opset.version)
        proto.opset_import.add(domain="", version=self.opset)
        proto.ir_version = max(8, min(model.onnx.ir_version, 10))
        proto.producer_name = "collage"
        proto.graph.name = model.name or "part"

    def _functions(self) -> None:
        """Copy the model's functions that are called, also those that other functions call."""
        by_name = {(f.domain, f.name): f for f in self.model.onnx.functions}
        pending = [key for key in self.called if key in by_name]
        copied: set[tuple[str, str]] = set()
        while pending:
            key = pending.pop()
            if key not in copied:
                copied.add(key)
                self.proto.functions.add().CopyFrom(by_name[key])
                for node in by_name[key].node:
                    self._note_calls(node)
                pending += [called for called in self.called if called in by_name]


def _is_optional(proto: onnx.NodeProto, position: int, opset: int) -> bool:
    """Whether the output at ``position`` is optional."""
    if proto.domain not in STANDARD:
        return False
    try:
        schema = onnx.defs.get_schema(proto.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    outputs = schema.outputs
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return position < len(outputs) and outputs[position].option == optional


def export_onnx(
    model: Model,
    nodes: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    verbatim: bool = True,
    apart: bool = False,
) -> onnx.ModelProto:
    """The nodes as an ONNX model with inputs ``v<id>`` and outputs ``v<id>``, in the given orders.

    An output that no node makes, or that comes twice, is a copy named ``v<id>_out<position>``. With ``verbatim=False``
    everything is written operator by operator. With ``apart``, weights that are in files stay there. The operator set
    is the model's own, or 18 if a part of a node needs it; nodes that have changed since are then not kept whole.
    Raises ExportError for an operator without an ONNX form whose ONNX node cannot go back whole.
    """
    found = _exported(model, sorted(nodes), inputs, outputs, verbatim=verbatim)
    return found if apart else filled(found)


def _exported(
    model: Model, order: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], *, verbatim: bool
) -> onnx.ModelProto:
    newest = max(model.opset, EXPORT_OPSET)
    if not verbatim:
        return _Exporter(model, order, inputs, outputs, newest, frozenset()).export()
    whole = _whole_sources(model, order, inputs, outputs)
    cut = any(model.graph.nodes[n].source not in whole for n in order)
    if not cut or model.opset >= EXPORT_OPSET:
        return _Exporter(model, order, inputs, outputs, model.opset, whole).export()
    if model.opset >= _MIXED_OPSET:
        try:
            return _Exporter(model, order, inputs, outputs, model.opset, whole).export()
        except ExportError:
            pass  # some operator is newer than the model's operator set
    stable = frozenset(source for source in whole if _is_stable(model, source))
    return _Exporter(model, order, inputs, outputs, EXPORT_OPSET, stable).export()


def can_export(model: Model, node: int) -> str | None:
    """Why the node cannot be written operator by operator; None when it can. It takes 0.05 ms."""
    emitter = Emitter(model.graph, max(model.opset, EXPORT_OPSET), ())
    try:
        _make(ExportedCall(emitter, model.graph.nodes[node]))
    except InexpressibleError as reason:
        return str(reason)
    return None


def _whole_sources(model: Model, order: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> frozenset[int]:
    """The ONNX nodes that can go back as they are: all of them is in here, and no value inside is needed outside."""
    graph = model.graph
    members = frozenset(order)
    wanted = frozenset(outputs)
    defined = set(inputs)
    whole: set[int] = set()
    for node_id in order:
        source = graph.nodes[node_id].source
        if source in whole:
            continue
        group = model.groups[source]
        if source < 0 or not group <= members or min(group) != node_id:
            defined.update(graph.nodes[node_id].outputs)
            continue
        proto = model.onnx.graph.node[source]
        made = {v for n in group for v in graph.nodes[n].outputs}
        given = {model.onnx_values[name] for name in proto.output if name in model.onnx_values}
        needed = {v for v in made if v in wanted or v in graph.output_set or not group.issuperset(graph.users[v])}
        if needed <= given and all(_available(model, name, defined) for name in reads(proto)):
            whole.add(source)
            defined.update(given & made)
        else:
            defined.update(graph.nodes[node_id].outputs)
    return frozenset(whole)


def _available(model: Model, name: str, defined: Collection[int]) -> bool:
    value = model.onnx_values.get(name)
    return value in defined or name in model.initializers or (value is not None and model.graph.is_constant(value))


def _is_stable(model: Model, source: int) -> bool:
    """Whether the ONNX node means the same in EXPORT_OPSET as in the model's own, older operator set."""
    proto = model.onnx.graph.node[source]
    if proto.domain not in STANDARD:
        return True
    versions = {onnx.defs.get_schema(proto.op_type, o, "").since_version for o in (model.opset, EXPORT_OPSET)}
    return len(versions) == 1 and not any(bodies(proto))
