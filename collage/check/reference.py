"""Reference values of every tensor of a model, from ONNX Runtime without its optimisations.

ONNX nodes run one by one as their author wrote them. That gives the values between them. Where TVM's importer broke a
node into operators, the values inside come from running these operators, which at the same time shows whether they
compute what the ONNX node does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from collage.check.compare import is_tolerable, region_tolerance, relative_error
from collage.check.sample import nearby_outputs
from collage.check.store import ValueStore
from collage.core.library_text import library_text
from collage.errors import MeasurementError
from collage.frontend.export.to_onnx import ExportError, export_onnx
from collage.frontend.model import Model
from collage.frontend.read.proto_size import bytes_of
from collage.frontend.read.scopes import reads
from collage.frontend.read.weights import array_of, fill
from collage.frontend.session import PartSession
from collage.graph.dataflow import Array, np_dtype

log = logging.getLogger(__name__)

_EMBED_BELOW_BYTES = 1 << 16
_LARGEST_PROTO_BYTES = 1 << 30


def evaluate(model: Model, inputs: Sequence[Array], store: ValueStore, node_limit_s: float = 60.0) -> dict[int, str]:
    """Save an array for each graph value that can be computed, given the graph inputs' arrays in order.

    Returns the ONNX nodes (by index) whose conversion is wrong, with the reasons. When these are mended, others may be
    found. Inner values of these nodes, and of nodes whose operators have no ONNX form, are not saved. Raises
    MeasurementError for a full disk, and for an ONNX node that runs for more than ``node_limit_s`` seconds, since its
    loop may be one that never ends.
    """
    for value, array in zip(model.graph.inputs, inputs, strict=True):
        store.save(value, array)
    wrong = _run_verbatim(model, inputs, store, node_limit_s)
    nodes = model.onnx.graph.node
    replaced = {name for source in wrong for name in nodes[source].output}
    order = sorted(model.groups, key=lambda source: min(model.groups[source]))
    for source in order:
        # What reads a value in the place of another one can be compared when that is mended.
        waits = source in wrong or (source >= 0 and not replaced.isdisjoint(reads(nodes[source])))
        reason = None if waits else _run_operators(model, source, store)
        if reason is not None:
            wrong[source] = reason
    for source, reason in wrong.items():
        log.warning("ONNX node %s: %s", model.onnx.graph.node[source].name, reason)
    return wrong


def _run_verbatim(model: Model, inputs: Sequence[Array], store: ValueStore, limit_s: float) -> dict[int, str]:
    """Run the ONNX nodes in order, and save those of their outputs that are values of the graph.

    Returns the nodes (by index) with an output that the conversion has replaced by another value, and wrongly so.
    """
    wrong: dict[int, str] = {}
    graph = model.onnx.graph
    runner = _NodeRunner(model)
    values: dict[str, Any] = dict(zip(model.input_names, inputs, strict=True))
    left = Counter(name for node in graph.node for name in reads(node))
    for index, node in enumerate(graph.node):
        names = reads(node)
        found = runner.run(node, values, limit_s)
        for name, array in found.items():
            values[name] = array
            value = model.onnx_values.get(name)
            if value is None:
                continue
            if not model.graph.is_constant(value) and value not in store:
                _save(model, store, value, array)
            elif problem := _not_equal(model, store, value, array):
                wrong[index] = problem
        left.subtract(list(names))
        for name in names:
            if left[name] == 0:
                values.pop(name, None)
    return wrong


def _not_equal(model: Model, store: ValueStore, value: int, array: Any) -> str:
    """Why a value that is known is not the ``array`` that ONNX Runtime gives for it; "" where it is.

    The value is a constant, or another node has made it: the conversion of this node has left no operator.
    """
    graph = model.graph
    kind = graph.type_of(value)
    known = graph.constants[value] if graph.is_constant(value) else store.load(value, kind)
    if not isinstance(array, np.ndarray) or not relative_error(known, array) <= region_tolerance([kind.dtype]):
        what = "a constant" if graph.is_constant(value) else "another value"
        return f"TVM's conversion to {what} differs from ONNX Runtime"
    return ""


def _save(model: Model, store: ValueStore, value: int, array: Any) -> None:
    found = model.graph.type_of(value)
    if isinstance(array, np.ndarray) and array.shape == found.shape and array.dtype == np_dtype(found.dtype):
        store.save(value, array)
    else:
        log.warning("value %d: ONNX Runtime gives no %s", value, found)


def _run_operators(model: Model, source: int, store: ValueStore) -> str | None:
    """Save the inner values of an ONNX node's operators, or return what is wrong when they disagree with the node.

    ``source`` is the node's index. It is -1 for operators of no ONNX node, which have inner values only.
    """
    graph = model.graph
    nodes = sorted(model.groups[source])
    made = [value for n in nodes for value in graph.nodes[n].outputs]
    if graph.nodes[nodes[0]].op.startswith("onnx."):
        return None  # the node is opaque, so nothing was converted
    read = dict.fromkeys(v for n in nodes for v in graph.nodes[n].inputs if v not in made and not graph.is_constant(v))
    if any(value not in store for value in read):
        return None
    try:
        part = export_onnx(model, nodes, list(read), made, verbatim=False)
        results = _run(part, {f"v{v}": store.load(v, graph.type_of(v)) for v in read})
    except ExportError as error:
        log.debug("no inner values: %s", error)
        return None
    except Exception as error:  # ORT's exceptions share no base class but Exception
        log.debug("no inner values of %s: %s", model.describe_node(nodes[0]), library_text(error))
        return None
    arrays = dict(zip(made, results, strict=True))
    allowed = region_tolerance(graph.type_of(v).dtype for v in [*made, *read])
    known = [value for value in made if value in store]
    expected = {v: store.load(v, graph.type_of(v)) for v in known}
    worst = max((relative_error(arrays[v], expected[v]) for v in known), default=0.0)
    if source >= 0 and not worst <= allowed and np.isfinite(worst):
        nearby = [*nearby_outputs(part, {f"v{v}": store.load(v, graph.type_of(v)) for v in read}, _run)]
        around = {v: [outputs[made.index(v)] for outputs in nearby] for v in known}
        if all(is_tolerable(expected[v], arrays[v], allowed, around[v]) for v in known):
            worst = allowed
    if source >= 0 and not worst <= allowed:
        ops = ", ".join(dict.fromkeys(graph.nodes[n].op for n in nodes))
        how = "in type, integers or NaN" if worst == np.inf else f"by {worst:.1e} of its scale"
        return f"TVM's conversion to {ops} differs from ONNX Runtime {how}"
    for value, array in arrays.items():
        if value not in store:
            _save(model, store, value, array)
    return None


class _NodeRunner:
    """Runs single ONNX nodes as their author wrote them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        graph = model.onnx.graph
        self._declared = {info.name: info for info in [*graph.value_info, *graph.output]}

    def run(self, node: onnx.NodeProto, values: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The node's outputs by name, or nothing when an input is unknown or ONNX Runtime refuses the node.

        Raises MeasurementError when the node runs for more than ``limit_s`` seconds.
        """
        initializers = self._model.initializers
        names = list(reads(node))
        if any(name not in values and name not in initializers for name in names):
            return {}
        outputs = [name for name in node.output if name]
        # Small initializers are embedded, since some operators want constants; weights are fed.
        for limit in (_EMBED_BELOW_BYTES, _LARGEST_PROTO_BYTES):
            embedded = [n for n in names if n not in values and bytes_of(initializers[n]) < limit]
            fed = {n: values[n] if n in values else array_of(initializers[n]) for n in names if n not in embedded}
            try:
                results = _run(self._part(node, fed, embedded), fed, limit_s)
                return dict(zip(outputs, results, strict=True))
            except TimeoutError as late:
                raise MeasurementError(
                    f"ONNX node {node.name} ({node.op_type}) {late} in ONNX Runtime. Does its loop end? "
                    "Allow it more with --time-limit (time_limit_s= in Python)."
                ) from late
            except Exception as error:  # ORT's exceptions share no base class but Exception
                text = library_text(error)
                log.debug("node %s by itself in ONNX Runtime: %s", node.name, text)
        return {}

    def _part(self, node: onnx.NodeProto, fed: Mapping[str, Any], embedded: Sequence[str]) -> onnx.ModelProto:
        """The node as a model of its own."""
        model = self._model.onnx
        part = onnx.ModelProto(ir_version=model.ir_version)
        part.opset_import.extend(model.opset_import)
        part.functions.extend(model.functions)
        part.graph.name = "node"
        part.graph.node.add().CopyFrom(node)
        for name, array in fed.items():
            element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            part.graph.input.append(onnx.helper.make_tensor_value_info(name, element, array.shape))
        part.graph.initializer.extend(self._model.initializers[name] for name in embedded)
        for tensor in part.graph.initializer:
            fill(tensor)
        for name in filter(None, node.output):
            part.graph.output.append(self._declared.get(name, onnx.ValueInfoProto(name=name)))
        return part


def _run(part: onnx.ModelProto, feeds: Mapping[str, Any], limit_s: float = 60.0) -> list[Any]:
    return PartSession(part).run(feeds, limit_s)
