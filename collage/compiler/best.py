"""The best plan so far, the runners-up, and what the user is told of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from collage.compiler.clock import Clock
from collage.compiler.plan import Beyond, Failed, Placed, Plan, Verdict, Whole, is_reduced
from collage.core.progress import Progress
from collage.report.best_so_far import BestSoFar, best_words

_NEAR, _FAR = 1.05, 1.25


@dataclass(frozen=True)
class Standing:
    """A plan that ran, and its score: its time in units of the first plan's, over all races between them."""

    plan: Plan
    score: float
    us: float


class Best:
    """The plan that a compile would hand over now, those that are nearly as fast, and the fastest engine.

    A chain of duels crowns the luckiest, so plans within 5 % of the best one stay for the last race. With a tolerance
    there are two lists of them: in the model's own dtypes, and in reduced precisions.
    """

    def __init__(self, tell: Callable[[Progress], None], clock: Clock) -> None:
        self._tell = tell
        self._clock = clock
        self._standings: list[Standing] = []
        self._course: list[tuple[Plan, BestSoFar]] = []
        self.first_mix: BestSoFar | None = None
        """The first placement that ran, whether it was the best one or not."""
        self.settled: Plan | None = None
        """The plan that an earlier compile has found, if nothing is left to try."""

    @property
    def trace(self) -> list[BestSoFar]:
        """The best plans in the order in which they were found, each faster than the one before."""
        return [each for _, each in self._course]

    @property
    def first(self) -> Standing | None:
        """The best plan so far, or None."""
        return min(self._standings, key=lambda each: each.score, default=None)

    @property
    def plan(self) -> Plan | None:
        """The best plan so far, or None."""
        return None if self.first is None else self.first.plan

    @property
    def engine(self) -> Standing | None:
        """The fastest engine in the model's own dtypes, or None."""
        engines = [e for e in self._standings if isinstance(e.plan, Whole) and not e.plan.precision]
        return min(engines, key=lambda each: each.score, default=None)

    def take(self, verdict: Verdict) -> None:
        """Learn what came of a plan that ran beside the best one."""
        if isinstance(verdict, Failed):
            self.drop(verdict.plan)
        if isinstance(verdict, (Failed, Beyond)):
            return
        before = self.first
        score = verdict.ratio * (1.0 if before is None else before.score)
        us = verdict.us if before is None else verdict.ratio * before.us  # as if the machine had not changed since
        self._standings = [each for each in self._standings if not _are_same(each.plan, verdict.plan)]
        self._standings.append(Standing(verdict.plan, score, us))
        if isinstance(verdict.plan, Placed) and self.first_mix is None:
            self.first_mix = self._now(Standing(verdict.plan, score, us))
        first = self.first
        assert first is not None
        if first.plan == verdict.plan and (before is None or before.plan != first.plan):
            self._note(first)

    def settle(self, plan: Plan, us: float) -> None:
        """An earlier compile has found the plan, which takes so many microseconds, and has ended by itself."""
        self.settled = plan
        if self.plan != plan:
            self._note(Standing(plan, 0.0, us))

    def drop(self, plan: Plan) -> None:
        """Forget a plan, which does not run any more."""
        self._standings = [each for each in self._standings if each.plan != plan]
        self._course = [each for each in self._course if each[0] != plan]

    def finalists(self, most: int = 4) -> list[Plan]:
        """The plans for the last race: the best ones of each list, the best mix, and all engines, unless far behind."""
        found: list[Plan] = []
        exact = [each for each in self._standings if not is_reduced(each.plan)]
        for standings in (exact, [each for each in self._standings if is_reduced(each.plan)]):
            near = sorted(standings, key=lambda each: each.score)
            found += [each.plan for each in near[:most] if each.score <= _NEAR * near[0].score]
            mixes = [each for each in near if isinstance(each.plan, Placed)]
            found += [each.plan for each in mixes[:1] if each.score <= _FAR * near[0].score]
        engines: dict[str, list[Standing]] = {}
        for each in exact:
            if isinstance(each.plan, Whole):
                engines.setdefault(each.plan.engine, []).append(each)
        fastest = min((e.score for each in engines.values() for e in each), default=math.inf)
        for of_one in engines.values():
            usual = [e for e in of_one if isinstance(e.plan, Whole) and not e.plan.profile] or of_one
            best = (min(those, key=lambda e: e.score) for those in (of_one, usual))
            found += [one.plan for one in best if one.score <= _FAR * fastest]
        return list(dict.fromkeys(found))

    def everything(self) -> list[Plan]:
        """All plans that ran, the best one first."""
        return [each.plan for each in sorted(self._standings, key=lambda each: each.score)]

    def score(self, plan: Plan) -> float:
        """The score of a plan that ran; infinite for others."""
        return next((each.score for each in self._standings if each.plan == plan), math.inf)

    def us(self, plan: Plan) -> float:
        """The microseconds of a plan that ran; 0 for others."""
        return next((each.us for each in self._standings if each.plan == plan), 0.0)

    def show(self, progress: Progress) -> None:
        """Tell the user how far the work has come, and what the best plan so far is."""
        self._tell(replace(progress, best=self.best_text))

    @property
    def best_text(self) -> str:
        """The best plan so far in words, or "" before there is one."""
        first, engine = self.first, self.engine
        if first is None or not self.trace:
            return ""
        against = None
        if engine is not None:
            against = (engine.plan.label, first.us * engine.score / first.score)
        return best_words(self.trace[-1], against)

    def _note(self, first: Standing) -> None:
        found = self._now(first)
        self._course = [each for each in self._course if each[1].latency_ms > found.latency_ms]  # others were lucky
        self._course.append((first.plan, found))

    def _now(self, standing: Standing) -> BestSoFar:
        seconds = round(self._clock.deadline.elapsed_s, 3)
        return BestSoFar(seconds, round(standing.us / 1e3, 6), standing.plan.label)


def _are_same(one: Plan, other: Plan) -> bool:
    """Whether the plans run the same, whatever they are predicted to cost."""
    if isinstance(one, Placed) and isinstance(other, Placed):
        return (one.alike, one.suffix) == (other.alike, other.suffix)
    return one == other
