"""What graph engines are offered: single operators, fused chains, whole ONNX nodes, and larger regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collage.frontend.export.to_onnx import can_export
from collage.graph.dataflow import OpKind
from collage.graph.order import branch_order, cut_positions, windows
from collage.graph.views import free_storages
from collage.patterns.context import MatchContext, OpNode
from collage.patterns.generator import text_of
from collage.patterns.match import Found, MatchSource
from collage.patterns.rules import BasePatternRule, check_path

if TYPE_CHECKING:
    import onnx

_FUSED = (OpKind.ELEMWISE, OpKind.BROADCAST)


class EngineRule(BasePatternRule):
    """Single operators that have an ONNX form, and chains that an engine is known to fuse into one kernel.

    Convolutions, matmuls and pooling are fused with elementwise and broadcast operators after them, and so are chains
    of elementwise operators. Larger regions come from WindowRule. Chains that have only a part of an ONNX node are not
    offered, because they gain nothing and would double the measuring: an example is a convolution without its bias.
    Single operators are always offered, so that every operator is covered.
    """

    max_nodes = 12

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        """Admit the operators that can be exported to ONNX by themselves."""
        reason = can_export(op.context.model, op.id)
        return True if reason is None else reason

    @staticmethod
    def fusion_rule(cur_type: Any, src: OpNode, sink: OpNode) -> bool:
        """Decide by the operator kinds, as the class says."""
        if cur_type in (OpKind.OUT_FUSABLE, *_FUSED):
            return check_path(src, sink, lambda kind: kind in _FUSED)
        return False

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find the generator's groups, without chains that have only a part of an ONNX node."""
        groups = context.model.groups
        for found in super().find(context):
            sources = {context.graph.nodes[n].source for n in found.nodes}
            members = set(found.nodes)
            if len(found.nodes) == 1 or all(s < 0 or groups[s] <= members for s in sources):
                yield found


class OnnxNodeRule:
    """Whole ONNX nodes: what the importer made several operators of goes to an engine as one ONNX node.

    ``accepts`` is called with the ONNX operator's domain and type, and returns True if the engine may be offered it, or
    False or the reason why not.
    """

    def __init__(self, accepts: Callable[[str, str], bool | str]) -> None:
        self._accepts = accepts

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find each ONNX node that became operators, once."""
        for source, nodes in context.model.groups.items():
            if source < 0:
                continue
            proto = context.model.onnx.graph.node[source]
            answer = self._accepts(proto.domain, proto.op_type)
            reason = "" if answer is True else answer or f"{proto.op_type} is not supported"
            yield Found(tuple(sorted(nodes)), f"ONNX {proto.op_type}", str(reason))


@dataclass(frozen=True)
class FaultRule:
    """The subgraphs of another rule, without those that an engine gets wrong.

    ``faults`` finds such ONNX nodes, by index, with the reasons.
    """

    rule: MatchSource
    engine: str
    faults: Callable[[onnx.ModelProto], Mapping[int, str]]

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find what the other rule finds; a subgraph with such an operator gets the reason."""
        faulty, nodes = context.model.analysed(self.faults), context.graph.nodes
        for found in self.rule.find(context):
            why = next((faulty[s] for n in found.nodes if (s := nodes[n].source) in faulty), "")
            reason = f"{self.engine} would be wrong: {why}"
            yield found if found.reason or not why else Found(found.nodes, found.pattern, reason)


@dataclass(frozen=True)
class WindowRule:
    """Runs of 1, 2, 4, 8, ... segments between the cuts of the graph, and the whole graph.

    Segments end between ONNX nodes, so that engines get the model's own operators. There are at most ``max_segments``
    of them (long chains are cut more coarsely), so at most twice as many regions are measured. Kernels inside a region
    share the engine's layouts and fusions. Its borders have a price, because the region is timed with plain inputs and
    outputs.
    """

    max_segments: int = 48

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find each window once."""
        graph = context.graph
        order = branch_order(graph)
        cuts = self._between_onnx_nodes(context, order, cut_positions(graph, order))
        cuts = self._coarsened(cuts, len(order))
        for nodes in windows(graph, order, cuts):
            if len(nodes) > 1:
                name = "whole model" if len(nodes) == len(graph.nodes) else f"window of {len(nodes)}"
                text = text_of(context, nodes) if len(nodes) <= 6 else name
                yield Found(nodes, f"region: {text}")

    def _coarsened(self, cuts: tuple[int, ...], length: int) -> tuple[int, ...]:
        """The cuts that are far enough apart for no more than ``max_segments`` segments."""
        least = length / self.max_segments
        kept: list[int] = []
        for cut in cuts:
            if cut - (kept[-1] if kept else 0) >= least and length - cut >= least:
                kept.append(cut)
        return tuple(kept)

    @staticmethod
    def _between_onnx_nodes(context: MatchContext, order: tuple[int, ...], cuts: tuple[int, ...]) -> tuple[int, ...]:
        sources = [context.graph.nodes[n].source for n in order]
        last = {source: position for position, source in enumerate(sources)}
        first: dict[int, int] = {}
        for position, source in enumerate(sources):
            first.setdefault(source, position)
        inside = [False] * (len(order) + 1)
        for source, begin in first.items():
            if source >= 0:
                for position in range(begin + 1, last[source] + 1):
                    inside[position] = True
        return tuple(p for p in cuts if not inside[p])


class ViewRule(BasePatternRule):
    """The operators that do no work (for the built-in ``view`` backend)."""

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        """Admit reshapes, and concatenations and splits whose parts are contiguous."""
        graph = op.context.graph
        node = graph.nodes[op.id]
        return True if free_storages(graph, node) else f"{op.name} does work"
