"""Races on a simulated clock: who leaves when, what times come of it, and how long they take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.graph.storage import BF16
from collage.measure.timing.race import RUNS, Lane, LaneTime, race, results

MS = 1e6


@dataclass
class Track:
    """Kernels that take simulated time, on a machine that is slower by ``slow`` from moment to moment."""

    now: float = 0.0
    drift: float = 0.0
    noise: float = 0.02
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def lane(self, ns: float, precision: str = "", charge_ns: float = 0.0, *, incumbent: bool = False) -> Lane:
        def run(count: int) -> float:
            took = ns * (1 + self.drift * self.now / 1e9) * (1 + self.noise * abs(self.rng.gauss(0, 1)))
            self.now += took * count
            return took

        return Lane(run, precision, charge_ns, incumbent)

    def clock(self) -> int:
        return int(self.now)

    def race(self, lanes: Sequence[Lane], budget_s: float = 0.01, known_us: float = 0.0) -> list[LaneTime]:
        return results(lanes, race(lanes, budget_s, clock=self.clock), known_us)


def test_the_slow_leave_first() -> None:
    track = Track()
    found = track.race([track.lane(us * 1e3) for us in (10, 11, 13, 40)])
    assert [each.repeats for each in found][2:] == [6, 3]
    assert found[0].repeats >= 8
    assert found[0].relative < 1.0 < found[1].relative < found[2].relative < found[3].relative
    assert found[3].us == pytest.approx(40, rel=0.1) and found[3].least_us <= found[3].us


def test_times_are_ratios_to_the_incumbent_however_slow_the_machine_is() -> None:
    track = Track(drift=20.0)
    lanes = [
        track.lane(8e3),
        track.lane(20e3),
        track.lane(6e3, incumbent=True),
        track.lane(4e3, incumbent=True),
    ]
    found = track.race(lanes, known_us=5.0)
    assert found[0].us == pytest.approx(4.0, rel=0.05)
    assert found[0].relative == pytest.approx(0.8, rel=0.05)
    assert found[1].us == pytest.approx(10.0, rel=0.1)


def test_bursts_in_two_of_three_rounds_do_not_make_kernels_fast() -> None:
    track = Track()
    lanes = [track.lane(690e3), track.lane(640e3, incumbent=True)]
    found = results(lanes, [[690e3, 700e3, 710e3], [640e3, 6400e3, 6400e3]], 600.0)
    assert found[0].us == pytest.approx(600.0 * 690 / 640) and found[0].least_us <= found[0].us
    assert found[0].noise_us > 200.0, "nobody knows after such rounds"
    usual = results(lanes, [[690e3, 700e3, 710e3], [640e3, 650e3, 660e3]], 600.0)
    assert usual[0].us == pytest.approx(600.0 * 700 / 650)


def test_exact_kernels_lose_only_against_exact_ones() -> None:
    track = Track()
    found = track.race([track.lane(10e3), track.lane(5e3, BF16), track.lane(20e3, BF16)])
    assert found[0].relative == 1.0
    assert found[1].relative == pytest.approx(0.5, rel=0.1)
    assert found[2].relative == pytest.approx(4.0, rel=0.1)


def test_what_a_call_costs_counts_in_the_order_and_not_in_the_time() -> None:
    track = Track()
    found = track.race([track.lane(5e3, charge_ns=20e3), track.lane(10e3)])
    assert found[0].relative == pytest.approx(2.5, rel=0.1)
    assert found[0].us == pytest.approx(5.0, rel=0.1)


@given(st.lists(st.floats(200.0, 50 * MS), min_size=1, max_size=30), st.booleans(), st.integers(0, 5))
def test_a_race_takes_no_longer_than_its_candidates_may(times: list[float], incumbent: bool, seed: int) -> None:
    """Ten milliseconds for each candidate, or six runs, on average, whatever is among them."""
    track = Track(rng=random.Random(seed), noise=0.0)
    lanes = [track.lane(ns) for ns in times]
    if incumbent:
        lanes.append(track.lane(min(times), incumbent=True))
    found = track.race(lanes, known_us=1.0 if incumbent else 0.0)
    assert track.now <= 1.001 * sum(max(10 * MS, RUNS * ns) for ns in times)
    assert all(each.repeats >= 1 for each in found)


def test_a_pause_before_turns_is_no_part_of_the_time() -> None:
    track, slept = Track(), []
    lanes = [Lane(track.lane(2 * MS).run, settle_s=0.02), track.lane(2 * MS)]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        track.now += seconds * 1e9

    turns = race(lanes, 0.02, clock=track.clock, sleep=sleep)
    assert len(turns[0]) >= 5 and len(slept) == len(turns[0]) - 1
