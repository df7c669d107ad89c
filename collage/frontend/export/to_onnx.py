"""A part of the graph as an ONNX model of its own, which ONNX Runtime and OpenVINO get.

Where the part covers whole ONNX nodes, these go back as they are, so that the engine's own fusions apply to what the
author wrote. Where it has only a part of an ONNX node, that is written operator by operator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from collage.frontend.export.emit import Emitter, ExportedCall, InexpressibleError
from collage.frontend.export.exporter import Exporter, ExportError, make
from collage.frontend.model import Model
from collage.frontend.read.apart import filled
from collage.frontend.read.scopes import STANDARD, bodies, reads

__all__ = ["EXPORT_OPSET", "ExportError", "can_export", "export_onnx"]

EXPORT_OPSET = 18
"""The least operator set of a part that is written operator by operator."""

_MIXED_OPSET = 13
"""From this operator set on, what the makers write is valid beside the model's own nodes, or they refuse."""


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
    everything is written operator by operator. Constants are copied once; with ``apart``, weights that are in files
    stay there.

    The operator set is the model's own where that is enough. A part with an incomplete ONNX node of a model older than
    operator set 18 may need 18. It then keeps only those whole nodes that have not changed since. Raises ExportError
    when an operator has no ONNX form and its ONNX node cannot go back whole.
    """
    found = _exported(model, sorted(nodes), inputs, outputs, verbatim=verbatim)
    return found if apart else filled(found)


def _exported(
    model: Model, order: Sequence[int], inputs: Sequence[int], outputs: Sequence[int], *, verbatim: bool
) -> onnx.ModelProto:
    newest = max(model.opset, EXPORT_OPSET)
    if not verbatim:
        return Exporter(model, order, inputs, outputs, newest, frozenset()).export()
    whole = _whole_sources(model, order, inputs, outputs)
    cut = any(model.graph.nodes[n].source not in whole for n in order)
    if not cut or model.opset >= EXPORT_OPSET:
        return Exporter(model, order, inputs, outputs, model.opset, whole).export()
    if model.opset >= _MIXED_OPSET:
        try:
            return Exporter(model, order, inputs, outputs, model.opset, whole).export()
        except ExportError:
            pass  # some operator is newer than the model's operator set
    stable = frozenset(source for source in whole if _is_stable(model, source))
    return Exporter(model, order, inputs, outputs, EXPORT_OPSET, stable).export()


def can_export(model: Model, node: int) -> str | None:
    """Why the node cannot be written operator by operator; None when it can. It takes 0.05 ms."""
    emitter = Emitter(model.graph, max(model.opset, EXPORT_OPSET), ())
    try:
        make(ExportedCall(emitter, model.graph.nodes[node]))
    except InexpressibleError as reason:
        return str(reason)
    return None


def _whole_sources(
    model: Model, order: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]
) -> frozenset[int]:
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
        needed = {
            v for v in made if v in wanted or v in graph.output_set or not group.issuperset(graph.users[v])
        }
        if needed <= given and all(_available(model, name, defined) for name in reads(proto)):
            whole.add(source)
            defined.update(given & made)
        else:
            defined.update(graph.nodes[node_id].outputs)
    return frozenset(whole)


def _available(model: Model, name: str, defined: Collection[int]) -> bool:
    value = model.onnx_values.get(name)
    return (
        value in defined
        or name in model.initializers
        or (value is not None and model.graph.is_constant(value))
    )


def _is_stable(model: Model, source: int) -> bool:
    """Whether the ONNX node means the same in EXPORT_OPSET as in the model's own, older operator set."""
    proto = model.onnx.graph.node[source]
    if proto.domain not in STANDARD:
        return True
    versions = {onnx.defs.get_schema(proto.op_type, o, "").since_version for o in (model.opset, EXPORT_OPSET)}
    return len(versions) == 1 and not any(bodies(proto))
