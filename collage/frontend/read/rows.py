"""Models of tables: all their operators map rows to rows, so that one module takes any number of rows."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, helper

from collage.frontend.read.scopes import STANDARD, bodies, constants_of, opset_of
from collage.frontend.read.shapes import copied, model_inputs
from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array

log = logging.getLogger(__name__)

BLOCK_ROWS = 1000
"""The rows that such a model is measured and checked on, beside a single one."""
ANY_ROWS = "its operators map rows to rows, so that it takes any number of them, as only engines do."
"""Why such a model is not cut into parts."""
TABLES = "ai.onnx.ml"
"""The domain of operators for tables and trees."""
_ELEMENTS = frozenset(range(TensorProto.FLOAT, TensorProto.UINT64 + 1))
"""Numbers and texts, as rows of tables hold them."""
PREDICT, PREDICT_PROBA, COLUMNS = "collage.predict", "collage.predict_proba", "collage.features"
"""The keys of a model's metadata that name the outputs of ``predict`` and ``predict_proba``, and a list of features."""
LABELS = "collage.labels"
"""The key of the dtype of the labels that ``predict`` of the model's library gives, as numpy writes it."""

_Extents: TypeAlias = "tuple[int | None, ...]"


class _NoRowsError(Exception):
    """An operator may mix rows; the message says why."""


@dataclass(frozen=True)
class _Rows:
    """A value with an axis that counts the rows, the first one unless there is a ``lead``.

    ``lead`` and ``tail`` have the extents before and behind that axis, with None for an unknown one. A value that is
    ``transposed`` is 1 x rows. A ``shape_of`` is the shape of such a value, and no value of rows.
    """

    tail: _Extents
    transposed: bool = False
    shape_of: bool = False
    lead: _Extents = ()

    def axis(self, number: int) -> int:
        """The position in ``tail`` of an axis of the value. Raises _NoRowsError for that of the rows."""
        at = number + 1 + len(self.tail) if number < 0 else number
        if not 1 <= at <= len(self.tail):
            raise _NoRowsError(f"it works along axis {number}")
        return at - 1

    @property
    def width(self) -> int:
        """The elements of a row. Raises _NoRowsError if they are not known."""
        known = [each for each in self.tail if each is not None]
        if len(known) < len(self.tail):
            raise _NoRowsError("the extents of its input are not known")
        return math.prod(known)


@dataclass
class _Graph:
    """The values of rows that are known so far, the constants, and the names of sequences with a map for each row."""

    opset: int
    tensors: Mapping[str, TensorProto]
    rows: dict[str, _Rows] = field(default_factory=dict)
    maps: set[str] = field(default_factory=set)

    def of(self, name: str, least_rank: int = 1, *, led: bool = False) -> _Rows:
        """The value of rows, upright; with axes before them only if it may be ``led``. Raises _NoRowsError."""
        found = self.rows.get(name)
        lies = found is None or found.transposed or found.shape_of or (bool(found.lead) and not led)
        if found is None or lies or len(found.tail) + 1 < least_rank:
            raise _NoRowsError(f"{name or 'an input'} has no rows on its first axis")
        return found

    def constant(self, name: str) -> Array:
        """The constant. Raises _NoRowsError."""
        if name not in self.tensors:
            raise _NoRowsError(f"{name or 'an input'} is no constant")
        return array_of(self.tensors[name])

    def numbers(self, node: onnx.NodeProto, name: str, position: int) -> list[int] | None:
        """Whole numbers that are an attribute in older operator sets, and a constant input in newer ones; or None."""
        if name in (found := _attributes(node)):
            return [*found[name]]
        if len(node.input) <= position or not node.input[position]:
            return None
        return [int(each) for each in self.constant(node.input[position]).reshape(-1)]


_Rule: TypeAlias = "Callable[[_Graph, onnx.NodeProto], Sequence[_Rows]]"


