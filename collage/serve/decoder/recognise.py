"""Recognising a decoder: its attention, layer by layer, with the ways back to q, k and v, and its logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from collage.core.printable import printable
from collage.errors import ModelError
from collage.serve.decoder.compiled import IDS, MASK, POSITIONS, Decoder, Layer, Rotation, Source
from collage.serve.decoder.onnx_graph import (
    PROBE,
    OnnxGraph,
    attribute,
    described,
    evaluated,
    read_decoder,
    unserved,
)
from collage.serve.decoder.positions import check_angles, learned_positions, read_rotation


def before_sinks(graph: OnnxGraph, value: str) -> tuple[str, str]:
    """The scores of keys in what a softmax reads, and the value of the sinks that are put behind them.

    Without sinks these are the value itself and "". The largest score of each row may have been taken away.
    """
    joined = _before_shift(graph, value)
    node = graph.producers.get(joined)
    if node is None or node.op_type != "Concat" or len(node.input) != 2:
        return value, ""
    scores, sinks = node.input
    rank, axis = len(graph.shapes.get(joined, ())), attribute(node, "axis", 0)
    assert isinstance(axis, int)
    last = rank and axis % rank == rank - 1 and graph.shapes.get(sinks, (0,))[-1] == 1
    if not last or scores not in graph.from_tokens or sinks in graph.from_tokens:
        return value, ""
    return scores, sinks


def _before_shift(graph: OnnxGraph, value: str) -> str:
    node = graph.producers.get(value)
    if node is None or node.op_type != "Sub":
        return value
    largest = graph.producers.get(node.input[1])
    by_row = graph.shapes.get(node.input[1], (0,))[-1:] == (1,)
    if largest is None or largest.op_type != "ReduceMax" or largest.input[0] != node.input[0] or not by_row:
        return value
    return str(node.input[0])


def drops_sinks(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    if node.op_type != "Slice" or len(node.input) < 4:
        return False
    before, after = (graph.shapes.get(name, ()) for name in (node.input[0], node.output[0]))
    first = graph.scalar(node.input[1])
    return bool(before) and after == (*before[:-1], before[-1] - 1) and first == 0


def read_sinks(graph: OnnxGraph, node: onnx.NodeProto, value: str, heads: int) -> tuple[float, ...]:
    """The sinks of the attention at a node, one for each head. Raises ModelError."""
    found = evaluated(graph, value, {})
    if found is not None and math.prod(found.shape[:-2]) == heads:
        rows = found.reshape(heads, -1)
        if (rows == rows[:, :1]).all():
            return tuple(map(float, rows[:, 0]))
    raise ModelError(
        f"{described(node)} has sinks beside its scores that are not one constant for each head: they cannot be served."
    )


_MASKING = frozenset("Add Sub Where Cast Max Min Identity".split())

_MOVES = frozenset("Reshape Squeeze Unsqueeze".split())
"""What may put heads into other axes; the tokens of q and k stay the last two."""


@dataclass(frozen=True)
class Masking:
    """A node that scores pass through, the place of the scores among its inputs, and their factor behind it."""

    node: onnx.NodeProto
    place: int
    factor: float = 1.0

    @property
    def masks(self) -> tuple[str, ...]:
        return tuple(name for at, name in enumerate(self.node.input) if at != self.place)


@dataclass(frozen=True)
class Scores:
    """The product of q and k behind scores, the scale between them, and the nodes on the way that may mask them.

    With a ``softcap`` the scaled scores x become softcap * tanh(x / softcap). ``sinks`` is the value that is put behind
    the scores of the keys, or "".
    """

    product: onnx.NodeProto
    scale: float = 1.0
    softcap: float = 0.0
    masking: tuple[Masking, ...] = ()
    sinks: str = ""


def scores_of(graph: OnnxGraph, value: str) -> Scores | None:
    """What scaled and masked scores are made of; None if there is not just one product of q and k.

    Raises ModelError if the token ids decide about a mask or a bias: attention is served without these.
    """
    value, sinks = before_sinks(graph, value)
    found = _followed(graph, value)
    for each in found.masking if found is not None else ():
        for name in each.masks:
            refuse_from_tokens(graph, each.node, name)
    return None if found is None else replace(found, sinks=sinks)


def refuse_from_tokens(graph: OnnxGraph, node: onnx.NodeProto, mask: str) -> None:
    """Raise ModelError if the mask or bias that a node gives to attention depends on the token ids."""
    if mask in graph.from_tokens:
        raise ModelError(
            f"{described(node)} masks or biases attention by the token ids: only masks by positions and {MASK} can be "
            "served."
        )


def _followed(graph: OnnxGraph, value: str) -> Scores | None:
    node = graph.producers.get(value)
    if node is None or value not in graph.from_tokens:
        return None
    if node.op_type == "MatMul":
        return Scores(node) if all(name in graph.from_tokens for name in node.input) else None
    if node.op_type in ("Mul", "Div"):
        for place, other in ((0, 1), (1, 0)):
            number = graph.scalar(node.input[other])
            if number is not None and (node.op_type == "Mul" or place == 0):
                inner = _followed(graph, node.input[place])
                factor = number if node.op_type == "Mul" else 1 / number
                return None if inner is None else _multiplied(inner, factor)
        return None
    if node.op_type == "Tanh":
        inner = _followed(graph, node.input[0])
        return None if inner is None or inner.softcap or inner.masking else replace(inner, softcap=1.0)
    if node.op_type in _MOVES:
        before, after = (graph.shapes.get(name, ()) for name in (node.input[0], value))
        return _followed(graph, node.input[0]) if before[-2:] == after[-2:] and len(before) > 1 else None
    if node.op_type not in _MASKING:
        return None
    each = [(place, _followed(graph, name)) for place, name in enumerate(node.input)]
    known = [(place, scores) for place, scores in each if scores is not None]
    if len(known) != 1:
        return None
    ((place, scores),) = known
    return replace(scores, masking=(*scores.masking, Masking(node, place)))


def _multiplied(scores: Scores, factor: float) -> Scores:
    masking = tuple(replace(each, factor=each.factor * factor) for each in scores.masking)
    softcap = abs(scores.softcap * factor)  # tanh is odd, so the sign is that of the scale
    return replace(scores, scale=scores.scale * factor, softcap=softcap, masking=masking)


_HEADS_MOVE = frozenset("Transpose Reshape Unsqueeze Squeeze Expand Identity Flatten".split())


@dataclass(frozen=True)
class Origin:
    """Where an operand comes from, and what happens to it on the way.

    ``factor`` is the product of its scales, ``past`` the cache that it is appended to, or "".
    """

    source: Source
    factor: float = 1.0
    past: str = ""
    rotation: Rotation | None = None


@dataclass(frozen=True)
class _Way:
    value: str
    factor: float = 1.0
    past: str = ""
    rotation: Rotation | None = None
    offset: int = 0
    width: int | None = None


def origin_of(graph: OnnxGraph, value: str, node: onnx.NodeProto, tokens: int) -> Origin:
    """Where an operand of the attention at ``node`` comes from. Raises ModelError, which names the node."""
    step, before = _Way(value), None
    while step != before:
        before = step
        step = _back(graph, step, node)
    shape = graph.shapes.get(step.value)
    maker = graph.producers.get(step.value)
    if maker is None or shape is None or step.value not in graph.from_tokens:
        what = printable(step.value) if maker is None else described(maker)
        raise ModelError(
            f"{what} is no product of the tokens whose rows are known, and {described(node)} attends to it: "
            "this is no form of attention that can be served."
        )
    by_head = len(shape) == 4 and shape[0] == 1 and shape[2] == tokens and shape[1] != tokens
    if not by_head and next((size for size in shape if size != 1), 1) != tokens:
        raise ModelError(
            f"{described(maker)} gives {'x'.join(map(str, shape))}, not a row for each token, and {described(node)} "
            "attends to it: this is no form of attention that can be served."
        )
    whole = int(np.prod(shape)) // tokens
    source = Source(step.value, step.offset, whole if step.width is None else step.width, by_head)
    return Origin(source, step.factor, step.past, step.rotation)


def _back(graph: OnnxGraph, step: _Way, at: onnx.NodeProto) -> _Way:
    node = graph.producers.get(step.value)
    if node is None or node.domain not in ("", "ai.onnx"):
        return step
    if node.op_type in _HEADS_MOVE or _expands(graph, node):
        return replace(step, value=node.input[0]) if _keeps_columns(graph, step, node) else step
    if node.op_type == "Cast":
        return replace(step, value=_before_casts(graph, step.value))
    if node.op_type in ("Mul", "Div"):
        return _scaled(graph, step, node)
    if node.op_type == "Concat":
        names = [_before_casts(graph, name) for name in node.input]
        if len(names) == 2 and names[0] in graph.inputs and names[1] not in graph.inputs:
            if step.past:
                raise ModelError(f"{described(node)} appends to a second cache before {described(at)}.")
            return replace(step, value=node.input[1], past=names[0])
    if step.rotation is None and node.op_type in ("Add", "Concat", "RotaryEmbedding"):
        found = read_rotation(graph, node)
        return step if found is None else replace(step, value=found.value, rotation=found.rotation)
    if node.op_type == "Split" and step.width is None:
        return _column_part(graph, step, node)
    return step


def _expands(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether a node repeats axes of one element only, as Expand does: with others, heads would be in another order."""
    before, after = (graph.shapes.get(name) for name in (node.input[0], node.output[0]))
    if node.op_type != "Tile" or before is None or after is None:
        return False
    return all(size in (1, grown) for size, grown in zip(before, after, strict=True))


