"""A decoder's graph with fixed sizes: who makes each value, its type, and its value where it is a small constant."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage.core.printable import printable
from collage.errors import ModelError
from collage.frontend.read.weights import array_of
from collage.frontend.session import PartSession
from collage.graph.dataflow import Array
from collage.serve.decoder.compiled import IDS, MASK, POSITIONS

DOMAIN, OPERATOR = "collage.experts", "ExpertProduct"


def product(rows: str, matrices: str, choice: str, result: str) -> onnx.NodeProto:
    """The node whose result [rows, n] has each row [depth] times the matrix that it chooses.

    ``rows`` [rows, depth] and ``matrices`` [experts, depth, n] are float32, and ``choice`` [rows] is int64.
    """
    return helper.make_node(OPERATOR, [rows, matrices, choice], [result], result, domain=DOMAIN)


def is_product(node: onnx.NodeProto) -> bool:
    return bool(node.domain == DOMAIN and node.op_type == OPERATOR)


def type_of_product(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> onnx.TypeProto:
    """The type of the product's result. The types of its operands must be known. Raises KeyError."""
    rows, matrices = (types[name].tensor_type.shape.dim for name in node.input[:2])
    shape = [rows[0].dim_value if rows[0].HasField("dim_value") else None, matrices[2].dim_value]
    return helper.make_tensor_type_proto(TensorProto.FLOAT, shape)


