"""Cutting a decoder at its attention into segments, in which every token is computed by itself.

Segment i takes the output of attention i - 1 and what else it needs of earlier segments (the residual stream), and
gives q, k and v of layer i. The last one gives the logits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.core.printable import printable
from collage.errors import ModelError
from collage.frontend.read.proto_size import note_network
from collage.frontend.read.weights import array_of
from collage.serve.decoder.compiled import IDS, POSITIONS, TURNED, Decoder, Layer, Source, by_token
from collage.serve.decoder.onnx_graph import DOMAIN, OnnxGraph, attribute, described, in_operators

_CONSTANT = -1


@dataclass(frozen=True)
class Segment:
    """One segment, whose inputs and outputs are ``reads`` and ``writes``, in order.

    ``bare`` is its ONNX model without the ``weights``, which all segments share with the whole model.
    """

    bare: onnx.ModelProto
    weights: Mapping[str, onnx.TensorProto]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def cut(graph: OnnxGraph, decoder: Decoder) -> list[Segment]:
    """The segments of a graph, for the number of tokens that it was read for.

    Raises ModelError if something other than attention looks at other tokens.
    """
    return _Cutter(graph, decoder).cut()


class _Cutter:
    def __init__(self, graph: OnnxGraph, decoder: Decoder) -> None:
        self._graph = graph
        self._decoder = decoder
        self._outputs = {layer.output: number for number, layer in enumerate(decoder.layers)}
        self._levels = self._find_levels()

    def _find_levels(self) -> dict[str, int | None]:
        """The segment that computes each value, -1 for constants, and None for what only attention may read."""
        graph = self._graph
        found: dict[str, int | None] = {IDS: 0, POSITIONS: 0, "": _CONSTANT}
        found.update(dict.fromkeys(graph.places, 0))
        found.update(dict.fromkeys([*graph.constants, *graph.weights], _CONSTANT))
        for node in graph.nodes:
            levels = [found.get(name) for name in node.input]
            known = [level for level in levels if level is not None]
            level = max(known, default=_CONSTANT) if len(known) == len(levels) else None
            for name in node.output:
                if name in self._outputs:
                    found[name] = self._outputs[name] + 1
                elif name not in graph.places:
                    found[name] = level
        return found

    def cut(self) -> list[Segment]:
        layers = self._decoder.layers
        wanted: list[dict[str, None]] = [dict.fromkeys(self._rows_of(layer)) for layer in layers]
        wanted.append({self._decoder.logits: None})
        for number, layer in enumerate(layers):
            for source in (layer.q, layer.k, layer.v):
                self._refuse_hidden(source.value)
                if self._levels.get(source.value) not in (number, _CONSTANT):
                    self._refuse_level(layer, source)
        self._refuse_hidden(self._decoder.logits)
        found = []
        for number in range(len(layers), -1, -1):
            nodes, reads = self._gather(number, [name.removesuffix(TURNED) for name in wanted[number]])
            for name in reads:
                level = self._levels[name]
                assert level is not None
                if name not in self._outputs and name not in (IDS, POSITIONS):
                    wanted[level][name] = None
            found.append(self._segment(number, nodes, reads, list(wanted[number])))
        return found[::-1]

    def _rows_of(self, layer: Layer) -> list[str]:
        return [by_token(source) for source in (layer.q, layer.k, layer.v)]

    def _refuse_hidden(self, name: str) -> None:
        """Raise ModelError if a value depends on what only attention may read, and name who brings it in."""
        while self._levels.get(name) is None:
            node = self._graph.producers[name]
            name = next(each for each in node.input if self._levels.get(each) is None)
            if name not in self._graph.from_tokens:
                self._refuse_input(node, name)

    def _refuse_level(self, layer: Layer, source: Source) -> None:
        node = self._graph.producers[source.value]
        raise ModelError(
            f"{described(node)} does not depend on the attention before that at {printable(layer.node)} alone: only "
            "layers one after another can be served."
        )

    def _gather(self, number: int, targets: Sequence[str]) -> tuple[list[onnx.NodeProto], list[str]]:
        nodes: dict[int, onnx.NodeProto] = {}
        reads: dict[str, None] = {}
        waiting, seen = list(targets), set()
        while waiting:
            name = waiting.pop()
            if name in seen or not name or self._graph.is_constant(name):
                continue
            seen.add(name)
            level = self._levels[name]
            if name in self._graph.places:
                reads[POSITIONS] = None
            elif name in (IDS, POSITIONS) or name in self._outputs or level not in (number, _CONSTANT):
                reads[name] = None
            else:
                node = self._graph.producers[name]
                nodes[self._graph.order[id(node)]] = node
                waiting += node.input
        return [nodes[place] for place in sorted(nodes)], sorted(reads, key=self._read_order)

    def _read_order(self, name: str) -> tuple[int, int]:
        """Attention's output comes first, so that segments of equal structure are equal."""
        node = self._graph.producers.get(name)
        return 0 if name in self._outputs else 1, -1 if node is None else self._graph.order[id(node)]

    def _refuse_input(self, node: onnx.NodeProto, name: str) -> None:
        maker = self._graph.producers.get(name)
        what = f"the input {printable(name)}" if maker is None else described(maker)
        raise ModelError(
            f"{described(node)} reads {what} outside of attention, where every token must be computed by itself: this "
            "decoder cannot be served."
        )

    def _segment(
        self, number: int, nodes: Sequence[onnx.NodeProto], reads: Sequence[str], writes: Sequence[str]
    ) -> Segment:
        graph = self._graph
        body, weights = list(nodes), {}
        for place in graph.places.intersection(name for node in nodes for name in node.input):
            sizes, whole = f"{place}.sizes", f"{place}.whole"
            shape = graph.shapes[place]
            weights[sizes] = helper.make_tensor(sizes, TensorProto.INT64, [len(shape)], shape)
            body.insert(0, helper.make_node("Cast", [whole], [place], to=graph.dtypes[place]))
            body.insert(0, helper.make_node("Reshape", [POSITIONS, sizes], [whole]))
        for name in writes:
            if name.endswith(TURNED):
                source = name.removesuffix(TURNED)
                body.append(helper.make_node("Transpose", [source], [name], f"{source}/by_token", perm=[0, 2, 1, 3]))
        for name in dict.fromkeys(name for node in body for name in node.input):
            if name in graph.constants:
                weights[name] = numpy_helper.from_array(graph.constants[name], name)
            elif name in graph.weights:
                weights[name] = graph.weights[name]
        inputs = [self._info(name) for name in reads]
        outputs = [self._info(name) for name in writes]
        made = helper.make_graph(body, f"segment {number}", inputs, outputs)
        model = helper.make_model(made, opset_imports=list(graph.opset), ir_version=10)
        return Segment(model, weights, tuple(reads), tuple(writes))

    def _info(self, name: str) -> onnx.ValueInfoProto:
        graph = self._graph
        if name == POSITIONS and name not in graph.shapes:
            return helper.make_tensor_value_info(name, TensorProto.INT64, graph.shapes[IDS])
        whole = name.removesuffix(TURNED)
        if whole not in graph.shapes:
            raise ModelError(f"the shape of {described(graph.producers[whole])} is not known, so it cannot be served.")
        shape = graph.shapes[whole]
        if name != whole:
            shape = (shape[0], shape[2], shape[1], shape[3])
        return helper.make_tensor_value_info(name, graph.dtypes[whole], shape)