def _before_casts(graph: OnnxGraph, name: str) -> str:
    """The value itself, or the one that is cast to it without a change."""
    node = graph.producers.get(name)
    while node is not None and node.op_type == "Cast" and graph.dtypes.get(node.input[0]) == graph.dtypes.get(name):
        name = node.input[0]
        node = graph.producers.get(name)
    return name


def _keeps_columns(graph: OnnxGraph, step: _Way, node: onnx.NodeProto) -> bool:
    """Whether what is known of columns so far holds for the node's input, too."""
    if step.width is None:
        return True
    before, after = (graph.shapes.get(name) for name in (node.input[0], node.output[0]))
    return node.op_type == "Reshape" and before is not None and after is not None and before[-1] == after[-1]


def _scaled(graph: OnnxGraph, step: _Way, node: onnx.NodeProto) -> _Way:
    for place, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        number = graph.scalar(node.input[other])
        if number is not None and node.input[place] in graph.from_tokens:
            factor = step.factor * (number if node.op_type == "Mul" else 1 / number)
            return replace(step, value=node.input[place], factor=factor)
    return step


def _column_part(graph: OnnxGraph, step: _Way, node: onnx.NodeProto) -> _Way:
    """Through a Split of the columns of one value that has a row for each token."""
    shape = graph.shapes.get(node.input[0])
    axis = attribute(node, "axis", 0)
    assert isinstance(axis, int)
    if shape is None or axis % len(shape) != len(shape) - 1 or any(n != 1 for n in shape[:-2]):
        return step
    widths = [graph.shapes[name][-1] for name in node.output if name in graph.shapes]
    if len(widths) != len(node.output):
        return step
    place = list(node.output).index(step.value)
    return replace(step, value=node.input[0], offset=sum(widths[:place]), width=widths[place])


