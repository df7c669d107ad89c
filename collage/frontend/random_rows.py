"""Random rows for models of tables: numbers on both sides of what trees compare them with, and known categories."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from collage.core.memory import physical_bytes
from collage.errors import ModelError
from collage.frontend.read.rows import TABLES
from collage.frontend.read.scopes import constants_of
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.value_types import value_type
from collage.frontend.read.weights import array_of
from collage.graph.dataflow import Array, np_dtype
from collage.graph.value_type import STRING

log = logging.getLogger(__name__)

_ORDINARY = 1e12
"""Numbers beyond it are none that a column usually has."""
_MISSING = 0.02
"""The share of missing numbers in columns that a model fills in, or that its trees send somewhere."""
_UNSEEN = "a category never seen"
_SAME = frozenset("Cast Flatten Identity Imputer Reshape Squeeze Unsqueeze".split())
"""Operators that leave the elements of a row in their order."""
_TREES = frozenset("TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor".split())


@dataclass
class _Drawn:
    """What a model does with a column of an input: it splits the numbers there, or knows some of them."""

    splits: list[Array] = field(default_factory=list)
    known: list[Any] = field(default_factory=list)
    strict: bool = False
    """Whether unknown categories are an error."""
    missing: bool = False
    centre: float = 0.0
    spread: float = 1.0

    def numbers(self, count: int, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
        """So many numbers of the dtype."""
        edges = np.unique(np.concatenate([np.zeros(0), *self.splits]))
        edges = edges[np.abs(edges) < _ORDINARY]
        made: Array = np.floor(9 * rng.random(count))
        if dtype.kind == "f":
            made = self.centre + self.spread * rng.standard_normal(count)
        if edges.size:
            # From the middle of a gap no rounding reaches the next split, so that right engines agree.
            margin = max(float(edges[-1] - edges[0]) / edges.size, abs(float(edges[0])) / 10, 1.0)
            gaps = np.concatenate([[edges[0] - margin], edges, [edges[-1] + margin]])
            at, share = rng.integers(0, len(gaps) - 1, count), rng.uniform(0.25, 0.75, count)
            made = gaps[at] * (1 - share) + gaps[at + 1] * share
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.asarray(made if dtype.kind == "f" else np.rint(made)).astype(dtype)
            known = np.unique(np.asarray([*_finite(self.known)]).astype(dtype))
        if known.size:
            some = known if self.strict else np.append(known, known[-1:] + np.ones(1, dtype))
            taken = rng.random(count) < (0.5 if edges.size else 1.0)
            found[taken] = rng.choice(some, int(taken.sum()))
        if dtype.kind == "f" and self.missing:
            found[rng.random(count) < _MISSING] = np.nan
        return found

    def texts(self, count: int, rng: np.random.Generator) -> Array:
        """So many texts."""
        words = [each.decode() if isinstance(each, bytes) else str(each) for each in self.known] or ["a", "bc", "def"]
        return rng.choice(np.array([*words, *([] if self.strict else [_UNSEEN])], object), count)


def _finite(values: Sequence[Any]) -> Iterator[float]:
    """The finite numbers among values, some of which may be texts of numbers."""
    for each in values:
        with suppress(ValueError):
            number = each if isinstance(each, (int, float)) else float(each)
            if math.isfinite(number):
                yield number


@dataclass(frozen=True)
class _Column:
    """A column of a value, which is that of an input, less ``offset``, times ``scale``."""

    of: _Drawn
    scale: float = 1.0
    offset: float = 0.0

    def then(self, scale: float, offset: float) -> _Column:
        """This column less another offset, and times another scale."""
        if not scale * self.scale:
            return replace(self, of=_Drawn())
        return _Column(self.of, self.scale * scale, self.offset + offset / self.scale)

    def split(self, numbers: Array) -> None:
        """The model splits this column at the numbers."""
        self.of.splits.append(np.asarray(numbers, np.float64) / self.scale + self.offset)


def random_rows(model: onnx.ModelProto, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """So many rows of numbers or texts for each input of a model of tables (see ``take_rows``), in its order.

    Raises ModelError for rows that do not fit into memory.
    """
    kinds = {info.name: value_type(info.type) for info in model_inputs(model)}
    drawn = {}
    for name, kind in kinds.items():
        (width,) = (kind.shape or ())[1:] or (1,)
        if 8 * rows * (width or 0) > physical_bytes():
            raise ModelError(f"{rows} rows of {name} with {width} columns do not fit into memory: give --batch.")
        drawn[name] = [_Drawn() for _ in range(width or 0)]
    _follow(model.graph, {name: [*map(_Column, each)] for name, each in drawn.items()})
    found = {}
    for name, kind in kinds.items():
        dtype = np.dtype(object) if kind.dtype == STRING else np_dtype(kind.dtype)
        table: Array = np.empty((rows, len(drawn[name])), dtype)
        for at, column in enumerate(drawn[name]):
            table[:, at] = column.texts(rows, rng) if kind.dtype == STRING else column.numbers(rows, dtype, rng)
        found[name] = table.reshape(rows) if len(kind.shape or ()) == 1 else table
    return found


def _follow(graph: onnx.GraphProto, columns: dict[str, list[_Column]]) -> None:
    """Follow the columns through the graph, and note what becomes of them."""
    constants = constants_of(graph)

    def constant(name: str) -> Array | None:
        return array_of(constants[name]) if name in constants else None

    for node in graph.node:
        try:
            _through(node, columns, constant)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of what no checker has seen
            log.info("columns are not followed through %s: %s", node.name, error)


def _through(node: onnx.NodeProto, columns: dict[str, list[_Column]], constant: Callable[[str], Array | None]) -> None:
    """Follow the columns through a node."""
    about = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    given = [columns[name] for name in node.input if name in columns]
    if not given:
        return
    first, made = given[0], None
    other = next((found for name in node.input if (found := constant(name)) is not None), None)
    if node.domain == TABLES:
        _note(node.op_type, about, first)
    if node.op_type in _SAME or (node.op_type == "Scaler" and node.domain == TABLES):
        made = first
    elif node.op_type in ("Concat", "FeatureVectorizer") and len(given) == len(node.input):
        made = [each for one in given for each in one]
    elif node.op_type in ("Gather", "ArrayFeatureExtractor") and node.input[0] in columns and other is not None:
        picked = [int(each) for each in other.reshape(-1)]
        made = [first[at] for at in picked] if all(-len(first) <= at < len(first) for at in picked) else None
    elif node.op_type in ("Add", "Sub", "Mul", "Div") and node.input[0] in columns and other is not None:
        made = _shifted(node.op_type, first, other)
    if made is not None and node.op_type == "Scaler":
        scale, offset = _wide(about.get("scale", [1]), len(first)), _wide(about.get("offset", [0]), len(first))
        made = [each.then(s, o) for each, s, o in zip(first, scale, offset, strict=True)]
        for each in made:
            each.of.centre, each.of.spread = each.offset, 1 / abs(each.scale)
    if made is not None:
        columns[node.output[0]] = made


def _wide(numbers: Sequence[float], count: int) -> list[float]:
    return [*numbers] if len(numbers) == count else [*numbers[:1]] * count


def _shifted(op: str, columns: Sequence[_Column], constant: Array) -> list[_Column] | None:
    """The columns plus, minus, times or by a constant row."""
    if constant.size not in (1, len(columns)) or constant.dtype.kind not in "biuf":
        return None
    numbers = np.broadcast_to(constant.astype(np.float64).reshape(-1), len(columns)).tolist()
    if op in ("Mul", "Div"):
        factors = [by if op == "Mul" or not by else 1 / by for by in numbers]
        return [each.then(by, 0.0) for each, by in zip(columns, factors, strict=True)]
    return [each.then(1.0, -by if op == "Add" else by) for each, by in zip(columns, numbers, strict=True)]


def _note(op: str, about: Mapping[str, Any], columns: Sequence[_Column]) -> None:
    """Note what an operator for tables does with the columns."""
    if op in _TREES:
        _note_trees(about, columns)
    elif op == "Binarizer":
        for each in columns:
            each.split(np.array([about.get("threshold", 0.0)]))
    elif op == "Imputer" and np.isnan(about.get("replaced_value_float", 0.0)):
        for each in columns:
            each.of.missing = True
    elif op in ("CategoryMapper", "LabelEncoder", "OneHotEncoder"):
        names = ("cats_int64s", "cats_strings", "keys_int64s", "keys_strings", "keys_floats", "keys_tensor")
        known = next((about[name] for name in names if name in about), ())
        known = array_of(known).tolist() if isinstance(known, onnx.TensorProto) else known
        for each in columns:
            each.of.known += [*known]
            each.of.strict |= op == "OneHotEncoder" and not about.get("zeros", 1)


def _note_trees(about: Mapping[str, Any], columns: Sequence[_Column]) -> None:
    """Note the splits of trees, of any version of the operator."""
    tensors = (about.get(name) for name in ("nodes_splits", "nodes_values_as_tensor"))
    tensor = next((each for each in tensors if each is not None), None)
    values = np.asarray(about.get("nodes_values", []) if tensor is None else array_of(tensor), np.float64)
    features = np.asarray(about.get("nodes_featureids", []), np.int64)
    modes = about.get("nodes_modes", [])
    # In version 5 modes are numbers, and leaves are apart: 4 and 5 compare with one number, and 6 with a set.
    words = {b"LEAF": -1, b"BRANCH_EQ": 4, b"BRANCH_NEQ": 5}
    modes = about.get("nodes_modes", [])
    numbers = isinstance(modes, onnx.TensorProto)
    kinds = np.array(array_of(modes) if numbers else [words.get(each, 0) for each in modes], np.int64)
    if not len(values) == len(features) == len(kinds):
        return
    members = array_of(about["membership_values"]) if "membership_values" in about else np.zeros(0)
    tracked = any(about.get("nodes_missing_value_tracks_true", ()))
    order = np.argsort(features, kind="stable")
    starts = np.searchsorted(features[order], np.arange(len(columns) + 1))
    for each, start, end in zip(columns, starts, starts[1:], strict=False):
        mine = order[start:end]
        each.split(values[mine[(kinds[mine] >= 0) & (kinds[mine] != 6)]])
        exact = values[mine[np.isin(kinds[mine], (4, 5))]]
        if (kinds[mine] == 6).any():
            exact = np.concatenate([exact, members[np.isfinite(members)]])
        each.of.known += (np.unique(exact) / each.scale + each.offset).tolist()
        each.of.missing |= tracked
