"""The scan: what it finds is what numpy finds, for every type, size, alignment and kind of number."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from collage.graph.dataflow import Array
from collage.graph.magnitudes import INTEGER_LIMIT, LIMIT, SCANNED, SCANNED_INTEGERS
from collage.native import LaunchList, core_problem, team_of
from collage.native import scan as module
from collage.native.scan import Flag, Scanned, new_flag, scan_call, scan_function, scan_step

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
Scan = Callable[..., bool]


def on_team(array: Array, limit: float = LIMIT) -> bool:
    flag = new_flag()
    step = scan_step([Scanned(array, limit)], flag, 2)
    assert step is not None
    LaunchList(team_of(2), [step])()
    return bool(flag[0])


def in_this_thread(array: Array, limit: float = LIMIT) -> bool:
    flag = new_flag()
    scan_call([Scanned(array, limit)], flag)()
    return bool(flag[0])


def with_numpy(array: Array, limit: float = LIMIT) -> bool:
    flag = new_flag()
    with mock.patch.object(module, "scan_function", return_value=None):
        assert scan_step([Scanned(array, limit)], flag, 2) is None
        scan_call([Scanned(array, limit)], flag)()
    return bool(flag[0])


@pytest.fixture(params=[on_team, in_this_thread, with_numpy])
def scan(request: pytest.FixtureRequest) -> Scan:
    if request.param is not with_numpy and (core_problem() or scan_function() is None):
        pytest.skip("the native kernels were not built")
    found: Scan = request.param
    return found


def specials(dtype: str) -> Array:
    """Numbers at the edges, each with both signs, NaN with several payloads among them."""
    integer, limit = SCANNED[dtype]
    size = np.dtype(integer).itemsize * 8
    exponent = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80, "float64": 0x7FF << 52}[dtype]
    bits = [0, 1, 2, limit - 1, limit, limit + 1, exponent - 1, exponent, exponent + 1, (1 << (size - 1)) - 1]
    both = [each | sign for each in bits for sign in (0, 1 << (size - 1))]
    return np.array(both, f"uint{size}").view(DTYPES[dtype])


def is_found(array: Array) -> bool:
    with np.errstate(invalid="ignore"):  # NaN that signal
        return not bool(np.all(np.abs(array.astype(np.float64)) <= LIMIT))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_special_number_anywhere(dtype: str, scan: Scan) -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for special in specials(dtype):
        for size in (1, 7, 64, 257, 40_000):
            array = rng.standard_normal(size).astype(DTYPES[dtype])
            array[rng.integers(size)] = special
            assert scan(array) == is_found(array), (special, size)
        seen.add(is_found(array))
    assert seen == {True, False}


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_place_at_each_alignment(dtype: str, scan: Scan) -> None:
    memory = np.zeros(400, DTYPES[dtype])
    for begin in range(0, 40, 3):
        for size in (1, 2, 15, 31, 33, 100):
            for place in {0, size // 2, size - 1}:
                memory[:] = np.nan  # beside the array, where nobody may look
                array = memory[begin : begin + size]
                array[:] = -1
                assert not scan(array)
                array[place] = np.inf
                assert scan(array), (begin, size, place)


def test_shapes_and_complex_numbers(scan: Scan) -> None:
    for shape in ((), (0,), (3, 0, 2), (4, 5, 6)):
        assert not scan(np.ones(shape, np.float32))
    array = np.ones((4, 5, 6), np.float32)
    array[3, 4, 5] = 2e12
    assert scan(array)
    for dtype in (np.complex64, np.complex128):
        numbers = np.ones(100, dtype)
        assert not scan(numbers)
        numbers[77] = complex(1, np.nan)
        assert scan(numbers)


def test_several_arrays_and_a_flag_that_stays(scan: Scan) -> None:
    flag = new_flag()
    arrays: list[Array] = [np.ones(50_000, np.float32), np.ones(20, np.float64), np.ones(9, np.float16)]

    def both(flag: Flag) -> None:
        if scan is on_team:
            step = scan_step([*map(Scanned, arrays)], flag, 2)
            assert step is not None
            LaunchList(team_of(2), [step])()
        else:
            scan_call([*map(Scanned, arrays)], flag)()

    both(flag)
    assert flag[0] == 0
    for array in arrays:
        array[-1] = np.nan
        both(flag)
        assert flag[0] == 1
        flag[0] = 0
        array[-1] = 1
    flag[0] = 1
    both(flag)
    assert flag[0] == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("limit", [0.0, 1e-30, 0.37, 1.0, 3.0, 1000.1, 7e4, 1e11])
def test_a_limit_of_the_values_own(dtype: str, limit: float, scan: Scan) -> None:
    rng = np.random.default_rng(1)
    kind = DTYPES[dtype]
    with np.errstate(over="ignore"):
        below = np.array(limit, np.float64).astype(kind)
        if np.isinf(below) or float(below) > limit:
            below = np.nextafter(below, kind(0))
        above = np.nextafter(below, kind(np.inf))
    assert not any(scan(np.full(9, 1000, other), limit) for other in (np.float64, np.int32))
    for size in (1, 77, 40_000):
        array = (float(below) * rng.uniform(-1, 1, size)).astype(kind)
        array[rng.integers(size)] = -below
        assert not scan(array, limit)
        for odd in (above, -above, kind(np.nan)):
            if not float(below) and np.isfinite(odd):
                continue  # the smallest number counts as zero
            other = array.copy()
            other[rng.integers(size)] = odd
            assert scan(other, limit), (size, odd)


def test_arrays_of_any_kind_at_once() -> None:
    rng = np.random.default_rng(2)
    usual: list[Array] = [
        rng.standard_normal((3, 4)).astype(np.float32),
        rng.standard_normal((5, 6)).astype(np.float32)[:, ::2],  # which is not contiguous
        rng.standard_normal(7).astype(ml_dtypes.bfloat16),
        rng.standard_normal(7) + 1j,
        np.array(3.0, np.float16),
        np.arange(9),
        np.array(["text"], object),
        np.ones(3, bool),
        np.empty((0, 2), np.float64),
    ]
    for native in (True, False):
        with mock.patch.object(module, "_callable_scan", module._callable_scan if native else lambda: None):
            assert module.are_all_ordinary(usual)
            assert module.are_all_ordinary([])
            for place, odd in ((0, np.nan), (1, -np.inf), (2, 3e12), (3, complex(1, np.inf)), (5, 1 << 25)):
                other = [*usual]
                other[place] = np.repeat(usual[place], 2, axis=-1)[..., ::2]  # none of them is contiguous
                other[place][(-1,) * usual[place].ndim] = odd
                assert not module.are_all_ordinary(other), (native, place)


@pytest.mark.parametrize("dtype", SCANNED_INTEGERS)
def test_integers_beyond_the_limit(dtype: str, scan: Scan) -> None:
    info = np.iinfo(dtype)
    at_limit = [0, 1, INTEGER_LIMIT, *([-1, -INTEGER_LIMIT] if info.min else [])]
    beyond = [INTEGER_LIMIT + 1, info.max, *([-INTEGER_LIMIT - 1, info.min] if info.min else [])]
    for size in (1, 17, 1000):
        for special in (*at_limit, *beyond):
            array = np.full(size, 3, dtype)
            array[size // 2] = special
            assert scan(array) == (special in beyond), special
