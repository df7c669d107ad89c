"""Who does which job: the largest first, what is lost again, what is late twice, and nothing is left out."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from collage.cluster.shares import Shares


def test_the_largest_job_is_first() -> None:
    shares = Shares([1, 5, 3])
    assert [shares.take(worker, 0.0) for worker in range(3)] == [1, 2, 0]
    assert shares.open == [0, 1, 2]
    assert shares.done(0, 5.0) == (1, [])
    assert shares.open == [0, 2]


def test_a_job_that_ends_workers_is_given_up() -> None:
    shares = Shares([1], tries=3)
    given_up = []
    for worker in range(3):
        assert shares.take(worker, 0.0) == 0
        given_up.append(shares.lost(worker))
    assert given_up == [None, None, 0]
    assert not shares.open
    assert shares.take(3, 9.0) is None


def test_a_late_job_is_done_twice_and_the_first_answer_counts() -> None:
    shares = Shares([1, 1, 1])
    assert [shares.take(worker, 0.0) for worker in range(3)] == [0, 1, 2]
    assert shares.done(0, 1.0) == (0, [])
    assert shares.take(0, 1.5) is None  # jobs of this size take one second, so nothing is late yet
    assert shares.take(0, 2.0) == 1
    assert shares.done(0, 3.0) == (1, [1])
    assert shares.job_of(1) == 1  # it does not know
    assert shares.take(0, 3.0) == 2
    assert shares.done(2, 4.0) == (2, [0])
    assert not shares.open
    assert shares.done(1, 5.0) is None
    assert shares.done(0, 5.0) is None


@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    workers=st.integers(1, 5),
    seed=st.integers(0, 1 << 16),
    losses=st.floats(0.0, 0.7),
)
def test_each_job_ends_once(sizes: list[int], workers: int, seed: int, losses: float) -> None:
    """Whoever is lost, slow or first: each job has one result or is given up."""
    rng = random.Random(seed)
    shares = Shares(sizes)
    results: list[int] = []
    now = 0.0
    while shares.open:
        now += rng.random()
        worker = rng.randrange(workers)
        if shares.job_of(worker) is None:
            shares.take(worker, now)
        elif rng.random() < losses:
            given_up = shares.lost(worker)
            results += [] if given_up is None else [given_up]
        else:
            found = shares.done(worker, now)
            results += [] if found is None else [found[0]]
    assert sorted(results) == list(range(len(sizes)))