def take_rows(model: onnx.ModelProto) -> bool:
    """Whether all operators of a model map rows to rows. Its outputs get shapes with an open first axis then, in place.

    Its inputs are columns or matrices with an open first axis and no other, and there is an operator for tables among
    its nodes, or Collage has written it of a model of tables. What is declared of inner values is dropped, since it may
    be wrong. A model of which that is not sure stays as it is.
    """
    graph = model.graph
    inputs = model_inputs(model)
    ports = {info.name: _extents(info) for info in inputs}
    ours = any(each.key.startswith("collage.") for each in model.metadata_props)
    if not (ours or any(node.domain == TABLES for node in graph.node)) or model.functions or not ports:
        return False
    if any(extents is None or extents[:1] != (None,) or None in extents[1:] for extents in ports.values()):
        return False
    if any(info.type.tensor_type.elem_type not in _ELEMENTS or len(ports[info.name] or ()) > 2 for info in inputs):
        return False
    known = _Graph(opset_of(model), constants_of(graph))
    known.rows.update((name, _Rows(extents[1:])) for name, extents in ports.items() if extents)
    try:
        for node in graph.node:
            _follow(known, node)
        tails = [None if info.name in known.maps else known.of(info.name).tail for info in graph.output]
        if any(info.type.tensor_type.elem_type == 0 and info.name not in known.maps for info in graph.output):
            raise _NoRowsError("an output has no type")
    except _NoRowsError as reason:
        log.info("the model does not map rows to rows: %s", reason)
        return False
    for info, tail in zip(graph.output, tails, strict=True):
        if tail is not None:
            _open(info, tail)
    del graph.value_info[:]
    return True


def predictions(model: onnx.ModelProto) -> dict[str, str]:
    """The names of the outputs of ``predict`` and, if there is one, of ``predict_proba``, by these words.

    The model's metadata names them. Else they are the first output, and the second one of a model of tables whose
    second output has floats for each row: an array, or a map from classes to them.
    """
    named = {each.key: each.value for each in model.metadata_props}
    outputs = [*model.graph.output]
    found = {"predict": outputs[0].name}
    if any(node.domain == TABLES for node in model.graph.node) and len(outputs) > 1 and _are_floats(outputs[1].type):
        found["predict_proba"] = outputs[1].name
    found |= {
        word: named[key] for word, key in (("predict", PREDICT), ("predict_proba", PREDICT_PROBA)) if key in named
    }
    return {word: name for word, name in found.items() if name in {info.name for info in outputs}}


def label_dtype(model: onnx.ModelProto) -> str:
    """The dtype of the labels of ``predict``, which the model's metadata has; or ""."""
    given = next((each.value for each in model.metadata_props if each.key == LABELS), "")
    return given if re.fullmatch(r"[<>|=]?[biufU][0-9]+", given) else ""


def column_names(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the columns of the only input, which the model's metadata has; or none."""
    inputs = model_inputs(model)
    given = next((each.value for each in model.metadata_props if each.key == COLUMNS), "")
    try:
        found = json.loads(given or "[]")
    except ValueError:
        return ()
    widths = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim[1:]] if len(inputs) == 1 else []
    fits = isinstance(found, list) and all(isinstance(each, str) for each in found) and widths == [len(found)]
    return tuple(found) if fits and len({*found}) == len(found) else ()


def _are_floats(kind: onnx.TypeProto) -> bool:
    """Whether it is an array of rows of floats, or a sequence of maps to floats."""
    floats = TensorProto.FLOAT, TensorProto.DOUBLE
    if kind.HasField("sequence_type"):
        return kind.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type in floats
    return kind.tensor_type.elem_type in floats and len(kind.tensor_type.shape.dim) == 2


