"""The context of matching: a model's graph, and what is computed from it once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from collage.graph.convexity import Reachability, nodes_between
from collage.graph.dataflow import Attr, Graph, OpKind, TensorType
from collage.graph.dominators import post_dominators
from collage.patterns.names import OpName, short_name

if TYPE_CHECKING:  # it imports TVM, which running a module may not need
    from collage.frontend.model import Model
    from collage.patterns.relax_form import RelaxForm


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
        from collage.patterns.relax_form import RelaxForm

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
