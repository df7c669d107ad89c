"""scikit-learn estimators and pipelines as ONNX, through skl2onnx, with boosters of other libraries inside of them."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.trees.booster import (
    INPUT,
    ROWS,
    add_labels,
    add_link,
    add_probabilities,
    add_sums,
    cast,
    label_array,
    label_type,
)
from collage.frontend.trees.columns import Column, columns_of, end_of
from collage.frontend.trees.described import ESTIMATORS, Described, describe
from collage.frontend.trees.forest import FORESTS
from collage.frontend.trees.graph import IR_VERSION, OPSET, OPSET_OLD_TREES, OPSET_TREES, Graph
from collage.frontend.trees.verify import check_predictions

log = logging.getLogger(__name__)

_OLD_TREES = frozenset(("TreeEnsembleRegressor", "TreeEnsembleClassifier"))


def sklearn_model(obj: Any) -> onnx.ModelProto | None:
    """The ONNX model of a fitted scikit-learn estimator; None for an object that is none.

    If a ``ColumnTransformer`` that was fitted on named columns comes first, each column is an input of its own,
    [rows, 1], numbers or text, else the input is X, [rows, features]. Numbers are float32, or float64 if a pipeline
    prepares them for trees or bins, whose thresholds are where numbers are. Raises ModelError for what skl2onnx cannot
    convert, or converts into something that predicts otherwise.
    """
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not isinstance(obj, BaseEstimator):
        return None
    what = f"the {type(obj).__name__}"
    try:
        import skl2onnx  # noqa: F401
    except ImportError as error:
        raise ModelError(f"{what} needs skl2onnx to become ONNX: pip install 'collage-compiler[trees]'.") from error
    try:
        check_is_fitted(obj)
    except NotFittedError as error:
        raise ModelError(f"{what} is not fitted yet: call its fit first.") from error
    columns, apart = columns_of(obj, what)
    if _prepares(obj):
        try:
            return _checked(obj, what, columns, apart, np.float64)
        except ModelError as error:  # skl2onnx and ONNX Runtime know some operators in float32 only
            log.info("%s is compiled in float32: %s", what, error)
    return _checked(obj, what, columns, apart, np.float32)


def _prepares(obj: Any) -> bool:
    """Whether it is a pipeline that computes numbers for trees or bins."""
    from sklearn.pipeline import Pipeline

    if not isinstance(obj, Pipeline) or end_of(obj, 0) is end_of(obj, -1):
        return False
    steps = {type(each).__name__ for each in obj.get_params().values()}
    return not steps.isdisjoint({"KBinsDiscretizer", *(name for names in ESTIMATORS.values() for name in names)})


def _checked(
    obj: Any, what: str, columns: Sequence[Column], apart: bool, dtype: type[np.floating[Any]]
) -> onnx.ModelProto:
    types = _initial_types(columns, apart, dtype)
    model = _converted(obj, what, types, old=False)
    old = any(node.op_type in _OLD_TREES for node in model.graph.node)
    if old and any(node.op_type == "TreeEnsemble" for node in model.graph.node):
        # No operator set has both. The old operators round the sums of boosters to float32.
        model = _converted(obj, what, types, old=True)
    _finish(obj, model, OPSET_OLD_TREES if old else OPSET_TREES)
    check_predictions(obj, model, columns, apart, what, dtype)
    return model


def _converted(obj: Any, what: str, types: list[tuple[str, Any]], *, old: bool) -> onnx.ModelProto:
    """What skl2onnx makes of it, with boosters as tree operators of set 3 of ``ai.onnx.ml`` if ``old``, else of 5."""
    from skl2onnx import convert_sklearn

    failed: Exception | None = None
    for forests in (True, False):  # some meta-estimators need skl2onnx's own converters of forests
        try:
            with _registered(old, forests), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model: onnx.ModelProto = convert_sklearn(
                    obj,
                    initial_types=types,
                    target_opset={"": OPSET, "ai.onnx.ml": OPSET_OLD_TREES},  # it knows no newer one
                )
                return model
        except ModelError:
            raise
        except Exception as error:  # skl2onnx raises anything for what it has no converter for
            failed = error
    assert failed is not None
    raise ModelError(f"skl2onnx cannot convert {what}: {library_text(failed)}") from failed


def _booster_classes(forests: bool) -> list[type]:
    """The scikit-learn classes of the libraries that are loaded, with or without forests."""
    loaded = [(sys.modules.get(module), names) for module, names in ESTIMATORS.items()]
    return [
        getattr(module, name) for module, names in loaded if module for name in names if forests or name not in FORESTS
    ]


@contextmanager
def _registered(old: bool, forests: bool) -> Iterator[None]:
    """Let skl2onnx take boosters, in meta-estimators too, and restore what it did with them before."""
    from skl2onnx import update_registered_converter
    from skl2onnx._parse import sklearn_parsers_map
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from sklearn.impute import SimpleImputer

    def convert(scope: Any, operator: Any, container: Any) -> None:
        _insert(scope, operator, container, old=old)

    tables = (sklearn_operator_name_map, sklearn_parsers_map)
    before = [dict(each) for each in tables]
    for each in _booster_classes(forests):
        options = {"zipmap": [True, False], "nocl": [True, False]}
        update_registered_converter(each, "CollageBooster", _shape, convert, parser=_parse, options=options)
    update_registered_converter(SimpleImputer, "CollageImputer", _imputed_shape, _impute)
    try:
        with _missing_values():
            yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)


@contextmanager
def _missing_values() -> Iterator[None]:
    """Let skl2onnx write where NaN goes in scikit-learn's trees: it leaves that out, so that NaN always goes right."""
    from skl2onnx.operator_converters import decision_tree, gradient_boosting, isolation_forest, random_forest

    name = "add_tree_to_attribute_pairs"
    modules = (decision_tree, gradient_boosting, isolation_forest, random_forest)
    before = [getattr(module, name) for module in modules]

    def added(pairs: Any, is_classifier: bool, tree: Any, *others: Any, **named: Any) -> None:
        before[0](pairs, is_classifier, tree, *others, **named)
        to_left = getattr(tree, "missing_go_to_left", None)
        if to_left is not None:
            inner = np.asarray(tree.children_left) >= 0
            pairs["nodes_missing_value_tracks_true"][-tree.node_count :] = (np.asarray(to_left) & inner).tolist()

    try:
        for module in modules:
            setattr(module, name, added)
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            setattr(module, name, own)


