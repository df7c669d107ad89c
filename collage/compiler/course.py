"""The course of a compile: its best modules so far, how far the state has come, and what ended it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from collage.core.deadline import Deadline
from collage.core.progress import Progress
from collage.report.best_so_far import FINISHED, BestSoFar, best_words, expected_words

State = TypeVar("State")


def _silent(_: Progress) -> None:
    """Nobody is told."""


@dataclass
class Course(Generic[State]):
    """What a compile that may be stopped at any moment has to remember outside the state that passes hand on.

    ``latest`` is the last state that is whole. It is there for what is lost when a pass is stopped.
    """

    tell: Callable[[Progress], None] = _silent
    deadline: Deadline = field(default_factory=Deadline)
    latest: State | None = None
    ended: str = FINISHED
    best: list[BestSoFar] = field(default_factory=list)
    comparing_s: float | None = None
    """The most seconds that a short comparison with the best engine has taken; None before there was one."""
    expected_us: float | None = None
    """The predicted time of the placement that is being worked on, in microseconds."""
    told_of_going_on: bool = False
    """Whether the user was told that the compile goes on past its budget, until there is a placement."""
    _engine: tuple[str, float] | None = None

    def begin(self, state: State) -> None:
        """A list of passes begins with this state."""
        self.latest, self.expected_us = state, None

    def reached(self, state: State, expected_us: float | None = None) -> None:
        """A pass has handed on this state. A placement in it is predicted to take ``expected_us`` microseconds."""
        self.latest = state
        self.expected_us = expected_us

    def improved(self, label: str, us: float, engine: tuple[str, float] | None) -> None:
        """Remember a new best module, whose call takes ``us`` microseconds.

        ``engine`` is the best engine on the whole model, by the same run, with its microseconds. Without it the module
        was not compared with the best one so far, so it counts only where it is faster than that was.
        """
        if self.best and self.best[-1].label == label:
            return
        if self.best and engine is None and us / 1e3 >= self.best[-1].latency_ms:
            return
        self._engine = engine or self._engine  # by the same run as the best module's time
        self.best.append(BestSoFar(round(self.deadline.elapsed_s, 3), round(us / 1e3, 6), label))

    def show(self, progress: Progress) -> None:
        """Tell the user how far the work has come, what the best module so far is, and what is expected."""
        if self.best:
            expected = expected_words(self.best[-1], self.expected_us)
            progress = replace(progress, best=self.best_text, expected=expected)
        self.tell(progress)

    @property
    def ahead(self) -> float:
        """How many times as fast as the best engine the best module so far is, by the same run; 1 for an engine."""
        if not self.best or self._engine is None or self._engine[0] == self.best[-1].label:
            return 1.0
        return self._engine[1] / 1e3 / self.best[-1].latency_ms

    @property
    def best_text(self) -> str:
        """The best module so far in words, or "" before there is one."""
        return best_words(self.best[-1], self._engine) if self.best else ""
