"""Tables as people have them, for the inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from collage.errors import InputError
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.module.predict import as_array, table_inputs
from collage.schedule.suffix import ValuePort

ONE = [ValuePort("X", ValueType(TENSOR, "float32", (None, 2)))]
SEVERAL = [
    ValuePort("age", ValueType(TENSOR, "float32", (None, 1))),
    ValuePort("count", ValueType(TENSOR, "int64", (None,))),
    ValuePort("city", ValueType(TENSOR, STRING, (None, 1))),
]


class Frame:
    """A DataFrame, as far as tables need one."""

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self.columns, self._columns = [*columns], columns

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def to_numpy(self) -> Any:
        return np.array([*self._columns.values()]).T


@pytest.mark.parametrize(
    "given",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
        np.array([[1, 2], [3, 4]], np.int32),
        np.array([[1, 2], [3, 4]], np.float64),
        np.array([[1, 2], [3, 4]], object),
        Frame({"a": [1, 3], "b": [2, 4]}),
        {"X": [[1, 2], [3, 4]]},
    ],
)
def test_one_input(given: Any) -> None:
    found = table_inputs(ONE, given)
    assert [*found] == ["X"] and found["X"].dtype == np.float32
    np.testing.assert_array_equal(found["X"], [[1, 2], [3, 4]])


def test_numbers_are_rounded_widened_or_missing() -> None:
    wide = [ValuePort("X", ValueType(TENSOR, "float64", (None, 2)))]
    assert table_inputs(wide, np.float32([[0.1, 2]]))["X"][0, 0] == np.float64(np.float32(0.1))
    assert table_inputs(ONE, [[0.1, 1e300]])["X"].tolist() == [[np.float32(0.1), np.inf]]
    assert np.isnan(table_inputs(ONE, np.array([[None, 2]], object))["X"][0, 0])


def test_columns_by_name() -> None:
    columns = {"age": [1, 2], "count": [3.0, 4.0], "city": ["oslo", "kiel"], "more": [0, 0]}
    for given in (columns, Frame({name: np.array(each, object) for name, each in columns.items()})):
        found = table_inputs(SEVERAL, given)
        assert [(each.shape, each.dtype.kind) for each in found.values()] == [((2, 1), "f"), ((2,), "i"), ((2, 1), "O")]


def test_the_columns_of_one_input() -> None:
    for given in ({"b": [2, 4], "a": [1, 3]}, Frame({"b": [2, 4], "c": [0, 0], "a": [1, 3]})):
        np.testing.assert_array_equal(table_inputs(ONE, given, ("a", "b"))["X"], [[1, 2], [3, 4]])
    for given in ({"X": [[1, 2], [3, 4]]}, Frame({"X": [0, 0], "a": [1, 3], "b": [2, 4]})):
        np.testing.assert_array_equal(table_inputs(ONE, given, ("a", "b"))["X"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(table_inputs(ONE, {"X": [[1, 2]]}, ("X", "Y"))["X"], [[1, 2]])
    blanks = Frame({"petal width": [1, 3], 7: [2, 4]})
    np.testing.assert_array_equal(table_inputs(ONE, blanks, ("petal_width", "7"))["X"], [[1, 2], [3, 4]])
    other = Frame({"c": [1, 3], "d": [2, 4]})
    np.testing.assert_array_equal(table_inputs(ONE, other, ("a", "b"))["X"], [[1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"the table lacks columns: b\."):
        table_inputs(ONE, Frame({"a": [1, 3], "c": [2, 4]}), ("a", "b"))
    with pytest.raises(InputError, match=r"columns of the table have different numbers of rows\."):
        table_inputs(ONE, {"a": [1, 3], "b": [2]}, ("a", "b"))


def test_columns_of_pandas() -> None:
    """A column of categories may stand for codes or for values: neither is guessed, even if they are numbers."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.Categorical([10, 20]), "b": [2, 4]})
    for names in (("a", "b"), ()):
        with pytest.raises(InputError, match=r"column a is categorical.*\['a'\]\.cat\.codes"):
            table_inputs(ONE, frame, names)
    twice = pandas.DataFrame([[1, 2, 3], [1, 2, 3]], columns=["a", "b", "b"])
    with pytest.raises(InputError, match=r"the table has several columns b\."):
        table_inputs(ONE, twice, ("a", "b"))


@pytest.mark.parametrize(
    ("ports", "given", "words"),
    [
        (ONE, [["a", 2]], "input X has elements that are no numbers of type float32"),
        (ONE, np.array([["1", 2]], object), "no numbers of type float32, such as '1'"),
        (ONE, [[1, 2], [3]], "input X is no table"),
        (ONE, {"Y": [[1, 2]]}, "missing input: X"),
        (SEVERAL, [[1, 2, "oslo"]], "several inputs: give a DataFrame or a mapping with the columns age"),
        (SEVERAL, {"age": [1]}, r"the table lacks columns: count \(int64\[\?\]\), city"),
        (SEVERAL, {"age": [1], "count": [1.5], "city": ["oslo"]}, "input count has numbers that int64 does not hold"),
        (
            SEVERAL,
            {"age": [1], "count": [np.nan], "city": ["oslo"]},
            "input count has numbers that int64 does not hold",
        ),
    ],
)
def test_what_is_no_table_of_the_model(ports: Any, given: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        table_inputs(ports, given)


def test_maps_become_rows() -> None:
    found = as_array([{"cat": 0.25, "dog": 0.75}, {"cat": 1.0, "dog": 0.0}])
    assert found.dtype == np.float32 and found.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert as_array([]).shape == (0, 0)
    array = np.zeros(3)
    assert as_array(array) is array
