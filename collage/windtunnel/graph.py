"""A fitted scikit-learn pipeline as a network: the walk through its operators."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from collage.errors import ModelError, UsageError
from collage.frontend.trees.columns import end_of
from collage.frontend.trees.described import library_of
from collage.frontend.trees.ensemble import shown
from collage.windtunnel.columns import Column, Ref, category_column, recode
from collage.windtunnel.converters import ESTIMATORS, TRANSFORMERS
from collage.windtunnel.front import Front
from collage.windtunnel.heads import Head, head_of
from collage.windtunnel.layout import Layout, layout_of
from collage.windtunnel.modules.encode import Embed, Lookup, OneHot, Sum
from collage.windtunnel.modules.linear import Linear
from collage.windtunnel.modules.part import Concat, Network, Numbers, Part, Select, Step, array
from collage.windtunnel.modules.scale import Absent, Fill, Scale
from collage.windtunnel.modules.trees import Forest
from collage.windtunnel.registry import converter_of, registered

WIDEST_TABLE = 512
"""One-hot columns of more categories are learnt in the weights that follow, for their table would be their square."""

ENCODERS = ("OneHotEncoder", "OrdinalEncoder", "TargetEncoder", "an encoder with categories_ and tables_")
_RECODERS = ("RareCategories", "Buckets")
_USUAL_IN_FRONT = frozenset(
    "SimpleImputer IterativeImputer KNNImputer MissingIndicator CountVectorizer TfidfVectorizer HashingVectorizer "
    "DictVectorizer FeatureHasher FunctionTransformer KBinsDiscretizer".split()
)


@dataclass(frozen=True)
class Raw:
    """Columns of the frame, or of an operator in front, which no part has read yet."""

    refs: tuple[Ref, ...]
    flat: bool = False
    """Whether it is one column that a ColumnTransformer hands on as [rows], to a tokeniser."""
    layout: Layout = "dense"
    """Of the matrix that the pipeline has here."""


@dataclass(frozen=True)
class Dense:
    """Outputs of steps side by side."""

    steps: tuple[int, ...]
    layout: Layout = "dense"


Value: TypeAlias = "Raw | Dense"


@dataclass(frozen=True)
class Translation:
    """A network, the columns that it reads, the operators in front of it, and what its scores mean."""

    network: Network
    columns: tuple[Column, ...]
    fronts: tuple[Front, ...]
    head: Head
    n_features: int
    names: tuple[str, ...]
    """The names of the columns of the frame; empty if it was fitted on an array."""
    unstored: bool = False
    """Whether numbers that sparse rows do not store are missing ones."""
    by_name: bool = False
    """Whether a ColumnTransformer takes columns of the frame by their names."""


def translate_graph(pipeline: Any, front: Collection[str] = ()) -> Translation:
    """The network of a fitted pipeline or estimator.

    ``front`` has the places of operators that stay in front, such as ``"pre.num"``. Raises ModelError, in one line, for
    an operator without a converter behind others, and for a pipeline that is not fitted.
    """
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if isinstance(pipeline, type):
        name = pipeline.__name__
        raise ModelError(f"WindTunnel takes fitted estimators, and {name} is a class: {name}().fit(X, y).")
    while hasattr(pipeline, "best_estimator_"):
        pipeline = pipeline.best_estimator_
    what = f"the {type(pipeline).__name__}"
    if not hasattr(pipeline, "fit"):
        raise ModelError(f"WindTunnel takes pipelines and estimators of scikit-learn, and {what} is none.")
    try:
        check_is_fitted(pipeline)
    except NotFittedError as error:
        raise ModelError(f"{what} is not fitted yet: call its fit first.") from error
    first, last = end_of(pipeline, 0), end_of(pipeline, -1)
    named = getattr(first, "feature_names_in_", getattr(pipeline, "feature_names_in_", None))
    count = getattr(first, "n_features_in_", getattr(pipeline, "n_features_in_", None))
    if count is None:
        raise ModelError(
            f"{what} does not say how many columns it takes (n_features_in_). A tokeniser takes a column by its name "
            "in a ColumnTransformer: make_column_transformer((TfidfVectorizer(), 'text'))."
        )
    if named is None and type(first).__module__.startswith("lightgbm"):
        count = first.n_features_
    names = tuple(map(str, named)) if named is not None else ()
    _check_categories(first, what)
    walk = _Walk(frozenset(front), bool(names), library_of(last) == "xgboost")
    refs = tuple(Ref(Column(0, index, names[index] if names else f"column {index}")) for index in range(int(count)))
    value = walk.apply(pipeline, "", Raw(refs, layout="dense" if names else "as rows"), last)
    if unknown := sorted(set(front) - walk.used):
        raise UsageError(f"front names {', '.join(unknown)}, and the places of operators are {', '.join(walk.places)}.")
    result = walk.one(value)
    if hasattr(last, "predict"):
        head = head_of(last, walk.parts[result].width)
    else:
        head = Head("transformer", "identity")
    walk.check_numbers()
    network, columns, fronts = Network(walk.parts, walk.steps), tuple(walk.columns), tuple(walk.fronts)
    return Translation(network, columns, fronts, head, int(count), names, walk.unstored, walk.by_name)


class _Walk:
    """A network under construction."""

    def __init__(self, front: frozenset[str], named: bool, of_layout: bool) -> None:
        """``of_layout``: whether sparse and dense rows mean something else to the estimator at the end."""
        self.parts: list[Part] = []
        self.steps: list[Step] = []
        self.columns: list[Column] = []
        self.fronts: list[Front] = []
        self.places: list[str] = []
        self.used: set[str] = set()
        self.unstored = self.by_name = False
        self._front, self._named, self._of_layout = front, named, of_layout

    def apply(self, op: Any, path: str, value: Value, last: Any, gives: int | None = None) -> Value:
        """The value behind an operator at a place of the pipeline. ``last`` is the estimator at the end.

        ``gives`` is the number of columns that the operators behind it take, as far as it is known.
        """
        return replace(self._applied(op, path, value, last, gives), layout=layout_of(op, value.layout))

    def _applied(self, op: Any, path: str, value: Value, last: Any, gives: int | None) -> Value:
        from sklearn.compose import ColumnTransformer
        from sklearn.pipeline import FeatureUnion, Pipeline

        if path:
            self.places.append(path)
        if path in self._front:
            self.used.add(path)
            return self._in_front(op, path, value, gives)
        if isinstance(op, Pipeline):
            steps = [(name, step) for name, step in op.steps if step is not None and step != "passthrough"]
            for at, (name, step) in enumerate(steps):
                taken = getattr(steps[at + 1][1], "n_features_in_", None) if at + 1 < len(steps) else gives
                value = self.apply(step, _inside(path, name), value, last, taken)
            return value
        if isinstance(op, ColumnTransformer):
            found = []
            for name, step, asked in op.transformers_:
                self.by_name |= isinstance(value, Raw) and self._named and _names_columns(asked)
                chosen = self._select(value, [int(each) for each in op._transformer_to_input_indices[name]], path)
                if isinstance(chosen, Raw) and isinstance(asked, (str, int)):
                    chosen = replace(chosen, flat=True)
                if (isinstance(step, str) and step == "drop") or self.width(chosen) == 0:
                    continue
                if not (isinstance(step, str) and step == "passthrough"):
                    places = op.output_indices_[name]
                    chosen = self.apply(step, _inside(path, name), chosen, last, places.stop - places.start)
                found.append(self._weighted(chosen, (op.transformer_weights or {}).get(name), path))
            return self._beside(found)
        if isinstance(op, FeatureUnion):
            found = []
            for name, step in op.transformer_list:
                if isinstance(step, str) and step == "drop":
                    continue
                passes = isinstance(step, str) and step == "passthrough"
                part = value if passes else self.apply(step, _inside(path, name), value, last)
                found.append(self._weighted(part, (op.transformer_weights or {}).get(name), path))
            return self._beside(found)
        return self._single(op, path or type(op).__name__, value, op is last, gives)

    def width(self, value: Value) -> int:
        if isinstance(value, Raw):
            return len(value.refs)
        return sum(self.parts[each].width for each in value.steps)

    def one(self, value: Value) -> int:
        """The step that gives a value."""
        if isinstance(value, Raw):
            if any(each.recoded for each in value.refs):
                raise ModelError("RareCategories and Buckets give categories, which an encoder has to take.")
            read = self._add(Numbers.of([self._column(each.column) for each in value.refs]), "columns", ())
            fills = [each.fill for each in value.refs]
            if all(each is None for each in fills):
                return read
            if any(isinstance(each, str) for each in fills):
                raise ModelError("an imputer gives texts, which an encoder has to take.")
            return self._add(Fill.of([np.nan if each is None else each for each in fills]), "imputer", (read,))
        if len(value.steps) == 1:
            return value.steps[0]
        return self._add(Concat(width=self.width(value)), "beside", value.steps)

    def check_numbers(self) -> None:
        """Columns whose NaN, or infinities, would reach a part that does not take them are strict."""
        for column, of in enumerate([each for each in self.columns if each.kind == "number"]):
            carriers: set[int] = set()
            reached: list[Part] = []
            for step, (part, about) in enumerate(zip(self.parts, self.steps, strict=True)):
                reads = isinstance(part, Numbers) and column in part.columns.tolist()
                if not reads and carriers.isdisjoint(about.inputs):
                    continue
                reached.append(part)
                if not part.settles:
                    carriers.add(step)
            strict = not all(part.takes_missing for part in reached)
            finite = not all(part.takes_infinite for part in reached)
            self.columns[self.columns.index(of)] = replace(of, strict=strict, finite=finite)

    def _add(self, part: Part, path: str, inputs: Sequence[int]) -> int:
        self.parts.append(part)
        self.steps.append(Step(path, tuple(inputs)))
        return len(self.parts) - 1

    def _column(self, column: Column) -> int:
        """The place of a column among the numbers, or among the codes, of a network's inputs."""
        if column not in self.columns:
            self.columns.append(column)
        kinds = [each for each in self.columns if (each.kind == "number") == (column.kind == "number")]
        return kinds.index(column)

    def _select(self, value: Value, chosen: list[int], path: str) -> Value:
        if isinstance(value, Raw):
            return replace(value, refs=tuple(value.refs[each] for each in chosen))
        if chosen == list(range(self.width(value))):
            return value
        if not chosen:
            return Raw(())
        return Dense((self._add(Select.of(chosen), path, (self.one(value),)),), value.layout)

    def _beside(self, values: Sequence[Value]) -> Value:
        if all(isinstance(each, Raw) for each in values):
            return Raw(tuple(ref for each in values if isinstance(each, Raw) for ref in each.refs))
        steps: list[int] = []
        for each in values:
            steps += each.steps if isinstance(each, Dense) else [self.one(each)]
        return Dense(tuple(steps))

    def _weighted(self, value: Value, weight: float | None, path: str) -> Value:
        if weight is None:
            return value
        factor = np.full(self.width(value), float(weight))
        return Dense((self._add(Scale.of(factor, np.zeros(len(factor))), path, (self.one(value),)),))

    def _single(self, op: Any, path: str, value: Value, is_last: bool, gives: int | None) -> Value:
        """The value behind an operator that is no container."""
        from sklearn.feature_selection import SelectorMixin
        from sklearn.preprocessing import FunctionTransformer

        kind = type(op).__name__
        count = getattr(op, "n_features_in_", None)
        if count is not None and int(count) != self.width(value):
            text = f"{path} ({kind}) takes {count} columns, and {self.width(value)} come in"
            unnamed = [each.path for each in self.fronts if isinstance(each.operator, FunctionTransformer)]
            if unnamed:
                text += f": {', '.join(unnamed)} does not say how many it gives, so set its feature_names_out"
            raise ModelError(f"{text}.")
        if kind == "FunctionTransformer" and op.func is None:
            return value
        if kind in ENCODERS or (hasattr(op, "categories_") and hasattr(op, "tables_")):
            return self._encoder(op, path, value)
        if kind == "SimpleImputer" and (filled := _filled(op, value)) is not None:
            found: Value = filled if isinstance(filled, Raw) else self._after(filled, path, value)
            if not op.add_indicator or not len(op.indicator_.features_):
                return found
            return self._beside([found, self._after(Absent.of(op.indicator_.features_), path, value)])
        if kind == "MissingIndicator" and _of_nan(op):
            return self._after(Absent.of(op.features_), path, value)
        if isinstance(op, SelectorMixin) and not (is_last and hasattr(op, "predict")):
            return self._select(value, op.get_support(indices=True).tolist(), path)
        if kind in _RECODERS and isinstance(value, Raw):
            return Raw(tuple(map(_recoder(op), value.refs, range(len(value.refs)))))
        converter = converter_of(op, ESTIMATORS if is_last and hasattr(op, "predict") else TRANSFORMERS)
        if converter is None:
            if is_last and hasattr(op, "predict"):
                raise ModelError(_no_converter(op, path, can_stay=False))
            found = self._in_front(op, path, value, gives)
            if kind not in _USUAL_IN_FRONT:
                text = f"{path} ({kind}) has no converter: it stays in front of the network, and is not fine-tuned."
                warnings.warn(text, stacklevel=2)
            return found
        made = converter(op, self.width(value))
        chain = made if isinstance(made, tuple) else (made,)
        if is_last and self._of_layout:
            self._xgboost(chain, path, value.layout)
        for part in chain:
            value = self._linear(part, path, value) if isinstance(part, Linear) else self._after(part, path, value)
        return value

    def _xgboost(self, chain: Sequence[Part], path: str, layout: Layout) -> None:
        """Zeros of a sparse matrix, which does not store them, are missing values for XGBoost."""
        if layout == "unknown":
            raise ModelError(
                f"{path}: XGBoost takes zeros of sparse matrices for missing values, and whether its input is sparse "
                "is not known: give the operator before it an attribute sparse_output, True or False."
            )
        self.unstored = layout == "as rows"
        for part in chain:
            if layout == "sparse" and isinstance(part, Forest):
                part.settings["zeros"] = list(range(part.settings["features"]))

    def _after(self, part: Part, path: str, value: Value) -> Dense:
        return Dense((self._add(part, path, (self.one(value),)),))

    def _linear(self, part: Linear, path: str, value: Value) -> Dense:
        """A linear operator. Of columns that are one-hot it takes the weights of their categories."""
        wide = [] if isinstance(value, Raw) else [each for each in value.steps if isinstance(self.parts[each], OneHot)]
        if not wide:
            return self._after(part, path, value)
        assert isinstance(value, Dense)
        weight, start, terms, kept, rest = array(part.weight), 0, [], [], []
        for step in value.steps:
            of = self.parts[step]
            rows = weight[start : start + of.width]
            start += of.width
            if isinstance(of, OneHot):
                terms.append(self._add(Lookup.of(of, rows), path, ()))
            else:
                rest.append(step)
                kept.append(rows)
        if kept:
            line = Linear.of(np.concatenate(kept), array(part.bias), part.settings["learnt"])
            terms.append(self._add(line, path, (self.one(Dense(tuple(rest))),)))
        else:
            bias = Scale.of(np.ones(part.width), array(part.bias))
            terms[-1] = self._add(bias, path, (terms[-1],))
        if len(terms) == 1:
            return Dense((terms[0],))
        return Dense((self._add(Sum(width=part.width), path, terms),))

    def _encoder(self, op: Any, path: str, value: Value) -> Dense:
        if isinstance(value, Dense):
            raise ModelError(f"{path} ({type(op).__name__}) encodes outputs of other operators, and not columns.")
        steps: list[int] = []
        places: list[int] = []
        tables: list[Any] = []

        def flush() -> None:
            if tables:
                steps.append(self._add(Embed.of(places, tables), path, ()))
            places.clear()
            tables.clear()

        for index, (ref, categories) in enumerate(zip(value.refs, op.categories_, strict=True)):
            table, strict = _table(op, index)
            column, table = category_column(ref, categories, table, strict)
            place = self._column(column)
            if table.ndim == 1:  # the columns of one-hot codes
                if table.max(initial=-1) >= WIDEST_TABLE:
                    flush()
                    steps.append(self._add(OneHot.of(place, table), path, ()))
                    continue
                table = np.eye(int(table.max(initial=-1)) + 2)[:, 1:][table + 1]
            if table.shape[1]:
                places.append(place)
                tables.append(table)
        flush()
        return Dense(tuple(steps))

    def _in_front(self, op: Any, path: str, value: Value, gives: int | None) -> Raw:
        """Let scikit-learn run an operator on raw columns. Its outputs are raw columns, too."""
        if isinstance(value, Dense) or any(each.recoded or each.fill is not None for each in value.refs):
            raise ModelError(_no_converter(op, path))
        columns = tuple(each.column for each in value.refs)
        named = hasattr(end_of(op, 0), "feature_names_in_")
        layout = layout_of(op, value.layout)
        sparse = layout == "sparse" if self._of_layout and layout != "unknown" else None
        self.fronts.append(Front(path, op, columns, named, value.flat, sparse))
        width = _width_of(op, len(columns), path) if gives is None else gives
        return Raw(tuple(Ref(Column(len(self.fronts), index, f"{path} {index}")) for index in range(width)))


