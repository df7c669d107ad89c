"""Converting ONNX to Relax node by node. A node that TVM's importer cannot convert becomes an opaque call.

TVM's converters do the work. The loop over the nodes is ours, so that one unsupported node costs only itself, and every
binding knows the ONNX node that it came from.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.read.proto_size import itemsize
from collage.frontend.read.randomness import Randomness
from collage.frontend.read.scopes import STANDARD, captures, opset_of, reads
from collage.frontend.read.weights import array_of, is_apart, mapped
from collage.frontend.relax.overrides import OVERRIDES, bounded_indices, in_bounds, unless_empty
from collage.graph.dataflow import TensorType

log = logging.getLogger(__name__)

OPAQUE_SYMBOL = "collage.onnx_node"
_MODEL_TEXT = 300
_NODE_TEXT = 200
"""Characters that are kept of what TVM says about a model, and about a node."""

_SHAPE_INPUTS_ALLOWED = frozenset(
    "Reshape Resize ConstantOfShape Gather Slice Shape Expand Concat Equal Where Cast CastLike Squeeze".split()
)


class DataDependentError(ModelError):
    """Some shapes depend on data or are unknown. ``nodes`` are the indices of the ONNX nodes with such shapes."""

    def __init__(self, message: str, nodes: frozenset[int]) -> None:
        super().__init__(message)
        self.nodes = nodes


@dataclass(frozen=True)
class RelaxImport:
    """A Relax module whose ``main`` has one dataflow block.

    ``sources`` has the index of the ONNX node for each binding. ``values`` maps names of ONNX values to Relax
    expressions. ``opaque`` has the reason for each opaque ONNX node, by index.
    """

    module: tvm.IRModule
    sources: tuple[int, ...]
    values: Mapping[str, Any]
    opaque: Mapping[int, str]


def import_onnx(model: onnx.ModelProto, force_opaque: Mapping[int, str] = {}) -> RelaxImport:
    """Convert a simplified model (static input shapes, unique node names) to Relax.

    ``force_opaque`` has the nodes, by index, whose conversion is known to be wrong, with the reasons. Raises
    DataDependentError when the output of an opaque node has no static shape, and ModelError for a model that TVM cannot
    take at all.
    """
    importer = _Importer(model, force_opaque)
    opset = opset_of(model) or 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importer.from_onnx(model.graph, opset)
        except Exception as error:  # TVM raises anything for types that it does not know (strings, sequences)
            text = _end_of_text(error, _MODEL_TEXT)
            raise ModelError(f"TVM's importer cannot take the model: {type(error).__name__}: {text}") from error
    if importer.beyond:
        raise DataDependentError(importer.problem, frozenset(importer.beyond))
    return RelaxImport(module, importer.binding_sources(module), dict(importer._nodes), importer.reasons)


def lacks_variadic_input(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node leaves out one of the inputs of which its operator takes any number, as Concat does.

    ONNX has no meaning for that, but its checker does not look.
    """
    if "" not in node.input or not onnx.defs.has(node.op_type, node.domain):
        return False
    try:
        inputs = onnx.defs.get_schema(node.op_type, opset, node.domain).inputs
    except onnx.defs.SchemaError:
        return False
    variadic = bool(inputs) and inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return variadic and "" in node.input[len(inputs) - 1 :]


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto, force_opaque: Mapping[int, str]) -> None:
        super().__init__({}, None, keep_params_in_input=False, sanitize=True)
        self._types = _declared_types(model)
        self._texts = _texts(model)
        self._force_opaque = force_opaque
        self._unparsed = {t.name: t.data_type for t in model.graph.initializer if not itemsize(t.data_type)}
        """Constants of elements that TVM lacks, such as those of 4 bits. Only engines get them."""
        self._randomness = Randomness(model)
        self._marks: dict[Any, int] = {}
        self._shapeless: set[str] = set()
        self.reasons: dict[int, str] = {}
        self.beyond: set[int] = set()
        """Nodes whose outputs have no static shape, and all nodes that read those."""
        self.problem = ""
        """What is wrong with the first of them."""

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        if self._unparsed:
            kept = [each for each in graph.initializer if each.name not in self._unparsed]
            graph = onnx.GraphProto(initializer=kept)
        super()._parse_graph_initializers(graph)

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        pass  # an unsupported operator becomes an opaque call

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> Any:
        """A tensor of TVM's: that of weights in a file is the file's memory."""
        if is_apart(tensor_proto):
            try:
                return tvm.runtime.from_dlpack(mapped(tensor_proto))
            except (BufferError, RuntimeError, TypeError, ValueError):
                # It is not at a boundary that TVM needs, as small weights often are.
                return tvm.runtime.tensor(array_of(tensor_proto))
        return super()._parse_array(tensor_proto)

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for index, node in enumerate(graph.node):
            results = None
            if self._shapeless.isdisjoint(reads(node)):
                results = self._try_convert(index, node)
                if results is None:
                    results = self._opaque_call(index, node)
            if results is None:
                self.beyond.add(index)
                self._shapeless.update(node.output)
                continue
            for name, expr in zip(node.output, results, strict=False):
                if name:
                    self._nodes[name] = self._mark(index, expr)
        for info in graph.output:
            if info.name in self._shapeless:
                self._nodes[info.name] = relax.const(0)  # so that the function can be completed

    def _mark(self, index: int, expr: Any) -> Any:
        """Bind a node's output. All bindings since the last marked one then belong to this node."""
        if isinstance(expr, (relax.ShapeExpr, tvm.ir.GenericConst)):
            return expr
        var = self.bb.emit(expr)
        self._marks[var] = index
        return var

    def binding_sources(self, module: tvm.IRModule) -> tuple[int, ...]:
        sources: list[int] = []
        for block in module["main"].body.blocks:
            for binding in block.bindings:
                sources.append(self._marks.get(binding.var, -1))
        for position in range(len(sources) - 2, -1, -1):
            if sources[position] < 0:
                sources[position] = sources[position + 1]
        return tuple(sources)

    def _try_convert(self, index: int, node: onnx.NodeProto) -> list[Any] | None:
        """The outputs of the converted node. Where it cannot be converted, None, and the reason is recorded."""
        if index in self._force_opaque:
            self.reasons[index] = self._force_opaque[index]
            return None
        if "Sequence" in node.op_type:
            self.reasons[index] = "sequences are not converted"  # TVM's importer hangs on some of them
            return None
        if node.domain not in STANDARD:
            self.reasons[index] = f"operator domain {node.domain} is unknown to TVM's importer"
            return None
        if self._randomness.draws(node):
            self.reasons[index] = "it draws random numbers"
            return None
        if unparsed := [self._unparsed[name] for name in reads(node) if name in self._unparsed]:
            kind = onnx.TensorProto.DataType.Name(unparsed[0]).lower()
            self.reasons[index] = f"TVM's importer has no constants of type {kind}"
            return None
        if lacks_variadic_input(node, self.opset):
            self.reasons[index] = "one of any number of inputs is left out"  # TVM's importer ends the process
            return None
        try:
            results = self._convert(node)
            problem = self._type_problem(node, results)
        except Exception as error:  # converters raise anything, from AssertionError to TVM's own
            problem = f"TVM's importer: {type(error).__name__}: {_end_of_text(error, _NODE_TEXT)}"
        if problem is not None:
            self.reasons[index] = problem
            return None
        return results

    def _convert(self, node: onnx.NodeProto) -> list[Any]:
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            hint = (
                "; if an input chooses the branch, give its value with inputs (--input)" if node.op_type == "If" else ""
            )
            raise NotImplementedError(f"control flow stays with ONNX Runtime{hint}")
        attributes = self._parse_attr(node.attribute)
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        inputs = onnx_frontend.onnx_input()
        for name in node.input:
            inputs.append(self._nodes[name] if name else None)
        if node.op_type not in _SHAPE_INPUTS_ALLOWED and any(isinstance(i, relax.ShapeExpr) for i in inputs):
            raise NotImplementedError("takes no shape expression")
        if node.op_type == "Resize":
            inputs = [inputs[0], *map(unless_empty, inputs[1:])]
        bounded = bounded_indices(node.op_type, inputs, attributes)
        if bounded is not None:
            inputs[1] = self.bb.normalize(bounded)
        override = OVERRIDES.get(node.op_type)
        result = None if override is None else override(list(inputs), attributes)
        if result is not None:
            result = self.bb.normalize(result)
        else:
            result = in_bounds(self._convert_operator(node.op_type, inputs, attributes, self.opset))
        if isinstance(result, relax.Tuple):
            return list(result)
        if isinstance(getattr(result, "ty", None), relax.TupleType):
            var = self.bb.emit(result)
            return [relax.TupleGetItem(var, i) for i in range(len(result.ty.fields))]
        return [result]

    def _type_problem(self, node: onnx.NodeProto, results: list[Any]) -> str | None:
        if len(results) < sum(1 for name in node.output if name):
            return f"TVM's importer gives {len(results)} of {len(node.output)} outputs"
        for name, expr in zip(node.output, results, strict=False):
            if not name or isinstance(expr, relax.ShapeExpr):
                continue
            found = tensor_type(self.bb.normalize(expr).ty)
            if found is None:
                return f"TVM's importer gives no static type for output {name}"
            declared = self._types.get(name)
            if declared is not None and declared != found:
                return f"TVM's importer gives {found} for output {name}, ONNX says {declared}"
        return None

    def _opaque_call(self, index: int, node: onnx.NodeProto) -> list[Any] | None:
        """The outputs of a call that only engines can run, or None if a shape is not known."""
        unknown = [name for name in node.output if name and name not in self._types]
        if unknown:
            what = f"the shape of output {unknown[0]} depends on data or is unknown"
            if unknown[0] in self._texts:
                what = f"output {unknown[0]} is text"
            self.problem = self.problem or (
                f"node {node.name} ({node.op_type}): {what}, and TVM cannot convert it ({self.reasons[index]})."
            )
            return None
        log.info("node %s (%s) stays opaque: %s", node.name, node.op_type, self.reasons[index])
        declared = [self._types[name] for name in node.output if name]
        types = [relax.TensorType(list(each.shape), each.dtype) for each in declared]
        names = [n for n in (*node.input, *captures(node)) if n and n not in self._unparsed]
        arguments = [self._as_tensor(self._nodes[name]) for name in names]
        call = relax.call_dps_packed(OPAQUE_SYMBOL, relax.Tuple(arguments), types)
        if len(types) == 1:
            found = [call]
        else:
            var = self.bb.emit(call)
            found = [relax.TupleGetItem(var, i) for i in range(len(types))]
        outputs = iter(found)
        return [next(outputs) if name else None for name in node.output]

    @staticmethod
    def _as_tensor(expr: Any) -> Any:
        if isinstance(expr, relax.ShapeExpr):
            return relax.const(np.array([int(v) for v in expr.values], dtype=np.int64))
        return expr


