"""Encoders, arithmetic and moves of columns as steps of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.tables_kernels.build import STRING, Array, Builder, Operator, Value, shaped, stored, type_named
from collage.frontend.messages import NodeProto

Attributes = Mapping[str, Any]

FLOATS = ("float32", "float64")
_UNARY = {
    "Sigmoid": "logistic",
    "Neg": "negative",
    "Abs": "absolute",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
    "Floor": "floor",
    "Ceil": "ceil",
}
_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Pow": "power"}
_VARIADIC = {"Sum": "add", "Min": "minimum", "Max": "maximum"}
_COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "And": "and",
    "Or": "or",
}
_SWAPPED = {"greater": "less", "less": "greater", "greater_equal": "less_equal", "less_equal": "greater_equal"}
_REDUCE = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "most",
    "ReduceMin": "least",
    "ReduceProd": "product",
}
_ON_THE_LEFT = {"divide": "divided_by", "power": "to_the_power"}
"""Operators whose left operand is the constant one."""


def _axis(axis: int, rank: int) -> int:
    """The axis among those behind the rows. Raises UnsupportedError for the rows."""
    axis = axis + rank + 1 if axis < 0 else axis
    if not 1 <= axis <= rank:
        raise UnsupportedError("an operator along the rows")
    return axis - 1


def _moved(move: Callable[[Builder, NodeProto, Attributes, Array], Array]) -> Operator:
    """An operator that only moves columns."""

    def operator(b: Builder, node: NodeProto, a: Attributes) -> None:
        value = b.value(node.input[0])
        b.values[node.output[0]] = replace(value, columns=move(b, node, a, value.columns))

    return operator


def _axes(b: Builder, node: NodeProto, a: Attributes) -> list[int]:
    given = b.constant(node.input[1]).tolist() if len(node.input) > 1 and node.input[1] else a.get("axes", [])
    return [int(each) for each in given]


def _reshape(b: Builder, node: NodeProto, a: Attributes) -> None:
    value, shape = b.values.get(node.input[0]), b.constant(node.input[1]).tolist()
    if value is not None and value.transposed and shape in ([-1], [-1, 1]):
        columns = value.columns.reshape([1] * (len(shape) - 1))
    else:
        value = b.value(node.input[0])
        columns = _reshaped(value.columns, shape)
    b.values[node.output[0]] = replace(value, columns=columns, transposed=False)


def _reshaped(columns: Array, shape: list[int]) -> Array:
    if len(shape) < 1 or shape[0] not in (-1, 0) or (shape[0] == -1 and min(shape[1:], default=1) < 0):
        raise UnsupportedError("a reshape of rows")
    rest = [columns.shape[i] if size == 0 else size for i, size in enumerate(shape[1:])]
    return columns.reshape(rest)  # ValueError if elements of several rows meet


def _flatten(b: Builder, node: NodeProto, a: Attributes, columns: Array) -> Array:
    if a.get("axis", 1) != 1:
        raise UnsupportedError("a flatten of rows")
    return columns.reshape(-1)


def _squeeze(b: Builder, node: NodeProto, a: Attributes, columns: Array) -> Array:
    axes = _axes(b, node, a)
    if not axes:
        raise UnsupportedError("a squeeze of all axes")
    return np.squeeze(columns, tuple(_axis(each, columns.ndim) for each in axes))


def _unsqueeze(b: Builder, node: NodeProto, a: Attributes, columns: Array) -> Array:
    axes = _axes(b, node, a)
    rank = columns.ndim + len(axes)
    return np.expand_dims(columns, tuple(_axis(each, rank) for each in axes))


def _transpose(b: Builder, node: NodeProto, a: Attributes, columns: Array) -> Array:
    order = [int(each) for each in a.get("perm", range(columns.ndim, -1, -1))]
    if order[0] != 0:
        raise UnsupportedError("a transposition of rows")
    return np.transpose(columns, [each - 1 for each in order[1:]])


def _gather(b: Builder, node: NodeProto, a: Attributes) -> None:
    if node.input[0] in b.constants:  # a table that rows are looked up in
        table, places = b.constants[node.input[0]], b.value(node.input[1])
        if table.ndim == 2 and not int(a.get("axis", 0)):
            b.values[node.output[0]] = _chosen_rows(b, table, places)
            return
        if table.ndim != 1 or int(a.get("axis", 0)) not in (0, -1):
            raise UnsupportedError("a table of several axes")
        b.values[node.output[0]] = _looked_up(b, table, places)
        return
    value = b.value(node.input[0])
    axis = _axis(int(a.get("axis", 0)), value.columns.ndim)
    b.values[node.output[0]] = replace(value, columns=value.columns.take(b.constant(node.input[1]), axis))


def _slice(b: Builder, node: NodeProto, a: Attributes, columns: Array) -> Array:
    starts, ends = (b.constant(each).tolist() for each in node.input[1:3])
    axes = b.constant(node.input[3]).tolist() if len(node.input) > 3 and node.input[3] else range(len(starts))
    steps = b.constant(node.input[4]).tolist() if len(node.input) > 4 and node.input[4] else [1] * len(starts)
    where = [slice(None)] * columns.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step <= 0:
            raise UnsupportedError("a slice backwards")
        where[_axis(axis, columns.ndim)] = slice(start, end, step)
    return columns[tuple(where)]


def _extract(b: Builder, node: NodeProto, a: Attributes) -> None:
    if node.input[0] in b.constants:  # a table that rows are looked up in
        table, places = b.constants[node.input[0]], b.value(node.input[1])
        if places.columns.size != 1:
            raise UnsupportedError("several places of a row in a table")
        found = replace(_looked_up(b, table, replace(places, columns=places.columns.reshape(()))), transposed=True)
    else:
        value = b.matrix(node.input[0])
        found = replace(value, columns=value.columns[b.constant(node.input[1]).reshape(-1)])
    b.values[node.output[0]] = found


def _looked_up(b: Builder, table: Array, places: Value) -> Value:
    """The numbers or texts of a table at the places; what is at no place of it is as the first one."""
    if table.size != table.shape[-1] or not table.size or places.dtype != "int64":
        raise UnsupportedError("a table with rows")
    table = table.reshape(-1)
    dtype = STRING if table.dtype.kind in "OSU" else table.dtype.name
    if dtype not in (STRING, "bool", "int64", "int32", *FLOATS):
        raise UnsupportedError(f"a table of {dtype}")
    numbers = np.array([b.code(_text(each)) for each in table]) if dtype == STRING else table
    keys = np.concatenate([np.arange(-len(numbers), 0), np.arange(len(numbers))])
    return mapped(b, places, keys, np.concatenate([numbers, numbers]), numbers[0], numbers[0], dtype)


def _chosen_rows(b: Builder, table: Array, places: Value) -> Value:
    """The rows of a table of numbers at the places; what is at no place of it is as the first one."""
    dtype = table.dtype.name
    if places.dtype != "int64" or places.columns.ndim or dtype not in ("int64", *FLOATS) or not table.size:
        raise UnsupportedError(f"rows of a table of {dtype}")
    (code,) = b.columns(places, "int64")
    made, numbers = b.program.new(dtype, table.shape[1]), np.ascontiguousarray(table.T)
    b.program.step("gather", [code] * table.shape[1], made, (dtype, ""), [numbers], [len(table)])
    if dtype == "float32":
        b.chosen.update({column: (code, each) for column, each in zip(made, numbers, strict=True)})
    return b.made(made, (table.shape[1],), dtype)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _concat(b: Builder, node: NodeProto, a: Attributes) -> None:
    values = [b.value(each) for each in node.input]
    axis = _axis(int(a["axis"]), values[0].columns.ndim)
    if len({each.stored for each in values}) > 1:
        values = [b.widened(each) for each in values]
    columns = np.concatenate([each.columns for each in values], axis)
    b.values[node.output[0]] = replace(values[0], columns=columns, seen=all(each.seen for each in values))


def _split(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    axis = _axis(int(a.get("axis", 0)), value.columns.ndim)
    size = value.columns.shape[axis]
    sizes = b.constant(node.input[1]).tolist() if len(node.input) > 1 and node.input[1] else a.get("split")
    if sizes is None:
        each = -(-size // len(node.output))
        sizes = [min(each, size - each * i) for i in range(len(node.output))]
    for name, part in zip(node.output, np.split(value.columns, np.cumsum(sizes)[:-1], axis), strict=True):
        b.values[name] = replace(value, columns=part)


def _vectorize(b: Builder, node: NodeProto, a: Attributes) -> None:
    values = [b.cast(b.matrix(each), "float32") for each in node.input]
    sizes = [int(each) for each in a.get("inputdimensions", [len(each.columns) for each in values])]
    if sizes != [len(each.columns) for each in values]:
        raise UnsupportedError("features of other sizes than the inputs")
    b.values[node.output[0]] = Value(np.concatenate([each.columns for each in values]), "float32")


def _constant(b: Builder, node: NodeProto, a: Attributes) -> None:
    (name, value), *_ = a.items()
    b.constants[node.output[0]] = np.asarray(value, np.float32 if name == "value_float" else None)


def _cast(b: Builder, node: NodeProto, a: Attributes) -> None:
    b.values[node.output[0]] = b.cast(_any_way(b, node), type_named(int(a["to"])))


def _identity(b: Builder, node: NodeProto, a: Attributes) -> None:
    b.values[node.output[0]] = _any_way(b, node)


def _any_way(b: Builder, node: NodeProto) -> Value:
    """The first operand, which may lie."""
    return b.values.get(node.input[0]) or b.value(node.input[0])


def _unary(what: str) -> Operator:
    def operator(b: Builder, node: NodeProto, a: Attributes) -> None:
        value = b.value(node.input[0])
        _check_floats(value)
        b.values[node.output[0]] = b.each("unary", what, value)

    return operator


def _reciprocal(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    _check_floats(value)
    b.values[node.output[0]] = b.each("constant", "divided_by", value, None, np.ones(value.columns.size))


def _is_nan(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    _check_floats(value)
    b.values[node.output[0]] = b.each("unary", "is_nan", value, "bool")


def _not(b: Builder, node: NodeProto, a: Attributes) -> None:
    ones = np.ones(b.value(node.input[0]).columns.size, np.int64)
    b.values[node.output[0]] = b.each("constant", "less", b.value(node.input[0]), "bool", ones)


def _relu(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    _check_floats(value)
    b.values[node.output[0]] = b.each("constant", "maximum", value, None, np.zeros(value.columns.size))


def _check_floats(*values: Value) -> None:
    if not all(each.dtype in FLOATS for each in values):
        raise UnsupportedError(f"an operator of {values[0].dtype}")


def _check_numbers(value: Value) -> None:
    if value.dtype not in (*FLOATS, "int64"):
        raise UnsupportedError(f"an operator of {value.dtype}")


def row_constant(constant: Array, shape: tuple[int, ...]) -> Array:
    """A constant operand for each column of that shape. Raises UnsupportedError if its rows differ."""
    if constant.ndim > len(shape):
        if constant.shape[0] != 1 or constant.ndim > len(shape) + 1:
            raise UnsupportedError("a constant with rows")
        constant = constant[0]
    return np.broadcast_to(constant, shape)


def combined(b: Builder, what: str, names: tuple[str, str], out: str | None = None) -> Value:
    """A step of two operands, which are broadcast; one of them may be a constant."""
    one, other = names
    if one in b.constants:
        if what in _SWAPPED or what in ("add", "multiply", "minimum", "maximum", "equal", "and", "or"):
            return combined(b, _SWAPPED.get(what, what), (other, one), out)
        if what == "subtract":  # c - x = -(x - c), exactly
            return b.each("unary", "negative", combined(b, what, (other, one)))
        if what not in _ON_THE_LEFT:
            raise UnsupportedError(f"{what}: a constant on the left")
        return combined(b, _ON_THE_LEFT[what], (other, one), out)
    value = b.value(one)
    if value.dtype == STRING:
        raise UnsupportedError("a comparison of strings")
    if other in b.constants:
        constant = b.constants[other]
        tail = constant.shape[1:] if constant.ndim > value.columns.ndim else constant.shape
        shape = np.broadcast_shapes(value.columns.shape, tail)
        if len(shape) > value.columns.ndim:
            raise UnsupportedError("a constant with more axes than the rows")
        value = replace(value, columns=np.broadcast_to(value.columns, shape))
        return b.each("constant", what, value, out, row_constant(constant, shape).reshape(-1))
    second = b.value(other)
    if value.columns.ndim != second.columns.ndim:
        raise UnsupportedError("operands with other axes")
    left, right = np.broadcast_arrays(value.columns, second.columns)
    return _both(b, what, replace(value, columns=left), replace(second, columns=right), out)


def _both(b: Builder, what: str, left: Value, right: Value, out: str | None) -> Value:
    own = stored(left.dtype)
    ins = [*b.columns(left, own), *b.columns(right, own)]
    out = out or left.dtype
    made = b.program.new(stored(out), left.columns.size)
    b.program.step("binary", ins, made, (own, what))
    return b.made(made, left.columns.shape, out)


def _arithmetic(what: str) -> Operator:
    def operator(b: Builder, node: NodeProto, a: Attributes) -> None:
        found = combined(b, what, (node.input[0], node.input[1]))
        _check_numbers(found)
        b.values[node.output[0]] = found

    return operator


def _variadic(what: str) -> Operator:
    def operator(b: Builder, node: NodeProto, a: Attributes) -> None:
        name = node.input[0]
        for number, other in enumerate(node.input[1:]):
            found = combined(b, what, (name, other))
            _check_numbers(found)
            name = f"{node.output[0]}/{number}"
            b.values[name] = found
        b.values[node.output[0]] = b.value(name)

    return operator


def _comparison(what: str) -> Operator:
    def operator(b: Builder, node: NodeProto, a: Attributes) -> None:
        b.values[node.output[0]] = combined(b, what, (node.input[0], node.input[1]), "bool")

    return operator


def _clip(b: Builder, node: NodeProto, a: Attributes) -> None:
    found = b.value(node.input[0])
    _check_floats(found)
    names = [*node.input[1:], "", ""][:2]
    largest = float(np.finfo(found.dtype).max)  # an end that is left open is the largest number, not infinity
    ends = (("maximum", "min", -largest), ("minimum", "max", largest))
    for name, (what, attribute, otherwise) in zip(names, ends, strict=True):
        limit = b.constant(name) if name else a.get(attribute, otherwise)
        found = b.each("constant", what, found, None, np.full(found.columns.size, float(limit)))
    b.values[node.output[0]] = found


def _where(b: Builder, node: NodeProto, a: Attributes) -> None:
    if node.input[0] in b.constants:
        b.values[node.output[0]] = _chosen(b, node)
        return
    which = b.value(node.input[0])
    sides: list[Any] = [b.constants[name] if name in b.constants else b.value(name) for name in node.input[1:3]]
    dtype = (
        next(each.dtype for each in sides if isinstance(each, Value))
        if any(isinstance(each, Value) for each in sides)
        else str(sides[0].dtype)
    )
    shape = np.broadcast_shapes(*(each.columns.shape if isinstance(each, Value) else each.shape for each in sides))
    shape = np.broadcast_shapes(shape, which.columns.shape)
    columns = []
    for each in sides:
        if isinstance(each, Value):
            columns += b.columns(replace(each, columns=np.broadcast_to(each.columns, shape)), stored(dtype))
            continue
        made = b.program.new(stored(dtype), int(np.prod(shape, dtype=np.int64)))
        numbers = np.ascontiguousarray(row_constant(each, shape).reshape(-1), stored(dtype))
        b.program.step("constant", made, made, (stored(dtype), "constant_of"), [numbers])
        columns += made
    ins = [*b.columns(Value(np.broadcast_to(which.columns, shape), "bool"), "int64"), *columns]
    made = b.program.new(stored(dtype), int(np.prod(shape, dtype=np.int64)))
    b.program.step("select", ins, made, (stored(dtype), ""))
    b.values[node.output[0]] = b.made(made, shape, dtype)


def _chosen(b: Builder, node: NodeProto) -> Value:
    """Columns of two values, by a constant: a move."""
    one, other = (b.value(name) for name in node.input[1:3])
    if one.stored != other.stored:
        one, other = b.widened(one), b.widened(other)
    shape = np.broadcast_shapes(one.columns.shape, other.columns.shape)
    which = row_constant(b.constants[node.input[0]], shape)
    columns = np.where(which, np.broadcast_to(one.columns, shape), np.broadcast_to(other.columns, shape))
    return replace(one, columns=columns, seen=one.seen and other.seen)


def _softmax(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    _check_floats(value)
    _axis(int(a.get("axis", -1)), 1)
    b.values[node.output[0]] = softmax(b, value)


def softmax(b: Builder, value: Value, zeros: str = "all") -> Value:
    """Each row's softmax; ``zeros``: "all", or "not zeros" to leave these out."""
    own = stored(value.dtype)
    made = b.program.new(own, value.columns.size)
    b.program.step("softmax", b.columns(value, own), made, (own, zeros))
    return b.made(made, value.columns.shape, value.dtype)


