"""The tools of the makers of ``exporter``: they write ONNX nodes and initializers named after graph values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
import onnx

from collage.graph.dataflow import Array, Attr, Graph, Node, TensorType, np_dtype

OnnxAttr: TypeAlias = "int | float | str | Sequence[int] | Sequence[float]"
Maker: TypeAlias = "Callable[[ExportedCall], str | Sequence[str | None]]"

DATA_LAYOUTS = ("NCW", "NCHW", "NCDHW")
"""The data layouts of ONNX, by their names in Relax."""


class InexpressibleError(Exception):
    """An operator has no ONNX form with the same meaning. The message is only the reason."""


@cache
def element_type(dtype: str) -> int:
    """The ONNX element type of a dtype of numpy or ml_dtypes, by name. Raises InexpressibleError."""
    try:
        found = int(onnx.helper.np_dtype_to_tensor_dtype(np_dtype(dtype)))
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise InexpressibleError(f"ONNX has no dtype {dtype}") from error
    if dtype.startswith(("int4", "uint4", "int2", "uint2", "float4")):  # several elements share a byte
        raise InexpressibleError(f"tensors of {dtype} are packed in ONNX")
    return found


def fill_type(info: onnx.ValueInfoProto, name: str, found: TensorType) -> None:
    """Write into ``info`` that the value ``name`` has this static type. Raises InexpressibleError."""
    info.name = name
    tensor = info.type.tensor_type
    tensor.elem_type = element_type(found.dtype)
    tensor.shape.SetInParent()
    for extent in found.shape:
        tensor.shape.dim.add().dim_value = extent


def fill_tensor(tensor: onnx.TensorProto, name: str, array: Array) -> None:
    """Write the initializer ``name`` with this content into ``tensor``. It works for all dtypes, also of ml_dtypes.

    Raises InexpressibleError.
    """
    tensor.name = name
    tensor.data_type = element_type(array.dtype.name)
    tensor.dims.extend(array.shape)
    tensor.raw_data = array.tobytes()


@dataclass
class Emitter:
    """Collects the ONNX form of graph nodes in ``proto``, for the default operator set ``opset``.

    ``given`` are the ids of values that are inputs. Constants of the graph are only noted in ``constants``: their
    content is copied once, when the model is finished.
    """

    graph: Graph
    opset: int
    given: Collection[int]
    proto: onnx.GraphProto = field(default_factory=onnx.GraphProto)
    constants: dict[int, None] = field(default_factory=dict)
    _literals: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _fresh: int = 0

    def fresh(self) -> str:
        """A name that is not used yet."""
        self._fresh += 1
        return f"t{self._fresh}"

    def value(self, value: int) -> str:
        """The name of a graph value that is read. A constant is noted, to become an initializer."""
        if value in self.graph.constants and value not in self.given:
            self.constants[value] = None
        return f"v{value}"

    def literal(self, array: Array) -> str:
        """The name of an initializer with this small content. Equal ones are shared."""
        key = (array.dtype.name, array.shape, array.tobytes())
        name = self._literals.get(key)
        if name is None:
            name = self._literals[key] = f"k{len(self._literals)}"
            fill_tensor(self.proto.initializer.add(), name, array)
        return name

    def write(self, op: str, inputs: Sequence[str], outputs: Sequence[str], attrs: Mapping[str, OnnxAttr]) -> None:
        """Append a node."""
        node = self.proto.node.add()
        node.op_type = op
        node.input.extend(inputs)
        node.output.extend(outputs)
        for name, value in attrs.items():
            _fill_attribute(node.attribute.add(), name, value)

    def identity(self, source: str, target: str) -> None:
        """Append ``target = source``."""
        self.write("Identity", [source], [target], {})


def _fill_attribute(proto: onnx.AttributeProto, name: str, value: OnnxAttr) -> None:
    proto.name = name
    if isinstance(value, str):
        proto.type, proto.s = onnx.AttributeProto.STRING, value.encode()
    elif isinstance(value, (bool, int)):
        proto.type, proto.i = onnx.AttributeProto.INT, int(value)
    elif isinstance(value, float):
        proto.type, proto.f = onnx.AttributeProto.FLOAT, value
    elif any(isinstance(each, float) for each in value):
        proto.type = onnx.AttributeProto.FLOATS
        proto.floats.extend(float(each) for each in value)
    else:
        proto.type = onnx.AttributeProto.INTS
        proto.ints.extend(int(each) for each in value)


class ExportedCall:
    """One operator of the graph, in the form that makers take. ``x`` are the names of its inputs, in order.

    A maker builds an expression with ``op`` and returns the name of its result, or the names of its results.
    """

    def __init__(self, emitter: Emitter, node: Node) -> None:
        graph = emitter.graph
        self.node = node
        self.emitter = emitter
        self.opset = emitter.opset
        self.x = [emitter.value(v) for v in node.inputs]
        self.types = [graph.type_of(v) for v in node.inputs]
        self.out = graph.type_of(node.outputs[0])
        self.out_types = [graph.type_of(v) for v in node.outputs]
        self._pending: list[tuple[str, Sequence[str], Sequence[str], Mapping[str, OnnxAttr]]] = []

    # -- building ------------------------------------------------------------------------------------

    def op(self, op: str, *inputs: str, **attrs: OnnxAttr) -> str:
        """Add a node of one output. Returns the name of the output. An input "" is an optional one that is left out."""
        return self.ops(op, 1, *inputs, **attrs)[0]

    def ops(self, op: str, count: int, *inputs: str, **attrs: OnnxAttr) -> list[str]:
        """Add a node of ``count`` outputs. Returns their names."""
        outputs = [self.emitter.fresh() for _ in range(count)]
        self._pending.append((op, inputs, outputs, attrs))
        return list(outputs)

    def ints(self, values: Sequence[int] | int) -> str:
        """The name of an int64 initializer: a vector, or a scalar."""
        return self.emitter.literal(np.array(values, np.int64))

    def number(self, value: Attr, dtype: str) -> str:
        """The name of a scalar initializer of this dtype."""
        return self.emitter.literal(np.array(value).astype(np_dtype(dtype)))

    def array(self, array: Array) -> str:
        """The name of an initializer with this content."""
        return self.emitter.literal(np.ascontiguousarray(array).reshape(array.shape))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """``x`` in the given shape, whose extents are not negative."""
        if 0 not in shape:
            return self.op("Reshape", x, self.ints(shape))
        self.need_opset(14)
        return self.op("Reshape", x, self.ints(shape), allowzero=1)

    def cast(self, x: str, source: str, target: str) -> str:
        """``x``, which is of dtype ``source``, cast to dtype ``target``."""
        return x if source == target else self.op("Cast", x, to=element_type(target))

    def reduce(self, op: str, x: str, axes: Sequence[int], keepdims: bool) -> str:
        """Add a reduction. Its axes became an input in operator set 13 (ReduceSum) or 18 (the others)."""
        if not axes:
            return self.op(op, x, keepdims=int(keepdims))
        if self.opset >= 18 or op == "ReduceSum":
            return self.op(op, x, self.ints(axes), keepdims=int(keepdims))
        return self.op(op, x, axes=axes, keepdims=int(keepdims))

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """``x[..., start:stop:step]`` on one axis."""
        return self.op("Slice", x, self.ints([start]), self.ints([stop]), self.ints([axis]), self.ints([step]))

    # -- asking --------------------------------------------------------------------------------------

    def attr(self, name: str) -> Attr:
        """An attribute, or None if it is absent."""
        return self.node.attrs.get(name)

    def integer(self, name: str) -> int:
        """An attribute that must be an integer. Raises InexpressibleError."""
        value = self.attr(name)
        if not isinstance(value, int):
            raise InexpressibleError(f"attribute {name} is {value!r}, no integer")
        return int(value)

    def real(self, name: str) -> float:
        """An attribute that must be a number. Raises InexpressibleError."""
        value = self.attr(name)
        if not isinstance(value, (int, float)):
            raise InexpressibleError(f"attribute {name} is {value!r}, no number")
        return float(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that must be an integer or a tuple of integers. Raises InexpressibleError."""
        return as_integers(self.attr(name), name)

    def text(self, name: str) -> str:
        """An attribute that must be a string."""
        return str(self.attr(name))

    def need(self, condition: object, reason: str) -> None:
        """Raise InexpressibleError with the reason unless the condition holds."""
        if not condition:
            raise InexpressibleError(reason)

    def need_opset(self, opset: int) -> None:
        """Raise InexpressibleError below this operator set."""
        self.need(self.opset >= opset, f"needs operator set {opset}, the model is exported at {self.opset}")

    def axis(self) -> int:
        """The attribute ``axis`` of the first input as a non-negative number."""
        return self.integer("axis") % max(1, len(self.types[0].shape))

    def axes(self, name: str = "axis") -> tuple[int, ...]:
        """Axes of the first input as sorted non-negative numbers. A missing attribute stands for all axes."""
        rank = len(self.types[0].shape)
        if self.attr(name) is None:
            return tuple(range(rank))
        return tuple(sorted(each % max(1, rank) for each in self.integers(name)))

    # -- finishing -----------------------------------------------------------------------------------

    def finish(self, results: str | Sequence[str | None]) -> None:
        """Write the nodes, with the results named after the operator's outputs. Raises InexpressibleError."""
        names = [results] if isinstance(results, str) else list(results)
        names += [None] * (len(self.node.outputs) - len(names))
        made = {name for _, _, outputs, _ in self._pending for name in outputs}
        renamed: dict[str, str] = {}
        copies: list[tuple[str, str]] = []
        graph = self.emitter.graph
        for value, name in zip(self.node.outputs, names, strict=True):
            if name is None:
                if graph.users[value] or value in graph.output_set:
                    raise InexpressibleError(f"output {self.node.outputs.index(value)} has no ONNX form")
            elif name in made and name not in renamed:
                renamed[name] = f"v{value}"
            else:
                copies.append((name, f"v{value}"))
        for op, *sides, attrs in self._pending:
            inputs, outputs = ([renamed.get(name, name) for name in side] for side in sides)
            self.emitter.write(op, inputs, outputs, attrs)
        for source, target in copies:
            self.emitter.identity(renamed.get(source, source), target)


def as_integers(value: Attr, name: str = "argument") -> tuple[int, ...]:
    """An integer, or a tuple of integers, as a tuple. Raises InexpressibleError for anything else."""
    items = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(each, int) for each in items):
        raise InexpressibleError(f"attribute {name} is {value!r}, not static integers")
    return tuple(int(each) for each in items if isinstance(each, int))


def is_float(dtype: str) -> bool:
    """Whether a dtype, by name, is a floating-point one, as those of ml_dtypes are."""
    return dtype != "bool" and not np.issubdtype(np_dtype(dtype), np.integer)
