"""The best module so far of a compile, and what has ended the compile, in values and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FINISHED, BUDGET, INTERRUPT, FAILURE = "finished", "budget", "interrupt", "failure"
"""What ends a compile: there was nothing left to try, its budget was over, or somebody pressed Ctrl-C."""


@dataclass(frozen=True)
class BestSoFar:
    """A module that was the best one from ``seconds`` after the start of the compile on; ``label`` names its plan.

    Its latency is in milliseconds, and was measured in the run that made it the best one.
    """

    seconds: float
    latency_ms: float
    label: str

    def times(self, factor: float) -> BestSoFar:
        """The same module, as timed on a machine that takes so many times as long."""
        return replace(self, latency_ms=round(self.latency_ms * factor, 6))


def best_words(best: BestSoFar, engine: tuple[str, float] | None) -> str:
    """The best module against the best engine, of which there are the label and the microseconds in the same run."""
    text = f"best so far {best.latency_ms:.4g} ms"
    if engine is not None and engine[0] == best.label:
        text += f" ({best.label})"
    elif engine is not None:
        text += f", {engine[1] / 1e3 / best.latency_ms:.2f}x the best engine ({engine[0]})"
    return text


def ended_words(ended: str, budget_s: float | None) -> str:
    """What has ended a compile that was stopped, in words."""
    if ended == INTERRUPT:
        return "interrupted; the measurements are kept, and the next compile goes on from there"
    if ended == FAILURE:
        return "measuring failed (see the log); earlier measurements are kept"
    return f"the budget of {budget_s:g} s was over; the next compile goes on from there"


def course_words(course: Sequence[BestSoFar]) -> str:
    """The best modules in the order in which they were found."""
    return "; ".join(f"{each.latency_ms:.4g} ms ({each.label}) after {each.seconds:.1f} s" for each in course)
