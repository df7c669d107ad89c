"""The simulated cluster: bounds that nothing beats, and the driver's share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.lib.studies.cluster_simulation import Costs, JobTime, bounds, simulate

FREE = Costs(0.0, 0.0, 0.0, 0.0)


def test_equal_jobs_without_costs() -> None:
    jobs = [JobTime(4, 2.0)] * 32
    for workers in (1, 2, 4, 8, 16, 32):
        found = simulate(jobs, workers, FREE)
        assert found.seconds == pytest.approx(64.0 / workers)
        assert found.workers_busy == pytest.approx(1.0)
        assert found.driver_busy == 0.0
    assert simulate(jobs, 64, FREE).seconds == pytest.approx(2.0)


def test_the_driver_is_the_limit() -> None:
    """With 10 ms of the driver's time for each job of 100 ms, ten workers do not become more."""
    jobs = [JobTime(1, 0.1)] * 400
    costs = Costs(0.006, 0.004, 0.0, 0.0)
    many = simulate(jobs, 64, costs)
    assert bounds(jobs, costs) == (pytest.approx(0.1), pytest.approx(4.0))
    assert 3.999 < many.seconds < 4.4
    assert many.driver_busy > 0.9


def test_the_start_is_paid_once() -> None:
    costs = Costs(0.0, 0.0, 5.0, 1.0)
    assert simulate([JobTime(1, 1.0)], 1, costs).seconds == pytest.approx(7.0)
    assert simulate([JobTime(1, 1.0)] * 2, 2, costs).seconds == pytest.approx(8.0)


def test_second_copies_are_not_paid_for() -> None:
    """Of two workers that are idle early, each does a job again that is late; it ends with the candidate at hand."""
    jobs = [JobTime(4, 40.0), JobTime(4, 100.0), JobTime(1, 1.0), JobTime(1, 1.0)]
    found = simulate(jobs, 4, Costs(0.0, 1.0, 0.0, 0.0))
    assert found.driver_busy * found.seconds == pytest.approx(10.0)
    assert found.seconds == pytest.approx(104.0)


@given(
    st.lists(st.builds(JobTime, st.integers(1, 9), st.floats(0.01, 30.0)), min_size=1, max_size=20),
    st.integers(1, 16),
)
def test_each_outcome_is_paid_for_once(jobs: list[JobTime], workers: int) -> None:
    found = simulate(jobs, workers, Costs(0.0, 0.1, 1.0, 0.1))
    paid = 0.1 * sum(job.candidates for job in jobs)
    assert found.driver_busy * found.seconds == pytest.approx(paid)
    assert found.workers_busy <= 1 + 1e-6


@given(
    st.lists(st.builds(JobTime, st.integers(1, 30), st.floats(0.01, 30.0)), min_size=1, max_size=40),
    st.integers(1, 64),
)
def test_no_schedule_beats_the_bounds(jobs: list[JobTime], workers: int) -> None:
    costs = Costs(0.001, 0.001, 1.0, 0.1)
    found = simulate(jobs, workers, costs)
    longest, driver = bounds(jobs, costs)
    work = sum(job.seconds for job in jobs) / workers
    assert found.seconds >= max(longest, driver, work) - 1e-6
    assert found.seconds <= costs.start_s + costs.send_s * workers + driver + work + longest + 1e-6
