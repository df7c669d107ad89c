"""The automatic pattern generator of Figure 2.4, which grows a group from every seed until the rule refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from collage.graph.dataflow import OpKind
from collage.patterns.context import MatchContext, OpNode
from collage.patterns.match import Found

_FUSION_ORDER = (
    OpKind.ELEMWISE,
    OpKind.BROADCAST,
    OpKind.INJECTIVE,
    OpKind.REDUCTION,
    OpKind.OUT_FUSABLE,
    OpKind.OPAQUE,
)


def generate(context: MatchContext, rule: Any) -> Iterator[Found]:
    """All groups of a pattern rule in the model: step 1 admits the seed, and step 2 grows it over post-dominators.

    A group has every node between its seed and its sink. As the sink post-dominates the seed, no intermediate result
    escapes. A seed that is not admitted comes with the reason. The rule is asked once about each operator.
    """
    kinds = {kind: rule.kind_value(kind) for kind in OpKind}
    ops = tuple(OpNode(op.id, context, kinds) for op in context.ops)
    answers = [rule.op_rule(op) for op in ops]
    for seed in ops:
        answer = answers[seed.id]
        if answer is not True:
            reason = answer if isinstance(answer, str) else f"{rule.name} does not take {seed.name}"
            yield Found((seed.id,), f"{rule.name}: {seed.name}", reason)
            continue
        group: tuple[int, ...] = (seed.id,)
        kind = seed.kind
        yield Found(group, f"{rule.name}: {text_of(context, group)}")
        while (sink := context.post_dominator[group[-1]]) is not None:
            grown = context.between(seed.id, sink)
            if len(grown) > rule.max_nodes or any(answers[n] is not True for n in grown):
                break
            if not rule.fusion_rule(rule.kind_value(kind), seed, ops[sink]):
                break
            for node in grown:
                kind = combine(kind, ops[node].kind)
            group = grown
            yield Found(group, f"{rule.name}: {text_of(context, group)}")


def text_of(context: MatchContext, nodes: Sequence[int]) -> str:
    """The operators of a group as text, such as ``conv2d+add+relu``."""
    return "+".join(str(context.ops[n].name) for n in nodes)


def combine(first: OpKind, second: OpKind) -> OpKind:
    """The kind of a group of two parts: the kind of that part which constrains fusion more."""
    return max(first, second, key=_FUSION_ORDER.index)
