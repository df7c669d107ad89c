"""The measured table of tokens to milliseconds that the scheduler works with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from collage.serve.runner import Runner, buckets_of


@dataclass(frozen=True)
class Costs:
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

    def with_streams(self, streams: int) -> Costs:
        """The costs of iterations with so many streams, which have a row of logits each; other tokens are prompts'."""
        if not self.body_ms:
            return self
        place = self.bucket(streams)
        streams_ms = max(self.ms[place] - self.body_ms[place], 0.0)
        return Costs(self.buckets, tuple(each + streams_ms for each in self.body_ms))

    def of(self, tokens: int) -> float:
        """The milliseconds of an iteration with this many tokens. More than the largest bucket take several."""
        whole, rest = divmod(tokens, self.buckets[-1])
        return whole * self.ms[-1] + (self.ms[self.bucket(rest)] if rest else 0.0)


def costs_of(runner: Runner) -> Costs:
    """The table of a runner. Noise in it is smoothed: a larger bucket never costs less than a smaller one."""
    buckets = buckets_of(runner)
    ms = _ascending(map(runner.cost_ms, buckets))
    body = getattr(runner, "body_ms", None)
    return Costs(buckets, ms, () if body is None else _ascending(map(body, buckets)))


def _ascending(times: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate((max(each, 1e-6) for each in times), max))
