"""Method 2 of Listing 1: pattern rules, which say in Python which operators a backend admits and how they fuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from collage.graph.dataflow import OpKind
from collage.patterns.context import MatchContext, OpNode
from collage.patterns.generator import generate
from collage.patterns.match import Found, MatchSource

__all__ = ["BasePatternRule", "MatchSource", "check_path"]

_KIND_NAMES = {
    "kelemwise": OpKind.ELEMWISE,
    "kelementwise": OpKind.ELEMWISE,
    "kbroadcast": OpKind.BROADCAST,
    "kinjective": OpKind.INJECTIVE,
    "kreduction": OpKind.REDUCTION,
    "kcommreduce": OpKind.REDUCTION,
    "kfusable": OpKind.OUT_FUSABLE,
    "koutfusable": OpKind.OUT_FUSABLE,
    "koutewisefusable": OpKind.OUT_FUSABLE,
    "kopaque": OpKind.OPAQUE,
}


class BasePatternRule:
    """Base class of pattern rules (§2.3): ``op_rule`` admits operators, and ``fusion_rule`` admits growth.

    The pattern generator (Figure 2.4) grows a group from every admitted seed over its post-dominators until
    ``fusion_rule`` returns False. A subclass may give the operator kinds values of its own by defining ``kFusable``,
    ``kElemwise``, ``kBroadcast``, ``kInjective``, ``kReduction`` and ``kOpaque``, as Listing 1 does. The rule and the
    checkers of ``check_path`` then get these values.
    """

    kElemwise: Any = OpKind.ELEMWISE
    kBroadcast: Any = OpKind.BROADCAST
    kInjective: Any = OpKind.INJECTIVE
    kReduction: Any = OpKind.REDUCTION
    kFusable: Any = OpKind.OUT_FUSABLE
    kOpaque: Any = OpKind.OPAQUE

    max_nodes: int = 64
    """The most operators of a group."""

    @staticmethod
    def op_rule(op: OpNode) -> bool | str:
        """Whether the backend admits this operator: True, or False or the reason why not."""
        return False

    @staticmethod
    def fusion_rule(cur_type: Any, src: OpNode, sink: OpNode) -> bool:
        """Whether a group of kind ``cur_type``, grown from seed ``src``, may grow up to ``sink``.

        ``sink`` is the next post-dominator: every path from ``src`` goes through it.
        """
        return False

    def kind_value(self, kind: OpKind) -> Any:
        """The subclass's value for an operator kind."""
        for name in _names_of(type(self)):
            if _KIND_NAMES[name.lower()] is kind:
                return getattr(self, name)
        return kind

    @property
    def name(self) -> str:
        """The name for reports."""
        return type(self).__name__

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find all groups that the generator grows in the model (Figure 2.4)."""
        return generate(context, self)


def check_path(
    src: OpNode,
    sink: OpNode,
    fchecker: Callable[[Any], bool],
    sink_checker: Callable[[Any], bool] | None = None,
) -> bool:
    """Whether ``fchecker`` holds for the kind of every operator on the paths from ``src`` to ``sink``.

    ``src`` itself is not checked. ``sink`` is checked (as in TVM's ``CheckPath``), with ``sink_checker`` if one is
    given. The checkers get the rule's own values of the kinds, so that Listing 1's
    ``node_pattern == MyPatternRule.kElemwise`` holds.
    """
    context = src.context
    for node in context.between(src.id, sink.id):
        if node == src.id:
            continue
        checker = sink_checker if sink_checker is not None and node == sink.id else fchecker
        if not checker(src.kind_value(context.ops[node].kind)):
            return False
    return True


def _names_of(rule: type) -> list[str]:
    """The names of a rule's kind attributes, those of the most derived class first."""
    names: dict[str, None] = {}
    for each in rule.__mro__:
        names.update({n: None for n in vars(each) if n.lower() in _KIND_NAMES})
    return list(names)
