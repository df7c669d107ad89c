"""A boosted ensemble as its library means it, and the ONNX graph that computes what the library predicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from collage.errors import ModelError
from collage.frontend.trees.ensemble import Trees, tree_node
from collage.frontend.trees.graph import Graph

INPUT, ROWS = "X", "rows"

Link = Literal["identity", "sigmoid", "softmax", "exp", "signed square", "log1p exp", "step", "arg max"]
"""What becomes of the sums. ``step`` is 1 for what is above 0, else 0."""

Kind = Literal["booster", "classifier", "regressor"]


@dataclass(frozen=True)
class Categories:
    """Features that hold the numbers of categories."""

    features: tuple[int, ...]
    toward_zero: bool
    """Whether a number between -1 and 0 means category 0, and not a category below all."""


@dataclass(frozen=True)
class Booster:
    """Trees, and what is done before and after them. Each list of numbers has one for each target."""

    library: str
    """The library that the model is from, and its version: ``lightgbm v4``."""
    names: tuple[str, ...]
    """Names of the features; empty if the model has none."""
    n_features: int
    dtype: np.dtype[Any]
    """Of the input."""
    trees: Trees
    missing: float | None = None
    """A number that means that the value is missing, besides NaN."""
    near_zero_is_missing: tuple[int, ...] = ()
    """Features whose values within 1e-35 of zero are missing."""
    categories: Categories = field(default=Categories((), False))
    divisor: int = 1
    """What the sums are divided by."""
    scale: float = 1.0
    bias: tuple[float, ...] = ()
    link: Link = "identity"
    slope: float = 1.0
    """What the sums are multiplied by in a sigmoid."""
    classes: int = 0
    """The number of classes if what the link gives are their probabilities; one probability is that of the second."""
    cut: float | None = None
    """The label is the second one if the sum is above it. Without it, the label is that of the highest probability."""
    several_labels: bool = False
    """Whether each class is a label of its own, which a row has or has not."""

    @property
    def targets(self) -> int:
        return self.trees.n_targets

    def with_missing(self, value: float) -> Booster:
        """The same booster, for which this number is missing, too."""
        return replace(self, missing=None if np.isnan(value) else float(value))


ZERO = float(np.float32(1e-35))
"""LightGBM takes numbers up to here, in float32's precision, for zero."""


def add_sums(graph: Graph, booster: Booster, x: str, *, old: bool = False) -> tuple[str, np.dtype[Any]]:
    """Add the operators that sum the trees. It gives the name of the raw scores, [rows, targets], and their dtype.

    ``x`` is [rows, features] in the dtype of the booster's input. With ``old`` the trees are operators of set 3 of
    ``ai.onnx.ml``, and the scores float32.
    """
    dtype = booster.dtype
    x = add_cleaned(graph, booster, x, dtype)
    precision = booster.trees.splits.dtype
    if precision != dtype:
        x = cast(graph, x, precision)
    node = tree_node(booster.trees, x, graph.name("sums"), old=old)
    sums = graph.add(node)
    if node.op_type == "TreeEnsembleRegressor":
        precision = np.dtype(np.float32)
    if booster.divisor != 1:
        sums = graph.op("Div", sums, graph.constant(booster.divisor, precision))
    if booster.scale != 1:
        sums = graph.op("Mul", sums, graph.constant(booster.scale, precision))
    if any(booster.bias):
        sums = graph.op("Add", sums, graph.constant(booster.bias, precision))
    return sums, precision


def add_cleaned(graph: Graph, booster: Booster, x: str, dtype: np.dtype[Any]) -> str:
    """Add what makes numbers as the library sees them: what means missing is NaN, and categories are whole."""
    if booster.missing is not None:
        found = graph.op("Equal", x, graph.constant(booster.missing, dtype))
        x = graph.op("Where", found, graph.constant(np.nan, dtype), x)
    if booster.near_zero_is_missing:
        limits = np.full(booster.n_features, -1.0)
        limits[list(booster.near_zero_is_missing)] = ZERO
        found = graph.op("LessOrEqual", graph.op("Abs", x), graph.constant(limits, dtype))
        x = graph.op("Where", found, graph.constant(np.nan, dtype), x)
    if booster.categories.features:
        whole = graph.op("Floor", x)
        if booster.categories.toward_zero:
            negative = graph.op("Less", x, graph.constant(0, dtype))
            whole = graph.op("Where", negative, graph.op("Ceil", x), whole)
        chosen = np.zeros(booster.n_features, np.bool_)
        chosen[list(booster.categories.features)] = True
        x = whole if chosen.all() else graph.op("Where", graph.constant(chosen), whole, x)
    return x


def cast(graph: Graph, value: str, dtype: Any) -> str:
    return graph.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def add_link(graph: Graph, booster: Booster, sums: str, dtype: np.dtype[Any]) -> str:
    """Add what makes predictions, [rows, targets], of raw scores. ``arg max`` gives [rows, 1]."""
    link = booster.link
    if link == "sigmoid":
        # The formula of the libraries. ONNX Runtime's Sigmoid is less precise for small probabilities.
        if booster.slope == 1:
            negative = graph.op("Neg", sums)
        else:
            negative = graph.op("Mul", sums, graph.constant(-booster.slope, dtype))
        return graph.op("Reciprocal", graph.op("Add", graph.op("Exp", negative), graph.constant(1, dtype)))
    if link == "softmax":
        return graph.op("Softmax", sums, axis=1)
    if link == "exp":
        return graph.op("Exp", sums)
    if link == "signed square":
        return graph.op("Mul", graph.op("Abs", sums), sums)
    if link == "log1p exp":
        return graph.op("Log", graph.op("Add", graph.op("Exp", sums), graph.constant(1, dtype)))
    if link == "step":
        return cast(graph, graph.op("Greater", sums, graph.constant(0, dtype)), dtype)
    if link == "arg max":
        return cast(graph, graph.op("ArgMax", sums, axis=1, keepdims=1), dtype)
    return sums


