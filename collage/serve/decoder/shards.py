"""The segments of a decoder for one of several processes, each of which has some heads and columns of the products.

Columns of a product with a weight are columns of the weight, and what is computed of each element by itself stays
split. A product of a split value takes the rows of its weight that belong to the columns, and gives a part of a sum. So
the parts are added up (an all-reduce), and what follows is computed by all processes. Heads are columns, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from collage.core.printable import printable
from collage.errors import ModelError, UsageError
from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array
from collage.serve.decoder.compiled import After, Decoder, Layer, Source
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described, is_product
from collage.serve.decoder.segments import Segment

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

    As many products are split as can be. Raises ModelError if what is given has to be whole.
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


_SPLIT_SUFFIX = ".split"


@dataclass(frozen=True)
class Shards:
    """One process's part: its segments, what follows each of them but the last one, and its heads."""

    segments: tuple[Segment, ...]
    after: tuple[After, ...]
    decoder: Decoder


def shard(graph: OnnxGraph, segments: Sequence[Segment], decoder: Decoder, rank: int, processes: int) -> Shards:
    """The part of process ``rank``. Raises UsageError and ModelError if a decoder cannot be divided like that."""
    first = decoder.layers[0]
    if first.heads % processes or first.kv_heads % processes:
        raise UsageError(
            f"{first.heads} heads with {first.kv_heads} K/V heads cannot be divided among {processes} processes."
        )
    found: list[Segment] = []
    after: list[After] = []
    layers: list[Layer] = []
    for number, segment in enumerate(segments):
        given = {}
        if number:
            before = decoder.layers[number - 1]
            given = {before.output: ColumnSplit((before.heads * before.value_dim,))}
        last = number == len(segments) - 1
        wanted = dict.fromkeys(segment.writes, tuple[int, ...]())
        if not last:
            wanted.update(_groups(decoder.layers[number]))
        splits = find_splits(graph, segment.bare.graph.node, given, wanted, processes)
        part = _Part(graph, segment, splits, rank, processes)
        pieces, sums = part.pieces(given)
        found += pieces
        after += [After(-1, each) for each in sums]
        if not last:
            after.append(After(number, ()))
            layers.append(_local(decoder.layers[number], splits, rank, processes))
    return Shards(tuple(found), tuple(after), replace(decoder, layers=tuple(layers)))


def _sources(layer: Layer) -> tuple[Source, Source, Source]:
    return layer.q, layer.k, layer.v


def _groups(layer: Layer) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for source in sorted(_sources(layer), key=lambda each: each.offset):
        found[source.value] = (*found.get(source.value, ()), source.width)
    return found


def _local(layer: Layer, splits: Splits, rank: int, processes: int) -> Layer:
    """A layer with this process's heads. Raises ModelError if q, k or v is not split."""
    q, k, v = (_local_source(layer, each, splits, processes) for each in _sources(layer))
    heads, kv_heads = layer.heads // processes, layer.kv_heads // processes
    slopes, sinks = (each[heads * rank : heads * (rank + 1)] for each in (layer.slopes, layer.sinks))
    return replace(layer, q=q, k=k, v=v, heads=heads, kv_heads=kv_heads, slopes=slopes, sinks=sinks)