def in_operators(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with each product as a ``Scan`` over its rows, which is what ONNX Runtime and backends read.

    Gathering all rows' matrices at once would be shorter, and needs as much memory as all of them together.
    """
    return [_scan(node) if is_product(node) else node for node in nodes]


def _scan(node: onnx.NodeProto) -> onnx.NodeProto:
    rows, matrices, choice = node.input
    inside = [f"{node.output[0]}/{name}" for name in ("row", "chosen", "matrix", "sums")]
    row, chosen, matrix, sums = inside
    body = helper.make_graph(
        [
            helper.make_node("Gather", [matrices, chosen], [matrix], axis=0),
            helper.make_node("MatMul", [row, matrix], [sums]),
        ],
        "row times the matrix that it chooses",
        [
            helper.make_tensor_value_info(row, TensorProto.FLOAT, None),
            helper.make_tensor_value_info(chosen, TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info(sums, TensorProto.FLOAT, None)],
    )
    return helper.make_node("Scan", [rows, choice], list(node.output), node.name, body=body, num_scan_inputs=2)


_NO_TYPES = (
    *(KeyError, RuntimeError, ValueError, onnx.checker.ValidationError),
    *(onnx.defs.SchemaError, onnx.shape_inference.InferenceError),
)
"""What onnx raises where it cannot tell the types of what a node makes."""
_FEW = 24
"""The most nodes between values of which one is computed from the others."""
_SMALL = 1 << 14
"""The most elements of a constant that is folded."""


@dataclass(frozen=True)
class GraphSizes:
    """The sizes for which a graph is read: new tokens, and tokens before them, of one sequence."""

    tokens: int
    past: int


PROBE = GraphSizes(tokens=29, past=5)
"""The sizes with which a graph is looked at: no other axis of a decoder has 29 or 34 elements."""


@dataclass(frozen=True)
class OnnxGraph:
    """``nodes`` are in order, and none of them makes a constant of ``constants``, which holds the small ones.

    ``shapes`` and ``dtypes`` (onnx's numbers) are of the values where they are known, ``weights`` are all initialisers,
    and ``inputs`` the names of the model's inputs. ``places`` are values that hold the tokens' positions although no
    input does, such as ranges that begin after the cache.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, Array]
    weights: Mapping[str, onnx.TensorProto]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    places: frozenset[str]
    opset: tuple[onnx.OperatorSetIdProto, ...]

    @cached_property
    def producers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def order(self) -> Mapping[int, int]:
        return {id(node): place for place, node in enumerate(self.nodes)}

    @cached_property
    def users(self) -> Mapping[str, list[onnx.NodeProto]]:
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def from_tokens(self) -> frozenset[str]:
        return self.dependent({IDS})

    @cached_property
    def from_positions(self) -> frozenset[str]:
        return self.dependent({POSITIONS, *self.places})

    def dependent(self, names: Collection[str]) -> frozenset[str]:
        found = set(names)
        for node in self.nodes:
            if found.intersection(node.input):
                found.update(node.output)
        return frozenset(found)

    def is_constant(self, name: str) -> bool:
        """Whether the value is the same in each run and at hand: a small constant, or a weight."""
        return name in self.constants or name in self.weights

    def scalar(self, name: str) -> float | None:
        array = self.constants.get(name)
        if array is None and name in self.weights and np.prod(self.weights[name].dims) == 1:
            array = array_of(self.weights[name])
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def described(node: onnx.NodeProto) -> str:
    return f"node {printable(node.name or node.output[0])} ({printable(node.op_type)})"


def unserved(node: onnx.NodeProto, what: str) -> ModelError:
    """The error for a node that does something which cannot be served."""
    return ModelError(f"{described(node)} {what}, which cannot be served.")


def attribute(node: onnx.NodeProto, name: str, default: object = None) -> object:
    for each in node.attribute:
        if each.name == name:
            return helper.get_attribute_value(each)
    return default


def read_graph(model: onnx.ModelProto, sizes: GraphSizes, places: Collection[str] | None = None) -> OnnxGraph:
    """The model's graph for one sequence of these sizes, with what follows from them folded.

    Without a cache as inputs there are no tokens before. ``places`` are those that the graph for other sizes has, for
    sizes with which other values may look the same. Raises ModelError.
    """
    return _Reader(model, sizes, places).read()


class _Reader:
    def __init__(self, model: onnx.ModelProto, sizes: GraphSizes, places: Collection[str] | None) -> None:
        self._model = model
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._inputs = [each for each in model.graph.input if each.name not in self._weights]
        cached = any(each.name not in (IDS, POSITIONS, MASK) for each in self._inputs)
        self._sizes = sizes if cached else GraphSizes(sizes.tokens, 0)
        self._known_places = places
        self._types: dict[str, onnx.TypeProto] = {}
        self._constants: dict[str, Array] = {}
        self._data: dict[str, onnx.TensorProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._places: set[str] = set()
        self._versions = {each.domain: each.version for each in model.opset_import}

    def read(self) -> OnnxGraph:
        for tensor in self._weights.values():
            self._types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            if (
                np.prod(tensor.dims) <= _SMALL and tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16)
            ) or np.prod(tensor.dims) <= 1:
                self._add_constant(tensor.name, array_of(tensor))
        for info in self._inputs:
            self._types[info.name] = self._fixed(info)
            if info.name == MASK:
                self._add_constant(MASK, self._all_tokens())
        for node in self._model.graph.node:
            self._visit(node)
        shapes, dtypes = {}, {}
        for name, kind in self._types.items():
            tensor_type = kind.tensor_type
            dtypes[name] = tensor_type.elem_type
            dims = tensor_type.shape.dim
            if tensor_type.HasField("shape") and all(each.HasField("dim_value") for each in dims):
                shapes[name] = tuple(each.dim_value for each in dims)
        return OnnxGraph(
            tuple(self._nodes),
            self._constants,
            self._weights,
            shapes,
            dtypes,
            tuple(each.name for each in self._inputs),
            tuple(each.name for each in self._model.graph.output),
            frozenset(self._places),
            tuple(self._model.opset_import),
        )

    def _fixed(self, info: onnx.ValueInfoProto) -> onnx.TypeProto:
        tokens, past = self._sizes.tokens, self._sizes.past
        kind = info.type.tensor_type
        dims = [each.dim_value if each.HasField("dim_value") else 0 for each in kind.shape.dim]
        if len(dims) == 2:
            dims = [1, past + tokens if info.name == MASK else tokens]
        elif len(dims) == 4:  # a cache: one sequence, and the axis that is open holds the tokens before
            dims = [1, *(past if size <= 0 else size for size in dims[1:])]
        return helper.make_tensor_type_proto(kind.elem_type, dims)

    def _all_tokens(self) -> Array:
        """The attention mask: no token of a sequence is padding."""
        kind = self._types[MASK].tensor_type
        shape = [each.dim_value for each in kind.shape.dim]
        return np.ones(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))

    def _visit(self, node: onnx.NodeProto) -> None:
        if any(each.type in (each.GRAPH, each.GRAPHS) for each in node.attribute):
            raise ModelError(
                f"{described(node)} has a graph of its own, and a decoder to serve must have none: export it without "
                "a branch for the cache (optimum's models that are not merged)."
            )
        if self._fold_shape(node):
            return
        known = all(name in self._constants for name in node.input if name)
        if known and self._fold(node):
            return
        self._nodes.append(node)
        self._infer(node)

    def _fold_shape(self, node: onnx.NodeProto) -> bool:
        """Make a constant of a Shape or Size whose input's shape is known. Whether it was one."""
        if node.op_type not in ("Shape", "Size") or node.domain:
            return False
        kind = self._types.get(node.input[0], onnx.TypeProto()).tensor_type
        if not kind.HasField("shape") or not all(each.HasField("dim_value") for each in kind.shape.dim):
            return False
        dims = np.array([each.dim_value for each in kind.shape.dim], np.int64)
        if node.op_type == "Size":
            dims = np.array(dims.prod())
        else:
            first, last = attribute(node, "start", 0), attribute(node, "end", len(dims))
            assert isinstance(first, int) and isinstance(last, int)
            dims = dims[first:last]
        self._add_constant(node.output[0], dims)
        return True

    def _fold(self, node: onnx.NodeProto) -> bool:
        """Make small constants of the outputs of a node whose inputs are all constants. Whether that was possible.

        An output with the tokens' positions stays a node: it differs in other iterations.
        """
        if node.op_type in ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"):
            return False
        self._infer(node)
        for name in node.output:
            kind = self._types.get(name, onnx.TypeProto()).tensor_type
            if np.prod([each.dim_value or 1 for each in kind.shape.dim], initial=1.0) > _SMALL:
                return False
        try:
            values = self._evaluate(node)
        except Exception:  # the reference implementation raises anything for what it lacks
            return False
        if any(value.size > _SMALL for value in values):
            return False
        if self._is_place(node.output[0], values[0]):
            self._places.add(node.output[0])
            self._nodes.append(node)
            dtype = helper.np_dtype_to_tensor_dtype(values[0].dtype)
            self._types[node.output[0]] = helper.make_tensor_type_proto(dtype, list(values[0].shape))
            return True
        for name, value in zip(node.output, values, strict=False):
            self._add_constant(name, value)
        return True

    def _is_place(self, name: str, value: Array) -> bool:
        if self._known_places is not None:
            return name in self._known_places
        past, tokens = self._sizes.past, self._sizes.tokens
        return value.dtype.kind in "if" and np.array_equal(value.reshape(-1), np.arange(past, past + tokens))

    def _evaluate(self, node: onnx.NodeProto) -> list[Array]:
        feeds = {name: self._constants[name] for name in node.input if name}
        made = [name for name in node.output if name]
        one = _part([node], feeds, made, [], self._model.opset_import)
        return [np.asarray(value) for value in ReferenceEvaluator(one).run(None, feeds)]

    def _add_constant(self, name: str, value: Array) -> None:
        self._constants[name] = value
        self._data[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        self._types[name] = helper.make_tensor_type_proto(self._data[name].data_type, list(value.shape))

    def _infer(self, node: onnx.NodeProto) -> None:
        """Add the types of what the node makes, where onnx can tell them."""
        if is_product(node):
            self._types[node.output[0]] = type_of_product(node, self._types)
            return
        version = self._versions.get(node.domain, 1)
        # Some operators of old sets, such as LessOrEqual of set 12, lack rules that those of later ones have.
        for each in (version, onnx.defs.onnx_opset_version()) if node.domain in ("", "ai.onnx") else (version,):
            try:
                schema = onnx.defs.get_schema(node.op_type, each, node.domain)
                types = {name: self._types[name] for name in node.input if name}
                data = {name: self._data[name] for name in node.input if name in self._data}
                found = onnx.shape_inference.infer_node_outputs(
                    schema, node, types, data, opset_imports=list(self._model.opset_import)
                )
            except _NO_TYPES:
                continue  # what needs the type of this value refuses the model, and names the node
            self._types.update(found)
            if found and all(kind.tensor_type.HasField("shape") for kind in found.values()):
                return


def evaluated(graph: OnnxGraph, wanted: str, feeds: Mapping[str, Array], most: int = _FEW) -> Array | None:
    """A value computed from others, if at most so many nodes lie between, or None."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, onnx.TensorProto] = {}
    waiting, seen = [wanted], set(feeds)
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in graph.constants:
            constants[name] = numpy_helper.from_array(np.asarray(graph.constants[name], order="C"), name)
        elif name in graph.weights:
            constants[name] = graph.weights[name]
        elif name in graph.producers:
            nodes.append(graph.producers[name])
            waiting += graph.producers[name].input
        else:
            return None
        if len(nodes) > most:
            return None
    unique = {id(node): node for node in nodes}
    ordered = sorted(unique.values(), key=lambda node: graph.order[id(node)])
    model = _part(ordered, feeds, [wanted], list(constants.values()), graph.opset)
    # ONNX's evaluator begins faster; ONNX Runtime takes models that do not follow the standard to the letter.
    for run in (_in_evaluator, _in_onnx_runtime):
        try:
            (found,) = run(model, feeds)
        except Exception:  # both raise anything for what they lack
            continue
        result: Array = np.asarray(found)
        return result
    return None


def _part(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    wanted: Sequence[str],
    constants: Sequence[onnx.TensorProto],
    opset: Sequence[onnx.OperatorSetIdProto],
) -> onnx.ModelProto:
    """A model of some nodes, which computes values from others."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
    body = helper.make_graph(nodes, "part", inputs, outputs, constants)
    return helper.make_model(body, opset_imports=list(opset), ir_version=10)


def _in_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Any]:
    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def _in_onnx_runtime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Any]:
    return PartSession(model).run(feeds)


