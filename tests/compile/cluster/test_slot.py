"""A slot does jobs with worker processes of its own; it needs no Ray."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collage.cluster.slot import SentSession, Slot
from collage.measure.jobs import Racer, RegionJob
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.serialisation import pickle_message
from collage.measure.worker.session import WorkerSession
from collage.measure_db.results import Measurement, Rejection, RejectionKind
from tests.helpers.backends_for_tests import NumpyBackend
from tests.helpers.cluster.models import session_of
from tests.helpers.measure_db import hostile


@pytest.fixture(scope="module")
def session() -> Iterator[WorkerSession]:
    found = session_of(NumpyBackend(), hostile.Segfault())
    yield found
    found.close()


@pytest.fixture(scope="module")
def slot(session: WorkerSession) -> Iterator[Slot]:
    made = Slot()
    made.prepare(SentSession.of(session))
    yield made
    made.close()


def job(session: WorkerSession, *requests: CandidateRequest) -> bytes:
    racers = tuple(Racer(each, session.settings.build, 30.0) for each in requests)
    return pickle_message(RegionJob(racers, 1))


def test_a_crash_costs_the_candidate_only(session: WorkerSession, slot: Slot) -> None:
    requests = [CandidateRequest((1,), name) for name in ("numpy", "segfault", "numpy")]
    (first, crashed), (second, one), (third, other) = slot.run(job(session, *requests), 0)
    assert [each.backend for each in (first, second, third)] == ["segfault", "numpy", "numpy"]
    assert isinstance(one, Measurement) and isinstance(other, Measurement)
    assert isinstance(crashed, Rejection)
    assert crashed.kind is RejectionKind.CRASHED
    assert "about to read address 8" in crashed.message
    assert len(slot.so_far(0)) == 3
    assert slot.so_far(1) == []  # the parts of the last job are not those of the next one