def _local_source(layer: Layer, source: Source, splits: Splits, processes: int) -> Source:
    split = splits.values.get(source.value)
    if split is not None and not source.by_head:
        offsets = np.cumsum([0, *split.parts]).tolist()
        for offset, width in zip(offsets, split.parts, strict=False):
            if (offset, width) == (source.offset, source.width):
                return replace(source, offset=offset // processes, width=width // processes)
    raise ModelError(
        f"the attention at {printable(layer.node)} reads {printable(source.value)}, whose columns cannot be divided by "
        "heads: this decoder cannot be divided among processes."
    )


class _Part:
    def __init__(self, graph: OnnxGraph, segment: Segment, splits: Splits, rank: int, processes: int) -> None:
        self._graph = graph
        self._segment = segment
        self._splits = splits
        self._rank = rank
        self._processes = processes
        self._weights: dict[str, onnx.TensorProto] = dict(segment.weights)
        self._nodes = [self._node(each) for each in segment.bare.graph.node]

    def _columns(self, split: ColumnSplit) -> NDArray[np.int64]:
        offsets = np.cumsum([0, *split.parts])
        return np.concatenate(
            [
                offset + np.arange(size * self._rank // self._processes, size * (self._rank + 1) // self._processes)
                for offset, size in zip(offsets, split.parts, strict=False)
            ]
        )

    def _node(self, node: onnx.NodeProto) -> onnx.NodeProto:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        values = self._splits.values
        split = next((values[name] for name in (*node.output, *node.input) if name in values), None)
        if split is None:
            return made
        name = node.output[0]
        if weight_product(self._graph, node):
            rows = values.get(node.input[0])
            mine = self._columns(values[name] if rows is None else rows)
            last = len(self._graph.shapes[node.input[1]]) - 1
            made.input[1] = self._taken(node.input[1], mine, last if rows is None else last - 1)
            if len(node.input) > 2 and node.input[2] and not is_product(node):
                made.input[2] = self._bias(node.input[2], mine if rows is None else None)
        elif node.op_type in ("Reshape", "ColumnSplit"):
            if len(node.input) > 1 and node.input[1]:
                made.input[1] = self._sizes(node, split)
        else:
            for place, each in enumerate(node.input):
                shape = self._graph.shapes.get(each, ())
                if each not in values and shape and shape[-1] == split.width and split.width > 1:
                    made.input[place] = self._taken(each, self._columns(split), len(shape) - 1)
        return made

    def _constant(self, name: str) -> Array:
        if name in self._graph.constants:
            return self._graph.constants[name]
        return array_of(self._graph.weights[name])

    def _taken(self, name: str, places: NDArray[np.int64], axis: int) -> str:
        made = f"{name}{_SPLIT_SUFFIX}{axis}.{crc32(places.tobytes()):x}"
        if made not in self._weights:
            part = np.ascontiguousarray(np.take(self._constant(name), places, axis))
            self._weights[made] = numpy_helper.from_array(part, made)
        return made

    def _bias(self, name: str, columns: NDArray[np.int64] | None) -> str:
        """The bias of a product: some columns, or all in one process only where the processes' products are added."""
        value = self._constant(name)
        if columns is not None:
            return self._taken(name, columns, value.ndim - 1) if value.ndim and value.shape[-1] > 1 else name
        made = f"{name}{_SPLIT_SUFFIX}"
        self._weights[made] = numpy_helper.from_array(value if not self._rank else np.zeros_like(value), made)
        return made

    def _sizes(self, node: onnx.NodeProto, split: ColumnSplit) -> str:
        sizes = np.array(self._constant(node.input[1]))
        if node.op_type == "ColumnSplit":
            sizes = sizes // self._processes
        elif sizes[-1] == split.width:
            sizes[-1] //= self._processes
        made = f"{node.output[0]}.sizes"
        self._weights[made] = numpy_helper.from_array(sizes, made)
        return made

    def pieces(self, given: Mapping[str, ColumnSplit]) -> tuple[list[Segment], list[tuple[str, ...]]]:
        """The segment cut where sums have to be made, and the sums after each piece but the last."""
        levels = self._levels()
        most = max([level for level in levels.values() if level is not None], default=0)
        writes: list[dict[str, None]] = [{} for _ in range(most + 1)]
        sums: list[list[str]] = [[] for _ in range(most + 1)]
        for name in self._segment.writes:
            writes[_made(levels, name, self._splits)][name] = None
        for name in sorted(self._splits.sums):
            sums[_made(levels, name, self._splits)].append(name)
            writes[_made(levels, name, self._splits)][name] = None
        pieces: list[Segment] = []
        if not writes[most]:
            raise ModelError(
                f"the sum {printable(sums[most - 1][0])} of the processes' products is read behind the next attention "
                "only, as of a feed-forward part beside the attention: this decoder cannot be divided among processes."
            )
        for level in range(most, -1, -1):
            nodes, reads = self._gather(levels, level, list(writes[level]))
            for name in reads:
                if name not in self._segment.reads:
                    writes[_made(levels, name, self._splits)][name] = None
            pieces.append(self._segment_of(level, nodes, reads, list(writes[level])))
        return pieces[::-1], [tuple(each) for each in sums[:-1]]

    def _levels(self) -> dict[str, int | None]:
        """How many sums come before each value; None for what follows from constants only."""
        found: dict[str, int | None] = dict.fromkeys(self._segment.reads, 0)
        for node in self._nodes:
            known = [level for name in node.input if (level := found.get(name)) is not None]
            level = max(known) if known else None
            for name in node.output:
                raised = level is not None and name in self._splits.sums
                found[name] = level + 1 if raised and level is not None else level
        return found

    def _gather(
        self, levels: Mapping[str, int | None], level: int, targets: Sequence[str]
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        producers = {name: place for place, node in enumerate(self._nodes) for name in node.output}
        places: set[int] = set()
        reads: dict[str, None] = {}
        waiting, seen = list(targets), set()
        while waiting:
            name = waiting.pop()
            if name in seen or not name or name in self._weights:
                continue
            seen.add(name)
            target = name in targets
            here = levels.get(name) is None or _made(levels, name, self._splits) == level
            if name in self._segment.reads or not (here and (target or name not in self._splits.sums)):
                reads[name] = None
                continue
            places.add(producers[name])
            waiting += self._nodes[producers[name]].input
        order = [*self._segment.reads, *(name for node in self._nodes for name in node.output)]
        return [self._nodes[place] for place in sorted(places)], sorted(reads, key=order.index)

    def _segment_of(
        self, level: int, nodes: Sequence[onnx.NodeProto], reads: Sequence[str], writes: Sequence[str]
    ) -> Segment:
        weights = {name: self._weights[name] for node in nodes for name in node.input if name in self._weights}
        inputs, outputs = ([self._info(name) for name in names] for names in (reads, writes))
        name = f"{self._segment.bare.graph.name}.{level}"
        made = helper.make_graph(list(nodes), name, inputs, outputs)
        model = helper.make_model(made, opset_imports=list(self._graph.opset), ir_version=10)
        return Segment(model, weights, tuple(reads), tuple(writes))

    def _info(self, name: str) -> onnx.ValueInfoProto:
        for info in (*self._segment.bare.graph.input, *self._segment.bare.graph.output):
            if info.name == name:
                kind, shape = (
                    info.type.tensor_type,
                    [each.dim_value for each in info.type.tensor_type.shape.dim],
                )
                break
        else:
            if name not in self._graph.shapes:
                raise ModelError(f"the shape of {printable(name)} is not known, so it cannot be divided.")
            shape = list(self._graph.shapes[name])
            kind = onnx.TypeProto.Tensor(elem_type=self._graph.dtypes[name])
        if name in self._splits.values:
            shape[-1] //= self._processes
        return helper.make_tensor_value_info(name, kind.elem_type or TensorProto.FLOAT, shape)


def _made(levels: Mapping[str, int | None], name: str, splits: Splits) -> int:
    """The piece in which a value is made: a sum is counted in what follows it."""
    return (levels[name] or 0) - (name in splits.sums)