_WHOLE = TensorProto.INT64, TensorProto.INT32
_DTYPES = {IDS: _WHOLE, POSITIONS: _WHOLE, MASK: (*_WHOLE, TensorProto.FLOAT, TensorProto.BOOL)}
"""The dtypes that inputs may have; those of caches are float32."""
_OUTPUT = frozenset("Transpose Reshape Squeeze Unsqueeze Identity Flatten Cast".split())


@dataclass(frozen=True)
class _Attention:
    """An attention: its operands q, k and v, what it makes, its scale, its softcap, 0 for none, and its sinks."""

    node: onnx.NodeProto
    q: str
    k: str
    v: str
    made: str
    scale: float | None
    """The factor of the scores, or None for 1 / sqrt(dim), as ONNX's Attention has it."""
    softcap: float
    sinks: str = ""


def recognise(model: onnx.ModelProto, name: str, max_length: int | None = None) -> tuple[Decoder, OnnxGraph]:
    """The decoder, and its graph as it was looked at. Raises ModelError, which names what does not fit.

    ``max_length`` is the longest sequence that is asked for.
    """
    _check_inputs(model, name)
    graph = read_decoder(model, PROBE)
    logits = graph.outputs[0]
    shape = graph.shapes.get(logits)
    tokens = PROBE.tokens
    if shape is None or len(shape) != 3 or shape[:2] != (1, tokens):
        found = "of unknown shape" if shape is None else "x".join(map(str, shape))
        raise ModelError(
            f"{name} is no decoder to serve: its first output {printable(logits)} is {found}, and must be logits "
            "[batch, sequence, vocabulary]."
        )
    cores = [core for node in graph.nodes if (core := _attention(graph, node)) is not None]
    if not cores:
        raise ModelError(
            f"{name} is no decoder to serve: no attention is found in it (a Softmax between two products, or ONNX's "
            "operator Attention)."
        )
    each = [_layer(graph, core) for core in cores]
    _check_caches(graph, [origin for _, origins in each for origin in origins])
    layers = tuple(layer for layer, _ in each)
    _check_uniform(layers)
    length = learned_positions(graph, tokens, max_length)
    for layer, origins in each:
        check_angles(graph, layer, origins[1].rotation, length, tokens)
    _refuse_other_floats(graph, logits, graph.producers[logits])
    return Decoder(layers, logits, shape[2], length), graph


