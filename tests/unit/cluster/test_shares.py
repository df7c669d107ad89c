"""Who does which job: the largest first, what is lost again, and nothing is left out."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from collage.cluster.shares import Shares


def test_the_largest_job_is_first() -> None:
    shares = Shares([1, 5, 3])
    assert [shares.take(worker) for worker in range(3)] == [1, 2, 0]
    assert shares.open == [0, 1, 2]
    assert shares.done(0) == 1
    assert shares.open == [0, 2]


def test_a_job_that_ends_workers_is_given_up() -> None:
    shares = Shares([1], tries=3)
    given_up = []
    for worker in range(3):
        assert shares.take(worker) == 0
        given_up.append(shares.lost(worker))
    assert given_up == [None, None, 0]
    assert not shares.open
    assert shares.take(3) is None


@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    workers=st.integers(1, 5),
    seed=st.integers(0, 1 << 16),
    losses=st.floats(0.0, 0.7),
)
def test_each_job_ends_once(sizes: list[int], workers: int, seed: int, losses: float) -> None:
    """Whoever is lost: each job has one result or is given up."""
    rng = random.Random(seed)
    shares = Shares(sizes)
    results: list[int] = []
    while shares.open:
        worker = rng.randrange(workers)
        if shares.job_of(worker) is None:
            shares.take(worker)
        elif rng.random() < losses:
            given_up = shares.lost(worker)
            results += [] if given_up is None else [given_up]
        else:
            results.append(shares.done(worker))
    assert sorted(results) == list(range(len(sizes)))
