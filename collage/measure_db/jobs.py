"""The jobs of a measurer: the candidates of a region, and layout transforms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from collage.measure_db.contenders import Contenders
from collage.measure_db.crew import Worker
from collage.measure_db.protocol import Measure, MeasureTransform
from collage.measure_db.results import Measurement, Outcome


@dataclass(frozen=True)
class RegionJob:
    """Measures the candidates of one region one after another, by one worker, which makes the region's samples once.

    Each message has the words for its candidate beside it, and the time above which the candidate is hopeless by what
    is known before. The parts are the positions of messages with their outcomes.
    """

    asked: tuple[tuple[Measure, str], ...]
    threads: int

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.asked)

    def run(self, worker: Worker) -> Iterator[tuple[int, Outcome]]:
        """Measure the candidates. What is far slower than the fastest so far is not timed precisely."""
        contenders = Contenders()
        for position, (message, what) in enumerate(self.asked):
            hopeless_us = min(message.hopeless_us, contenders.hopeless_us(message.request))
            outcome = ask_fairly(worker, replace(message, hopeless_us=hopeless_us), what, self.threads)
            contenders.note(message.request, outcome)
            yield position, outcome


@dataclass(frozen=True)
class TransformJob:
    """Measures one layout transform. The only part is its outcome, at position 0."""

    message: MeasureTransform
    threads: int
    size: int = 1

    def run(self, worker: Worker) -> Iterator[tuple[int, Outcome]]:
        """Measure the transform."""
        yield 0, worker.ask(self.message, str(self.message.transform), self.threads)


def ask_fairly(worker: Worker, message: Measure, what: str, threads: int) -> Outcome:
    """The outcome of a candidate. It is asked for again where the reference has ended the process, not the candidate.

    The next process leaves out the inputs that the reference did not survive.
    """
    while True:
        known = worker.fatal_samples()
        outcome: Outcome = worker.ask(message, what, threads)
        if isinstance(outcome, Measurement) or worker.fatal_samples() == known:
            return outcome
