"""What the network does to times: found from launches, and charged to what was never launched."""

from __future__ import annotations

import numpy as np
import pytest

from collage.graph.storage import CHANNELS_LAST, PLAIN
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome, Slower
from collage.search.candidate import Candidate
from collage.search.network_costs import UNCALIBRATED
from collage.search.network_effect import NO_EFFECT, NetworkEffect, network_effect
from collage.search.transforms import PlacedTransform
from tests.helpers.strategies import TENSOR

COUNT = 40
CHANGE = LayoutTransform(TENSOR, PLAIN, CHANNELS_LAST)


def measured(us: float) -> Measurement:
    return Measurement(us, 0.0, us, 9, 0.0)


def request(node: int, backend: str = "lib") -> CandidateRequest:
    return CandidateRequest((node,), backend)


def test_the_effect_is_found_among_noise_and_outliers() -> None:
    rng = np.random.default_rng(0)
    alone = rng.uniform(2.0, 80.0, 300)
    found = (1.2 * alone + 3.0) * rng.lognormal(0.0, 0.1, 300)
    found[::10] *= 5.0
    effect = network_effect(list(alone), list(found))
    assert effect.factor == pytest.approx(1.2, rel=0.05)
    assert effect.launch_us == pytest.approx(3.0, rel=0.2)
    assert effect.alone_us(effect.in_network_us(17.0)) == pytest.approx(17.0)
    assert effect.in_network_us(0.0) == 0.0


def test_few_launches_tell_nothing_and_impossible_ones_tell_a_factor() -> None:
    assert network_effect([1.0] * 11, [2.0] * 11) == NO_EFFECT
    assert network_effect([], []) == NO_EFFECT
    alone = [float(us) for us in range(10, 40)]
    assert network_effect(alone, [us - 5.0 for us in alone]).launch_us == 0.0
    assert network_effect(alone, [100 * us for us in alone]) == NetworkEffect(4.0)


def test_what_was_not_launched_is_charged_what_is_typical() -> None:
    outcomes: dict[CandidateRequest, Outcome] = {request(n): measured(10.0 + n) for n in range(COUNT)}
    launches: list[Candidate | PlacedTransform] = [Candidate((n,), "lib", 10.0 + n) for n in range(COUNT - 1)]
    times = [1.5 * (10.0 + n) + 2.0 for n in range(COUNT - 1)]
    times[7] = 100.0
    launches.append(PlacedTransform(3, CHANGE, 4.0))
    times.append(5.0)
    slower, elsewhere = request(1, "other"), request(COUNT, "other")
    outcomes |= {slower: Slower(30.0, 11.0, 3), elsewhere: measured(20.0)}
    costs = UNCALIBRATED.learn(outcomes, launches, times, 0.0)
    assert (costs.effect.factor, costs.effect.launch_us) == pytest.approx((1.5, 2.0))
    expected = costs.expected(outcomes)
    assert expected[request(7)].median_us == 100.0
    assert expected[request(3)].median_us == pytest.approx(21.5)
    assert expected[request(COUNT - 1)].median_us == pytest.approx(1.5 * (10.0 + COUNT - 1) + 2.0)
    assert expected[elsewhere].median_us == pytest.approx(32.0)
    # The kernel of the same nodes that was launched took 18.5 us instead of 11.
    assert expected[slower].least_us == pytest.approx(30.0 * 18.5 / 11.0)
    outcomes[request(1)] = Measurement(11.0, 9.0, 11.0, 3, 0.0)  # so much noise that the factor may be its own
    assert costs.expected(outcomes)[slower].least_us == pytest.approx(1.5 * 30.0 + 2.0)
    found = costs.expected_transforms({(3, CHANGE): 4.0, (4, CHANGE): 4.0})
    assert found == pytest.approx({(3, CHANGE): 5.0, (4, CHANGE): 8.0})
