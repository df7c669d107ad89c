"""Tunnels as ONNX, for ``collage compile`` and any other engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from collage.errors import ModelError
from collage.frontend.trees.booster import INPUT, ROWS, label_array, label_type
from collage.windtunnel.columns import Column
from collage.windtunnel.graph import Translation
from collage.windtunnel.heads import Head
from collage.windtunnel.modules.part import Numbers
from collage.windtunnel.modules.trees import Forest
from collage.windtunnel.writer import Plain, Value, Writer


def export(found: Translation) -> onnx.ModelProto:
    """The ONNX model of a network and its head.

    If it was fitted on a frame, or on texts, each column that it reads is an input of its own, [rows, 1], else there is
    one input, X, [rows, columns]. Numbers are float64, and those of the outputs float32 if trees are soft. The outputs
    are what ``predict`` and ``predict_proba`` give, or ``decision_function`` if there are no probabilities; metadata
    name them. Raises ModelError if operators are in front.
    """
    if found.fronts:
        names = ", ".join(each.path for each in found.fronts)
        raise ModelError(f"operators in front of the network cannot be written as ONNX: {names}.")
    network = found.network
    to = Writer(np.float64, {each.name for each in found.columns})
    inputs, numbers, codes = _inputs(to, found)
    values: list[Value] = []
    for part, step in zip(network.parts, network.steps, strict=True):
        if step.inputs:
            given = [values[each] for each in step.inputs]
        elif isinstance(part, Numbers):
            given = [numbers[each] for each in part.columns.tolist()]
        else:
            given = [codes[each] for each in part.settings["columns"]]
        values.append(part.export(to, *given))
    scores = values[-1]
    if any(isinstance(part, Forest) and part.settings["mode"] == "soft" for part in network.parts):
        to = to.of(np.float32)
        scores = to.converted(scores)
    outputs, metadata = _end(to, found.head, to.dense(scores), network.parts[-1].width)
    if found.names:
        metadata["collage.features"] = json.dumps(found.names)
    model = to.model(inputs, outputs, metadata)
    model.graph.name = "windtunnel"
    return model


def _inputs(to: Writer, found: Translation) -> tuple[list[onnx.ValueInfoProto], list[Value], list[Value]]:
    """The inputs of the model, and the columns that are numbers, and the codes of the others."""
    columns = found.columns
    numbers: list[Value] = []
    codes: list[Value] = []
    of_numbers = helper.np_dtype_to_tensor_dtype(to.dtype)
    apart = bool(found.names) or any(_is_text(each) for each in columns)
    if not apart:
        given = [helper.make_tensor_value_info(INPUT, of_numbers, [ROWS, found.n_features])]
    kinds: dict[str, int] = {}
    for each in columns:
        if _is_text(each):
            kinds[each.name] = TensorProto.STRING
        elif each.kind == "category" and any(abs(key) >= 1 << 24 for key in each.keys if key is not None):
            kinds[each.name] = kinds.get(each.name, TensorProto.INT64)
        else:
            kinds[each.name] = of_numbers
    if apart:
        given = [helper.make_tensor_value_info(name, kind, [ROWS, 1]) for name, kind in kinds.items()]
    for each in columns:
        x = each.name
        if not apart:
            x = to.op("Gather", INPUT, to.constant([each.index], np.int64), axis=1)
        if each.kind == "number":
            if apart and kinds[each.name] != of_numbers:
                x = to.cast(x, to.dtype)
            numbers.append((Plain(x, 1, not each.strict),))
        else:
            codes.append((Plain(_code(to, each, x, kinds[each.name]), 1),))
    return given, numbers, codes


def _is_text(column: Column) -> bool:
    return any(isinstance(each, str) for each in column.keys)


def _code(to: Writer, column: Column, x: str, kind: int) -> str:
    """The code of each row, [rows], int64."""
    x = to.op("Squeeze", x, to.constant([1], np.int64))
    if column.kind == "bucket":
        edges = to.op("Unsqueeze", x, to.constant([1], np.int64))
        above = to.op("GreaterOrEqual", edges, to.number(np.array(column.keys)))
        count = to.op("ReduceSum", to.cast(above, np.int64), to.constant([1], np.int64), keepdims=0)
        return to.op("Where", to.op("IsNaN", x), to.constant(column.codes - 1, np.int64), count)
    if not column.keys:
        return to.cast(to.op("Mul", to.op("Shape", x), to.constant([0], np.int64)), np.int64)
    places = [(key, place) for place, key in enumerate(column.keys) if key is not None]
    keys = [key for key, _ in places]
    values: dict[str, Any] = {
        "values_int64s": [place for _, place in places],
        "default_int64": len(column.keys),
        "domain": "ai.onnx.ml",
    }
    if kind == TensorProto.STRING:
        texts = [str(each) for each in keys]
        if "" not in texts:  # ONNX has no missing texts
            texts.append("")
            values["values_int64s"].append(column.keys.index(None) if None in column.keys else len(column.keys))
        return to.op("LabelEncoder", x, keys_strings=texts, **values)
    if kind == TensorProto.INT64:
        return to.op("LabelEncoder", x, keys_int64s=[int(each) for each in keys], **values)
    floats = to.cast(x, np.float32)
    code = to.op("LabelEncoder", floats, keys_floats=[float(each) for each in keys], **values)
    missing = column.keys.index(None) if None in column.keys else len(column.keys)
    return to.op("Where", to.op("IsNaN", floats), to.constant(missing, np.int64), code)


def _end(to: Writer, head: Head, scores: str, width: int) -> tuple[list[onnx.ValueInfoProto], dict[str, str]]:
    """The outputs of the model, and the metadata that name them."""
    elem = helper.np_dtype_to_tensor_dtype(to.dtype)
    metadata = {"collage.library": "windtunnel", "collage.kind": head.kind}
    outputs: list[onnx.ValueInfoProto] = []

    def output(name: str, value: str, elem: int, *shape: int) -> str:
        name = to.free(name)
        to.op("Identity", value, result=name)
        outputs.append(helper.make_tensor_value_info(name, elem, [ROWS, *shape]))
        return name

    def line(values: str) -> str:
        return to.op("Squeeze", values, to.constant([1], np.int64))

    if head.kind != "classifier":
        linked = to.op("Exp", scores) if head.link == "exp" else scores
        flat = width == 1 and head.kind == "regressor"
        found = ("prediction", line(linked), elem) if flat else ("prediction", linked, elem, width)
        metadata["collage.predict"] = output(*found)
        return outputs, metadata
    labels = label_array(list(head.classes))
    if width == 1:
        cut = to.number(0.5 if head.link == "probabilities" else 0.0)
        best = to.cast(line(to.op("Greater", scores, cut)), np.int64)
    else:
        best = to.op("ArgMax", scores, axis=1, keepdims=0)
    if labels.dtype.kind not in "iu" or not np.array_equal(labels, np.arange(len(labels))):
        best = to.op("Gather", to.constant(labels), best, axis=0)
    metadata["collage.predict"] = output("label", best, label_type(labels))
    if head.link == "margin":
        output(*(("scores", line(scores), elem) if width == 1 else ("scores", scores, elem, width)))
    else:
        found = ("probabilities", _probabilities(to, head, scores, width), elem, len(labels))
        metadata["collage.predict_proba"] = output(*found)
    return outputs, metadata


def _probabilities(to: Writer, head: Head, scores: str, width: int) -> str:
    if head.link == "softmax":
        return to.op("Softmax", scores, axis=1)
    found = scores
    if head.link != "probabilities":
        one = to.number(1)
        found = to.op("Reciprocal", to.op("Add", to.op("Exp", to.op("Neg", scores)), one))
    if head.link == "probabilities":
        found = to.op("Clip", found, to.number(0), to.number(1))
    if width == 1:
        return to.op("Concat", to.op("Sub", to.number(1), found), found, axis=1)
    if head.link == "each class":
        return found
    return to.op("Div", found, to.op("ReduceSum", found, to.constant([1], np.int64)))
