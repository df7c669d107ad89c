"""The measured table of tokens to milliseconds that the scheduler works with."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from collage.serve.runner import Runner, buckets_of


@dataclass(frozen=True)
class Costs:
    """The time of an iteration for each bucket: ``ms[i]`` for one of up to ``buckets[i]`` tokens, ascending."""

    buckets: tuple[int, ...]
    ms: tuple[float, ...]

    def bucket(self, tokens: int) -> int:
        """The index of the smallest bucket that holds this many tokens, or of the largest one."""
        return min(bisect_left(self.buckets, tokens), len(self.buckets) - 1)

    def of(self, tokens: int) -> float:
        """The milliseconds of an iteration with this many tokens. More than the largest bucket take several."""
        whole, rest = divmod(tokens, self.buckets[-1])
        return whole * self.ms[-1] + (self.ms[self.bucket(rest)] if rest else 0.0)


def costs_of(runner: Runner) -> Costs:
    """The table of a runner. Noise in it is smoothed: a larger bucket never costs less than a smaller one."""
    buckets = buckets_of(runner)
    ms: list[float] = []
    for each in buckets:
        ms.append(max(runner.cost_ms(each), ms[-1] if ms else 1e-6))
    return Costs(buckets, tuple(ms))
