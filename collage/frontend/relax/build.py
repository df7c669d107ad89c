"""Building a dataflow graph from a Relax function: tuples are flattened, constants folded, and dead code is dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from collage.errors import ModelError
from collage.frontend.relax.importer import OPAQUE_SYMBOL, RelaxImport, tensor_type
from collage.frontend.relax.op_kinds import op_kind
from collage.graph.dataflow import Array, Attr, Graph, Node, OpKind, TensorType, Value, np_dtype

_Attrs = Mapping[str, Attr]
_Folder = Callable[[list[Any], _Attrs, TensorType], Any]


def _to_shape(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    return args[0].reshape(out.shape)


def _permute(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    return np.transpose(args[0], None if attrs["axes"] is None else _ints(attrs["axes"]))


def _ints(value: Attr) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(each for each in value if isinstance(each, int))


def _take(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    axis = attrs["axis"]
    return np.take(args[0], args[1], axis=axis if isinstance(axis, int) else None, mode="wrap")


def _strided_slice(args: list[Any], attrs: _Attrs, out: TensorType) -> Any:
    """The result's shape tells how many elements there are, since ends may be ambiguous."""
    result = args[0]
    axes, begins, strides = _ints(attrs["arg1"]), _ints(attrs["arg2"]), _ints(attrs.get("arg4") or ())
    for axis, begin, stride in zip(axes, begins, strides or (1,) * len(axes), strict=True):
        result = result.take(np.arange(result.shape[axis])[begin::stride][: out.shape[axis]], axis)
    return result


def _elementwise(function: Callable[..., Any]) -> _Folder:
    return lambda args, attrs, out: function(*args)


_FOLDERS: Mapping[str, _Folder] = {
    "reshape": _to_shape,
    "flatten": _to_shape,
    "squeeze": _to_shape,
    "expand_dims": _to_shape,
    "permute_dims": _permute,
    "broadcast_to": lambda args, attrs, out: np.broadcast_to(args[0], out.shape),
    "astype": lambda args, attrs, out: args[0].astype(np_dtype(out.dtype)),
    "concat": lambda args, attrs, out: np.concatenate(args, _ints((attrs["axis"],))[0]),
    "add": _elementwise(np.add),
    "subtract": _elementwise(np.subtract),
    "multiply": _elementwise(np.multiply),
    "divide": _elementwise(np.divide),
    "negative": _elementwise(np.negative),
    "sqrt": _elementwise(np.sqrt),
    "exp": _elementwise(np.exp),
    "take": _take,
    "less": _elementwise(np.less),
    "where": _elementwise(np.where),
    "strided_slice": _strided_slice,
    "shape_to_tensor": lambda args, attrs, out: np.array(attrs["arg0"], dtype=np.int64),
    "full": lambda args, attrs, out: np.full(out.shape, args[0]),
    "zeros": lambda args, attrs, out: np.zeros(out.shape, np_dtype(out.dtype)),
    "ones": lambda args, attrs, out: np.ones(out.shape, np_dtype(out.dtype)),
}


def fold(op: str, args: list[Array], attrs: _Attrs, out: TensorType) -> Array | None:
    """The operator's value on constant arguments, or None for an operator that is not folded.

    numpy computes it: TVM's FoldConstant compiles a kernel each time, 10 to 40 s for a network's weight transposes.
    A result of another dtype than Relax's is not used, since numpy divides and promotes integers differently.
    """
    folder = _FOLDERS.get(op)
    if folder is None or (op == "divide" and not np.issubdtype(np_dtype(out.dtype), np.floating)):
        return None
    with np.errstate(all="ignore"):
        result = np.ascontiguousarray(folder(list(args), attrs, out)).reshape(out.shape)
    return result if result.dtype == np_dtype(out.dtype) else None


_NO_WORK = frozenset({"reshape", "flatten", "squeeze", "expand_dims", "astype", "broadcast_to", "nn.dropout"})


@dataclass(frozen=True)
class BuiltGraph:
    """The graph, with the Relax call of each node and the value id of each ONNX value name.

    ``prim_funcs`` has the PrimFuncs of call_tir nodes by name.
    """

    graph: Graph
    calls: tuple[Any, ...]
    onnx_values: Mapping[str, int]
    prim_funcs: Mapping[str, Any]


def build_graph(imported: RelaxImport, opaque_ops: Mapping[int, str]) -> BuiltGraph:
    """Build the graph of the imported module's function ``main``.

    ``opaque_ops`` has the ONNX operator type of each opaque ONNX node by index; its graph node is named
    ``onnx.<type>``. Raises ModelError for an input or output without a static type.
    """
    builder = _Builder(imported, opaque_ops)
    builder.walk()
    return builder.finish()


