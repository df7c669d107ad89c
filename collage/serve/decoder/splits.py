"""Which values of a segment can be split by columns among processes, for tensor (intra-layer) parallelism.

Columns of a product with a weight are columns of the weight, and what is computed of each element by itself stays
split. A product of a split value takes the rows of its weight that belong to the columns, and gives a part of a sum. So
the parts are added up (an all-reduce), and what follows is computed by all processes. Heads are columns, too: each
process has the attention of its own heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from collage.errors import ModelError
from collage.serve.decoder.experts.product import is_product
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described

_UNARY = frozenset(
    "Abs Cast Clip Dropout Elu Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Relu Selu Sigmoid "
    "Softplus Softsign Sqrt Swish Tanh".split()
)
_BINARY = frozenset("Add Div Max Min Mul Pow Sub".split())
_SHAPES = frozenset("Reshape Squeeze Unsqueeze".split())


@dataclass(frozen=True)
class ColumnSplit:
    """A value whose columns are split: each of ``parts`` consecutive groups of columns is divided evenly.

    ``origins`` are the products (by output) whose columns these come from; attention's output has none.
    """

    parts: tuple[int, ...]
    origins: frozenset[str] = frozenset()

    @property
    def width(self) -> int:
        """The columns of the whole value."""
        return sum(self.parts)


@dataclass(frozen=True)
class Splits:
    """What is split in a segment: values, and sums that the processes have parts of. Other values are whole."""

    values: Mapping[str, ColumnSplit]
    sums: frozenset[str]


class _UnsplitError(Exception):
    """These products cannot be split, because of a node that needs whole rows of what they give."""

    def __init__(self, origins: frozenset[str], node: onnx.NodeProto) -> None:
        super().__init__(described(node))
        self.origins = origins


class _PartsError(Exception):
    """These products' columns have to be divided in these groups."""

    def __init__(self, origins: frozenset[str], parts: tuple[int, ...]) -> None:
        super().__init__()
        self.origins = origins
        self.parts = parts


@dataclass
class _Search:
    """What is tried: products that are not split, and groups of columns."""

    whole: set[str] = field(default_factory=set)
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)


def weight_product(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether the node multiplies by a matrix of weights, or by one of several for each row."""
    if is_product(node):
        return node.input[1] in graph.weights
    if node.op_type not in ("MatMul", "Gemm") or node.domain or node.input[1] not in graph.weights:
        return False
    plain = not any(attribute(node, name, 0) for name in ("transA", "transB"))
    return len(graph.weights[node.input[1]].dims) == 2 and (node.op_type == "MatMul" or plain)


def find_splits(
    graph: OnnxGraph,
    nodes: Sequence[onnx.NodeProto],
    given: Mapping[str, ColumnSplit],
    wanted: Mapping[str, tuple[int, ...]],
    processes: int,
) -> Splits:
    """The splits of a segment's nodes. ``given`` are split values that it reads, and ``wanted`` what it gives: the
    groups of columns that are divided, or none for a value that has to be whole.

    As many products are split as can be. Raises ModelError where what is given has to be whole.
    """
    search = _Search()
    while True:
        try:
            found = _propagate(graph, nodes, given, processes, search)
            for name in found.values.keys() & wanted.keys():
                split, parts = found.values[name], wanted[name]
                if parts and len(split.parts) == 1 and sum(parts) == split.width and parts != split.parts:
                    raise _PartsError(split.origins, parts)
                if parts != split.parts:
                    raise _UnsplitError(split.origins, graph.producers[name])
            return found
        except _UnsplitError as error:
            if not error.origins:
                raise ModelError(
                    f"{error} needs whole rows of attention's output, so this decoder cannot be divided by heads."
                ) from error
            search.whole |= error.origins
        except _PartsError as error:
            search.parts.update(dict.fromkeys(error.origins, error.parts))


def _propagate(
    graph: OnnxGraph,
    nodes: Sequence[onnx.NodeProto],
    given: Mapping[str, ColumnSplit],
    processes: int,
    search: _Search,
) -> Splits:
    values, sums = dict(given), set()
    for node in nodes:
        splits = [values[name] for name in node.input if name in values]
        if weight_product(graph, node):
            if splits:
                if node.input[0] not in values:
                    raise _origins_error(splits, node)
                sums.add(node.output[0])
                continue
            name, width = node.output[0], int(graph.weights[node.input[1]].dims[-1])
            parts = search.parts.get(name, (width,))
            if name not in search.whole and not any(each % processes for each in parts):
                values[name] = ColumnSplit(parts, frozenset({name}))
            continue
        if splits:
            values.update(_through(graph, node, values, search))
    return Splits(values, frozenset(sums))


def _through(
    graph: OnnxGraph, node: onnx.NodeProto, values: Mapping[str, ColumnSplit], search: _Search
) -> dict[str, ColumnSplit]:
    """The outputs of a node with split inputs."""
    splits = [values[name] for name in node.input if name in values]
    first, name = splits[0], node.output[0]
    origins = frozenset().union(*(each.origins for each in splits))
    if node.op_type in _UNARY:
        return {name: first}
    if node.op_type in _SHAPES and node.input[0] in values:
        before, after = (graph.shapes.get(each) for each in (node.input[0], name))
        if before and after and before[-1] == after[-1] == first.width:
            return {name: first}
    elif node.op_type in _BINARY:
        for each in splits:
            if each.parts != first.parts:
                raise _UnsplitError(origins, node)
        if all(each in values or _fits(graph, each, first) for each in node.input):
            return {name: ColumnSplit(first.parts, origins)}
    elif node.op_type == "ColumnSplit" and node.input[0] in values:
        return _columns(graph, node, first)
    raise _UnsplitError(origins, node)


def _fits(graph: OnnxGraph, name: str, split: ColumnSplit) -> bool:
    """Whether a whole operand can stand beside a split one: its rows are one element, or constants to be split."""
    shape = graph.shapes.get(name, ())
    return not shape or shape[-1] == 1 or (graph.is_constant(name) and shape[-1] == split.width)


def _columns(graph: OnnxGraph, node: onnx.NodeProto, split: ColumnSplit) -> dict[str, ColumnSplit]:
    shape, axis = graph.shapes.get(node.input[0]), attribute(node, "axis", 0)
    assert isinstance(axis, int)
    if shape is None or axis % len(shape) != len(shape) - 1:
        raise _UnsplitError(split.origins, node)
    sizes = tuple(graph.shapes[name][-1] for name in node.output)
    if sizes != split.parts:
        if len(split.parts) > 1:
            raise _UnsplitError(split.origins, node)
        raise _PartsError(split.origins, sizes)
    return {name: ColumnSplit((size,), split.origins) for name, size in zip(node.output, sizes, strict=True)}


def _origins_error(splits: Sequence[ColumnSplit], node: onnx.NodeProto) -> _UnsplitError:
    return _UnsplitError(frozenset().union(*(each.origins for each in splits)), node)