def _check_categories(first: Any, what: str) -> None:
    """Raise ModelError for boosters that take pandas' columns of categories, whose codes a frame does not show."""
    booster = getattr(first, "booster_", None)
    types = getattr(first, "feature_types", None) or ()
    if getattr(booster, "pandas_categorical", None) or (getattr(first, "enable_categorical", False) and "c" in types):
        raise ModelError(
            f"{what} was trained on pandas' columns of categories, which WindTunnel does not take: put an "
            "OrdinalEncoder before it, and name the columns by categorical_feature."
        )


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _width_of(op: Any, inputs: int, path: str) -> int:
    """How many columns an operator in front gives."""
    try:
        return len(op.get_feature_names_out())
    except Exception:  # operators raise anything if they know no names
        pass
    for name in ("_n_features_out", "n_features_out_"):
        if hasattr(op, name):
            return int(getattr(op, name))
    if hasattr(op, "transform") and type(op).__name__ == "FunctionTransformer":
        return inputs
    raise ModelError(f"{path} ({type(op).__name__}) does not say how many columns it gives (get_feature_names_out).")


def _names_columns(asked: Any) -> bool:
    """Whether a ColumnTransformer's choice of columns has names."""
    each = [asked.start, asked.stop] if isinstance(asked, slice) else [asked] if isinstance(asked, str) else asked
    return any(isinstance(name, str) for name in np.asarray(each, object).ravel().tolist())