@dataclass
class _Draft:
    op: str
    call: Any
    inputs: list[int]
    outputs: list[int]
    attrs: dict[str, Attr]
    source: int


@dataclass
class _Builder:
    imported: RelaxImport
    opaque_ops: Mapping[int, str]
    types: list[TensorType] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)
    drafts: list[_Draft] = field(default_factory=list)
    env: dict[Any, Any] = field(default_factory=dict)
    """The value id of each Relax variable, or a list of ids for a tuple."""
    constant_ids: dict[Any, int] = field(default_factory=dict)
    untyped: dict[str, str] = field(default_factory=dict)

    def walk(self) -> None:
        function = self.imported.module["main"]
        for param in function.params:
            found = tensor_type(param.ty)
            if found is None:
                raise ModelError(f"input {param.name} has no static tensor type ({param.ty}).")
            self.env[param] = self.new_value(found)
        self.inputs = [self.env[p] for p in function.params]
        bindings = [b for block in function.body.blocks for b in block.bindings]
        for binding, source in zip(bindings, self.imported.sources, strict=True):
            self.env[binding.var] = self.expression(binding.value, source)
        returned = self.expression(function.body.body, -1)
        self.outputs = returned if isinstance(returned, list) else [returned]
        if None in self.outputs:
            raise ModelError(f"an output has no static type; it depends on one of: {self.untyped}.")

    def new_value(self, found: TensorType) -> int:
        self.types.append(found)
        return len(self.types) - 1

    def constant(self, array: Array) -> int:
        value = self.new_value(TensorType(tuple(array.shape), array.dtype.name))
        self.constants[value] = array
        return value

    def expression(self, expr: Any, source: int) -> Any:
        if isinstance(expr, relax.Var):
            return self.env[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            if expr not in self.constant_ids:
                self.constant_ids[expr] = self.constant(const_array(expr))
            return self.constant_ids[expr]
        if isinstance(expr, relax.Tuple):
            return [self.expression(each, source) for each in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            fields = self.expression(expr.tuple_value, source)
            return fields[expr.index] if fields is not None else None
        if isinstance(expr, relax.Call):
            return self.call(expr, source)
        if isinstance(expr, relax.ShapeExpr):
            return None  # it is only an argument of a call, where it is read again
        raise ModelError(f"cannot place a {type(expr).__name__} of the Relax module.")

    def call(self, call: Any, source: int) -> Any:
        name = call.op.name.removeprefix("relax.") if isinstance(call.op, tvm.ir.Op) else "call"
        attrs: dict[str, Attr] = dict(_attributes(call.attrs))
        inputs: list[int] = []
        if name == "call_dps_packed" and str(call.args[0].global_symbol) == OPAQUE_SYMBOL:
            name = f"onnx.{self.opaque_ops[source]}"
            self.arguments(call.args[1:], inputs, {})
        else:
            if name == "call_tir":
                attrs["prim_func"] = call.args[0].name_hint
            self.arguments(call.args, inputs, attrs)
        if isinstance(call.ty, relax.ShapeType):
            return None  # shapes are static, so readers of this one find it in its type
        types = _result_types(call.ty)
        if types is None or None in inputs:
            # A conversion that failed half-way has left this behind. It is an error only if live code reads it.
            self.untyped.setdefault(name, str(call.ty))
            return None
        if len(types) == 1 and name in _NO_WORK and inputs and types[0] == self.types[inputs[0]]:
            return inputs[0]
        if len(types) == 1 and all(i in self.constants for i in inputs):
            folded = fold(name, [self.constants[i] for i in inputs], attrs, types[0])
            if folded is not None:
                return self.constant(folded)
        outputs = [self.new_value(each) for each in types]
        self.drafts.append(_Draft(name, call, inputs, outputs, attrs, source))
        return outputs if isinstance(call.ty, relax.TupleType) else outputs[0]

    def arguments(self, args: Any, inputs: list[int], attrs: dict[str, Attr]) -> None:
        for position, arg in enumerate(args):
            if isinstance(arg, relax.Expr) and isinstance(arg.ty, relax.ShapeType):
                attrs[f"arg{position}"] = _plain(arg if isinstance(arg, relax.ShapeExpr) else arg.ty)
            elif isinstance(arg, (relax.Var, tvm.ir.GenericConst)):
                found = self.expression(arg, -1)
                inputs += found if isinstance(found, list) else [found]
            elif isinstance(arg, relax.Tuple) and not (arg.fields and _is_plain(arg.fields[0])):
                self.arguments(arg.fields, inputs, {})
                attrs[f"arg{position}"] = ("tensors", len(arg.fields))
            elif isinstance(arg, tvm.ir.GlobalVar):
                attrs[f"arg{position}"] = arg.name_hint
            else:
                attrs[f"arg{position}"] = _plain(arg)

    def finish(self) -> BuiltGraph:
        live = set(self.outputs)
        kept: list[_Draft] = []
        for draft in reversed(self.drafts):
            if live.intersection(draft.outputs):
                kept.append(draft)
                live.update(draft.inputs)
        kept.reverse()
        names: dict[int, str] = {}
        onnx_values: dict[str, int] = {}
        for name, expr in self.imported.values.items():
            value = self._value_of(expr)
            if value is not None:
                onnx_values[name] = value
                names.setdefault(value, name)
        renumber: dict[int, int] = {}
        values: list[Value] = []

        def number(old: int, producer: int | None) -> int:
            if old not in renumber:
                renumber[old] = len(values)
                values.append(Value(len(values), self.types[old], producer, names.get(old, "")))
            return renumber[old]

        inputs = tuple(number(i, None) for i in self.inputs)
        constants: dict[int, Array] = {}
        nodes: list[Node] = []
        for draft in kept:
            for old in draft.inputs:
                if old in self.constants:
                    constants[number(old, None)] = self.constants[old]
            node_id = len(nodes)
            node_inputs = tuple(renumber[i] for i in draft.inputs)
            node_outputs = tuple(number(o, node_id) for o in draft.outputs)
            kind = OpKind.OPAQUE if draft.op.startswith(("onnx.", "call")) else op_kind(draft.op)
            nodes.append(
                Node(
                    node_id,
                    draft.op,
                    node_inputs,
                    node_outputs,
                    MappingProxyType(draft.attrs),
                    kind,
                    draft.source,
                )
            )
        for old in self.outputs:
            if old in self.constants:
                constants[number(old, None)] = self.constants[old]
        outputs = tuple(renumber[o] for o in self.outputs)
        graph = Graph(tuple(nodes), tuple(values), inputs, outputs, MappingProxyType(constants))
        kept_names = {name: renumber[value] for name, value in onnx_values.items() if value in renumber}
        functions = {g.name_hint: f for g, f in self.imported.module.functions_items() if g.name_hint != "main"}
        return BuiltGraph(graph, tuple(d.call for d in kept), MappingProxyType(kept_names), functions)

    def _value_of(self, expr: Any) -> int | None:
        if isinstance(expr, relax.Var):
            found = self.env.get(expr)
            return found if isinstance(found, int) else None
        return self.constant_ids.get(expr)


def const_array(expr: Any) -> Array:
    """The constant's array, C-contiguous. It is not copied where numpy knows the dtype."""
    try:
        return np.ascontiguousarray(np.from_dlpack(expr.value)).reshape(tuple(expr.value.shape))
    except (BufferError, RuntimeError, TypeError):
        return np.ascontiguousarray(expr.value.numpy())


def _result_types(ty: Any) -> list[TensorType] | None:
    fields = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
    types = [tensor_type(each) for each in fields]
    return None if any(each is None for each in types) else [t for t in types if t is not None]


def _attributes(attrs: Any) -> dict[str, Attr]:
    if attrs is None:
        return {}
    if isinstance(attrs, tvm.ir.DictAttrs):
        return {str(k): _plain(attrs[k]) for k in list(attrs.keys())}
    return {f.name: _plain(getattr(attrs, f.name)) for f in type(attrs).__tvm_ffi_type_info__.fields}


def _is_plain(expr: Any) -> bool:
    return isinstance(expr, (int, float, tirx.IntImm, tirx.FloatImm))


def _plain(value: Any) -> Attr:
    """A TVM attribute as a plain Python value: a number, a string, or a (nested) tuple of these."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if not isinstance(value, str) else str(value)
    if isinstance(value, (tirx.IntImm, tirx.FloatImm)):
        number: int | float = value.value
        return number
    if isinstance(value, (relax.ShapeExpr, relax.ShapeType)):
        return tuple(_plain(v) for v in value.values)
    if isinstance(value, relax.Tuple):
        return tuple(_plain(v) for v in value.fields)
    if isinstance(value, (tvm_ffi.Array, list, tuple)):
        return tuple(_plain(v) for v in value)
    if isinstance(value, tvm.ir.StringImm):
        return str(value.value)
    return str(value)
