"""A program from an ONNX graph: values are arrays of columns, which operators read and make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.frontend import messages
from collage.frontend.messages import ModelProto, NodeProto
from collage.native.table import MOST_COLUMNS, Column, TableProgram

Array: TypeAlias = "npt.NDArray[Any]"

STRING = "string"
_TYPES = {messages.NUMBERS[dtype]: dtype for dtype in ("float32", "float64", "int64", "int32", "bool", STRING)}
_STORED = {"float32": "float32", "float64": "float64"}
"""Types of columns by types of values; all others are int64. A string is its place in the program's vocabulary."""


def stored(dtype: str) -> str:
    """The type of the columns of a value."""
    return _STORED.get(dtype, "int64")


def type_named(number: int) -> str:
    """The type of that number in ONNX. Raises UnsupportedError for others than the kernels take."""
    if number not in _TYPES:
        raise UnsupportedError(f"values of the type {messages.type_name(number)}")
    return _TYPES[number]


@dataclass(frozen=True)
class Given:
    """A column of an input."""

    source: int
    number: int


@dataclass(frozen=True)
class Value:
    """A value with an axis of rows in front. ``columns``: [other axes], of Column or Given."""

    columns: Array
    dtype: str
    seen: bool = True
    """Whether all its strings are in the vocabulary; those of an input may not be."""
    transposed: bool = False
    """Whether it is 1 x rows instead of rows."""
    narrow: bool = False
    """Whether a value of float64 is in columns of float32, which hold its numbers exactly."""

    @property
    def stored(self) -> str:
        """The type of its columns."""
        return "float32" if self.narrow else stored(self.dtype)