_KEEPING = frozenset("Cast Identity Squeeze Unsqueeze".split())


def read_decoder(model: onnx.ModelProto, sizes: GraphSizes, places: Collection[str] | None = None) -> OnnxGraph:
    """The model's graph, with tables of positions whole that the model cuts to the sequence's length.

    A position is always below that length, so the cut changes nothing; with it, a graph for some tokens would have a
    table for only so many. Sizes, places and errors are those of ``read_graph``.
    """
    graph = read_graph(model, sizes, places)
    whole = sizes.tokens + (sizes.past if set(graph.inputs) - {IDS, POSITIONS, MASK} else 0)
    made = {name: node for node in model.graph.node for name in node.output}
    shapes = dict(graph.shapes)
    tables: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type == "Slice" and (axis := _cut_axis(graph, node, whole)) is not None:
            before = math.prod(graph.shapes[node.input[0]][:axis])
            values = _only_looked_up(graph, node.output[0], whole, before)
            if values is not None and _follows_from_sizes(graph, made, node.input[2]):
                tables[node.output[0]] = node.input[0]
                for value in values:
                    sizes_of = list(shapes[value])
                    sizes_of[_axis_of_rows(shapes[value], whole, before)] = graph.shapes[node.input[0]][axis]
                    shapes[value] = tuple(sizes_of)
    if not tables:
        return graph
    kept = [node for node in graph.nodes if node.output[0] not in tables]
    return replace(graph, nodes=tuple(_reading(node, tables) for node in kept), shapes=shapes)


