"""Operators of classical pipelines that scikit-learn lacks: encoders of categories and leaves, a factorisation machine.

The encoders are lookups. After ``fit``, ``categories_`` has the sorted categories of each column, and ``tables_`` a
float32 array for each column, [categories + 1, width]: the row of each category, and a last row for categories that
``fit`` has not seen, None and NaN. ``transform`` gives the rows of all columns side by side, float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import pandas as pd
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from collage.errors import InputError, UsageError

__all__ = [
    "BinaryEncoder",
    "Buckets",
    "FactorizationMachine",
    "HashEncoder",
    "LeafEncoder",
    "RareCategories",
    "TwoHotEncoder",
    "codes_of",
    "columns_of",
]

Array: TypeAlias = NDArray[Any]
Table: TypeAlias = NDArray[np.float32]


def columns_of(X: Any) -> list[Array]:  # noqa: N803
    """The columns of a frame or of a dense [rows, columns] array. Text is in arrays of objects, None if missing."""
    if hasattr(X, "iloc"):
        return [_plain(X.iloc[:, index]) for index in range(X.shape[1])]
    if scipy.sparse.issparse(X):
        raise InputError("categories cannot be read from a sparse matrix: give a frame or a dense array.")
    array = np.asarray(X)
    if array.ndim != 2:
        raise InputError(f"categories are read from [rows, columns], and these have the shape {array.shape}.")
    return [*array.T]


def _plain(column: Any) -> Array:
    if isinstance(column.dtype, np.dtype):
        return np.asarray(column)
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _plain(column.astype(column.cat.categories.dtype))
    if pd.api.types.is_numeric_dtype(column.dtype) and not column.isna().any():
        return np.asarray(column.to_numpy())
    return np.asarray(column.to_numpy(dtype=object, na_value=None))


def categories_of(column: Array) -> Array:
    """The sorted categories of a column, without None and NaN. If types are mixed, numbers stand before text."""
    found = pd.unique(pd.Series(column[~pd.isna(column)]))
    if np.asarray(found).dtype.kind in "biuf":
        return np.sort(np.asarray(found))
    values = np.empty(len(found), object)
    values[:] = sorted(found, key=lambda each: (isinstance(each, str), type(each).__name__ * (each != each), each))
    return values


def codes_of(column: Array, categories: Array) -> NDArray[np.int64]:
    """The number of each row's category; for those that are not among the categories, None and NaN, their count."""
    if not len(categories):
        return np.zeros(len(column), np.int64)
    codes = np.asarray(pd.Index(categories).get_indexer(pd.Index(column)), np.int64)
    return np.where(codes < 0, len(categories), codes)