def _check_inputs(model: onnx.ModelProto, name: str) -> None:
    weights = {tensor.name for tensor in model.graph.initializer}
    for info in model.graph.input:
        if info.name in weights:
            continue
        rank = len(info.type.tensor_type.shape.dim)
        known = info.name in (IDS, POSITIONS, MASK)
        if (known and rank == 2) or (not known and rank == 4 and info.name.startswith("past")):
            dtype, allowed = info.type.tensor_type.elem_type, _DTYPES.get(info.name, (TensorProto.FLOAT,))
            if dtype not in allowed:
                names = " or ".join(map(_dtype_name, allowed))
                raise ModelError(
                    f"{name} cannot be served: its input {printable(info.name)} is {_dtype_name(dtype)}, and must be "
                    f"{names}."
                )
            continue
        raise ModelError(
            f"{name} is no decoder to serve: its input {printable(info.name)} is none of {IDS}, {POSITIONS} and {MASK} "
            "[batch, sequence], and past_key_values.N.key and .value [batch, heads, past, head]."
        )
    if IDS not in {info.name for info in model.graph.input}:
        raise ModelError(f"{name} is no decoder to serve: it has no input {IDS} [batch, sequence].")


def _dtype_name(dtype: int) -> str:
    return "float32" if dtype == TensorProto.FLOAT else TensorProto.DataType.Name(dtype).lower()


def _refuse_other_floats(graph: OnnxGraph, value: str, node: onnx.NodeProto) -> None:
    """Raise ModelError if a value that is read or made by attention at a node is not float32."""
    dtype = graph.dtypes.get(value, TensorProto.FLOAT)
    if dtype != TensorProto.FLOAT:
        raise ModelError(
            f"{described(node)} has {printable(value)} in {_dtype_name(dtype)}, and only decoders in float32 can be "
            "served: export it in float32 (collage compile-decoder --tolerance stores weights in fewer bits)."
        )