def _cut_axis(graph: OnnxGraph, node: onnx.NodeProto, whole: int) -> int | None:
    """The axis of which the node takes the first ``whole`` elements; None if it does another thing."""
    before, after = graph.shapes.get(node.input[0]), graph.shapes.get(node.output[0])
    bounds = [graph.scalar(name) for name in (*node.input[1:3], *node.input[4:5])]
    if before is None or after is None or bounds[:2] != [0, whole] or bounds[2:] not in ([], [1]):
        return None
    changed = [axis for axis, size in enumerate(before) if after[axis] != size]
    return changed[0] if len(changed) == 1 and after[changed[0]] == whole else None


def _axis_of_rows(shape: tuple[int, ...], whole: int, before: int) -> int:
    """The axis of ``whole`` elements that has ``before`` rows in front of it, wherever axes of one element are."""
    each = (axis for axis, size in enumerate(shape) if size == whole and math.prod(shape[:axis]) == before)
    return next(each)


def _only_looked_up(graph: OnnxGraph, value: str, whole: int, before: int) -> list[str] | None:
    """The value and others that hold the same rows, where positions are looked up in them and nothing else is done."""
    found = [value]
    if value in graph.outputs or not graph.users.get(value):
        return None
    for user in graph.users[value]:
        if user.op_type in _KEEPING and user.input[0] == value and user.output[0] in graph.shapes:
            more = _only_looked_up(graph, user.output[0], whole, before)
            if more is None:
                return None
            found += more
        elif not _looks_up(graph, user, value, whole, before):
            return None
    return found


def _looks_up(graph: OnnxGraph, node: onnx.NodeProto, table: str, whole: int, before: int) -> bool:
    if node.op_type not in ("Gather", "GatherND") or node.input[0] != table:
        return False
    axis, shape = attribute(node, "axis", 0), graph.shapes[table]
    assert isinstance(axis, int)
    if node.input[1] not in graph.from_positions - graph.from_tokens or shape[axis] != whole:
        return False
    return math.prod(shape[: axis % len(shape)]) == before


def _follows_from_sizes(graph: OnnxGraph, made: Mapping[str, onnx.NodeProto], name: str) -> bool:
    """Whether a constant of the graph was computed from the shape of what is no weight."""
    waiting, seen = [name], set()
    while waiting:
        node = made.get(waiting.pop())
        if node is None or node.output[0] in seen:
            continue
        seen.add(node.output[0])
        if node.op_type in ("Shape", "Size"):
            if node.input[0] not in graph.weights:
                return True
        else:
            waiting += node.input
    return False


def _reading(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    if not any(name in names for name in node.input):
        return node
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[:] = [names.get(name, name) for name in node.input]
    return changed
