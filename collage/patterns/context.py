"""The context of matching: a model's graph, and what is computed from it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tvm import relax
from tvm.relax import dpl

from collage.frontend.model import Model
from collage.frontend.relax.to_relax import export_relax
from collage.graph.convexity import Reachability, nodes_between
from collage.graph.dataflow import Attr, Graph, OpKind, TensorType
from collage.graph.dominators import post_dominators
from collage.patterns.names import OpName, short_name

if TYPE_CHECKING:
    from collage.frontend.model import Model


class RelaxForm:
    """The Relax function of a model, and the node that each of its bindings comes from."""

    def __init__(self, model: Model) -> None:
        graph = model.graph
        every = range(len(graph.nodes))
        part = export_relax(model, every, graph.inputs, graph.outputs)
        self._var_to_value = relax.analysis.get_var2val(part.function)
        self._node_of: dict[Any, int] = {}
        self._vars: list[Any] = []
        for node in graph.nodes:
            var = part.variables.get(node.outputs[0])
            value = self._var_to_value[var] if var is not None and var in self._var_to_value else None
            if isinstance(value, relax.TupleGetItem):
                var = value.tuple_value
                value = self._var_to_value[var]
            self._vars.append(value)
            if value is not None:
                self._node_of[value] = node.id

    def match(self, pattern: Any, root: int) -> tuple[int, ...]:
        """The ascending ids of the nodes that the pattern covers from node ``root``; empty for no match."""
        if self._vars[root] is None:
            return ()
        matched = pattern.extract_matched_expr(self._vars[root], self._var_to_value)
        if not matched:
            return ()
        nodes = {
            self._node_of[expr]
            for piece, expr in matched.items()
            if isinstance(piece, (dpl.CallPattern, dpl.TupleGetItemPattern)) and expr in self._node_of
        }
        return tuple(sorted(nodes))


@dataclass(frozen=True)
class MatchContext:
    """A model with its reachability and post-dominators."""

    model: Model

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.model.graph

    @cached_property
    def reach(self) -> Reachability:
        """The nodes that each node reaches."""
        return Reachability.of(self.graph)

    @cached_property
    def post_dominator(self) -> tuple[int | None, ...]:
        """The immediate post-dominator of each node."""
        return post_dominators(self.graph)

    @cached_property
    def relax_form(self) -> RelaxForm:
        """The model as a Relax function; only explicit patterns need it."""

        return RelaxForm(self.model)

    @cached_property
    def ops(self) -> tuple[OpNode, ...]:
        """The nodes as pattern rules see them."""
        return tuple(OpNode(n.id, self) for n in self.graph.nodes)

    def between(self, src: int, sink: int) -> tuple[int, ...]:
        """The ids of all nodes on paths from ``src`` to ``sink``, both included."""
        return nodes_between(self.graph, src, sink, self.reach)


@dataclass(frozen=True)
class OpNode:
    """An operator as a pattern rule sees it; ``kinds`` has the rule's own values of operator kinds, if it has any."""

    id: int
    context: MatchContext = field(repr=False, compare=False)
    kinds: Mapping[OpKind, Any] = field(default_factory=dict, repr=False, compare=False)

    def kind_value(self, kind: OpKind) -> Any:
        """The rule's value for an operator kind, which is the kind itself by default."""
        return self.kinds.get(kind, kind)

    @cached_property
    def name(self) -> OpName:
        """The short name, such as ``conv2d``; it equals its aliases (see OpName)."""
        return short_name(self.context.graph.nodes[self.id].op)

    @property
    def attr(self) -> Mapping[str, Attr]:
        """The operator's attributes by TVM's names, as in ``op.attr["data_layout"]``."""
        return self.context.graph.nodes[self.id].attrs

    @property
    def kind(self) -> OpKind:
        """TVM's operator kind."""
        return self.context.graph.nodes[self.id].kind

    @cached_property
    def input_types(self) -> tuple[TensorType, ...]:
        """The types of the tensor arguments, in order."""
        return tuple(self.context.graph.type_of(v) for v in self.context.graph.nodes[self.id].inputs)

    @cached_property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the results, in order."""
        return tuple(self.context.graph.type_of(v) for v in self.context.graph.nodes[self.id].outputs)

    @cached_property
    def const_inputs(self) -> tuple[bool, ...]:
        """For each tensor argument, whether it is a constant."""
        return tuple(self.context.graph.is_constant(v) for v in self.context.graph.nodes[self.id].inputs)