def _attention(graph: OnnxGraph, node: onnx.NodeProto) -> _Attention | None:
    """The attention around a node, or None if it is no Softmax of scores and no Attention."""
    if node.op_type == "Attention" and node.domain in ("", "ai.onnx"):
        return _operator(graph, node)
    if node.op_type != "Softmax" or node.output[0] not in graph.from_tokens or not _over_tokens(graph, node):
        return None
    scores = scores_of(graph, node.input[0])
    if scores is None:
        raise ModelError(
            f"{described(node)} is not recognised as attention: its input is no scaled and masked product of q and k."
        )
    q, k = scores.product.input
    value = _without_nan(graph, node.output[0])
    user, dropped = _only_user(graph, value), not scores.sinks
    while user is not None:
        if not dropped and drops_sinks(graph, user):
            dropped = True
        elif user.op_type not in ("Cast", "Identity", "Dropout", "Reshape"):
            break
        value = _without_nan(graph, user.output[0])
        user = _only_user(graph, value)
    if user is None or user.op_type != "MatMul" or user.input[0] != value or not dropped:
        raise ModelError(f"{described(node)} is not recognised as attention: no product with v follows it.")
    return _Attention(node, q, k, user.input[1], user.output[0], scores.scale, scores.softcap, scores.sinks)


