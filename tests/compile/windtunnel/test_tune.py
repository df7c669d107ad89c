"""Fine-tuning: early stops, scopes, starts, seeds, files larger than memory, and scikit-learn's conventions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")

import lightgbm
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

from collage.windtunnel import Tunnel, data, translate
from collage.windtunnel.modules.encode import Embed
from collage.windtunnel.modules.trees import Forest
from collage.windtunnel.tune import Epoch
from tests.helpers.windtunnel import boosted, fitted, halves, labels, pipeline, table

FAST = {"epochs": 3, "batch": 128}


def tuned(**settings: Any) -> Tunnel:
    train, y, apart, of_apart = halves()
    return translate(fitted()).fine_tune(train, y, validation=(apart, of_apart), **(FAST | settings), keep_source=False)


def test_the_best_epoch_is_kept() -> None:
    found = tuned(epochs=8, patience=2, rate=3e-2)
    scores = [each.score for each in found.history_]
    best = int(np.argmax(scores))
    assert len(scores) - 1 - best <= 2
    from sklearn.metrics import roc_auc_score

    *_, apart, y = halves()
    assert roc_auc_score(y, found.decision_function(apart)) == pytest.approx(max(scores), abs=1e-6)


def test_training_lowers_the_loss_of_training_rows() -> None:
    train, y, *_ = halves()
    found = translate(fitted()).fine_tune(
        train, y, validation=(train, y), epochs=12, batch=128, metric="loss", keep_source=False
    )
    assert found.history_[-1].score > found.history_[0].score + 0.005


def test_interrupted_training_keeps_the_best_weights() -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    found = tuned(progress=stop, epochs=9)
    assert [each.number for each in found.history_] == [0, 1, 2]
    best = int(np.argmax([each.score for each in found.history_]))
    same = tuned(epochs=best)
    np.testing.assert_array_equal(found.predict_proba(table()), same.predict_proba(table()))


def test_seeds_repeat_and_matter() -> None:
    first, again, other = (tuned(seed=seed, start="cold").predict_proba(table()) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def test_scopes() -> None:
    """``trees`` leaves the encoders as they were."""

    def tables(of: Tunnel) -> Any:
        return [each.detach().double() for part in of.network_.parts if isinstance(part, Embed) for each in part.tables]

    before = tables(translate(fitted()))
    assert all(map(torch.equal, before, tables(tuned(scope="trees"))))
    assert not any(map(torch.equal, before, tables(tuned(metric="loss", rate=1e-2))))


def test_trees_of_level_1_keep_their_routes() -> None:
    found = tuned(level="L1", rate=3e-2)
    hard = translate(fitted())
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(50, found.network_.parts[-1].settings["features"])))
    old, new = hard.network_.parts[-1], found.network_.parts[-1]
    assert isinstance(new, Forest)
    assert torch.equal(old.route(rows), new.route(rows))
    assert not torch.equal(old.values, new.values)


def test_tunings_go_on_or_start_again() -> None:
    train, y, apart, of_apart = halves()
    found = tuned()
    validation = {"validation": (apart, of_apart)} | FAST
    first = found.history_[0].score
    found.fine_tune(train, y, start="current", **validation, keep_source=False)
    assert found.history_[0].score != first
    found.fine_tune(train, y, **validation, keep_source=False)
    assert found.history_[0].score == first


def test_temperatures_anneal() -> None:
    found = tuned(tau=(0.4, 0.1), epochs=3, metric="loss")
    best = int(np.argmax([each.score for each in found.history_]))
    assert found.network_.parts[-1].settings["tau"] == pytest.approx([0.4, 0.4, 0.2, 0.1][best])


def test_parquet_files_train_as_the_frame_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they do not fit into memory; then rows are drawn in chunks."""
    pytest.importorskip("pyarrow")
    train, y, apart, of_apart = halves()
    for name, frame, truth in (("train", train, y), ("apart", apart, of_apart)):
        frame.assign(late=truth).to_parquet(tmp_path / name, row_group_size=100)
    given = (tmp_path / "apart", "late")
    found = translate(fitted()).fine_tune(tmp_path / "train", "late", validation=given, **FAST, keep_source=False)
    np.testing.assert_allclose(found.predict_proba(table()), tuned().predict_proba(table()), atol=1e-6)
    monkeypatch.setattr(data, "CHUNK", 200)
    streamed = translate(fitted()).fine_tune(
        [tmp_path / "train"], "late", validation=given, memory=0, **FAST, keep_source=False
    )
    assert np.abs(streamed.predict_proba(table()) - found.predict_proba(table())).max() < 0.1
    assert len(streamed.history_) == 4