def _extents(info: onnx.ValueInfoProto) -> _Extents | None:
    """The extents of a tensor, with None for open ones; None if it is no tensor, or its rank is unknown."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim)


def _open(info: onnx.ValueInfoProto, tail: _Extents) -> None:
    """Write the shape. Extents that are not known are those that are declared, if the rank is right."""
    (before,) = copied([info])
    declared = _extents(before) or ()
    shape = info.type.tensor_type.shape
    del shape.dim[:]
    shape.dim.add()
    for at, extent in enumerate(tail, start=1):
        dim = shape.dim.add()
        if extent is None and len(declared) == len(tail) + 1:
            extent = declared[at]
        if extent is not None:
            dim.dim_value = extent


def _follow(known: _Graph, node: onnx.NodeProto) -> None:
    """Learn what the node makes of its inputs. Raises _NoRowsError, which names the node."""
    domain = "" if node.domain in STANDARD else node.domain
    rule = _RULES.get((domain, node.op_type))
    try:
        if node.op_type == "Constant" and not domain and node.output[0] in known.tensors:
            return
        if rule is None or any(bodies(node)):
            raise _NoRowsError("nothing is known of it")
        made = rule(known, node)
        if node.op_type == "ZipMap":
            known.maps.update(node.output)
            return
        known.rows.update((name, each) for name, each in zip(node.output, made, strict=False) if name)
    except (_NoRowsError, ArithmeticError, LookupError, TypeError, ValueError) as reason:  # of what no checker has seen
        raise _NoRowsError(f"{node.op_type} {node.name}: {reason}") from None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _one(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """Each element by itself, with constants beside it, if any, of one element."""
    if any(name and known.constant(name).size != 1 for name in node.input[1:]):
        raise _NoRowsError("it has constants of several elements")
    found = known.rows.get(node.input[0])
    return [found] if found is not None and found.transposed else [known.of(node.input[0], led=True)]


def _each(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """Elements of several values, which are broadcast within a row."""
    rows = [known.rows[name] for name in node.input if name in known.rows]
    tails: list[_Extents] = [known.of(name, led=True).tail for name in node.input if name in known.rows]
    leads: list[_Extents] = [each.lead for each in rows]
    if not rows or len({*map(len, tails)}) > 1 or len({*map(len, leads)}) > 1:
        raise _NoRowsError("its inputs have different ranks")
    behind, before = len(tails[0]), len(leads[0])
    for name in node.input:
        if name in known.rows:
            continue
        shape = known.constant(name).shape
        if len(shape) > before + 1 + behind or (len(shape) > behind and shape[-behind - 1] != 1):
            raise _NoRowsError(f"{name} has rows of its own")
        tails.append(shape[-behind:] if behind else ())
        leads.append(shape[: max(0, len(shape) - behind - 1)])
    return [_Rows(_broadcast(tails, behind), lead=_broadcast(leads, before))]


def _broadcast(tails: Sequence[_Extents], rank: int) -> _Extents:
    found: list[int | None] = []
    for column in zip(*[(*([1] * (rank - len(tail))), *tail) for tail in tails], strict=True):
        others = {each for each in column if each != 1} or {1}
        found.append(next(iter(others - {None})) if len(others - {None}) == 1 and None not in others else None)
    return tuple(found)


def _cells(rank: int = 1) -> _Rule:
    """Rows of the same shape, and at least this rank."""
    return lambda known, node: [known.of(node.input[0], rank)]


def _along(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """Softmax and its kin, along an axis."""
    found = known.of(node.input[0])
    found.axis(_attributes(node).get("axis", 1 if known.opset < 13 else -1))
    return [found]


def _concat(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    rows = [known.of(name) for name in node.input]
    if len({len(each.tail) for each in rows}) > 1:
        raise _NoRowsError("its inputs have different ranks")
    at = rows[0].axis(_attributes(node)["axis"])
    extents = [each.tail[at] for each in rows]
    total = None if None in extents else sum(each or 0 for each in extents)
    return [_Rows((*rows[0].tail[:at], total, *rows[0].tail[at + 1 :]))]


def _gather(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    if node.input[0] not in known.rows:  # a table that rows are looked up in
        table, places = known.constant(node.input[0]), known.of(node.input[1])
        if _attributes(node).get("axis", 0) not in (0, -table.ndim):
            raise _NoRowsError("it works along another axis than its table's first one")
        return [_Rows((*places.tail, *table.shape[1:]))]
    found, indices = known.of(node.input[0]), known.constant(node.input[1])
    at = found.axis(_attributes(node).get("axis", 0))
    return [_Rows((*found.tail[:at], *indices.shape, *found.tail[at + 1 :]))]


def _slice(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found = known.of(node.input[0])
    starts, ends = known.numbers(node, "starts", 1) or [], known.numbers(node, "ends", 2) or []
    axes = known.numbers(node, "axes", 3)
    steps = known.numbers(node, "steps", 4) or [1] * len(starts)
    tail = [*found.tail]
    for axis, start, end, step in zip(
        [*range(len(starts))] if axes is None else axes, starts, ends, steps, strict=True
    ):
        at, extent = found.axis(axis), tail[found.axis(axis)]
        tail[at] = None if extent is None or step < 1 else len(range(extent)[start:end:step])
    return [_Rows(tuple(tail))]


def _split(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found = known.of(node.input[0])
    at = found.axis(_attributes(node).get("axis", 0))
    parts, extent = known.numbers(node, "split", 1), found.tail[at]
    sizes: list[int | None] = [None] * len(node.output)
    if parts is not None:
        sizes = [*parts]
    elif extent is not None:
        size = -(-extent // len(node.output))
        sizes = [min(size, extent - size * number) for number in range(len(node.output))]
    return [_Rows((*found.tail[:at], each, *found.tail[at + 1 :])) for each in sizes]


def _squeeze(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found, axes = known.of(node.input[0]), known.numbers(node, "axes", 1)
    if axes is None:
        raise _NoRowsError("it names no axes")
    gone = {found.axis(each) for each in axes}
    return [_Rows(tuple(extent for at, extent in enumerate(found.tail) if at not in gone))]


def _unsqueeze(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found, axes = known.of(node.input[0]), known.numbers(node, "axes", 1) or []
    made = _Rows((None,) * (len(found.tail) + len(axes)))
    new, left = {made.axis(each) for each in axes}, [*found.tail]
    return [_Rows(tuple(1 if at in new else left.pop(0) for at in range(len(made.tail))))]


def _reshape(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """To -1 or 0, and fixed extents."""
    found = known.rows.get(node.input[0])
    wanted = known.numbers(node, "shape", 1)
    if found is None or found.shape_of or not wanted or _attributes(node).get("allowzero"):
        raise _NoRowsError("its shape is not known")
    if wanted[0] == 0 and not found.transposed and wanted.count(-1) == 1 and 0 not in wanted[1:]:
        rest = math.prod(each for each in wanted[1:] if each > 0)
        wanted = [found.width // max(rest, 1) if each == -1 else each for each in wanted]
    if wanted[0] not in (0, -1) or (found.transposed and wanted[0] == 0) or min(wanted[1:], default=1) < 1:
        raise _NoRowsError(f"it makes the shape {wanted}")
    if math.prod(wanted[1:]) != found.width:
        raise _NoRowsError(f"it makes the shape {wanted} of rows of {found.width} elements")
    return [_Rows(tuple(wanted[1:]))]


def _flatten(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found = known.of(node.input[0])
    if _attributes(node).get("axis", 1) != 1:
        raise _NoRowsError("its axis is not 1")
    return [_Rows((found.width,))]


def _transpose(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found, order = known.of(node.input[0], led=True), _attributes(node).get("perm")
    rows, extents = len(found.lead), (*found.lead, None, *found.tail)
    if not order or sorted(order) != [*range(len(extents))]:
        raise _NoRowsError("it names no order of its axes")
    at = order.index(rows)
    return [_Rows(tuple(extents[each] for each in order[at + 1 :]), lead=tuple(extents[each] for each in order[:at]))]


def _product(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """MatMul and Gemm with a constant on the right, which may have a matrix for each place before the rows."""
    found, right, about = known.of(node.input[0], 2, led=True), known.constant(node.input[1]), _attributes(node)
    if found.lead and right.ndim == 1 + len(found.lead) + 1 and len(found.tail) == 1:
        return [_Rows(right.shape[-1:], lead=_broadcast([found.lead, right.shape[:-2]], len(found.lead)))]
    if right.ndim != 2 or about.get("transA") or found.lead:
        raise _NoRowsError("it is no product of rows with a matrix")
    if len(node.input) > 2 and node.input[2] in known.rows:
        if len(known.of(node.input[2]).tail) != 1:
            raise _NoRowsError(f"{node.input[2]} has no rows on its first axis")
    elif len(node.input) > 2 and node.input[2]:
        added = known.constant(node.input[2]).shape
        if len(added) == 2 and added[0] != 1:
            raise _NoRowsError(f"{node.input[2]} has rows of its own")
    return [_Rows((*found.tail[:-1], right.shape[0 if about.get("transB") else 1]))]


def _reduce(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """Reductions along named axes; those of ArgMax and ArgMin are one."""
    found, about = known.of(node.input[0], led=True), _attributes(node)
    axes = [about.get("axis", 0)] if node.op_type in ("ArgMax", "ArgMin") else known.numbers(node, "axes", 1)
    if not axes:
        raise _NoRowsError("it reduces all axes")
    rows, extents, kept = len(found.lead), (*found.lead, None, *found.tail), about.get("keepdims", 1)
    gone = {each + len(extents) if each < 0 else each for each in axes}
    if rows in gone or not gone <= {*range(len(extents))}:
        raise _NoRowsError(f"it works along axis {axes[0]}")
    ends = [1 if at in gone else extent for at, extent in enumerate(extents)]
    lead, tail = (
        [at for at in span if kept or at not in gone] for span in (range(rows), range(rows + 1, len(extents)))
    )
    return [_Rows(tuple(ends[at] for at in tail), lead=tuple(ends[at] for at in lead))]


def _top(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found, about = known.of(node.input[0]), _attributes(node)
    at = found.axis(about.get("axis", -1))
    count = about["k"] if "k" in about else int(known.constant(node.input[1]).reshape(-1)[0])
    return [_Rows((*found.tail[:at], count, *found.tail[at + 1 :]))] * 2


def _shape(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    if node.attribute:
        raise _NoRowsError("it gives a part of the shape")
    return [_Rows(known.of(node.input[0]).tail, shape_of=True)]


def _filled(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    found = known.rows.get(node.input[0])
    if found is None or not found.shape_of:
        raise _NoRowsError("it is filled for another shape than that of rows")
    return [_Rows(found.tail)]


# Operators for tables


def _features(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """FeatureVectorizer: the columns of its inputs, side by side."""
    widths = [known.of(name, 2).tail for name in node.input]
    if any(len(each) != 1 or each[0] is None for each in widths):
        raise _NoRowsError("the columns of its inputs are not known")
    return [_Rows((sum(each[0] or 0 for each in widths),))]


def _extract(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """ArrayFeatureExtractor: columns of rows, or for each row the element of a constant that it names."""
    data, indices = node.input
    if data not in known.rows:
        if known.constant(data).size != max(known.constant(data).shape[-1:], default=0) or known.of(indices).width != 1:
            raise _NoRowsError("it takes columns of a constant")
        return [_Rows((), transposed=True)]
    found = known.of(data, 2)
    return [_Rows((*found.tail[:-1], known.constant(indices).size))]


def _one_hot(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    about = _attributes(node)
    categories = about.get("cats_int64s") or about.get("cats_strings") or ()
    return [_Rows((*known.of(node.input[0]).tail, len(categories)))]


def _classified(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    """A class for each row, and scores. Only ensembles of trees are sure to have one for each class."""
    about = _attributes(node)
    classes = len(about.get("classlabels_strings") or about.get("classlabels_int64s") or ())
    known.of(node.input[0], 2)
    return [_Rows(()), _Rows((classes if node.op_type == "TreeEnsembleClassifier" and classes > 1 else None,))]


def _targets(known: _Graph, node: onnx.NodeProto) -> list[_Rows]:
    known.of(node.input[0], 2)
    name = "targets" if node.op_type == "LinearRegressor" else "n_targets"
    return [_Rows((1 if node.op_type == "SVMRegressor" else _attributes(node).get(name, 1),))]


_ONE = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus "
    "Softsign Sqrt Tan Tanh ThresholdedRelu"
)
_EACH = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min "
    "Mod Mul Or PRelu Pow Sub Sum Where Xor"
)
_REDUCE = (
    "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
)
_OF_DOMAIN: Mapping[str, Mapping[str, _Rule]] = {
    "": {
        **dict.fromkeys(_ONE.split(), _one),
        **dict.fromkeys(_EACH.split(), _each),
        **dict.fromkeys(_REDUCE.split(), _reduce),
        **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _along),
        **dict.fromkeys(("Gemm", "MatMul"), _product),
        "Concat": _concat,
        "ConstantOfShape": _filled,
        "Flatten": _flatten,
        "Gather": _gather,
        "Reshape": _reshape,
        "Shape": _shape,
        "Slice": _slice,
        "Split": _split,
        "Squeeze": _squeeze,
        "TopK": _top,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
    },
    TABLES: {
        **dict.fromkeys(("Binarizer", "CategoryMapper", "LabelEncoder"), _one),
        **dict.fromkeys(("Imputer", "Normalizer", "Scaler"), _cells(2)),
        **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), _classified),
        **dict.fromkeys(("LinearRegressor", "SVMRegressor", "TreeEnsemble", "TreeEnsembleRegressor"), _targets),
        "ArrayFeatureExtractor": _extract,
        "FeatureVectorizer": _features,
        "OneHotEncoder": _one_hot,
        "ZipMap": _cells(2),
    },
}
_RULES = {(domain, op): rule for domain, rules in _OF_DOMAIN.items() for op, rule in rules.items()}
