"""Soft trees: gradients, the start from hard trees, and what each level learns."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")

import torch
from sklearn.metrics import roc_auc_score

from collage.frontend.trees.described import describe
from collage.windtunnel import translate
from collage.windtunnel.modules.bayes import Distances, Quadratic
from collage.windtunnel.modules.encode import Embed, Lookup, OneHot
from collage.windtunnel.modules.linear import Linear
from collage.windtunnel.modules.machine import Machine
from collage.windtunnel.modules.scale import Fill, Normalise, Scale
from collage.windtunnel.modules.trees import Forest
from tests.helpers.windtunnel import boosted, fitted, halves, labels, table

RNG = np.random.default_rng(0)
PARTS = {
    "scale": Scale.of(RNG.random(3) + 0.5, RNG.random(3)),
    "fill": Fill.of(RNG.random(3)),
    "l1": Normalise.of("l1", 3),
    "l2": Normalise.of("l2", 3),
    "max": Normalise.of("max", 3),
    "linear": Linear.of(RNG.normal(size=(3, 2)), RNG.normal(size=2)),
    "quadratic": Quadratic.of(RNG.normal(size=(2, 3)), RNG.random((2, 3)) + 0.5, RNG.normal(size=2)),
    "distances": Distances.of(RNG.normal(size=(2, 3))),
    "machine": Machine.of(0.1, RNG.normal(size=3), RNG.normal(size=(3, 2))),
}


def check_gradients(part: Any, x: Any) -> None:
    """Of the output by each parameter, and by the input if it is of numbers."""
    names = [name for name, each in part.named_parameters()]
    values = [each.detach().clone().requires_grad_() for each in part.parameters()]

    def run(*given: Any) -> Any:
        inputs, parameters = (given[0], given[1:]) if x.is_floating_point() else (x, given)
        return torch.func.functional_call(part, dict(zip(names, parameters, strict=True)), (inputs,))

    given = [x.requires_grad_(), *values] if x.is_floating_point() else values
    assert torch.autograd.gradcheck(run, given, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", PARTS)
def test_gradients(name: str) -> None:
    check_gradients(PARTS[name], torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3))))


def test_gradients_of_embeddings() -> None:
    codes = torch.tensor([[0, 1], [2, 0], [1, 1]])
    check_gradients(Embed.of([0, 1], [RNG.normal(size=(3, 2)), RNG.normal(size=(2, 1))]), codes)
    check_gradients(Lookup.of(OneHot.of(0, [0, 1, -1]), RNG.normal(size=(2, 2))), codes)


def soft_forest(level: str, *, targets: int = 1, missing: bool = False) -> tuple[Forest, Any]:
    """A forest of two or three trees over three features, and rows."""
    rows = np.random.default_rng(2).normal(size=(200, 3))
    if missing:
        rows[::5, 1] = np.nan
    y = np.digitize(np.nan_to_num(rows).sum(1), [-0.5, 0.5]) if targets == 3 else np.nan_to_num(rows).sum(1) > 0
    model = boosted(n_estimators=2 if targets == 1 else 1, num_leaves=4).fit(rows, y)
    described = describe(model)
    assert described is not None
    forest = Forest.of(described.booster)
    forest.soften(torch.from_numpy(rows), level, 0.5, 0.5)
    return forest, torch.from_numpy(rows[:6])


@pytest.mark.parametrize("level", ["L2", "L3", "L4"])
@pytest.mark.parametrize("targets", [1, 3])
def test_gradients_of_trees(level: str, targets: int) -> None:
    forest, rows = soft_forest(level, targets=targets)
    forest.cast(torch.float64)
    check_gradients(forest, rows)


@pytest.mark.parametrize(("level", "learnt"), [("L1", 2), ("L2", 3), ("L3", 4), ("L4", 6)])
def test_what_levels_learn(level: str, learnt: int) -> None:
    forest, rows = soft_forest(level, missing=True)
    forest(rows).sum().backward()
    assert len(list(forest.parameters())) == learnt
    assert all(each.grad.isfinite().all() and each.grad.any() for each in forest.parameters())


def test_levels_start_alike_and_cold_trees_are_the_hard_ones() -> None:
    """With a low temperature, on rows away from thresholds, and with NaN."""
    hard, rows = soft_forest("L1", missing=True)
    wanted = hard(rows)
    for level in ("L2", "L3", "L4"):
        forest, _ = soft_forest(level, missing=True)
        forest.settings |= {"tau": 1e-4, "tau_leaf": 0.05}
        torch.testing.assert_close(forest(rows), wanted)


def test_thresholds_are_midway() -> None:
    """Between the training numbers beside them: at a threshold of 0, a column of 0 and 1 would decide nothing."""
    rows = np.random.default_rng(0).integers(0, 2, (300, 2)).astype(float)
    forest = Forest.of(describe(boosted(n_estimators=1, num_leaves=2).fit(rows, rows[:, 0] == 1)).booster)
    assert forest.split[0] < 1e-30
    forest.soften(torch.from_numpy(rows), "L2", 0.1, 0.5)
    at = forest.feature[0]
    threshold = forest.theta[0] / forest.weight[0] * forest.scale[at] + forest.centre[at]
    assert float(threshold.detach()) == pytest.approx(0.5)


def test_softening_keeps_hard_scores_and_moves_the_mean_to_the_bias() -> None:
    source = fitted()
    found = translate(source)
    before = found.decision_function(table())
    found.soften(halves()[0], level="L1")
    forest = found.network_.parts[-1]
    np.testing.assert_allclose(found.decision_function(table()), before, atol=1e-12)
    assert float(forest.bias.detach()) == pytest.approx(before[: len(halves()[0])].mean())


def test_the_soft_start_is_near_the_source() -> None:
    train, _, apart, y = halves()
    found = translate(fitted())
    hard = found.decision_function(apart)
    soft = found.soften(train).decision_function(apart)
    assert np.corrcoef(hard, soft)[0, 1] > 0.985
    assert abs(roc_auc_score(y, hard) - roc_auc_score(y, soft)) < 0.005
    far = found.soften(train, tau=1.0, tau_leaf=1.0).decision_function(apart)
    assert np.corrcoef(hard, far)[0, 1] < np.corrcoef(hard, soft)[0, 1]


def test_infinite_numbers_stay_finite_and_sets_stay_hard() -> None:
    rows = table()[["b", "d"]].to_numpy(float)
    model = boosted(categorical_feature=[1], min_data_per_group=5, cat_smooth=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the parameter
        model.fit(rows, labels())
    forest = Forest.of(replace(describe(model).booster))
    given = torch.from_numpy(rows)
    hard = forest(given)
    assert len(forest.set_nodes)
    forest.soften(given, "L3", 0.03, 0.1)
    assert np.corrcoef(hard[:, 0].detach(), forest(given)[:, 0].detach())[0, 1] > 0.98
    given[:3, 0] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    given[3:5, 1] = torch.tensor([torch.nan, 1e9])
    forest(given).sum().backward()
    assert all(each.grad.isfinite().all() for each in forest.parameters())