class _Transformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What the transformers share: names and numbers of columns are checked as scikit-learn checks them."""

    def _columns(self, X: Any, *, fit: bool) -> list[Array]:  # noqa: N803
        if not fit:
            check_is_fitted(self)
        columns = columns_of(X)
        validate_data(self, X, reset=fit, skip_check_array=True)
        return columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = tags.input_tags.allow_nan = True
        return tags


class RareCategories(_Transformer):
    """Numbers categories, and makes one category of the rare ones.

    Rare are the ``drop_fraction`` of a column's categories that are seen least, those seen less than ``min_count``
    times, those that ``fit`` has not seen, None and NaN. ``categories_`` has the others of each column, sorted.
    ``transform`` gives their numbers in ``categories_``, and its length for rare ones, int64 [rows, columns].
    """

    def __init__(self, min_count: int = 10, drop_fraction: float = 0.0) -> None:
        self.min_count = min_count
        self.drop_fraction = drop_fraction

    def fit(self, X: Any, y: object = None) -> RareCategories:  # noqa: N803
        """Count the categories of a frame or [rows, columns] array."""
        if not 0 <= self.drop_fraction < 1:
            raise UsageError(f"drop_fraction is at least 0 and below 1, and not {self.drop_fraction}.")
        self.categories_ = []
        for column in self._columns(X, fit=True):
            categories = categories_of(column)
            counts = np.bincount(codes_of(column, categories), minlength=len(categories) + 1)[:-1]
            kept = counts >= self.min_count
            kept[np.argsort(counts, kind="stable")[: int(self.drop_fraction * len(categories))]] = False
            self.categories_.append(categories[kept])
        return self

    def transform(self, X: Any) -> NDArray[np.int64]:  # noqa: N803
        """The number of each category."""
        columns = self._columns(X, fit=False)
        return np.stack([codes_of(*each) for each in zip(columns, self.categories_, strict=True)], axis=1)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """The names of the columns."""
        return _names(self, input_features, [1] * self.n_features_in_)


class Buckets(_Transformer):
    """Makes categories of numbers: buckets that have about as many training rows each.

    ``edges_`` has the sorted edges between the buckets of each column: fewer than ``bins - 1`` if values repeat.
    ``transform`` gives the count of edges up to the number, and -1 for NaN, int64 [rows, columns].
    """

    def __init__(self, bins: int = 32) -> None:
        self.bins = bins

    def fit(self, X: Any, y: object = None) -> Buckets:  # noqa: N803
        """Find the edges for the columns of a frame or [rows, columns] array of numbers."""
        if self.bins < 2:
            raise UsageError(f"there are at least 2 bins, and not {self.bins}.")
        self.edges_ = []
        for column in self._columns(X, fit=True):
            values = column.astype(np.float64)
            values = values[~np.isnan(values)]
            steps = np.arange(1, self.bins) / self.bins
            edges = np.unique(np.quantile(values, steps, method="nearest")) if len(values) else np.zeros(0)
            self.edges_.append(edges[edges > values.min()] if len(edges) else edges)
        return self

    def transform(self, X: Any) -> NDArray[np.int64]:  # noqa: N803
        """The bucket of each number."""
        found = []
        for column, edges in zip(self._columns(X, fit=False), self.edges_, strict=True):
            values = column.astype(np.float64)
            found.append(np.where(np.isnan(values), -1, np.searchsorted(edges, values, side="right")))
        return np.stack(found, axis=1)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """The names of the columns."""
        return _names(self, input_features, [1] * self.n_features_in_)


class _Encoder(_Transformer):
    """A lookup in ``tables_``, which ``_table`` makes for the categories of a column."""

    def fit(self, X: Any, y: object = None) -> Any:  # noqa: N803
        """Collect the categories of a frame or [rows, columns] array."""
        self.categories_ = [categories_of(column) for column in self._columns(X, fit=True)]
        self.tables_ = [self._table(categories).astype(np.float32) for categories in self.categories_]
        return self

    def transform(self, X: Any) -> Table:  # noqa: N803
        """The rows of the categories, [rows, sum of widths]."""
        columns = self._columns(X, fit=False)
        found = np.empty((len(columns[0]), sum(table.shape[1] for table in self.tables_)), np.float32)
        start = 0
        for column, categories, table in zip(columns, self.categories_, self.tables_, strict=True):
            found[:, start : start + table.shape[1]] = table[codes_of(column, categories)]
            start += table.shape[1]
        return found

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """The name of a column and the position in its code, for each column of the output."""
        return _names(self, input_features, [table.shape[1] for table in self.tables_])

    def _table(self, categories: Array) -> Array:
        raise NotImplementedError


class BinaryEncoder(_Encoder):
    """The digits of a category's number, which counts from 1, most significant first; zeros for unseen categories."""

    def _table(self, categories: Array) -> Array:
        numbers = np.append(np.arange(1, len(categories) + 1), 0)
        return numbers[:, None] >> np.arange(max(len(categories).bit_length(), 1))[::-1] & 1


