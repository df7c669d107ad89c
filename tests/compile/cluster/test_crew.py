"""A measurer with a crew: the same outcomes in the database, and what the crew loses is measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from collage.core.progress import Progress
from collage.measure.crew import Job
from collage.measure.measurer import Measurer
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement
from tests.helpers.cluster.models import PAIRS, SINGLES, LocalCrew, session_of


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as opened:
        yield opened


@dataclass
class Loses:
    """A crew that loses every second job, and one that is interrupted after some."""

    session: WorkerSession
    interrupted_after: int = 99
    asked: list[int] = field(default_factory=list)
    closed: bool = False

    def run(self, jobs: Sequence[Job[Any]]) -> Iterator[Any]:
        self.asked.append(len(jobs))
        for number, job in enumerate(jobs):
            if number == self.interrupted_after:
                raise KeyboardInterrupt
            if number % 2 == 0:
                yield from job.run(self.session)

    def close(self) -> None:
        self.closed = True


def test_a_region_is_a_job(database: Database) -> None:
    session = session_of()
    crew = LocalCrew(session)
    seen: list[Progress] = []
    with Measurer(session, database, seen.append, crew=crew) as measurer:
        found = measurer.measure([*SINGLES, *PAIRS])
        assert all(isinstance(outcome, Measurement) for outcome in found.values())
        assert measurer.measurements_made == 7
        assert [each.done for each in seen] == [*range(8)]
        assert len(measurer.known([*SINGLES, *PAIRS])) == 7
        assert measurer.measure(PAIRS) == {request: found[request] for request in PAIRS}
        assert measurer.measurements_made == 7


def test_what_is_lost_is_measured_here(database: Database) -> None:
    session = session_of()
    crew = Loses(session)
    with Measurer(session, database, crew=crew) as measurer:
        found = measurer.measure([*SINGLES, *PAIRS])
        assert crew.asked == [7]
        assert all(isinstance(outcome, Measurement) for outcome in found.values())
        assert measurer.measurements_made == 7
    assert crew.closed


def test_what_is_done_before_an_interrupt_is_kept(database: Database) -> None:
    session = session_of()
    with Measurer(session, database, crew=Loses(session, interrupted_after=3)) as measurer:
        with pytest.raises(KeyboardInterrupt):
            measurer.measure(SINGLES)
        assert len(measurer.known(SINGLES)) == 2  # the first and the third; the second was lost