@dataclass
class Builder:
    """What is known while a graph is read. ``vocabulary`` has the strings of encoders and labels."""

    program: TableProgram = field(default_factory=TableProgram)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    vocabulary: dict[str, int] = field(default_factory=dict)
    zipped: dict[str, tuple[str, list[Any]]] = field(default_factory=dict)
    """Outputs that are maps: the value with the numbers, and the keys."""
    shared: dict[object, Any] = field(default_factory=dict)
    """What has been made once and may be read again."""
    chosen: dict[Column, tuple[Column, Array]] = field(default_factory=dict)
    """Columns of float32 that a code chooses from some numbers: the column of the code, and the numbers."""
    left: set[int] = field(default_factory=set)
    """The nodes, by number, that are not in the program: those that it does not take, and what follows them."""
    refused: dict[int, str] = field(default_factory=dict)
    """The nodes that it does not take, and why not."""
    walk_all: bool = False
    """Whether trees are walked, each of them."""
    version: int = 1
    """The version of the machine-learning operators."""

    def constant(self, name: str) -> Array:
        """The constant of that name. Raises UnsupportedError if it is none."""
        if name not in self.constants:
            raise UnsupportedError("an operand that has to be a constant is none")
        return self.constants[name]

    def value(self, name: str) -> Value:
        """The value of that name, which is no constant."""
        if name not in self.values:
            raise UnsupportedError("an operand that has to have rows is a constant")
        if self.values[name].transposed:
            raise UnsupportedError("an operand with rows on its last axis")
        return self.values[name]

    def matrix(self, name: str) -> Value:
        """The value, which has rows and columns."""
        found = self.value(name)
        if found.columns.ndim != 1:
            raise UnsupportedError(f"an operand with {found.columns.ndim + 1} axes")
        return found

    def columns(self, value: Value, dtype: str, room: Sequence[Column] = ()) -> list[Column]:
        """The value's columns, in C order, in a type of columns: those of inputs are loaded, others converted.

        If all of them are columns of an input that nobody has loaded, and of that type, they are loaded into ``room``,
        if there is any, for one step only. What is loaded for blocks or single rows only is not shared.
        """
        shared = dict(self.shared) if self.program.only else self.shared
        flat = value.columns.reshape(-1)
        own = value.stored
        missing = [c for c in dict.fromkeys(flat) if isinstance(c, Given) and ("load", c, own) not in shared]
        if room and own == dtype and len(missing) == len(flat) <= len(room):
            found = dict(zip(missing, room, strict=False))
            self._load(missing, found, own)
            return [found[each] for each in flat]
        if missing:
            found = dict(zip(missing, self.program.new(own, len(missing)), strict=True))
            self._load(missing, found, own)
            shared.update({("load", c, own): column for c, column in found.items()})
        loaded = [shared["load", c, own] if isinstance(c, Given) else c for c in flat]
        if own == dtype:
            return loaded
        others = [c for c in dict.fromkeys(loaded) if ("convert", c, dtype) not in shared]
        made = self.program.new(dtype, len(others))
        if others:
            self.program.step("convert", others, made, (own, dtype))
        shared.update({("convert", c, dtype): m for c, m in zip(others, made, strict=True)})
        return [shared["convert", c, dtype] for c in loaded]

    def _load(self, given: Sequence[Given], columns: Mapping[Given, Column], own: str) -> None:
        """Add steps that load columns of inputs."""
        for source in sorted({c.source for c in given}):
            some = sorted((c for c in given if c.source == source), key=lambda c: c.number)
            port = self.inputs[source]
            kinds = ({"bool": "uint8", STRING: "int64"}.get(port.dtype, port.dtype), own)
            numbers, outs = [c.number for c in some], [columns[c] for c in some]
            self.program.step("load", numbers, outs, kinds, sizes=[source, port.width])

    def widened(self, value: Value) -> Value:
        """The value in columns of its own type."""
        if not value.narrow:
            return value
        columns = shaped(self.columns(value, stored(value.dtype)), value.columns.shape)
        return replace(value, columns=columns, narrow=False)

    def code(self, text: str) -> int:
        """The place of a string in the vocabulary."""
        return self.vocabulary.setdefault(text, len(self.vocabulary))

    def each(self, op: str, what: str, value: Value, out: str | None = None, data: Array | None = None) -> Value:
        """A step on each column by itself; the result has the type ``out``, or the value's own."""
        own = stored(value.dtype)
        out = out or value.dtype
        ins = self.columns(value, own)
        made = self.program.new(stored(out), len(ins))
        numbers = [] if data is None else [np.ascontiguousarray(data, own)]
        self.program.step(op, ins, made, (own, what), numbers)
        return Value(shaped(made, value.columns.shape), out)

    def made(self, columns: Sequence[Column], shape: tuple[int, ...], dtype: str) -> Value:
        """A value of new columns."""
        return Value(shaped(columns, shape), dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """The value in another type."""
        if STRING in (dtype, value.dtype) and dtype != value.dtype:
            raise UnsupportedError(f"a cast from {value.dtype} to {dtype}")
        if dtype == "int32" and value.dtype != "bool":
            raise UnsupportedError("a cast to int32")
        if dtype == "bool" and value.dtype != "bool":
            return self.each("unary", "not", self.each("unary", "not", value, "bool"), "bool")
        if dtype == "float64" and value.dtype == "float32":
            return replace(value, dtype=dtype, narrow=True)
        if stored(dtype) == value.stored:
            return replace(value, dtype=dtype, narrow=False)
        columns = shaped(self.columns(value, stored(dtype)), value.columns.shape)
        return replace(value, columns=columns, dtype=dtype, narrow=False)

    def add_output(self, name: str) -> None:
        """Store a value in an output of the model."""
        named = self.zipped[name][0] if name in self.zipped else name
        value = self.value(named)
        if not value.seen:
            raise UnsupportedError("an output of strings that an input gives")
        own = stored(value.dtype)
        port = Port(name, value.dtype, value.columns.shape)
        number = len(self.outputs)
        self.outputs.append(port)
        columns = self.columns(value, own)
        to = {"bool": "uint8", STRING: "int64"}.get(value.dtype, value.dtype)
        self.program.step("store", columns, [], (own, to), sizes=[number, port.width])


@dataclass(frozen=True)
class Port:
    """An input or output: ``shape`` without the axis of rows, and the type of its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """The elements of a row."""
        return int(np.prod(self.shape, dtype=np.int64))


def shaped(columns: Iterable[object], shape: tuple[int, ...]) -> Array:
    """An array of columns of that shape."""
    found = np.empty(shape, object)
    found.reshape(-1)[:] = [*columns]
    return found


Operator: TypeAlias = "Callable[[Builder, NodeProto, Mapping[str, Any]], None]"


def attributes(node: NodeProto) -> dict[str, Any]:
    """The node's attributes as Python values; lists of numbers and tensors are arrays, and bytes strings."""
    return {each.name: messages.attribute_value(each) for each in node.attribute}


def build(
    model: ModelProto, operators: Mapping[tuple[str, str], Operator], *, walk_all: bool, partly: bool = False
) -> Builder:
    """The program of the model's graph. Raises UnsupportedError for what the operators do not take.

    If it may be taken ``partly``, nodes are left out instead, and so are the outputs if any node is.
    """
    graph = model.graph
    constants = {each.name: messages.to_array(each) for each in graph.initializer}
    version = max((each.version for each in model.opset_import if each.domain == "ai.onnx.ml"), default=1)
    found = Builder(constants=constants, walk_all=walk_all, version=version)
    for info in graph.input:
        if info.name not in found.constants:
            _add_input(found, info)
    for number, node in enumerate(graph.node):
        try:
            _add_node(found, node, operators)
        except UnsupportedError as error:
            if not partly:
                raise
            found.left.add(number)
            if all(name in found.values or name in found.constants for name in node.input if name):
                found.refused[number] = str(error)
            for name in node.output:
                found.values.pop(name, None)
    if not found.left:
        for info in graph.output:
            found.add_output(info.name)
    return found


def _add_node(found: Builder, node: NodeProto, operators: Mapping[tuple[str, str], Operator]) -> None:
    if all(name in found.constants for name in node.input if name) and node.op_type != "Constant":
        raise UnsupportedError(f"{node.op_type} of constants")
    operator = operators.get((node.domain.replace("ai.onnx.ml", "ml"), node.op_type))
    if operator is None:
        raise UnsupportedError(f"{node.op_type} of {node.domain or 'ai.onnx'}")
    try:
        operator(found, node, attributes(node))
    except (KeyError, IndexError, ValueError, TypeError, OverflowError) as error:
        raise UnsupportedError(f"{node.op_type} with other attributes than the kernels take: {error!r}") from error


def _add_input(builder: Builder, info: Any) -> None:
    kind = info.type.tensor_type
    dims = [each.dim_value if each.HasField("dim_value") else -1 for each in kind.shape.dim]
    if not kind.HasField("shape") or not dims or min(dims[1:], default=0) < 0:
        raise UnsupportedError(f"the input {info.name} has not a fixed number of columns")
    port = Port(info.name, type_named(kind.elem_type), tuple(dims[1:]))
    if port.width > MOST_COLUMNS:
        raise UnsupportedError(f"the input {info.name} has {port.width} columns")
    source = len(builder.inputs)
    builder.inputs.append(port)
    columns = shaped((Given(source, i) for i in range(port.width)), port.shape)
    builder.values[info.name] = Value(columns, port.dtype, port.dtype != STRING)