def _of_nan(op: Any) -> bool:
    return isinstance(op.missing_values, float) and np.isnan(op.missing_values)


def _filled(op: Any, value: Value) -> Raw | Fill | None:
    """A SimpleImputer that puts one value for NaN in each column, without its indicator; None for another one."""
    values = [each.item() if isinstance(each, np.generic) else each for each in op.statistics_]
    if not _of_nan(op) or any(each is None or each != each for each in values):
        return None
    if op.add_indicator and (
        any(isinstance(each, str) for each in values) or (isinstance(value, Raw) and any(r.recoded for r in value.refs))
    ):
        return None
    if isinstance(value, Dense):
        return Fill.of(values)
    if any(each.recoded or each.fill is not None for each in value.refs):
        return None
    return Raw(tuple(replace(ref, fill=fill) for ref, fill in zip(value.refs, values, strict=True)))


def _recoder(op: Any) -> Any:
    """The column behind RareCategories or Buckets."""

    def of(ref: Ref, index: int) -> Ref:
        if hasattr(op, "edges_"):
            edges = op.edges_[index]
            return recode(ref, "bucket", edges, [*range(len(edges) + 1), -1])
        many = len(op.categories_[index])
        return recode(ref, "category", op.categories_[index], range(many + 1))

    return of


def _table(op: Any, index: int) -> tuple[Any, bool]:
    """For a column of an encoder its table, [categories + 1, width], and whether unseen categories are errors.

    Of a one-hot encoder it is the number of the hot column for each category, or -1, [categories + 1].
    """
    kind = type(op).__name__
    if hasattr(op, "tables_"):
        return np.asarray(op.tables_[index]), False
    categories = op.categories_[index]
    if kind == "TargetEncoder":
        per = len(op.classes_) if op.target_type_ == "multiclass" else 1
        found = np.stack([op.encodings_[index * per + each] for each in range(per)], 1)
        return np.concatenate((found, np.broadcast_to(np.ravel(op.target_mean_), (1, per)))), False
    rare = getattr(op, "infrequent_categories_", None)
    few = set() if rare is None or rare[index] is None else set(rare[index].tolist())
    frequent = np.array([each not in few for each in categories.tolist()], np.bool_)
    number = np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())
    if kind == "OrdinalEncoder":
        unknown = op.unknown_value if op.handle_unknown == "use_encoded_value" else np.nan
        return np.append(_ordinal_codes(op, index), unknown)[:, None], op.handle_unknown == "error"
    unknown = frequent.sum() if few and op.handle_unknown in ("infrequent_if_exist", "warn") else -1
    number = np.append(number, unknown)
    dropped = None if op.drop_idx_ is None else op.drop_idx_[index]
    if dropped is not None:
        gone = number[int(dropped)]
        number = np.where(number == gone, -1, number - (number > gone))
    return number, op.handle_unknown == "error"


def _ordinal_codes(op: Any, index: int) -> Any:
    """The code of each category of a column, from an OrdinalEncoder itself."""
    import pandas as pd

    many = len(op.categories_[index])
    columns = {}
    names = getattr(op, "feature_names_in_", range(len(op.categories_)))
    for at, (name, known) in enumerate(zip(names, op.categories_, strict=True)):
        values = known if at == index else np.repeat(known[:1], many)
        columns[name] = pd.Series(values, dtype=known.dtype if known.dtype.kind in "biuf" else object)
    return np.asarray(op.transform(pd.DataFrame(columns)), np.float64)[:, index]


def _no_converter(op: Any, path: str, *, can_stay: bool = True) -> str:
    known = sorted({*TRANSFORMERS, *ESTIMATORS, *ENCODERS[:3], *registered()}, key=str.lower)
    names = ", ".join(each.rpartition(".")[2] for each in known)
    text = f"{shown(path)} ({type(op).__name__}) has no converter: write one with register_converter"
    if can_stay:
        text += f", or let it and all operators before it stay in front, untrained: front=(..., {path!r})"
    return f"{text}. Converters: {names}."