def add_probabilities(graph: Graph, booster: Booster, predicted: str, dtype: np.dtype[Any]) -> str:
    """Add what makes the probabilities of all classes, [rows, classes], of predictions."""
    if booster.targets > 1:
        return predicted
    return graph.op("Concat", graph.op("Sub", graph.constant(1, dtype), predicted), predicted, axis=1)


def add_labels(
    graph: Graph, booster: Booster, sums: str, probabilities: str, dtype: np.dtype[Any], labels: NDArray[Any] | None
) -> str:
    """Add what gives the label of each row, [rows], or its number if there are no labels.

    Each of several labels is 0 or 1, [rows, labels].
    """
    if booster.several_labels:
        values, cut = (probabilities, 0.5) if booster.cut is None else (sums, booster.cut)
        return cast(graph, graph.op("Greater", values, graph.constant(cut, dtype)), np.int64)
    if booster.cut is not None:
        above = graph.op("Greater", sums, graph.constant(booster.cut, dtype))
        best = cast(graph, graph.op("Squeeze", above, graph.constant([1], np.int64)), np.int64)
    else:
        best = graph.op("ArgMax", probabilities, axis=1, keepdims=0)
    if labels is None or (labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(len(labels)))):
        return best
    return graph.op("Gather", graph.constant(labels), best, axis=0)


def as_model(
    booster: Booster,
    kind: Kind = "booster",
    labels: Sequence[Any] | NDArray[Any] | None = None,
    *,
    raw: bool = False,
) -> onnx.ModelProto:
    """The ONNX model of a booster.

    Its first output is what ``predict`` of the library gives. For a classifier that is the label, one of ``labels`` or
    the number of the class, else what the link gives, [rows] or [rows, targets], or the sums themselves if ``raw``. If
    there are probabilities of classes, an output has them, [rows, classes]. The metadata name the outputs.
    """
    graph = Graph()
    sums, dtype = add_sums(graph, booster, INPUT)
    linked = add_link(graph, booster, sums, dtype)
    probabilities = add_probabilities(graph, booster, linked, dtype) if booster.classes else ""
    elem = helper.np_dtype_to_tensor_dtype(dtype)
    metadata = {"collage.library": booster.library, "collage.kind": kind}
    if booster.names:
        metadata["collage.features"] = json.dumps(booster.names)
    outputs = []
    predicted = sums if raw else linked
    if kind == "classifier":
        if not booster.classes:
            raise ModelError("the classifier's objective gives no probabilities of classes: compile its booster.")
        classes = None if labels is None else label_array(labels)
        if classes is not None and len(classes) != booster.classes:
            raise ModelError(f"the classifier has {len(classes)} labels, and its trees {booster.classes} classes.")
        _name(graph, add_labels(graph, booster, sums, probabilities, dtype, classes), "label")
        shape: list[str | int | None] = [ROWS, booster.targets] if booster.several_labels else [ROWS]
        outputs.append(helper.make_tensor_value_info("label", label_type(classes), shape))
        metadata["collage.predict"] = "label"
    elif predicted == probabilities:
        metadata["collage.predict"] = "probabilities"
    elif booster.targets == 1 or (booster.link == "arg max" and not raw):
        graph.op("Squeeze", predicted, graph.constant([1], np.int64), result="prediction")
        outputs.append(helper.make_tensor_value_info("prediction", elem, [ROWS]))
        metadata["collage.predict"] = "prediction"
    else:
        _name(graph, predicted, "prediction")
        outputs.append(helper.make_tensor_value_info("prediction", elem, [ROWS, booster.targets]))
        metadata["collage.predict"] = "prediction"
    if probabilities:
        _name(graph, probabilities, "probabilities")
        outputs.append(helper.make_tensor_value_info("probabilities", elem, [ROWS, booster.classes]))
        metadata["collage.predict_proba"] = "probabilities"
    elem_in = helper.np_dtype_to_tensor_dtype(booster.dtype)
    given = helper.make_tensor_value_info(INPUT, elem_in, [ROWS, booster.n_features])
    return graph.model([given], outputs, metadata)


def label_array(labels: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Labels of classes as integers, floats, booleans or text. Raises ModelError for others."""
    array = np.asarray(labels)
    if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.tolist()):
        array = array.astype(str)
    if array.dtype.kind not in "iufbU" or array.ndim != 1:
        raise ModelError(f"labels of classes have to be numbers or text, and these are {array.dtype}.")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def label_type(labels: NDArray[Any] | None) -> int:
    """The ONNX element type of labels."""
    if labels is None:
        return int(TensorProto.INT64)
    return int(TensorProto.STRING if labels.dtype.kind == "U" else helper.np_dtype_to_tensor_dtype(labels.dtype))


def _name(graph: Graph, value: str, name: str) -> None:
    """Rename a value of the graph."""
    for node in graph.nodes:
        for names in (node.input, node.output):
            for index, each in enumerate(names):
                if each == value:
                    names[index] = name