def model_of(segment: Segment, network_bytes: int) -> onnx.ModelProto:
    """The segment's model. Its inputs and outputs are numbered, so that segments of equal structure have equal ones.

    ``network_bytes`` are those of the whole decoder's weights. They tell whether the cache holds the segment's weights
    from one iteration to the next, and so with which kernels it is fastest.
    """
    model = onnx.ModelProto()
    model.CopyFrom(segment.bare)
    names = _ports(segment)
    for info in (*model.graph.input, *model.graph.output):
        info.name = names[info.name]
    _rename(model, names)
    _write_out_products(model)
    model.graph.initializer.extend(segment.weights.values())
    note_network(model, network_bytes)
    return model


def _write_out_products(model: onnx.ModelProto) -> None:
    nodes = in_operators(model.graph.node)
    versions = [each for each in model.opset_import if each.domain != DOMAIN]
    del model.graph.node[:], model.opset_import[:]
    model.graph.node.extend(nodes)
    model.opset_import.extend(versions)


def structure(segment: Segment) -> str:
    """A digest of a segment without its names and its weights; vectors and matrices of floats are weights."""
    bare = onnx.ModelProto()
    bare.CopyFrom(segment.bare)
    names = _ports(segment)
    for node in bare.graph.node:
        node.name = ""
        for name in (*node.input, *node.output):
            names.setdefault(name, f"v{len(names)}" if name else "")
    _rename(bare, names)
    texts = [node.SerializeToString(deterministic=True) for node in bare.graph.node]
    for name, tensor in sorted(segment.weights.items(), key=lambda pair: names[pair[0]]):
        texts.append(f"{names[name]} {tensor.data_type} {list(tensor.dims)}".encode())
        if tensor.data_type != TensorProto.FLOAT or math.prod(tensor.dims) <= 1:
            texts.append(array_of(tensor).tobytes())
    texts += [info.type.SerializeToString(deterministic=True) for info in (*bare.graph.input, *bare.graph.output)]
    return hashlib.sha256(b"\n".join(texts)).hexdigest()


