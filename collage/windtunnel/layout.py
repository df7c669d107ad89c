"""Whether operators of a fitted pipeline give sparse matrices: XGBoost takes what they do not store for missing."""

from __future__ import annotations

from typing import Any, Literal

Layout = Literal["dense", "sparse", "as rows", "unknown"]
"""``as rows``: sparse if the rows are, which a bare estimator takes as they come."""

_SPARSE = frozenset(
    "CountVectorizer TfidfVectorizer HashingVectorizer TfidfTransformer FeatureHasher LeafEncoder".split()
)
_DENSE = frozenset(
    "PCA IncrementalPCA TruncatedSVD LinearDiscriminantAnalysis KMeans MiniBatchKMeans OrdinalEncoder TargetEncoder "
    "BinaryEncoder TwoHotEncoder HashEncoder RareCategories Buckets KNNImputer IterativeImputer".split()
)
_KEEPS = frozenset(
    "StandardScaler MaxAbsScaler RobustScaler Normalizer Binarizer SimpleImputer MissingIndicator QuantileTransformer "
    "PolynomialFeatures".split()
)


def layout_of(op: Any, given: Layout) -> Layout:
    """The layout of an operator's output. An operator that is not known is taken to give dense rows for dense ones."""
    from sklearn.feature_selection import SelectorMixin
    from sklearn.pipeline import FeatureUnion, Pipeline

    if isinstance(op, Pipeline):
        for _, step in op.steps:
            given = layout_of(step, given)
        return given
    if isinstance(op, FeatureUnion):
        found = {layout_of(step, given) for _, step in op.transformer_list if step != "drop"}
        order: tuple[Layout, ...] = ("sparse", "unknown", "as rows")
        return next((each for each in order if each in found), "dense")
    if op is None or isinstance(op, str):  # passthrough
        return given
    for name in ("sparse_output_", "sparse_output", "sparse"):
        if isinstance(says := getattr(op, name, None), bool):
            return "sparse" if says else "dense"
    kind = type(op).__name__
    if kind == "KBinsDiscretizer":
        return "sparse" if op.encode == "onehot" else "dense"
    if kind in _SPARSE:
        return "sparse"
    if kind in _DENSE:
        return "dense"
    if given != "sparse":
        return given
    keeps = kind in _KEEPS or isinstance(op, SelectorMixin) or (kind == "FunctionTransformer" and op.func is None)
    return given if keeps else "unknown"
