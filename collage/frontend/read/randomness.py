"""Operators that draw random numbers: by themselves, in their bodies, or in functions of the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import helper

from collage.frontend.read.scopes import STANDARD, bodies, constants_of, opset_of, reads, set_all
from collage.frontend.read.weights import array_of

_ALWAYS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike Sampling".split()
)
_IN_TRAINING = {"Dropout": 2, "BitmaskDropout": 2, "BiasDropout": 4, "BitmaskBiasDropout": 4}
"""Operators that draw in training mode, and the position of the input that says so. Without it, they do not."""
_DOMAINS = (*STANDARD, "com.microsoft")
_OF_BOOLEANS = 10
"""From this operator set on a mask of dropout holds booleans."""


@dataclass(frozen=True)
class Randomness:
    """Tells which nodes of a model draw random numbers."""

    model: onnx.ModelProto

    def draws(self, node: onnx.NodeProto) -> bool:
        """Whether a node of the main graph draws. A training mode that is not known to be off counts as on."""
        return self._draws(node, self._off)

    @cached_property
    def any(self) -> bool:
        """Whether any node does."""
        return any(map(self.draws, self.model.graph.node))

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of the main graph, by name, that depend on what was drawn."""
        found: set[str] = set()
        for node in self.model.graph.node:
            if self.draws(node) or not found.isdisjoint(reads(node)):
                found.update(filter(None, node.output))
        return frozenset(found)

    @cached_property
    def outputs(self) -> frozenset[int]:
        """The positions of the outputs that do."""
        return frozenset(at for at, info in enumerate(self.model.graph.output) if info.name in self.values)

    @cached_property
    def _off(self) -> frozenset[str]:
        return _off(self.model.graph)

    @cached_property
    def _functions(self) -> dict[tuple[str, str], onnx.FunctionProto]:
        return {(each.domain, each.name): each for each in self.model.functions}

    @cached_property
    def _known(self) -> dict[tuple[str, str], bool]:
        """Whether functions of the model draw, as far as somebody has looked."""
        return {}

    def _draws(self, node: onnx.NodeProto, off: frozenset[str]) -> bool:
        called = node.domain, node.op_type
        if (function := self._functions.get(called)) is not None:
            if called not in self._known:
                self._known[called] = False  # a function that calls itself is none
                inner = _off(onnx.GraphProto(node=function.node))
                self._known[called] = any(self._draws(each, inner) for each in function.node)
            return self._known[called]
        if node.domain in _DOMAINS and node.op_type in _ALWAYS:
            return True
        if node.domain in _DOMAINS and (at := _IN_TRAINING.get(node.op_type)) is not None:
            return len(node.input) > at and bool(node.input[at]) and node.input[at] not in off
        scopes = ((body, off | _off(body)) for body in bodies(node))
        return any(self._draws(each, inner) for body, inner in scopes for each in body.node)


def _off(graph: onnx.GraphProto) -> frozenset[str]:
    """The names of the constants that are false."""
    return frozenset(
        name
        for name, tensor in constants_of(graph).items()
        if tensor.data_type == onnx.TensorProto.BOOL and not array_of(tensor).any()
    )


def without_idle_dropout(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without dropout that does not draw: it is the identity, with a mask of ones. Itself if it has none."""
    randomness = Randomness(model)

    def is_idle(node: onnx.NodeProto) -> bool:
        return node.op_type == "Dropout" and node.domain in STANDARD and not randomness.draws(node)

    if opset_of(model) < _OF_BOOLEANS or not any(map(is_idle, model.graph.node)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if not is_idle(node):
            nodes.append(node)
            continue
        data, (result, *mask) = node.input[0], node.output
        if result:
            nodes.append(helper.make_node("Identity", [data], [result], node.name))
        if mask and mask[0]:
            shape = f"{mask[0]}/shape"
            ones = helper.make_tensor("ones", onnx.TensorProto.BOOL, [1], [True])
            nodes.append(helper.make_node("Shape", [data], [shape], shape))
            nodes.append(helper.make_node("ConstantOfShape", [shape], mask, mask[0], value=ones))
    set_all(found.graph.node, nodes)
    return found