def largest(b: Builder, value: Value) -> Value:
    """The place of each row's first largest number, int64."""
    own = stored(value.dtype)
    made = b.program.new("int64")
    b.program.step("largest", b.columns(value, own), made, (own, ""))
    return b.made(made, (), "int64")


def _argmax(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    _check_floats(value)
    _axis(int(a.get("axis", 0)), 1)
    if a.get("select_last_index", 0):
        raise UnsupportedError("the last one of the largest numbers")
    found = largest(b, value)
    shape = (1,) if a.get("keepdims", 1) else ()
    b.values[node.output[0]] = Value(found.columns.reshape(shape), "int64")


def _reduce(what: str) -> Operator:
    def operator(b: Builder, node: NodeProto, a: Attributes) -> None:
        value = b.value(node.input[0])
        _check_floats(value)
        axes = sorted({_axis(each, value.columns.ndim) for each in _axes(b, node, a)})
        if not axes or not value.columns.size:
            raise UnsupportedError("a reduction of rows")
        own = stored(value.dtype)
        parts = np.moveaxis(value.columns, axes, range(len(axes)))
        kept = parts.shape[len(axes) :]
        parts = parts.reshape(-1, int(np.prod(kept, dtype=np.int64)))
        made = b.program.new(own, parts.shape[1])
        for one, column in zip(made, parts.T, strict=True):
            b.program.step("reduce", b.columns(replace(value, columns=column), own), [one], (own, what))
        if a.get("keepdims", 1):
            kept = tuple(1 if axis in axes else size for axis, size in enumerate(value.columns.shape))
        b.values[node.output[0]] = b.made(made, kept, value.dtype)

    return operator


def _log_sum_exp(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    _check_floats(value)
    if [_axis(each, 1) for each in _axes(b, node, a)] != [0]:
        raise UnsupportedError("a reduction of rows")

    def reduced(what: str, of: Value) -> Value:
        own = stored(of.dtype)
        made = b.program.new(own)
        b.program.step("reduce", b.columns(of, own), made, (own, what))
        return b.made(made, (1,), of.dtype)

    most = reduced("most", value)
    less = _both(b, "subtract", value, replace(most, columns=np.broadcast_to(most.columns, value.columns.shape)), None)
    sums = b.each("unary", "log", reduced("sum", b.each("unary", "exp", less)))
    found = _both(b, "add", most, sums, None)
    b.values[node.output[0]] = replace(found, columns=found.columns.reshape((1,) if a.get("keepdims", 1) else ()))


def linear(b: Builder, value: Value, weights: Array, bias: Array) -> Value:
    """x times ``weights``, [out][in], and ``bias``, [out], in the value's type."""
    own = stored(value.dtype)
    made = b.program.new(own, len(weights))
    numbers = [np.ascontiguousarray(each, own) for each in (weights, bias)]
    if weights.shape != (len(weights), value.columns.size) or bias.shape != (len(weights),):
        raise UnsupportedError("coefficients of other sizes than the input")
    b.program.step("linear", b.columns(value, own), made, (own, own), numbers)
    return b.made(made, (len(weights),), value.dtype)


def _matmul(b: Builder, node: NodeProto, a: Attributes) -> None:
    value, weights = b.matrix(node.input[0]), b.constant(node.input[1])
    _check_floats(value)
    if weights.ndim > 2:
        raise UnsupportedError("a product of several matrices")
    found = linear(b, value, weights.reshape(len(weights), -1).T, np.zeros(weights.size // max(len(weights), 1)))
    b.values[node.output[0]] = Value(found.columns.reshape(weights.shape[1:]), found.dtype)


def _gemm(b: Builder, node: NodeProto, a: Attributes) -> None:
    value, weights = b.matrix(node.input[0]), b.constant(node.input[1])
    _check_floats(value)
    if a.get("transA", 0):
        raise UnsupportedError("a transposition of rows")
    weights = (weights if a.get("transB", 0) else weights.T) * weights.dtype.type(a.get("alpha", 1.0))
    bias = np.zeros(len(weights), weights.dtype)
    if len(node.input) > 2 and node.input[2]:
        bias = row_constant(b.constant(node.input[2]), (len(weights),)) * weights.dtype.type(a.get("beta", 1.0))
    b.values[node.output[0]] = linear(b, value, weights, np.asarray(bias))


def _scaler(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.cast(b.matrix(node.input[0]), "float32")
    for name, what in (("offset", "subtract"), ("scale", "multiply")):
        if name in a:
            numbers = np.broadcast_to(a[name], value.columns.shape)
            value = b.each("constant", what, value, None, numbers)
    b.values[node.output[0]] = value


def _imputer(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.matrix(node.input[0])
    floats = "imputed_value_floats" in a
    if value.dtype != ("float32" if floats else "int64"):
        raise UnsupportedError(f"an imputer of {value.dtype}")
    numbers = np.broadcast_to(a["imputed_value_floats" if floats else "imputed_value_int64s"], value.columns.shape)
    missing = a.get("replaced_value_float" if floats else "replaced_value_int64", 0)
    if floats and np.isnan(missing):
        b.values[node.output[0]] = b.each("constant", "impute", value, None, numbers)
        return
    own = stored(value.dtype)
    which = b.each("constant", "equal", value, "bool", np.full(value.columns.size, missing))
    filled = b.each("constant", "constant_of", value, None, numbers)
    made = b.program.new(own, value.columns.size)
    ins = [*b.columns(which, "int64"), *b.columns(filled, own), *b.columns(value, own)]
    b.program.step("select", ins, made, (own, ""))
    b.values[node.output[0]] = b.made(made, value.columns.shape, value.dtype)


def _binarizer(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    if value.dtype != "float32":
        raise UnsupportedError(f"a binarizer of {value.dtype}")
    above = b.each("constant", "greater", value, "int64", np.full(value.columns.size, a.get("threshold", 0.0)))
    b.values[node.output[0]] = b.cast(above, "float32")


def _normalizer(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.cast(b.matrix(node.input[0]), "float32")
    how = {"MAX": "maximum", "L1": "sum", "L2": "norm"}[a.get("norm", "MAX")]
    made = b.program.new("float32", value.columns.size)
    b.program.step("normalize", b.columns(value, "float32"), made, ("float32", how))
    b.values[node.output[0]] = b.made(made, value.columns.shape, "float32")


def mapped(b: Builder, value: Value, keys: Array, values: Array, default: Any, nan: Any, out: str) -> Value:
    """``values`` of the ``keys``, which are distinct; ``default`` for others, and ``nan`` for NaN."""
    own, to = stored(value.dtype), stored(out)
    order = np.argsort(keys, kind="stable")
    table = np.ascontiguousarray([*values[order], default, nan], to)
    made = b.program.new(to, value.columns.size)
    keys = np.ascontiguousarray(keys[order], own)
    b.program.step("map", b.columns(value, own), made, (own, to), [keys, table], [len(keys), len(keys) + 1])
    return b.made(made, value.columns.shape, out)


def _one_hot(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    if not a.get("zeros", 1):
        raise UnsupportedError("an encoder that fails for other categories than its own")
    if "cats_strings" in a:
        if value.dtype != STRING:
            raise UnsupportedError(f"categories of strings for {value.dtype}")
        categories = np.array([b.code(each) for each in a["cats_strings"]], np.int64)
    else:
        if value.dtype == STRING:
            raise UnsupportedError("categories of numbers for strings")
        categories = np.asarray(a["cats_int64s"])
        value = Value(shaped(b.columns(value, "int64"), value.columns.shape), "int64")
    last = {int(each): place for place, each in enumerate(categories)}  # of equal ones the last one counts
    repeated = np.repeat(value.columns[..., None], len(categories), -1)
    kept = np.array([last[int(each)] == place for place, each in enumerate(categories)])
    numbers = np.broadcast_to(np.where(kept, categories, np.iinfo(np.int64).min), repeated.shape).reshape(-1)
    ones = b.each("constant", "equal", Value(repeated, "int64"), "int64", numbers)
    b.values[node.output[0]] = b.cast(ones, "float32")


def _table_of(a: Attributes, name: str) -> tuple[Any, str]:
    """The keys or values of a label encoder, and their type. Raises UnsupportedError for the first version's."""
    for kind, dtype in (("strings", STRING), ("int64s", "int64"), ("floats", "float32")):
        if f"{name}_{kind}" in a:
            return a[f"{name}_{kind}"], dtype
    if f"{name}_tensor" not in a:
        raise UnsupportedError("a label encoder of the first version")
    table = a[f"{name}_tensor"].reshape(-1)
    dtype = STRING if table.dtype.kind in "OSU" else table.dtype.name
    if dtype not in (STRING, "int64", *FLOATS):
        raise UnsupportedError(f"a label encoder of {dtype}")
    return table, dtype


def _label_encoder(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.value(node.input[0])
    key, of = _table_of(a, "keys")
    own, out = _table_of(a, "values")
    if of != value.dtype:
        raise UnsupportedError(f"keys of {of} for {value.dtype}")
    defaults = {STRING: ("string", "_Unused"), "int64": ("int64", -1), "float32": ("float", -0.0)}
    name, usual = defaults.get(out, ("", 0))
    given = np.asarray(a["default_tensor"]).reshape(-1)[0] if "default_tensor" in a else a.get(f"default_{name}", usual)
    keys, values = (
        np.array([b.code(_text(each)) for each in table]) if dtype == STRING else np.asarray(table)
        for table, dtype in ((key, of), (own, out))
    )
    default: Any = b.code(_text(given)) if out == STRING else given
    # Before version 4 ONNX Runtime does not find NaN among its keys.
    is_nan = np.isnan(keys) if of in FLOATS else np.zeros(len(keys), bool)
    nan = values[is_nan][0] if is_nan.any() and b.version >= 4 else default
    distinct, first = np.unique(keys[~is_nan], return_index=True)
    b.values[node.output[0]] = mapped(b, value, distinct, values[~is_nan][first], default, nan, out)


def _zip_map(b: Builder, node: NodeProto, a: Attributes) -> None:
    keys = a["classlabels_strings"] if "classlabels_strings" in a else a["classlabels_int64s"].tolist()
    if b.matrix(node.input[0]).columns.size != len(keys):
        raise UnsupportedError("a map with other keys than columns")
    b.zipped[node.output[0]] = (node.input[0], list(keys))


OPERATORS: dict[tuple[str, str], Operator] = {
    ("", "Constant"): _constant,
    ("", "Identity"): _identity,
    ("", "Cast"): _cast,
    ("", "Concat"): _concat,
    ("", "Split"): _split,
    ("", "Reshape"): _reshape,
    ("", "Flatten"): _moved(_flatten),
    ("", "Squeeze"): _moved(_squeeze),
    ("", "Unsqueeze"): _moved(_unsqueeze),
    ("", "Transpose"): _moved(_transpose),
    ("", "Gather"): _gather,
    ("", "Slice"): _moved(_slice),
    **{("", name): _unary(what) for name, what in _UNARY.items()},
    **{("", name): _arithmetic(what) for name, what in _BINARY.items()},
    **{("", name): _variadic(what) for name, what in _VARIADIC.items()},
    **{("", name): _comparison(what) for name, what in _COMPARISONS.items()},
    **{("", name): _reduce(what) for name, what in _REDUCE.items()},
    ("", "ReduceLogSumExp"): _log_sum_exp,
    ("", "IsNaN"): _is_nan,
    ("", "Reciprocal"): _reciprocal,
    ("", "Not"): _not,
    ("", "Relu"): _relu,
    ("", "Clip"): _clip,
    ("", "Where"): _where,
    ("", "Softmax"): _softmax,
    ("", "ArgMax"): _argmax,
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("ml", "ArrayFeatureExtractor"): _extract,
    ("ml", "FeatureVectorizer"): _vectorize,
    ("ml", "Scaler"): _scaler,
    ("ml", "Imputer"): _imputer,
    ("ml", "Binarizer"): _binarizer,
    ("ml", "Normalizer"): _normalizer,
    ("ml", "OneHotEncoder"): _one_hot,
    ("ml", "LabelEncoder"): _label_encoder,
    ("ml", "ZipMap"): _zip_map,
}
