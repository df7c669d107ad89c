"""The measured table of tokens to milliseconds that the scheduler works with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from collage.serve.runner import Runner, buckets_of

USUAL_STREAMS, MOST_STREAMS = 32, 64
"""The most streams of an iteration where more of them would hardly be faster, and where they would be."""
_HARDLY = 1.1


@dataclass(frozen=True)
class BucketCosts:
    """The time of an iteration for each bucket: ``ms[i]`` for one of up to ``buckets[i]`` tokens, ascending.

    Each of the tokens is a stream's with a row of logits, as in an iteration that decodes. ``body_ms`` are the times
    of a chunk of one prompt without logits; it is empty where they are not known.
    """

    buckets: tuple[int, ...]
    ms: tuple[float, ...]
    body_ms: tuple[float, ...] = ()

    def bucket(self, tokens: int) -> int:
        """The index of the smallest bucket that holds this many tokens, or of the largest one."""
        return min(bisect_left(self.buckets, tokens), len(self.buckets) - 1)

    def with_streams(self, streams: int) -> BucketCosts:
        """The costs of iterations with so many streams, which have a row of logits each; other tokens are prompts'."""
        return self._with_streams[self.bucket(streams)] if self.body_ms else self

    @cached_property
    def _with_streams(self) -> tuple[BucketCosts, ...]:
        """The costs beside streams that fill each of the buckets. An iteration with prompts would take 4 us for one."""
        more = (max(ms - body_ms, 0.0) for ms, body_ms in zip(self.ms, self.body_ms, strict=True))
        return tuple(
            BucketCosts(self.buckets, tuple(body_ms + ms for body_ms in self.body_ms)) for ms in more
        )

    def of(self, tokens: int) -> float:
        """The milliseconds of an iteration with this many tokens. More than the largest bucket take several."""
        whole, rest = divmod(tokens, self.buckets[-1])
        return whole * self.ms[-1] + (self.ms[self.bucket(rest)] if rest else 0.0)


def rewarding_streams(costs: BucketCosts) -> int:
    """How many streams an iteration should have: from 32 to 64, as many as shorten the time of each one's token.

    That is the least number at which a token takes at most a tenth longer than at the best one. Where arithmetic sets
    the pace, 64 streams take twice as long as 32. Where reading the weights does, they take little longer.
    """
    more = (each for each in costs.buckets if USUAL_STREAMS < each <= MOST_STREAMS)
    share_ms = {streams: costs.of(streams) / streams for streams in (USUAL_STREAMS, *more)}
    least_ms = min(share_ms.values())
    return next(streams for streams, ms in share_ms.items() if ms <= _HARDLY * least_ms)


def costs_of(runner: Runner) -> BucketCosts:
    """The table of a runner. Noise in it is smoothed: a larger bucket never costs less than a smaller one."""
    buckets = buckets_of(runner)
    ms = _ascending(map(runner.cost_ms, buckets))
    body = getattr(runner, "body_ms", None)
    return BucketCosts(buckets, ms, () if body is None else _ascending(map(body, buckets)))


def _ascending(times: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate((max(each, 1e-6) for each in times), max))
