"""TVM's fusion rules (``FuseOps``) as a pattern rule, written in operator kinds."""

from __future__ import annotations

from typing import Any

from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.graph.dataflow import OpKind
from collage.patterns.context import OpNode
from collage.patterns.rules import BasePatternRule, check_path

_BROADCAST = (OpKind.ELEMWISE, OpKind.BROADCAST)
_INJECTIVE = (*_BROADCAST, OpKind.INJECTIVE)


class FusionRule(BasePatternRule):
    """A rule for the groups that TVM's FuseOps would make one kernel of.

    Elementwise and broadcast operators are fused with injective ones after them, and with a reduction at the end.
    Injective operators are fused with injective ones. Out-fusable operators (convolution, matmul, pooling) are fused
    with elementwise and broadcast ones. Nothing is fused after reductions and opaque operators.
    """

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        """Admit all operators that are not opaque."""
        return True if op.kind is not OpKind.OPAQUE else f"{op.name} is opaque to fusion"

    @staticmethod
    def fusion_rule(cur_type: Any, src: OpNode, sink: OpNode) -> bool:
        """Decide by the operator kinds, as the class says."""
        if cur_type is OpKind.OUT_FUSABLE:
            return check_path(src, sink, lambda kind: kind in _BROADCAST)
        if cur_type in _BROADCAST:
            return check_path(
                src,
                sink,
                lambda kind: kind in _INJECTIVE,
                lambda kind: kind in (*_INJECTIVE, OpKind.REDUCTION),
            )
        if cur_type is OpKind.INJECTIVE:
            return check_path(src, sink, lambda kind: kind in _INJECTIVE)
        return False


_SELF_CONTAINED = (
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "cumsum",
)
"""Operators that are opaque to fusion, but lowered to a loop nest that our schedules know."""

_SUMS = ("sum", "mean", "prod")


class ScheduledFusionRule(FusionRule):
    """The fusion rules over the operators that our CPU schedules handle, which are no convolutions or matmuls."""

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        """Admit the operators that are bound by memory."""
        if _op(op) in COMPUTE_BOUND:
            return f"{op.name} needs a tuned schedule (--tune-trials)"
        return TunedFusionRule.op_rule(op)


class TunedFusionRule(FusionRule):
    """The fusion rules over the operators that our schedules or tuning handle, convolutions and matmuls included."""

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        """Admit the operators that TVM lowers to loops."""
        if op.kind is OpKind.OPAQUE and not (op.name in _SELF_CONTAINED or _op(op) == "call_tir"):
            return f"{op.name} is opaque to TVM's fusion"
        if op.name in _SUMS and any("int" in kind.dtype for kind in op.input_types):
            return f"ONNX Runtime does {op.name} of integers in float64 and saturates; TVM's kernels wrap around"
        return True


def _op(op: OpNode) -> str:
    return op.context.graph.nodes[op.id].op