def _ports(segment: Segment) -> dict[str, str]:
    return {
        **{name: f"in{place}" for place, name in enumerate(segment.reads)},
        **{name: f"out{place}" for place, name in enumerate(segment.writes)},
    }


def _rename(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    for node in model.graph.node:
        for values in (node.input, node.output):
            changed = [names.get(name, name) for name in values]
            del values[:]
            values.extend(changed)


_ALWAYS = frozenset("DynamicQuantizeLinear CumSum LSTM GRU RNN Conv ConvTranspose".split())
"""Operators that look at several tokens by what they are; ``DynamicQuantizeLinear`` has one scale for all."""
_BY_DATA = frozenset("NonZero Compress Unique NonMaxSuppression".split())
"""Operators that make as many rows as the data says."""
_ALONG = frozenset("Softmax LogSoftmax Hardmax ArgMax ArgMin TopK LpNormalization".split())
"""Operators along one axis. A softmax of what depends on tokens is attention, or refused before."""

_OF_EXPERTS = "a mixture of experts can be served if its experts differ in their weights alone"


def refuse_mixing(graph: OnnxGraph, segments: Iterable[Segment], tokens: int) -> None:
    """Raise ModelError if a segment's operator mixes tokens or positions: it would see other requests, and padding.

    ``tokens`` distinguishes their axis from all others.
    """
    varying = graph.from_tokens | graph.from_positions
    chosen = graph.dependent({node.output[1] for node in graph.nodes if node.op_type == "TopK"} - {""})
    for segment in segments:
        for node in segment.bare.graph.node:
            if not varying.intersection(node.input):
                continue
            if node.op_type in _BY_DATA:
                raise ModelError(
                    f"{described(node)} makes as many rows as the tokens say, and segments have fixed shapes: "
                    f"{_OF_EXPERTS}."
                )
            if _mixes(graph, node, tokens):
                more = f" ({_OF_EXPERTS})" if chosen.intersection(node.input) else ""
                raise ModelError(
                    f"{described(node)} mixes tokens outside of attention, where every token must be computed by "
                    f"itself: this decoder cannot be served{more}."
                )


def _mixes(graph: OnnxGraph, node: onnx.NodeProto, tokens: int) -> bool:
    if node.op_type in _ALWAYS:
        return True
    shape = graph.shapes.get(node.input[0])
    if node.op_type == "MatMul":
        second = graph.shapes.get(node.input[1])
        return tokens in (shape or (0,))[-1:] or (second is not None and tokens in second[-2:-1])
    if node.op_type in ("Gather", "Slice") and node.input[0] not in graph.from_tokens | graph.from_positions:
        return False  # of a table
    return shape is not None and any(shape[axis] == tokens for axis in _axes(graph, node, len(shape)))


def _axes(graph: OnnxGraph, node: onnx.NodeProto, rank: int) -> Sequence[int]:
    if node.op_type.startswith("Reduce"):
        return _reduced(graph, node, rank)
    if node.op_type == "Slice":
        made = graph.shapes.get(node.output[0], graph.shapes[node.input[0]])
        return [axis for axis, size in enumerate(graph.shapes[node.input[0]]) if made[axis] != size]
    if node.op_type == "Gather":
        axis = attribute(node, "axis", 0)
        assert isinstance(axis, int)
        return (axis,)
    from_there = node.op_type in ("LayerNormalization", "RMSNormalization")
    if node.op_type not in _ALONG and not from_there:
        return ()
    axis = attribute(node, "axis", 0 if node.op_type in ("ArgMax", "ArgMin") else -1)
    assert isinstance(axis, int)
    return range(axis % rank, rank) if from_there else (axis,)


def _reduced(graph: OnnxGraph, node: onnx.NodeProto, rank: int) -> Sequence[int]:
    axes = attribute(node, "axes")
    if isinstance(axes, Sequence):
        return axes
    if len(node.input) > 1 and node.input[1]:
        found = graph.constants.get(node.input[1])
        return range(rank) if found is None else found.reshape(-1).tolist()
    return () if attribute(node, "noop_with_empty_axes", 0) else range(rank)
