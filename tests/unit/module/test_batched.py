"""Joining requests: what is run together, what each gets, and what one that fails does to the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from collage.errors import InputError, UsageError
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.module.batched import Batched, Joinable
from collage.schedule.suffix import ValuePort


class Twice:
    """A module that doubles x, and keeps the sizes of its calls. It fails for rows of -1."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert self.gate.wait(20)
        x = inputs["x"]
        self.sizes.append(len(x))
        if (x == -1).any():
            raise ValueError("minus one")
        return {"y": 2 * x, "rows": [{"first": float(row[0])} for row in x]}


def joint(run: Callable[..., Any], *sizes: int, is_open: bool = True, columns: int | None = 2) -> Joinable:
    port = ValuePort("x", ValueType(TENSOR, "float32", (None, columns)))
    return Joinable((port,), run, {((2,),): sizes} if sizes else {}, is_open)


def x(rows: int, start: float = 0) -> np.ndarray:
    return np.arange(start, start + 2 * rows, dtype=np.float32).reshape(rows, 2)


def check(outputs: dict[str, Any], given: np.ndarray) -> None:
    np.testing.assert_array_equal(outputs["y"], 2 * given)
    assert outputs["rows"] == [{"first": float(row[0])} for row in given]


def test_what_waits_is_joined() -> None:
    run = Twice()
    run.gate.clear()
    given = [x(rows, 100 * rows) for rows in (1, 2, 3, 4, 1)]
    with Batched(joint(run), 6, 0) as batched, ThreadPoolExecutor(5) as pool:
        first = pool.submit(batched.run, {"x": given[0]})
        time.sleep(0.2)  # it is in a call by now
        others = [first]
        for each in given[1:]:
            others.append(pool.submit(batched.run, {"x": each}))
            time.sleep(0.05)
        run.gate.set()
        for future, each in zip(others, given, strict=True):
            check(future.result(), each)
    assert run.sizes == [1, 5, 5]


def test_a_call_waits_for_others() -> None:
    run = Twice()
    with Batched(joint(run), 4, 500) as batched, ThreadPoolExecutor(4) as pool:
        begin_s = time.monotonic()
        found = [*pool.map(lambda at: batched.run(x=x(1, at)), range(4))]
        assert time.monotonic() - begin_s < 0.5, "a call that is full does not wait"
        for at, each in enumerate(found):
            check(each, x(1, at))
        assert run.sizes == [4]
        batched.run(x=x(1))
        assert time.monotonic() - begin_s > 0.5


def test_outputs_belong_to_the_caller() -> None:
    run = Twice()
    with Batched(joint(run), 2, 500) as batched, ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda at: batched.run(x=x(1, at)), range(2))
    one["y"][:] = 7
    check(other, x(1, 1))
    assert one["y"].base is None


def test_one_that_fails_leaves_the_others_alone() -> None:
    run = Twice()
    given = [x(1), np.full((1, 2), -1, np.float32), x(2)]
    with Batched(joint(run), 4, 1000) as batched, ThreadPoolExecutor(3) as pool:
        good, bad, other = [pool.submit(batched.run, {"x": each}) for each in given]
        check(good.result(), given[0])
        check(other.result(), given[2])
        with pytest.raises(ValueError, match="minus one"):
            bad.result()
    assert sorted(run.sizes) == [1, 1, 2, 4]


def test_requests_are_checked_before_they_are_joined() -> None:
    run = Twice()
    with Batched(joint(run), 4, 0) as batched:
        for wrong in ({"x": x(1).astype(np.float64)}, {"z": x(1)}, {}, {"x": np.zeros((1, 3), np.float32)}):
            with pytest.raises(InputError):
                batched.run(wrong)
        with pytest.raises(InputError):
            batched.run(x=np.float32(1))
    assert run.sizes == []


def test_sizes_that_there_are() -> None:
    run = Twice()
    with Batched(joint(run, 2, 8), 100, 300) as batched, ThreadPoolExecutor(2) as pool:
        none, one = pool.map(lambda rows: batched.run(x=x(rows)), (0, 1))
        check(none, x(0))
        check(one, x(1))
        check(batched.run(x=x(0)), x(0))
        check(batched.run(x=x(9)), x(9))
    assert run.sizes == [2, 0, 9]
    run.sizes.clear()
    with Batched(joint(run, 2, 8, is_open=False, columns=None), 100, 0) as batched:
        for rows in (1, 2, 3, 8):
            check(batched.run(x=x(rows)), x(rows))
        for rows in (0, 9):
            with pytest.raises(InputError, match=f"{rows} rows, and the module takes from 1 to 8"):
                batched.run(x=x(rows))
        with pytest.raises(InputError, match="not compiled for rows"):
            batched.run(x=np.zeros((1, 3), np.float32))
    assert run.sizes == [2, 2, 8, 8]


def test_more_rows_than_a_call_has_run_alone() -> None:
    run = Twice()
    with Batched(joint(run), 4, 0) as batched:
        check(batched.run(x=x(11)), x(11))
        check(batched.run(x=x(0)), x(0))
    assert run.sizes == [11, 0]


def test_texts_and_rows_of_other_shapes() -> None:
    port = ValuePort("x", ValueType(TENSOR, STRING, (None, None)))
    sizes: list[tuple[int, ...]] = []

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        sizes.append(inputs["x"].shape)
        return {"y": inputs["x"] + "!"}

    given = [np.array([[f"{columns}"] * columns], object) for columns in (1, 2, 1)]
    with Batched(Joinable((port,), run, {}, True), 8, 300) as batched, ThreadPoolExecutor(3) as pool:
        for each, found in zip(given, pool.map(lambda each: batched.run(x=each), given), strict=True):
            np.testing.assert_array_equal(found["y"], each + "!")
    assert sorted(sizes) == [(1, 2), (2, 1)]


def test_closing_answers_what_is_there() -> None:
    run = Twice()
    batched = Batched(joint(run), 4, 10_000)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(batched.run, {"x": x(1, at)}) for at in range(2)]
        time.sleep(0.2)
        batched.close()
        for at, each in enumerate(waiting):
            check(each.result(timeout=5), x(1, at))
    with pytest.raises(UsageError, match="closed"):
        batched.run(x=x(1))
    batched.close()


def test_tasks_and_cancellation() -> None:
    run = Twice()

    async def main() -> None:
        with Batched(joint(run), 8, 100) as batched:
            found = await asyncio.gather(*(batched.run_async({"x": x(1, at)}) for at in range(3)))
            for at, each in enumerate(found):
                check(each, x(1, at))
            left = asyncio.ensure_future(batched.run_async(x=x(1)))
            stays = asyncio.ensure_future(batched.run_async(x=x(2)))
            await asyncio.sleep(0.01)
            left.cancel()
            check(await stays, x(2))
            with pytest.raises(asyncio.CancelledError):
                await left
            alone = asyncio.ensure_future(batched.run_async(x=x(1)))
            await asyncio.sleep(0.01)
            alone.cancel()
            await asyncio.sleep(0.2)

    asyncio.run(main())
    assert run.sizes == [3, 2]


@pytest.mark.parametrize("numbers", [(0, 1), (1.5, 1), (1, -1), (1, float("nan")), (1, float("inf"))])
def test_numbers_out_of_range(numbers: Any) -> None:
    with pytest.raises(UsageError, match="max_"):
        Batched(joint(Twice()), *numbers)
