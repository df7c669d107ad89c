"""How long to measure: more samples make the order of candidates more certain, and a compile longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage.kernel.kernel import Call
from collage.measure_db.interleave import FEWEST, SURE, interleave
from collage.measure_db.timing import Timing


@dataclass(frozen=True)
class Effort:
    """Times in seconds. Measurements of different efforts are kept apart by ``name`` ("" for the usual one).

    ``kernel_s`` is for the samples of each kernel. Whole models are compared in ``rounds`` at most, or ``compare_s``;
    ``settle_s`` and ``turn_s`` are those of ``interleave``.
    """

    name: str
    kernel_s: float
    rounds: int
    compare_s: float
    settle_s: float
    turn_s: float

    @property
    def mark(self) -> str:
        """What it adds to the key of a measurement."""
        return f" {self.name}" if self.name else ""

    def compare(
        self,
        calls: Mapping[str, Call],
        *,
        early: int = FEWEST,
        least: int = SURE,
        after: Mapping[str, Call] | None = None,
    ) -> dict[str, Timing]:
        """Timings of whole models in one interleaved run, until the order is beyond doubt; see ``interleave``."""
        return interleave(
            calls,
            rounds=self.rounds,
            limit_s=self.compare_s,
            settle_s=self.settle_s if len(calls) > 1 else 0.0,
            turn_s=self.turn_s,
            until_sure=True,
            early=early,
            least=least,
            after=after,
        )


FULL = Effort("", kernel_s=0.25, rounds=60, compare_s=30.0, settle_s=0.05, turn_s=0.02)
QUICK = Effort("quick", kernel_s=0.005, rounds=3, compare_s=0.5, settle_s=0.0, turn_s=0.0)
"""For ``collage.compiler.passes.measure_few``, which compares less, too."""
