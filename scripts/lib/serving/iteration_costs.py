"""What iterations cost on this machine: the table of the module, and what longer sequences add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.serve.runner import Runner, Slice

_SAMPLES = 9
_STREAMS = 16
_LONG = 512
"""So many tokens are before the new ones where the costs of longer sequences are measured."""


@dataclass(frozen=True)
class IterationCosts:
    """Milliseconds of iterations: ``ms[i]`` of ``buckets[i]`` streams, and ``body_ms[i]`` of a chunk without logits.

    Both are with ``context`` tokens before the new ones. Each more that a stream reads takes ``read_ms``, and each pair
    of a token of a chunk with one before it ``pair_ms``.
    """

    buckets: tuple[int, ...]
    ms: tuple[float, ...]
    body_ms: tuple[float, ...]
    context: int
    read_ms: float
    pair_ms: float

    def as_message(self) -> dict[str, Any]:
        """The costs as values for JSON."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> IterationCosts:
        """The inverse of ``as_message``."""
        buckets, ms, body_ms = (tuple(message[key]) for key in ("buckets", "ms", "body_ms"))
        return cls(buckets, ms, body_ms, message["context"], message["read_ms"], message["pair_ms"])


def measure_costs(runner: Runner) -> IterationCosts:
    """Measure the costs by turns, with warm caches."""
    from collage.serve.decoder.costs import CONTEXT, measured_ms, median_ms
    from collage.serve.runner import buckets_of

    buckets = buckets_of(runner)
    streams, chunks = measured_ms(runner, buckets, _SAMPLES)
    long = min(_LONG, runner.max_length - buckets[-1])
    near = min(CONTEXT, long // 2)
    count = min(_STREAMS, buckets[-1])
    rows = {("read", start): _slices(runner, count, 1, start) for start in (near, long)} | {
        ("pair", start): _slices(runner, 1, buckets[-1], start) for start in (near, long)
    }
    found = median_ms(runner, rows, _SAMPLES)
    more = {
        kind: max(0.0, found[kind, long] - found[kind, near]) / (long - near) for kind in ("read", "pair")
    }
    return IterationCosts(
        buckets,
        tuple(streams[each] for each in buckets),
        tuple(chunks[each] for each in buckets),
        CONTEXT,
        more["read"] / count,
        more["pair"] / buckets[-1],
    )


def _slices(runner: Runner, requests: int, tokens: int, start: int) -> Sequence[Slice]:
    """So many requests with so many new tokens each, after ``start`` others in blocks of their own."""
    from collage.serve.runner import Slice

    needed = -(-(start + tokens) // runner.block_tokens)
    return [
        Slice(
            (1,) * tokens,
            start,
            tuple((number * needed + i) % runner.block_count for i in range(needed)),
            tokens == 1,
        )
        for number in range(requests)
    ]