class TwoHotEncoder(_Encoder):
    """Two ones for a category: its number divided by the root of their count, and the remainder; zeros for unseen ones.

    C categories take about twice the root of C columns.
    """

    def _table(self, categories: Array) -> Array:
        many = len(categories)
        side = isqrt(max(many - 1, 0)) + 1
        high = -(-many // side)
        table = np.zeros((many + 1, high + side))
        numbers = np.arange(many)
        table[numbers, numbers // side] = 1
        table[numbers, high + numbers % side] = 1
        return table


class HashEncoder(_Encoder):
    """A one at the hash of the category's text, modulo ``width``; zeros for unseen categories."""

    def __init__(self, width: int = 32) -> None:
        self.width = width

    def _table(self, categories: Array) -> Array:
        if self.width < 1:
            raise UsageError(f"a hash takes at least 1 column, and not {self.width}.")
        table = np.zeros((len(categories) + 1, self.width))
        texts = (str(each.item() if isinstance(each, np.generic) else each) for each in categories)
        for row, text in enumerate(texts):
            table[row, crc32(text.encode()) % self.width] = 1
        return table


def _names(transformer: Any, given: ArrayLike | None, widths: Sequence[int]) -> Array:
    check_is_fitted(transformer)
    given = getattr(transformer, "feature_names_in_", None) if given is None else given
    names = (
        [f"x{index}" for index in range(len(widths))] if given is None else [str(each) for each in np.asarray(given)]
    )
    found = (
        [name] if width == 1 else [f"{name}_{index}" for index in range(width)]
        for name, width in zip(names, widths, strict=True)
    )
    return np.array([each for part in found for each in part], object)


class LeafEncoder(_Transformer):
    """One-hot codes of the leaf that a row reaches in each tree of an ensemble.

    ``estimator`` is a classifier or regressor of LightGBM, XGBoost, CatBoost, or of scikit-learn with ``apply``. A
    clone of it, ``estimator_``, is fitted. ``starts_`` [trees + 1] has the first column of each tree, and their count;
    a leaf's column is that plus the number that its library gives it (with scikit-learn the node's number).
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: ArrayLike) -> LeafEncoder:  # noqa: N803
        """Train the ensemble."""
        validate_data(self, X, reset=True, skip_check_array=True)
        self.estimator_ = clone(self.estimator).fit(X, y)
        self.starts_ = np.cumsum([0, *self._sizes(X)], dtype=np.int64)
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        """The codes: a sparse float32 matrix, [rows, leaves of all trees], with a one for each tree in each row."""
        columns = self.leaves(X) + self.starts_[:-1]
        rows, trees = columns.shape
        ones = np.ones(rows * trees, np.float32)
        shape = (rows, int(self.starts_[-1]))
        return scipy.sparse.csr_matrix((ones, columns.ravel(), np.arange(rows + 1) * trees), shape=shape)

    def leaves(self, X: Any) -> NDArray[np.int64]:  # noqa: N803
        """The leaf of each row in each tree, [rows, trees], as the library numbers them."""
        check_is_fitted(self)
        found = _reached(self.estimator_, X)
        return found.reshape(found.shape[0], -1)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """``tree_leaf`` for each column."""
        check_is_fitted(self)
        spans = enumerate(np.diff(self.starts_).tolist())
        return np.array([f"{tree}_{leaf}" for tree, many in spans for leaf in range(many)], object)

    def _sizes(self, X: Any) -> list[int]:  # noqa: N803
        fitted = self.estimator_
        if hasattr(fitted, "booster_"):
            return [each["num_leaves"] for each in fitted.booster_.dump_model()["tree_info"]]
        if hasattr(fitted, "get_tree_leaf_counts"):
            return [*map(int, fitted.get_tree_leaf_counts())]
        if hasattr(fitted, "get_booster"):
            table = fitted.get_booster().trees_to_dataframe()
            return [int(nodes.max()) + 1 for _, nodes in table.groupby("Tree")["Node"]]
        return [each.tree_.node_count for each in np.ravel(fitted.estimators_)]


def _reached(fitted: Any, X: Any) -> NDArray[np.int64]:  # noqa: N803
    if hasattr(fitted, "booster_"):  # the estimator's own predict warns of names that an array does not have
        return np.asarray(fitted.booster_.predict(X, pred_leaf=True), np.int64)
    if hasattr(fitted, "calc_leaf_indexes"):
        return np.asarray(fitted.calc_leaf_indexes(X), np.int64)
    if hasattr(fitted, "apply"):
        return np.asarray(fitted.apply(X), np.int64)
    raise UsageError(f"{type(fitted).__name__} does not say which leaves rows reach.")


class FactorizationMachine(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A factorisation machine for two classes, trained by Adam on the logistic loss.

    The score of a row is ``bias_ + x·weights_ + ½·Σ((x·factors_)² - x²·factors_²)``; ``weights_`` is [features] and
    ``factors_`` [features, dim], float32. It takes dense or sparse rows of finite numbers, best few of them not zero.

    If ``validation_fraction`` is above zero, so many of the rows, drawn at random, are kept apart: training stops if
    their loss has not improved for ``patience`` epochs, and the best weights are kept. ``epochs_`` counts the epochs.
    """

    def __init__(
        self,
        dim: int = 20,
        lr: float = 1e-3,
        epochs: int = 20,
        batch: int = 4096,
        weight_decay: float = 1e-6,
        validation_fraction: float = 0.1,
        patience: int = 2,
        seed: int = 0,
    ) -> None:
        self.dim = dim
        self.lr = lr
        self.epochs = epochs
        self.batch = batch
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.seed = seed

    def fit(self, X: Any, y: ArrayLike) -> FactorizationMachine:  # noqa: N803
        """Train on rows and their labels. Raises InputError if there are not two classes."""
        import torch

        rows = self._rows(X, fit=True)
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        if len(self.classes_) != 2:
            raise InputError(f"a factorisation machine separates two classes, and y has {len(self.classes_)}.")
        generator = np.random.default_rng(self.seed)
        order = generator.permutation(rows.shape[0])
        apart, train = np.split(order, [int(self.validation_fraction * len(order))])
        share = labels[train].mean().clip(1e-6, 1 - 1e-6)
        table = torch.from_numpy(generator.normal(0, 0.01, (rows.shape[1], 1 + self.dim)).astype(np.float32))
        table[:, 0] = 0
        bias = torch.tensor([np.log(share / (1 - share))], dtype=torch.float32)
        weights = (table.requires_grad_(), bias.requires_grad_())
        adam = torch.optim.Adam(weights, lr=self.lr, weight_decay=self.weight_decay)
        truth = torch.from_numpy(labels.astype(np.float32))
        loss_of = torch.nn.functional.binary_cross_entropy_with_logits
        best, kept, waited = np.inf, [each.detach().clone() for each in weights], 0
        self.epochs_ = 0
        while self.epochs_ < self.epochs and (not len(apart) or waited < self.patience):
            for start in range(0, len(train), self.batch):
                chosen = train[start : start + self.batch]
                loss = loss_of(_scores(table, bias, rows[chosen]), truth[torch.from_numpy(chosen)])
                adam.zero_grad()
                loss.backward()
                adam.step()
            train = generator.permutation(train)
            self.epochs_ += 1
            loss = -float(self.epochs_)
            if len(apart):
                with torch.no_grad():
                    scores = torch.cat([_scores(table, bias, rows[part]) for part in self._parts(apart)])
                    loss = float(loss_of(scores, truth[torch.from_numpy(apart)]))
            waited += 1
            if loss < best:
                best, kept, waited = loss, [each.detach().clone() for each in weights], 0
        self.weights_ = kept[0][:, 0].numpy().copy()
        self.factors_ = kept[0][:, 1:].numpy().copy()
        self.bias_ = float(kept[1])
        return self

    def decision_function(self, X: Any) -> Table:  # noqa: N803
        """The scores, [rows]."""
        check_is_fitted(self)
        import torch

        rows = self._rows(X, fit=False)
        table = torch.from_numpy(np.concatenate((self.weights_[:, None], self.factors_), axis=1))
        bias = torch.tensor([self.bias_], dtype=torch.float32)
        with torch.no_grad():
            parts = [_scores(table, bias, rows[part]).numpy() for part in self._parts(np.arange(rows.shape[0]))]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The probabilities of both classes, [rows, 2]."""
        scores = self.decision_function(X).astype(np.float64)
        found: NDArray[np.float64] = 1 / (1 + np.exp(np.stack((scores, -scores), axis=1).clip(-700, 700)))
        return found

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The likelier class of each row."""
        check_is_fitted(self)
        above = (self.decision_function(X) > 0).astype(np.int64)
        return np.asarray(self.classes_[above])

    def _parts(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [rows[start : start + self.batch] for start in range(0, len(rows), self.batch)]

    def _rows(self, X: Any, *, fit: bool) -> Any:  # noqa: N803
        given = validate_data(self, X, reset=fit, accept_sparse="csr", dtype=np.float32)
        return scipy.sparse.csr_matrix(given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags


def _scores(table: Any, bias: Any, rows: Any) -> Any:
    """The scores, [rows], of sparse rows; the table is [features, 1 + dim] with the linear weights first."""
    import torch

    bag = torch.nn.functional.embedding_bag
    indices, starts = (torch.from_numpy(each.astype(np.int64)) for each in (rows.indices, rows.indptr[:-1]))
    values = torch.from_numpy(rows.data)
    sums = bag(indices, table, starts, mode="sum", per_sample_weights=values)
    squares = bag(indices, table[:, 1:] ** 2, starts, mode="sum", per_sample_weights=values**2)
    return bias + sums[:, 0] + (sums[:, 1:] ** 2 - squares).sum(1) / 2
