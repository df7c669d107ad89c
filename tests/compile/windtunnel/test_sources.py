"""Categorical encoders and buckets beside plain lookups."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("pandas")

import pandas as pd
import scipy.sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline

from collage.errors import InputError, UsageError
from collage.windtunnel.sources import (
    BinaryEncoder,
    Buckets,
    HashEncoder,
    RareCategories,
    TwoHotEncoder,
)

ENCODERS = [BinaryEncoder(), TwoHotEncoder(), HashEncoder(width=5)]
TRAIN = pd.DataFrame({"city": ["Oslo", "Rome", None, "Bern", "Oslo", "Kyiv", "Lima"], "lane": [3, 1, 3, 2, 9, 7, 8]})
OTHER = pd.DataFrame({"city": ["Rome", "Paris", None, np.nan], "lane": [9, 4, 1, 3]})


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda each: type(each).__name__)
def test_an_encoding_is_a_lookup(encoder: Any) -> None:
    fitted = clone(encoder).fit(TRAIN)
    assert [[*each] for each in fitted.categories_] == [["Bern", "Kyiv", "Lima", "Oslo", "Rome"], [1, 2, 3, 7, 8, 9]]
    for frame in (TRAIN, OTHER):
        expected = []
        for row in frame.itertuples(index=False):
            parts = []
            for value, categories, table in zip(row, fitted.categories_, fitted.tables_, strict=True):
                parts.append(table[dict(zip(categories, range(99), strict=False)).get(value, len(categories))])
            expected.append(np.concatenate(parts))
        found = fitted.transform(frame)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
        assert len(fitted.get_feature_names_out()) == found.shape[1]
    assert not fitted.transform(OTHER)[1].any()  # a category never seen


def test_codes_of_the_encoders() -> None:
    column = pd.DataFrame({"x": list("abcdefg")})
    binary = BinaryEncoder().fit_transform(column)
    assert (binary @ [4, 2, 1]).tolist() == [1, 2, 3, 4, 5, 6, 7]
    two = TwoHotEncoder().fit(column)
    assert two.tables_[0].shape == (8, 3 + 3)
    assert two.tables_[0].sum(1).tolist() == [2] * 7 + [0]
    assert len(np.unique(two.tables_[0], axis=0)) == 8
    assert HashEncoder(3).fit_transform(column).sum(1).tolist() == [1] * 7
    assert np.array_equal(HashEncoder(3).fit_transform([[1], [2]]), HashEncoder(3).fit_transform([[1], [2], [3]])[:2])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 16, 17, 100])
def test_two_hot_codes_differ(count: int) -> None:
    frame = pd.DataFrame({"x": np.arange(count) if count else [np.nan]})
    table = TwoHotEncoder().fit(frame).tables_[0]
    assert len(np.unique(table, axis=0)) == count + 1
    assert table.shape[1] <= 2 * np.sqrt(count) + 1
    assert len(np.unique(BinaryEncoder().fit(frame).tables_[0], axis=0)) == count + 1


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["b", "a", None], dtype="category"),
        pd.Series([2, 1, None], dtype="Int64"),
        pd.Series([True, False, True]),
        pd.Series([2.5, np.nan, -np.inf]),
        pd.Series(["b", 1, None], dtype=object),
        pd.Series(["b", "a", pd.NA], dtype="string"),
    ],
    ids=lambda each: str(each.dtype),
)
def test_columns_of_any_kind(column: Any) -> None:
    frame = column.to_frame("x")
    fitted = TwoHotEncoder().fit(frame)
    assert len(fitted.categories_[0]) == 2
    found = fitted.transform(frame)
    for row, missing in zip(found, column.isna(), strict=True):
        assert row.sum() == (0 if missing else 2)


def test_rare_categories() -> None:
    names = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["d"] * 2 + ["e"]
    frame = pd.DataFrame({"x": names})
    kept = RareCategories(min_count=2, drop_fraction=0.4).fit(frame)
    assert kept.categories_[0].tolist() == ["a", "b", "c"]
    assert kept.transform(pd.DataFrame({"x": ["c", "d", "e", "new", None, "a"]})).ravel().tolist() == [2, 3, 3, 3, 3, 0]
    counts = Counter(names)
    every = RareCategories(min_count=3).fit(frame)
    assert set(every.categories_[0]) == {name for name in names if counts[name] >= 3}
    with pytest.raises(UsageError, match="drop_fraction"):
        RareCategories(drop_fraction=1).fit(frame)


def test_buckets_have_as_many_rows() -> None:
    values = np.random.default_rng(0).normal(size=3200)
    buckets = Buckets(32).fit(values[:, None])
    counts = np.bincount(buckets.transform(values[:, None]).ravel())
    assert len(counts) == 32 and counts.min() >= 98 and counts.max() <= 102
    assert buckets.transform([[np.nan], [-np.inf], [np.inf]]).ravel().tolist() == [-1, 0, 31]
    assert Buckets(32).fit([[1.0], [1.0], [2.0]]).transform([[0.0], [1.0], [2.0]]).ravel().tolist() == [0, 0, 1]
    assert Buckets().fit([[np.nan]]).transform([[np.nan], [1.0]]).ravel().tolist() == [-1, 0]


@pytest.mark.parametrize(
    "each",
    [*ENCODERS, RareCategories(3, 0.1), Buckets(8)],
    ids=lambda each: type(each).__name__,
)
def test_the_conventions_of_scikit_learn(each: Any) -> None:
    again = clone(each)
    assert again.get_params() == each.get_params()
    with pytest.raises(Exception, match="not fitted"):
        again.transform(np.ones((2, 2)))
    rows = np.arange(20.0).reshape(10, 2)
    again.fit(rows, [0, 1] * 5)
    with pytest.raises(ValueError, match="features"):
        again.transform(np.ones((2, 3)))


def test_encoders_in_a_pipeline() -> None:
    frame = pd.concat([TRAIN] * 4, ignore_index=True)
    columns = ColumnTransformer(
        [("city", make_pipeline(RareCategories(3), TwoHotEncoder()), ["city"]), ("lane", BinaryEncoder(), ["lane"])]
    )
    found = columns.fit_transform(frame)
    assert found.shape == (28, columns.named_transformers_["city"][-1].tables_[0].shape[1] + 3)
    with pytest.raises(ValueError, match="sparse"):
        TwoHotEncoder().fit(scipy.sparse.csr_matrix(np.eye(3)))
    with pytest.raises(InputError, match="shape"):
        TwoHotEncoder().fit(np.arange(3))
