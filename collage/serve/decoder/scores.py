"""Following an attention's scores back from the softmax to the product of q and k, past scales, softcaps and masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx

from collage.errors import ModelError
from collage.serve.decoder.onnx_graph import MASK, OnnxGraph, described
from collage.serve.decoder.sinks import before_sinks

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
        """The other inputs, in order."""
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
    """What scaled and masked scores are made of; None where there is not just one product of q and k.

    Raises ModelError where the token ids decide about a mask or a bias: attention is served without these.
    """
    value, sinks = before_sinks(graph, value)
    found = _followed(graph, value)
    for each in found.masking if found is not None else ():
        for name in each.masks:
            refuse_from_tokens(graph, each.node, name)
    return None if found is None else replace(found, sinks=sinks)


def refuse_from_tokens(graph: OnnxGraph, node: onnx.NodeProto, mask: str) -> None:
    """Raise ModelError where the mask or bias that a node gives to attention depends on the token ids."""
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
    """Scores times a number, with what was added to them before."""
    masking = tuple(replace(each, factor=each.factor * factor) for each in scores.masking)
    softcap = abs(scores.softcap * factor)  # tanh is odd, so the sign is that of the scale
    return replace(scores, scale=scores.scale * factor, softcap=softcap, masking=masking)
