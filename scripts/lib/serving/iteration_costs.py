"""What iterations cost on this machine: the table of the module, and what longer sequences add to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collage.serve.runner import Runner

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
    from collage.serve.decoder.costs import CONTEXT, measured_ms
    from collage.serve.runner import buckets_of

    buckets = buckets_of(runner)
    streams, chunks = measured_ms(runner, buckets, _SAMPLES)
    few = min(_STREAMS, buckets[-1])
    return IterationCosts(
        buckets,
        tuple(streams[each] for each in buckets),
        tuple(chunks[each] for each in buckets),
        CONTEXT,
        _longer_ms(runner, few, few),
        _longer_ms(runner, buckets[-1], 1),
    )


def _longer_ms(runner: Runner, tokens: int, requests: int) -> float:
    """What each of the tokens takes longer, in milliseconds, for each one more that is before it."""
    from collage.serve.decoder.costs import CONTEXT, iteration_of, median_ms

    near, far = (iteration_of(runner, tokens, requests, context) for context in (CONTEXT, _LONG))
    found = median_ms(runner, {"near": near, "far": far}, _SAMPLES)
    more = sum(there.start - here.start for here, there in zip(near, far, strict=True)) * (tokens // requests)
    return max(0.0, found["far"] - found["near"]) / more if more else 0.0