def test_every_row_is_in_a_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CHUNK", 70)
    tunnel = translate(fitted())
    numbers = np.arange(len(table()))
    frame = table().assign(a=numbers.astype(float))
    source = data.Source(data.Table(frame, labels(), "rows"), tunnel._reader, tunnel.head_, 0)
    apart = source.hold_out(0.2, 0)
    for rng in (None, np.random.default_rng(0)):
        both = [*data.batches(source.parts, 64, rng), *data.batches(apart.parts, 64, rng)]
        assert sorted(torch.cat([each.numbers[:, 0] for each in both]).tolist()) == numbers.tolist()
    assert 0.1 < sum(map(len, data.batches(apart.parts, 64, None))) / len(numbers) < 0.3


def test_operators_in_front_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    transform = KBinsDiscretizer.transform
    monkeypatch.setattr("collage.windtunnel.tunnel.check_equal", lambda *given: None)
    monkeypatch.setattr(KBinsDiscretizer, "transform", lambda *given: runs.append(1) or transform(*given))
    bins = KBinsDiscretizer(4, encode="onehot-dense", quantile_method="averaged_inverted_cdf")
    rows, y = table()[["b", "d"]], labels()
    source = make_pipeline(bins, StandardScaler(), LogisticRegression()).fit(rows, y)
    for cache in (None, tmp_path):
        found = translate(source, cache=cache)
        np.testing.assert_allclose(found.predict_proba(rows), source.predict_proba(rows), atol=1e-9)
        runs.clear()
        for _ in range(2):
            found.fine_tune(rows, y, validation=(rows[:300], y[:300]), epochs=1, keep_source=False)
        assert len(runs) <= (2 if cache else 4)


def test_regression() -> None:
    rows = table()[["b", "d"]].to_numpy(float)
    y = np.sin(rows[:, 1]) + rows[:, 0] / 20
    source = make_pipeline(StandardScaler(), Ridge(1e4)).fit(rows, y)
    found = translate(source).fine_tune(rows, y, validation=0.2, rate=1e-2, epochs=10, batch=64, keep_source=False)
    assert found.score(rows, y) > source.score(rows, y) + 0.05


def test_search_over_settings() -> None:
    train, y, *_ = halves()
    tunnel = Tunnel(pipeline(boosted()), epochs=1, batch=128)
    assert clone(tunnel).get_params()["epochs"] == 1
    grid = {"level": ["L1", "L3"], "pipeline__lgbmclassifier__num_leaves": [4]}
    search = GridSearchCV(tunnel, grid, cv=2, scoring="roc_auc", error_score="raise").fit(train, y)
    assert search.best_score_ > 0.6
    assert search.best_estimator_.network_.parts[-1].path.shape[1] == 4
    assert isinstance(search.predict_proba(train), np.ndarray)
    assert list(search.classes_) == [0, 1]
    assert pd.Series(search.predict(train)).isin([0, 1]).all()


def test_the_pipeline_is_kept_if_no_epoch_is_better(caplog: pytest.LogCaptureFixture) -> None:
    train, y, apart, of_apart = halves()
    source = translate(fitted())
    expected = source.predict_proba(apart)
    found = source.fine_tune(train, y, validation=(apart, of_apart), epochs=1, rate=10.0, level="L2", tau=3.0)
    assert max(each.score for each in found.history_) < found.source_score_
    np.testing.assert_array_equal(found.predict_proba(apart), expected)
    assert "it is kept" in caplog.text


