"""How fast the machine would be at best: its memory and its products, and what a trace needs of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.lib.decoders.shape import DecoderShape
from scripts.lib.serving.trace import Arrival

_BYTES = 4


@dataclass(frozen=True)
class Machine:
    """GB/s of reading memory and GFLOP/s of large products in float32, both with all threads, measured in this run."""

    gbytes_per_s: float
    gflops: float


def measure_machine(threads: int, seconds: float = 3.0) -> Machine:
    """Measure the machine with loops for so many seconds."""
    from collage.measure_db.measure_speeds import measure_speeds

    found = measure_speeds(threads, seconds).speeds
    return Machine(found.memory.team_read_gbs, found.team_gemm_gflops)


@dataclass(frozen=True)
class Needs:
    """What a decoder needs: bytes of weights that an iteration reads, FLOP a token and a row of logits, cache bytes."""

    weight_bytes: int
    token_flop: int
    row_flop: int
    cache_bytes: int

    @classmethod
    def of(cls, shape: DecoderShape) -> Needs:
        """The needs of a decoder in float32."""
        attention = 2 * shape.width * shape.width + 2 * shape.width * shape.kv_heads * shape.head
        gates = 2 if shape.family == "gpt2" else 3
        layers = shape.layers * (attention + gates * shape.width * shape.inner)
        head = shape.vocabulary * shape.width
        return cls(
            _BYTES * (layers + head),
            2 * layers,
            2 * head,
            _BYTES * 2 * shape.layers * shape.kv_heads * shape.head,
        )


def trace_bound_s(arrivals: Sequence[Arrival], running: int, needs: Needs, machine: Machine) -> float:
    """The least time of requests that are all there at once, with at most so many in an iteration.

    Products cannot be faster than the machine's. There cannot be fewer iterations than the tokens of all answers
    divided by ``running``, nor than those of the longest answer. Each reads all weights, and for each stream the keys
    and values so far. One of the two takes at least this long; arithmetic of attention is left out.
    """
    inputs = sum(len(each.prompt) for each in arrivals)
    outputs = sum(each.tokens for each in arrivals)
    flop = (inputs + outputs - len(arrivals)) * needs.token_flop + outputs * needs.row_flop
    iterations = max(-(-outputs // running), max(each.tokens for each in arrivals))
    cached = sum(
        (each.tokens - 1) * len(each.prompt) + (each.tokens - 1) * each.tokens // 2 for each in arrivals
    )
    moved = iterations * needs.weight_bytes + cached * needs.cache_bytes
    return max(flop / (machine.gflops * 1e9), moved / (machine.gbytes_per_s * 1e9))


def batch_bound_s(batch: int, inputs: int, outputs: int, needs: Needs, machine: Machine) -> float:
    """The least time of a static batch: prompts first, then iterations with a token of each request."""
    prompts_s = batch * (inputs * needs.token_flop + needs.row_flop) / (machine.gflops * 1e9)
    total = max(prompts_s, needs.weight_bytes / (machine.gbytes_per_s * 1e9))
    flop_s = batch * (needs.token_flop + needs.row_flop) / (machine.gflops * 1e9)
    for position in range(inputs + 1, inputs + outputs):
        moved = needs.weight_bytes + batch * position * needs.cache_bytes
        total += max(flop_s, moved / (machine.gbytes_per_s * 1e9))
    return total


def token_bound_s(length: int, needs: Needs, machine: Machine) -> float:
    """The least time of a token of one request alone, with so many tokens before it."""
    return (needs.weight_bytes + length * needs.cache_bytes) / (machine.gbytes_per_s * 1e9)