def _over_tokens(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether a Softmax is one over tokens, and not one over experts or classes of a single token."""
    scores, _ = before_sinks(graph, node.input[0])
    shape, axis = graph.shapes.get(scores), attribute(node, "axis", -1)
    assert isinstance(axis, int)
    return shape is None or shape[axis] in (PROBE.tokens, PROBE.tokens + PROBE.past)


def _without_nan(graph: OnnxGraph, value: str) -> str:
    """The value in which NaN of another one is 0, where that is all that reads the other one, or the value itself.

    PyTorch exports weights of attention so: those of a token that sees none are NaN. Here each sees itself.
    """
    users = graph.users.get(value, [])
    checks = [user for user in users if user.op_type == "IsNaN"]
    replaced = [user for user in users if user.op_type == "Where"]
    if len(users) != 2 or not checks or not replaced:
        return value
    (check,), (where,) = checks, replaced
    alone = graph.users.get(check.output[0], []) == [where]
    if alone and list(where.input[::2]) == [check.output[0], value] and graph.scalar(where.input[1]) == 0:
        return str(where.output[0])
    return value


def _operator(graph: OnnxGraph, node: onnx.NodeProto) -> _Attention:
    softcap, mode = attribute(node, "softcap", 0.0), attribute(node, "qk_matmul_output_mode", 0)
    assert isinstance(softcap, float)
    if (len(node.output) > 3 and node.output[3]) or mode:
        raise unserved(node, "gives its scores")
    if len(node.input) > 6 and node.input[6]:
        raise unserved(node, "is told the lengths of sequences")
    if len(node.input) > 3:
        refuse_from_tokens(graph, node, node.input[3])
    scale = attribute(node, "scale")
    assert scale is None or isinstance(scale, float)
    q, k, v = node.input[:3]
    return _Attention(node, q, k, v, node.output[0], scale, max(softcap, 0.0))


def _layer(graph: OnnxGraph, core: _Attention) -> tuple[Layer, list[Origin]]:
    tokens, node = PROBE.tokens, core.node
    q, k, v = origins = [origin_of(graph, name, node, tokens) for name in (core.q, core.k, core.v)]
    if v.rotation is not None or v.factor != 1:
        raise unserved(node, "scales or rotates v")
    if q.past or bool(k.past) != bool(v.past):
        raise unserved(node, "has a cache for q, or only one for k and v")
    dim, heads = _head_sizes(graph, core, q)
    kv_heads = max(k.source.width // dim, 1)
    value_dim = _value_dim(graph, core, v, kv_heads)
    widths = q.source.width, k.source.width, v.source.width
    if widths != (heads * dim, kv_heads * dim, kv_heads * value_dim):
        these = f"{dim} elements" if dim == value_dim else f"{dim} elements, and of {value_dim} for v"
        raise ModelError(
            f"{described(node)} reads rows of {widths[0]}, {widths[1]} and {widths[2]} elements for q, k and v, which "
            f"are no heads of {these}."
        )
    if heads % kv_heads:
        raise ModelError(
            f"{described(node)} has {heads} heads for {kv_heads} K/V heads, which is no whole number each."
        )
    scale = (dim**-0.5 if core.scale is None else core.scale) * q.factor * k.factor
    output = _output(graph, core, heads * value_dim)
    for value in (q.source.value, k.source.value, v.source.value, output):
        _refuse_other_floats(graph, value, node)
    rotation = q.rotation
    if rotation is not None and rotation.elements > dim:
        raise ModelError(
            f"{described(node)} has {rotation.elements} elements rotated at once, which are no heads of {dim} elements."
        )
    name = node.name or node.output[0]
    layer = Layer(
        name,
        q.source,
        k.source,
        v.source,
        output,
        heads,
        kv_heads,
        dim,
        scale,
        rotation,
        core.softcap,
        sinks=read_sinks(graph, node, core.sinks, heads) if core.sinks else (),
        value_dim=value_dim,
    )
    _add_operator_caches(graph, core, origins)
    return layer, origins


def _head_sizes(graph: OnnxGraph, core: _Attention, q: Origin) -> tuple[int, int]:
    shape, heads = graph.shapes.get(core.q), attribute(core.node, "q_num_heads")
    if shape is not None and len(shape) == 4:
        return shape[3], shape[1]
    if shape is not None and len(shape) == 3 and core.node.op_type == "Softmax":
        return shape[2], shape[0]  # the heads of one sequence
    if isinstance(heads, int) and heads > 0 and q.source.width % heads == 0:
        return q.source.width // heads, heads
    raise ModelError(
        f"{described(core.node)} has operands of unknown heads, not "
        "[batch, heads, tokens, head] or [batch * heads, tokens, head]."
    )


def _value_dim(graph: OnnxGraph, core: _Attention, v: Origin, kv_heads: int) -> int:
    """The elements of a head of v, of which ``kv_heads`` are beside each other if its shape does not show them."""
    shape = graph.shapes.get(core.v)
    if shape is not None and (len(shape) == 4 or core.node.op_type == "Softmax"):
        return shape[-1]
    return v.source.width // kv_heads


def _add_operator_caches(graph: OnnxGraph, core: _Attention, origins: list[Origin]) -> None:
    if core.node.op_type != "Attention" or len(core.node.input) < 6:
        return
    for place, name in ((1, core.node.input[4]), (2, core.node.input[5])):
        each = origins[place]
        origins[place] = Origin(each.source, each.factor, name, each.rotation)


def _output(graph: OnnxGraph, core: _Attention, width: int) -> str:
    """The value that has the layer's heads beside each other, a row for each token."""
    value, tokens = core.made, PROBE.tokens
    while True:
        shape = graph.shapes.get(value)
        if shape is not None and shape in ((1, tokens, width), (tokens, width)):
            return value
        user = _only_user(graph, value)
        if user is None or user.op_type not in _OUTPUT:
            raise ModelError(
                f"{described(core.node)} is not recognised as attention: its heads are not put beside each other "
                f"[batch, sequence, {width}]."
            )
        value = user.output[0]


def _only_user(graph: OnnxGraph, value: str) -> onnx.NodeProto | None:
    users = graph.users.get(value, [])
    return users[0] if len(users) == 1 else None


def _check_caches(graph: OnnxGraph, origins: list[Origin]) -> None:
    used = [origin.past for origin in origins if origin.past]
    for name in graph.inputs:
        if name not in (IDS, POSITIONS, MASK) and used.count(name) != 1:
            users = graph.users.get(name, [])
            at = f" (it is read by {described(users[0])})" if users else ""
            raise ModelError(f"the cache {printable(name)} is not that of one attention{at}, which cannot be served.")


def _check_uniform(layers: tuple[Layer, ...]) -> None:
    for layer in layers:
        if layer.sizes != layers[0].sizes:
            raise ModelError(
                f"the attention at {printable(layer.node)} differs from that at {printable(layers[0].node)} in its "
                "heads: layers with several kinds of heads cannot be served."
            )
