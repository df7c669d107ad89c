"""Operators that draw random numbers: by themselves, in their bodies, or in functions of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import helper

from collage.frontend.read.scopes import bodies, reads
from collage.frontend.read.weights import array_of

_ALWAYS = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike Sampling".split()
)
_IN_TRAINING = {"Dropout": 2, "BitmaskDropout": 2, "BiasDropout": 4, "BitmaskBiasDropout": 4}
"""Operators that draw in training mode, and the position of the input that says so. Without it, they do not."""
_DOMAINS = ("", "ai.onnx", "com.microsoft")
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
        graph = self.model.graph
        return frozenset(
            {each.name for each in graph.initializer if _is_false(each)} | {*_made_off(graph.node)}
        )

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
                inner = frozenset(_made_off(function.node))
                self._known[called] = any(self._draws(each, inner) for each in function.node)
            return self._known[called]
        if node.domain in _DOMAINS and node.op_type in _ALWAYS:
            return True
        if node.domain in _DOMAINS and (at := _IN_TRAINING.get(node.op_type)) is not None:
            return len(node.input) > at and bool(node.input[at]) and node.input[at] not in off
        for body in bodies(node):
            inner = (
                off | {each.name for each in body.initializer if _is_false(each)} | {*_made_off(body.node)}
            )
            if any(self._draws(each, inner) for each in body.node):
                return True
        return False


def _made_off(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The names of values that Constant nodes make, and that are false."""
    for node in nodes:
        if node.op_type == "Constant" and any(a.name == "value" and _is_false(a.t) for a in node.attribute):
            yield node.output[0]


def _is_false(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.BOOL and not array_of(tensor).any()


def without_idle_dropout(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without dropout that does not draw: it is the identity, with a mask of ones. Itself if it has none."""
    randomness = Randomness(model)
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)

    def is_idle(node: onnx.NodeProto) -> bool:
        return node.op_type == "Dropout" and node.domain in ("", "ai.onnx") and not randomness.draws(node)

    if version < _OF_BOOLEANS or not any(map(is_idle, model.graph.node)):
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:]
    for node in model.graph.node:
        if not is_idle(node):
            found.graph.node.append(node)
            continue
        data, (result, *mask) = node.input[0], node.output
        if result:
            found.graph.node.append(helper.make_node("Identity", [data], [result], node.name))
        if mask and mask[0]:
            shape = f"{mask[0]}/shape"
            ones = helper.make_tensor("ones", onnx.TensorProto.BOOL, [1], [True])
            found.graph.node.append(helper.make_node("Shape", [data], [shape], shape))
            found.graph.node.append(helper.make_node("ConstantOfShape", [shape], mask, mask[0], value=ones))
    return found