def _end_of_text(error: Exception, limit: int) -> str:
    """The last ``limit`` characters of what TVM says: the reason stands after the lines of TVM's own stack."""
    return library_text(error, sys.maxsize)[-limit:]


def tensor_type(ty: Any) -> TensorType | None:
    """The static tensor type of a Relax type, or None."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    extents = [v if isinstance(v, int) else getattr(v, "value", None) for v in ty.shape.values]
    if not all(isinstance(extent, int) for extent in extents) or str(ty.dtype) == "":
        return None
    return TensorType(tuple(int(e) for e in extents if e is not None), str(ty.dtype))


def declared_type(info: onnx.ValueInfoProto) -> TensorType | None:
    """The static tensor type of an ONNX value, or None, as for texts, which TVM does not know."""
    if info.type.WhichOneof("value") != "tensor_type":
        return None
    tensor = info.type.tensor_type
    if tensor.elem_type == onnx.TensorProto.STRING:
        return None
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    except (KeyError, TypeError):
        return None
    return TensorType(tuple(d.dim_value for d in tensor.shape.dim), dtype)


def _declared_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    infos: Collection[onnx.ValueInfoProto] = [*model.graph.value_info, *model.graph.output]
    return {info.name: found for info in infos if (found := declared_type(info)) is not None}


def _texts(model: onnx.ModelProto) -> frozenset[str]:
    """The values that hold texts."""
    infos: Collection[onnx.ValueInfoProto] = [*model.graph.value_info, *model.graph.output]
    return frozenset(i.name for i in infos if i.type.tensor_type.elem_type == onnx.TensorProto.STRING)
