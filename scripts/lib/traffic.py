"""How many bytes an iteration sends, derived from its slices alone: what the counters must agree with."""

from __future__ import annotations

from collections.abc import Sequence

from collage.serve.attention import BLOCK_TOKENS, Heads
from collage.serve.runner import Slice

FLOAT = 4


def cache_bytes(slices: Sequence[Slice], heads: Heads, layers: int, processes: int, vocabulary: int) -> int:
    """The bytes that all processes of Cache Parallelism send in an iteration, together.

    In each layer a token sends q, H D floats, to each other process that holds a block which it sees, and gets
    H (V + 2) floats back: o, m and s of each head, whose values have V elements. Its k and v, G (D + V) floats for G
    K/V heads, go to the holder of its block, where that is another process. Logits go from other processes to the
    first one.
    """
    tokens = sum(len(each.token_ids) for each in slices)
    bounds = [-(-tokens * process // processes) for process in range(processes + 1)]
    queries = writes = rows = at = 0
    for each in slices:
        for position in range(each.start, each.start + len(each.token_ids)):
            home = next(process for process in range(processes) if at < bounds[process + 1])
            held = {block % processes for block in each.blocks[: position // BLOCK_TOKENS + 1]}
            queries += len(held - {home})
            writes += each.blocks[position // BLOCK_TOKENS] % processes != home
            at += 1
        rows += each.wants_logits and home != 0
    query, write = _floats(heads)
    return FLOAT * (layers * (queries * query + writes * write) + rows * vocabulary)


def _floats(heads: Heads) -> tuple[int, int]:
    """The floats of a token's q with what comes back for it, and those of its k and v."""
    q, k, v, out = heads.widths
    return q + out + 2 * heads.heads, k + v


def tensor_bytes(tokens: int, width: int, processes: int) -> int:
    """The bytes of a layer under tensor parallelism, all processes together: two all-reduces of [tokens, width].

    Each is a reduce-scatter and an all-gather, in which a process sends (N - 1) / N of the array.
    """
    return FLOAT * 2 * 2 * tokens * width * (processes - 1)