def _initial_types(columns: Sequence[Column], apart: bool, dtype: type[np.floating[Any]]) -> list[tuple[str, Any]]:
    """The inputs, as skl2onnx describes them, with numbers of the dtype."""
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType

    numbers = DoubleTensorType if dtype == np.float64 else FloatTensorType
    if apart:
        return [(each.name, (StringTensorType if each.is_text else numbers)([None, 1])) for each in columns]
    kind = StringTensorType if columns[0].is_text else numbers
    return [(INPUT, kind([None, len(columns)]))]


def _parse(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare the outputs of a booster: its predictions, or for a classifier the label and the probabilities."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    operator = scope.declare_local_operator("CollageBooster", model)
    operator.inputs = inputs
    if hasattr(model, "predict_proba"):
        operator.outputs.append(scope.declare_local_variable("label", Int64TensorType()))
        operator.outputs.append(scope.declare_local_variable("probabilities", FloatTensorType()))
    else:
        operator.outputs.append(scope.declare_local_variable("variable", FloatTensorType()))
    return operator.outputs


def _shape(operator: Any) -> None:
    """Give the outputs of a booster their types."""
    from skl2onnx.common.data_types import (
        BooleanTensorType,
        DoubleTensorType,
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )

    found = _described(operator)
    *labels, last = operator.outputs
    targets = found.booster.classes if labels else found.booster.targets
    last.type = FloatTensorType([None, targets])
    if labels:
        kinds: dict[int, Any] = {
            TensorProto.STRING: StringTensorType,
            TensorProto.BOOL: BooleanTensorType,
            TensorProto.DOUBLE: DoubleTensorType,
        }
        kind = label_type(None if found.labels is None else label_array(found.labels))
        labels[0].type = kinds.get(kind, Int64TensorType)([None])


def _described(operator: Any) -> Described:
    """The booster of an operator. It is read once, and kept with the operator."""
    found = getattr(operator, "collage_described", None)
    if found is None:
        found = operator.collage_described = describe(operator.raw_operator)
        assert isinstance(found, Described)
        if len(operator.outputs) > 1 and (found.kind != "classifier" or found.booster.several_labels):
            raise ModelError(f"the {type(operator.raw_operator).__name__} gives no labels of classes.")
    assert isinstance(found, Described)
    return found


def _insert(scope: Any, operator: Any, container: Any, *, old: bool) -> None:
    """Put the graph of a booster into that of skl2onnx."""
    found = _described(operator)
    booster = found.booster
    graph = Graph(scope.get_unique_variable_name("booster") + "_")
    names = [each.full_name for each in operator.inputs]
    x = graph.op("Concat", *names, axis=1) if len(names) > 1 else names[0]
    x = x if booster.dtype == np.float32 and _is_float(operator.inputs) else cast(graph, x, booster.dtype)
    sums, dtype = add_sums(graph, booster, x, old=old)
    predicted = add_link(graph, booster, sums, dtype)
    *labels, last = (each.full_name for each in operator.outputs)
    if labels:
        probabilities = add_probabilities(graph, booster, predicted, dtype)
        classes = None if found.labels is None else label_array(found.labels)
        graph.op("Identity", add_labels(graph, booster, sums, probabilities, dtype, classes), result=labels[0])
        predicted = probabilities
    elif found.raw:
        predicted = sums
    if dtype == np.float32:
        graph.op("Identity", predicted, result=last)
    else:
        graph.op("Cast", predicted, to=TensorProto.FLOAT, result=last)
    container.nodes.extend(graph.nodes)
    container.initializers.extend(graph.constants)


def _imputed_shape(operator: Any) -> None:
    from skl2onnx.common._registration import get_shape_calculator

    get_shape_calculator("SklearnImputer")(operator)
    indicator = operator.raw_operator.indicator_
    if indicator is not None:
        rows, columns = operator.outputs[0].type.shape
        operator.outputs[0].type.shape = [rows, columns + len(indicator.features_)]


def _impute(scope: Any, operator: Any, container: Any) -> None:
    """An imputer. That of ONNX takes no float64, in ONNX Runtime, and skl2onnx writes it whatever the numbers are."""
    from skl2onnx.common._registration import get_converter
    from skl2onnx.common.data_types import DoubleTensorType

    op = operator.raw_operator
    if not all(isinstance(each.type, DoubleTensorType) for each in operator.inputs):
        get_converter("SklearnImputer")(scope, operator, container)
        return
    statistics = np.asarray(op.statistics_, np.float64)
    if np.isnan(statistics).any():
        raise ModelError("a SimpleImputer without a number for a column is no ONNX in float64.")
    graph = Graph(scope.get_unique_variable_name("imputer") + "_")
    names = [each.full_name for each in operator.inputs]
    x = graph.op("Concat", *names, axis=1) if len(names) > 1 else names[0]
    about_nan = np.isnan(op.missing_values)
    missing = graph.op("IsNaN", x) if about_nan else graph.op("Equal", x, graph.constant(float(op.missing_values)))
    result = graph.op("Where", missing, graph.constant(statistics), x)
    if op.indicator_ is not None:
        chosen = graph.op("Gather", missing, graph.constant(op.indicator_.features_, np.int64), axis=1)
        result = graph.op("Concat", result, cast(graph, chosen, np.float64), axis=1)
    graph.op("Identity", result, result=operator.outputs[0].full_name)
    container.nodes.extend(graph.nodes)
    container.initializers.extend(graph.constants)


def _is_float(inputs: Any) -> bool:
    """Whether all inputs are float32."""
    from skl2onnx.common.data_types import FloatTensorType

    return all(isinstance(each.type, FloatTensorType) for each in inputs)


def _finish(obj: Any, model: onnx.ModelProto, of_trees: int) -> None:
    """Give the model probabilities as a tensor, any number of rows, predictions as ``predict`` gives, and metadata."""
    from sklearn.base import is_classifier, is_regressor

    graph = model.graph
    _without_zipmap(graph)
    last = end_of(obj, -1)
    kind = "classifier" if is_classifier(last) else "regressor" if is_regressor(last) else "other"
    metadata = {"collage.library": "scikit-learn", "collage.kind": kind}
    for each in [each for each in graph.output if not each.type.HasField("tensor_type")]:
        graph.output.remove(each)  # probabilities of several labels, as a sequence
    if hasattr(obj, "predict"):
        _flatten(graph, _targets(last))
        metadata["collage.predict"] = _with_type(graph, _classes(last))
    if hasattr(obj, "predict_proba") and len(graph.output) > 1:
        metadata["collage.predict_proba"] = graph.output[1].name
    names = getattr(obj, "feature_names_in_", None)
    if names is not None:
        metadata["collage.features"] = json.dumps([str(each) for each in names])
    _prune(graph)
    for each in (*graph.input, *graph.output):
        dims = each.type.tensor_type.shape.dim
        if dims:
            dims[0].dim_param = ROWS
    del model.opset_import[:]  # skl2onnx writes the oldest sets that do
    model.opset_import.extend([helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", of_trees)])
    model.ir_version = IR_VERSION
    helper.set_model_props(model, metadata)
    model.producer_name = "collage"


def _without_zipmap(graph: onnx.GraphProto) -> None:
    """Give the tensor of probabilities instead of a list of dictionaries of them."""
    for node in [each for each in graph.node if each.op_type == "ZipMap"]:
        (output,) = (each for each in graph.output if each.name == node.output[0])
        many = max((len(each.ints) + len(each.strings) for each in node.attribute), default=0)
        graph.node.remove(node)
        if many:
            output.CopyFrom(helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, [ROWS, many]))
        else:  # of several labels
            graph.output.remove(output)


def _classes(estimator: Any) -> NDArray[Any]:
    """The labels of its classes; none for an estimator without them, or with several labels."""
    found = getattr(estimator, "classes_", ())
    return np.asarray(() if isinstance(found, list) else found)


def _with_type(graph: onnx.GraphProto, classes: NDArray[Any]) -> str:
    """The name of the predictions. skl2onnx makes integers of labels: booleans and floats become what they were."""
    output = graph.output[0]
    if not classes.size or classes.dtype.kind not in "bf" or output.type.tensor_type.elem_type != TensorProto.INT64:
        return str(output.name)
    elem = helper.np_dtype_to_tensor_dtype(classes.dtype)
    name = f"{output.name}_of_class"
    graph.node.append(helper.make_node("Cast", [output.name], [name], to=elem))
    output.CopyFrom(helper.make_tensor_value_info(name, elem, [ROWS]))
    return name


def _targets(estimator: Any) -> int:
    """How many numbers or labels it predicts for a row."""
    from sklearn.base import is_classifier

    if is_classifier(estimator):
        classes = getattr(estimator, "classes_", ())
        return len(classes) if isinstance(classes, list) else 1
    weights = np.shape(getattr(estimator, "coef_", ()))
    return int(getattr(estimator, "n_outputs_", weights[0] if len(weights) == 2 else 1))


def _flatten(graph: onnx.GraphProto, targets: int) -> None:
    """Give one prediction a row as [rows], as scikit-learn does, and several as [rows, targets]."""
    output = graph.output[0]
    elem, dims = output.type.tensor_type.elem_type, output.type.tensor_type.shape.dim
    if targets > 1:
        output.CopyFrom(helper.make_tensor_value_info(output.name, elem, [ROWS, targets]))
    elif len(dims) == 2 and dims[1].dim_value <= 1:
        axes = f"{output.name}_axes"
        graph.initializer.append(helper.make_tensor(axes, TensorProto.INT64, [1], [1]))
        graph.node.append(helper.make_node("Squeeze", [output.name, axes], ["prediction"]))
        output.CopyFrom(helper.make_tensor_value_info("prediction", elem, [ROWS]))


def _prune(graph: onnx.GraphProto) -> None:
    """Remove nodes, inputs and constants that no output needs."""
    needed = {each.name for each in graph.output}
    for node in reversed([*graph.node]):  # they are sorted
        if needed.isdisjoint(node.output):
            graph.node.remove(node)
        else:
            needed.update(node.input)
            for attribute in node.attribute:
                needed.update(name for inner in attribute.g.node for name in inner.input)
    for values in (graph.input, graph.initializer):
        for each in [each for each in values if each.name not in needed]:
            values.remove(each)
