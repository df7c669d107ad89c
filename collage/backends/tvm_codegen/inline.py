"""Cheap producers are computed where they are used."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import tvm

from collage.backends.tvm_codegen.arithmetic import is_polynomial
from collage.backends.tvm_codegen.prim_blocks import Block, blocks_of, collect, describe, users_of

logger = logging.getLogger(__name__)

MAX_NODES = 1500  # expression size past which inlining stops: producers used twice grow it exponentially
MAX_DEPTH = 2  # polynomials within polynomials: see _depth
MAX_EXTRA_COST = 6.0  # recomputing so many simple operations an element beats a trip through memory


def inline_cheap(sch: Any, outputs: set[int]) -> None:
    """Inline every producer but `outputs` (identities of buffers) that costs little where it is used."""
    blocks = {b.store.buffer: b for b in blocks_of(sch)}
    for key in list(blocks):
        block = blocks[key]
        if block.reduction or not block.regular or key in outputs:
            continue
        users = users_of(block, blocks.values())
        copies = max((sum(x.buffer == key for x in u.loads) * block.nodes + u.nodes for u in users), default=0)
        if (
            copies > MAX_NODES
            or not all(u.regular for u in users)
            or _extra_cost(block, users) > MAX_EXTRA_COST
            or not all(_depth(sch, u, key) + _depth(sch, block) <= MAX_DEPTH for u in users)
        ):
            continue
        try:
            sch.compute_inline(block.rv)
        except (RuntimeError, ValueError) as error:  # not an injective store: it keeps a nest of its own
            logger.debug("block %s stays: %s", block.name, error)
            continue
        del blocks[key]
        blocks |= {u.store.buffer: describe(sch, u.rv) for u in users}


def _depth(sch: Any, block: Block, buffer: int | None = None) -> int:
    """How many functions that become polynomials are nested in a block, or around its reads of a buffer.

    Each has a few variables that are used several times. TVM's code generator puts their values in the place of the
    variables to simplify what is around them, so that its time grows exponentially with the depth: a tenth of a second
    for softplus (a log of an exp), and half a minute for Mish (a tanh of that).
    """
    deepest: list[tuple[Any, int]] = []
    for call in collect(sch.get(block.rv).body, tvm.ir.Call):  # inner ones come first
        if not is_polynomial(call):
            continue
        if buffer is not None and all(hash(load.source) != buffer for load in collect(call, tvm.ir.expr.TensorLoad)):
            continue
        inner = {hash(each) for argument in call.args for each in collect(argument, tvm.ir.Call)}
        deepest.append((call, 1 + max((depth for each, depth in deepest if hash(each) in inner), default=0)))
    return max((depth for _, depth in deepest), default=0)


def _extra_cost(block: Block, users: Iterable[Block]) -> float:
    """Simple operations an element that inlining adds over computing `block` once.

    A read that does not move with the user's innermost axis is hoisted by LLVM, so it counts once for that
    whole axis.
    """
    evaluations = 0.0
    for user in users:
        inner = next((a for a in reversed(user.axes) if a.extent > 1), None)
        seen = {str(x.indices): x for x in user.loads if x.buffer == block.store.buffer}
        for load in seen.values():
            moves = {hash(v) for i in load.indices for v in collect(i, tvm.ir.Var)}
            hoisted = inner.extent if inner is not None and inner.key not in moves else 1
            evaluations += user.iterations / hoisted
    return (evaluations / math.prod(block.store.shape) - 1.0) * block.cost
