"""AUC, log-loss and the intervals of their differences beside plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scripts.lib.bench.windtunnel_scores import Scored, auc, difference, log_loss


def _pairs(scores: Any, truth: Any) -> float:
    gaps = scores[truth == 1][:, None] - scores[truth == 0][None]
    return float(((gaps > 0) + (gaps == 0) / 2).mean())


@pytest.mark.parametrize("seed", range(3))
def test_the_area_counts_pairs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth, scores = generator.integers(0, 2, 200), generator.integers(0, 30, 200) / 30
    assert auc(scores, truth) == pytest.approx(_pairs(scores, truth))
    clipped = scores.clip(1e-7, 1 - 1e-7)
    expected = -np.mean(truth * np.log(clipped) + (1 - truth) * np.log(1 - clipped))
    assert log_loss(scores, truth) == pytest.approx(expected)
    assert np.isnan(auc(scores, np.ones(200, np.int64)))


def _scored(seed: int, gain: float, groups: int = 50) -> Scored:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 2, 2000)
    noise = generator.normal(size=2000)
    days = np.arange(2000) % groups
    sigmoid = [1 / (1 + np.exp(-(truth * much + noise))) for much in (1 + gain, 1.0)]
    return Scored(truth, days, *sigmoid)


def test_a_gain_is_seen_and_none_is_not() -> None:
    found = difference([_scored(0, 0.5)])
    each = _scored(0, 0.5)
    assert found["auc"]["mean"] == pytest.approx(auc(each.ours, each.truth) - auc(each.theirs, each.truth), abs=1e-5)
    assert 0 < found["auc"]["low"] < found["auc"]["mean"] < found["auc"]["high"]
    expected = log_loss(each.ours, each.truth) - log_loss(each.theirs, each.truth)
    assert found["log_loss"]["mean"] == pytest.approx(expected, abs=1e-5)
    assert difference([_scored(0, 0.0)])["auc"] == {"mean": 0, "low": 0, "high": 0}


def test_groups_and_seeds() -> None:
    alone, again = difference([_scored(0, 0.3)]), difference([_scored(0, 0.3)])
    assert alone == again
    coarse = difference([_scored(0, 0.3, groups=4)])
    assert coarse["auc"]["mean"] == alone["auc"]["mean"] and coarse["auc"]["low"] != alone["auc"]["low"]
    several = difference([_scored(seed, 0.3) for seed in range(3)])
    assert several["auc"]["high"] - several["auc"]["low"] < alone["auc"]["high"] - alone["auc"]["low"]
