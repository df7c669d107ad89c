"""The form of a model that TVM's pattern matcher needs: one Relax function."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import dpl

from collage.frontend.model import Model
from collage.frontend.relax.to_relax import export_relax


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
