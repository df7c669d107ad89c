"""The jobs of a measurer: the candidates of a region, and layout transforms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from collage.measure.contenders import Charges, Contenders, Field
from collage.measure.crew import Worker
from collage.measure.worker.protocol import Measure, MeasureTransform
from collage.measure_db.results import Outcome, Rejection, RejectionKind

_ENDED = (RejectionKind.CRASHED, RejectionKind.MEMORY)
"""What a process is told that ends in the reference by itself."""


@dataclass(frozen=True)
class RegionJob:
    """Measures the candidates of one region one after another, by one worker, which makes the region's samples once.

    Each message has the words for its candidate beside it, and the time of the rival that is known before. Where the
    job ``races``, candidates are rivals of each other, too. The parts are positions of messages with their outcomes.
    """

    asked: tuple[tuple[Measure, str], ...]
    threads: int
    charges: Charges = field(default_factory=Charges)
    races: bool = True

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.asked)

    def run(self, worker: Worker) -> Iterator[tuple[int, Outcome]]:
        """Measure the candidates. Where they race, what is slower than the fastest so far is let go."""
        contenders = Contenders(Field(self.charges))
        for position, (message, what) in enumerate(self.asked):
            rival_us = message.rival_us
            if self.races:
                rival_us = min(rival_us, contenders.rival_us(message.request))
            outcome = ask_fairly(worker, replace(message, rival_us=rival_us), what, self.threads)
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

    The next process leaves out the inputs that the reference did not survive. That the time was over while the
    reference computed says nothing of it.
    """
    while True:
        known = worker.fatal_samples()
        outcome: Outcome = worker.ask(message, what, threads)
        new = worker.fatal_samples() - known
        if not (new and isinstance(outcome, Rejection) and outcome.kind in _ENDED):
            for note in new:
                note.unlink(missing_ok=True)
            return outcome