def test_an_interrupt_before_the_start_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    train, y, apart, of_apart = halves()
    tunnel = translate(fitted())
    expected = tunnel.predict_proba(apart)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("collage.windtunnel.tune.evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tunnel.fine_tune(train, y, validation=(apart, of_apart))
    np.testing.assert_array_equal(tunnel.predict_proba(apart), expected)


def test_quantiles_stay_quantiles() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3))
    y = rows[:, 0] + rng.normal(size=3000)
    source = lightgbm.LGBMRegressor(objective="quantile", alpha=0.9, n_estimators=20, verbose=-1, n_jobs=1)
    source.fit(rows[:1500], y[:1500])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names
        found = translate(source)
        apart = (rows[1500:], y[1500:])
        found.fine_tune(rows[:1500], y[:1500], validation=apart, epochs=30, rate=1e-2, batch=256, keep_source=False)
    assert 0.8 < (y[1500:] <= found.predict(rows[1500:])).mean() < 0.97


@pytest.mark.parametrize("weight", ["balanced", {0: 1.0, 1: 9.0}])
def test_weights_of_classes_stay(weight: Any) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 2))
    y = (rows[:, 0] + rng.normal(size=4000) > 1.8).astype(int)  # one in ten
    source = LogisticRegression(class_weight=weight).fit(rows, y)
    found = translate(source).fine_tune(rows, y, validation=(rows, y), epochs=20, batch=256, keep_source=False)
    mean = found.predict_proba(rows)[:, 1].mean()
    assert mean == pytest.approx(source.predict_proba(rows)[:, 1].mean(), abs=0.05)
    assert mean > 2 * y.mean()


def test_weights_of_rows(tmp_path: Path) -> None:
    """Rows of the weight 0 are as if they were not there; all other weights are equal ones."""
    frame, y = table()[["b", "d"]], labels()
    weight = np.where(np.arange(len(y)) % 3, 7.0, 0.0)
    wrong, kept = np.where(weight > 0, y, 1 - y), weight > 0
    source = make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(frame, y)
    settings = {"epochs": 3, "batch": 5000, "rate": 0.1, "keep_source": False}
    found = translate(source).fine_tune(
        frame, wrong, sample_weight=weight, validation=(frame, wrong, weight), **settings
    )
    alone = translate(source).fine_tune(frame[kept], y[kept], validation=(frame[kept], y[kept]), **settings)
    plain = translate(source).fine_tune(frame, wrong, validation=(frame[kept], y[kept]), **settings)
    wanted = alone.predict_proba(frame)
    np.testing.assert_allclose(found.predict_proba(frame), wanted, rtol=0, atol=1e-9)
    assert [each.score for each in found.history_] == pytest.approx([each.score for each in alone.history_])
    assert np.abs(plain.predict_proba(frame) - wanted).max() > 1e-3
    pytest.importorskip("pyarrow")
    frame.assign(y=wrong, w=weight).to_parquet(tmp_path / "rows")
    both = (tmp_path / "rows", "y", "w")
    found = translate(source).fine_tune(*both[:2], sample_weight="w", validation=both, **settings)
    np.testing.assert_allclose(found.predict_proba(frame), wanted, rtol=0, atol=1e-9)


def test_weights_of_rows_are_the_pipelines_too() -> None:
    frame, y = table()[["b", "d"]], labels()
    weight = np.where(y == 1, 20.0, 1.0)
    searched = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1.0]}, cv=2
    )
    for source in (searched, LogisticRegression()):
        means = [
            Tunnel(source, epochs=0, seed=1).fit(frame, y, given).predict_proba(frame)[:, 1].mean()
            for given in (None, weight)
        ]
        assert means[1] > means[0] + 0.3


def test_no_rows() -> None:
    train, y, apart, of_apart = halves()
    found = translate(fitted())
    for level in ("L1", "L2", "L3"):
        found.fine_tune(train, y, validation=(apart, of_apart), epochs=1, level=level, keep_source=False)
        assert found.predict_proba(apart[:0]).shape == (0, 2)
