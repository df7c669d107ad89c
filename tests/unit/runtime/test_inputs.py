"""Values that callers give: what has no type of its own is converted where nothing is lost, and refused elsewhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collage.errors import InputError
from collage.graph.dataflow import TensorType
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.runtime.inputs import collect_inputs
from collage.runtime.original import Fallback, _checked
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort


def ports(dtype: str, *shape: int) -> tuple[Port, ValuePort]:
    """An input of a placement, and one of a model that an engine runs."""
    return Port("x", 0, TensorType(shape, dtype)), ValuePort("x", ValueType(TENSOR, dtype, shape))


def taken(dtype: str, value: Any, *shape: int) -> list[Any]:
    """What each of the places makes of a value."""
    placed, on_engine = ports(dtype, *shape)
    return [
        *(collect_inputs([each], (value,), {})[0] for each in (placed, on_engine)),
        *(_checked(each, value) for each in (placed, on_engine)),
    ]


@pytest.mark.parametrize(
    ("dtype", "value", "word"),
    [
        ("int64", [0.7, 1.9], "numbers that int64 does not hold"),
        ("int64", [0.0, float("nan")], "numbers that int64 does not hold"),
        ("int64", [1, 2**63], "numbers that int64 does not hold"),
        ("int64", [10**30, 1], "numbers that int64 does not hold"),
        ("uint8", [300, -1], "numbers that uint8 does not hold"),
        ("uint64", [1, -1], "numbers that uint64 does not hold"),
        ("int4", [7, 8], "numbers that int4 does not hold"),
        ("bool", [2, 0], "numbers that bool does not hold"),
        ("float32", [1e300, 1], "numbers that float32 does not hold"),
        ("float32", [1j, 1], "no numbers of type float32"),
        ("float32", [None, 1], "no numbers of type float32"),
        ("int64", ["a", "b"], "no numbers of type int64"),
        ("float32", ["1", "2"], "no numbers of type float32"),
        ("float32", [[1], [1, 2]], "no array"),
    ],
)
def test_lists_that_would_become_other_numbers_are_refused(dtype: str, value: Any, word: str) -> None:
    for port in ports(dtype, 2):
        with pytest.raises(InputError, match=f"input x .*{word}"):
            collect_inputs([port], (value,), {})
        with pytest.raises(InputError, match=f"input x .*{word}"):
            Fallback(b"", [port], [], 1).run({"x": value})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", [True, 3]),
        ("int64", [1.0, -2.0]),
        ("uint8", [0, 255]),
        ("int4", [-8, 7]),
        ("bool", [1, 0]),
        ("float32", [1, 0.1]),
        ("float32", [10**30, 1]),
        ("float16", [float("inf"), 1]),
        ("bfloat16", [0.5, 1]),
        ("complex64", [1j, 1]),
    ],
)
def test_lists_become_arrays(dtype: str, value: list[Any]) -> None:
    for array in taken(dtype, value, 2):
        assert array.dtype.name == dtype
        np.testing.assert_allclose(array.astype(complex), np.array(value, complex), rtol=1e-3)


def test_a_list_without_elements_and_a_number() -> None:
    for array in taken("int64", [], 0):
        assert (array.dtype, array.shape) == (np.int64, (0,))
    for array in taken("float32", 3):
        assert (array.dtype, array.shape, float(array)) == (np.float32, (), 3.0)


def test_raw_bytes_from_a_file_are_of_the_type_that_numpy_lacks() -> None:
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    for array in taken("bfloat16", x.view("V2"), 2):
        assert array.dtype == x.dtype and array.tobytes() == x.tobytes()
    for dtype in ("float16", "float8_e4m3fn"):
        for port in ports(dtype, 2):
            with pytest.raises(InputError, match="has dtype"):
                collect_inputs([port], (x.view("V2"),), {})


@pytest.mark.parametrize(
    "value",
    [
        ["ab", "ä"],
        [b"ab", "ä".encode()],
        np.array([b"ab", "ä".encode()]),
        np.array(["ab", "ä".encode()], object),
        np.array(["ab", "ä"]),
    ],
)
def test_bytes_are_texts(value: Any) -> None:
    port = ValuePort("x", ValueType(TENSOR, STRING, (2,)))
    for array in (collect_inputs([port], (value,), {})[0], _checked(port, value)):
        assert array.dtype == object and array.tolist() == ["ab", "ä"]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ([b"\xff", b"a"], "no UTF-8"),
        (["a", None], "an element that is a NoneType"),
        ([1, 2], "the model takes strings"),
    ],
)
def test_what_is_no_text_is_refused(value: Any, word: str) -> None:
    port = ValuePort("x", ValueType(TENSOR, STRING, (2,)))
    with pytest.raises(InputError, match=f"input x .*{word}"):
        collect_inputs([port], (value,), {})
    with pytest.raises(InputError, match=f"input x .*{word}"):
        Fallback(b"", [port], [], 1).run({"x": value})
