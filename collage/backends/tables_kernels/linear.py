"""Linear models and support vector machines as steps of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.tables_kernels.build import Array, Builder, Operator, Value
from collage.backends.tables_kernels.operators import largest, linear
from collage.backends.tables_kernels.trees import labelled, labels_of, transformed
from collage.frontend.messages import NodeProto

Attributes = Mapping[str, Any]

_KERNELS = {"LINEAR": "dot", "POLY": "polynomial", "RBF": "radial", "SIGMOID": "sigmoid"}


def _regressor(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.cast(b.matrix(node.input[0]), "float32")
    targets = int(a.get("targets", 1))
    weights = a["coefficients"].reshape(targets, -1)
    bias = a.get("intercepts", np.zeros(targets, np.float32))
    post = a.get("post_transform", "NONE")
    if targets == 1 and post != "NONE":
        raise UnsupportedError(f"{post} of one target")
    b.values[node.output[0]] = transformed(b, linear(b, value, weights, bias), post)


def _classifier(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.cast(b.matrix(node.input[0]), "float32")
    labels, of = labels_of(b, a)
    bias = a["intercepts"]
    post = a.get("post_transform", "NONE")
    if len(bias) < 2 or len(bias) != len(labels):
        raise UnsupportedError("a classifier with another number of scores than labels")
    scores = linear(b, value, a["coefficients"].reshape(len(bias), -1), bias)
    b.values[node.output[0]] = labelled(b, largest(b, scores), labels, of)
    if len(node.output) > 1 and node.output[1]:
        b.values[node.output[1]] = transformed(b, scores, post)


def _kernels(b: Builder, value: Value, a: Attributes, vectors: Array) -> Value:
    """The kernel of each row with each support vector."""
    kind = a.get("kernel_type", "LINEAR")
    numbers = np.zeros(3, np.float32)
    given = a.get("kernel_params", np.zeros(0, np.float32))
    numbers[: len(given)] = given[:3]
    if vectors.shape[1] != value.columns.size:
        raise UnsupportedError("support vectors of another size than the input")
    made = b.program.new("float32", len(vectors))
    data = [np.ascontiguousarray(vectors, np.float32), numbers]
    b.program.step("vectors", b.columns(value, "float32"), made, ("float32", _KERNELS[kind]), data)
    return b.made(made, (len(vectors),), "float32")


def _svm_regressor(b: Builder, node: NodeProto, a: Attributes) -> None:
    value = b.cast(b.matrix(node.input[0]), "float32")
    count = int(a.get("n_supports", 0))
    if a.get("one_class", 0) or a.get("post_transform", "NONE") != "NONE" or len(a["rho"]) != 1:
        raise UnsupportedError("a support vector machine for outliers, or with a post-transform")
    if count:
        value = _kernels(b, value, a, a["support_vectors"].reshape(count, -1))
    elif a.get("kernel_type", "LINEAR") != "LINEAR":
        raise UnsupportedError("a support vector machine without vectors")
    b.values[node.output[0]] = linear(b, value, a["coefficients"].reshape(1, -1), a["rho"])


LINEAR: dict[tuple[str, str], Operator] = {
    ("ml", "LinearRegressor"): _regressor,
    ("ml", "LinearClassifier"): _classifier,
    ("ml", "SVMRegressor"): _svm_regressor,
}
