"""Leaves of boosters and the factorisation machine beside plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("pandas")

import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from collage.errors import InputError
from collage.windtunnel.sources import FactorizationMachine, LeafEncoder, _scores


def _boosters() -> list[Any]:
    found: list[Any] = [
        RandomForestClassifier(5, max_depth=4, random_state=0),
        GradientBoostingClassifier(n_estimators=5, max_depth=3),
    ]
    for name, make in (
        ("lightgbm", lambda of: of.LGBMClassifier(n_estimators=5, num_leaves=6, verbose=-1, n_jobs=1)),
        ("xgboost", lambda of: of.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1)),
        (
            "catboost",
            lambda of: of.CatBoostClassifier(5, depth=3, verbose=0, thread_count=1, allow_writing_files=False),
        ),
    ):
        try:
            library = __import__(name)
        except ImportError:
            continue
        found.append(make(library))
    return found


@pytest.mark.parametrize("booster", _boosters(), ids=lambda each: type(each).__name__)
def test_leaves_are_one_hot(booster: Any) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 4)).astype(np.float32)
    truth = (rows[:, 0] * rows[:, 1] > 0).astype(np.int64)
    encoder = LeafEncoder(booster).fit(rows, truth)
    found, leaves = encoder.transform(rows), encoder.leaves(rows)
    assert found.shape == (300, encoder.starts_[-1]) and leaves.shape == (300, 5)
    dense = found.toarray()
    for tree, (start, end) in enumerate(zip(encoder.starts_, encoder.starts_[1:], strict=False)):
        np.testing.assert_array_equal(dense[:, start:end], np.eye(end - start)[leaves[:, tree]])
    assert len(encoder.get_feature_names_out()) == found.shape[1]
    pipeline = Pipeline([("leaves", encoder), ("machine", FactorizationMachine(epochs=2))]).fit(rows, truth)
    assert pipeline.predict_proba(rows).shape == (300, 2)


def _formula(machine: FactorizationMachine, rows: Any) -> Any:
    x, factors = np.asarray(rows, np.float64), machine.factors_.astype(np.float64)
    pairs = np.einsum("ri,id,rj,jd->rij", x, factors, x, factors)
    upper = np.triu(np.ones(pairs.shape[1:]), 1)
    return machine.bias_ + x @ machine.weights_.astype(np.float64) + (pairs * upper).sum((1, 2))


@pytest.mark.parametrize("sparse", [False, True])
def test_the_machine_scores_pairs(sparse: bool) -> None:
    generator = np.random.default_rng(1)
    rows = (generator.normal(size=(500, 7)) * (generator.random((500, 7)) < 0.9)).astype(np.float32)
    truth = np.where(rows[:, 0] * rows[:, 1] - rows[:, 2] * rows[:, 3] + generator.normal(0, 0.1, 500) > 0, "yes", "no")
    given = scipy.sparse.csr_matrix(rows) if sparse else rows
    machine = FactorizationMachine(dim=3, lr=0.03, epochs=60, batch=64, patience=60).fit(given, truth)
    scores = machine.decision_function(given)
    np.testing.assert_allclose(scores, _formula(machine, rows), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(machine.predict_proba(given)[:, 1], 1 / (1 + np.exp(-scores.astype(np.float64))))
    assert machine.score(given, truth) > 0.8
    again = clone(machine).fit(given, truth)
    np.testing.assert_array_equal(again.factors_, machine.factors_)


def test_the_gradient_of_the_machine() -> None:
    rows = scipy.sparse.csr_matrix(np.random.default_rng(2).normal(size=(6, 5)) * (np.arange(30).reshape(6, 5) % 3 > 0))
    table = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *weights: _scores(*weights, rows), (table, bias))


def test_the_machine_keeps_its_best_weights() -> None:
    generator = np.random.default_rng(3)
    rows, truth = generator.normal(size=(400, 6)), generator.integers(0, 2, 400)
    machine = FactorizationMachine(lr=0.1, epochs=100, batch=50).fit(rows, truth)
    assert machine.epochs_ < 100  # nothing can be learned from noise
    assert clone(machine).get_params() == machine.get_params()
    with pytest.raises(NotFittedError):
        clone(machine).predict(rows)
    with pytest.raises(InputError, match="two classes"):
        FactorizationMachine().fit(rows, np.arange(400) % 3)
    with pytest.raises(ValueError, match="NaN"):
        FactorizationMachine().fit(np.full((4, 2), np.nan), [0, 1, 0, 1])
