"""Modules under many callers: ``run_async`` and ``batched``, beside ONNX Runtime."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import collage
from tests.helpers.models import make_model
from tests.helpers.tables import rows, trees

OPTIONS: dict[str, Any] = {"budget_s": 3.0, "progress": False, "threads": 1, "backends": "onnxruntime,tvm"}


def dense(batch: int | str) -> onnx.ModelProto:
    """A dense layer with two inputs of the same batch."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "shift"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return make_model(nodes, {"x": [batch, 8], "shift": [batch, 4]}, {"y": [batch, 4]}, weights)


def fresh(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng()
    return {name: rng.normal(size=(count, size)).astype(np.float32) for name, size in (("x", 8), ("shift", 4))}


class Reference:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._session = onnxruntime.InferenceSession(model.SerializeToString())

    def check(self, outputs: dict[str, Any], given: dict[str, np.ndarray]) -> None:
        wanted = dict(
            zip([each.name for each in self._session.get_outputs()], self._session.run(None, given), strict=True)
        )
        assert outputs.keys() == wanted.keys()
        for name, each in wanted.items():
            np.testing.assert_allclose(outputs[name], each, rtol=1e-4, atol=1e-5)


REFERENCE = Reference(dense("N"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("concurrent")


@pytest.fixture(scope="module")
def fixed(folder: Path) -> collage.CompiledModule:
    return collage.compile(dense(4), db=folder / "db", **OPTIONS)


@pytest.fixture(scope="module")
def shaped(folder: Path) -> collage.ShapedModule:
    sets = [{name: (batch, size) for name, size in (("x", 8), ("shift", 4))} for batch in (1, 4)]
    return collage.compile_shapes(dense("N"), sets, db=folder / "db", **{**OPTIONS, "budget_s": 6.0})


@pytest.fixture(scope="module")
def table(folder: Path) -> collage.CompiledModule:
    return collage.compile(trees(), db=folder / "db", **{**OPTIONS, "backends": None})


def test_tasks(fixed: collage.CompiledModule, shaped: collage.ShapedModule) -> None:
    async def main() -> None:
        for module, counts in ((fixed, [4]), (shaped, [1, 4, 3])):
            given = [fresh(count) for count in counts * 8]
            found = await asyncio.gather(*(module.run_async(each) for each in given))
            for outputs, each in zip(found, given, strict=True):
                REFERENCE.check(outputs, each)
        REFERENCE.check(await fixed.run_async(**given[1]), given[1])
        with pytest.raises(collage.InputError, match="missing input"):
            await fixed.run_async({"x": given[1]["x"]})

    asyncio.run(main())


def test_the_loop_goes_on_and_cancelled_tasks_are_not_run(fixed: collage.CompiledModule) -> None:
    module, run, ran = fixed.clone(), fixed.run, []

    def slow(inputs: Any) -> Any:
        time.sleep(0.2)
        ran.append(float(inputs["x"][0, 0]))
        return run(inputs)

    module.run = slow  # type: ignore[method-assign]

    async def main() -> None:
        given = [fresh(4) for _ in range(4)]
        tasks = [asyncio.ensure_future(module.run_async(each)) for each in given]
        ticks = 0
        while not tasks[0].done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 5
        await asyncio.sleep(0.05)
        tasks[1].cancel()  # it runs
        tasks[2].cancel()  # it waits
        REFERENCE.check(await tasks[3], given[3])
        assert [await asyncio.gather(each, return_exceptions=True) for each in tasks[1:3]]
        assert ran == [float(given[place]["x"][0, 0]) for place in (0, 1, 3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(module.run_async(given[0]), 0.05)
        REFERENCE.check(await module.run_async(given[0]), given[0])

    asyncio.run(main())


def together(batched: Any, counts: list[int], reference: Reference, make: Any = fresh) -> None:
    given = [make(count) for count in counts]
    with ThreadPoolExecutor(len(counts)) as pool:
        for outputs, each in zip(pool.map(batched.run, given), given, strict=True):
            reference.check(outputs, each)


def test_a_fixed_batch_is_padded(fixed: collage.CompiledModule) -> None:
    with fixed.batched(8, 50) as batched:
        together(batched, [1, 2, 1, 3, 4, 1], REFERENCE)
        with pytest.raises(collage.InputError, match="different numbers of rows: x 2, shift 1"):
            batched.run({**fresh(2), "shift": fresh(1)["shift"]})
        with pytest.raises(collage.InputError, match="5 rows, and the module takes from 1 to 4"):
            batched.run(fresh(5))
        together(batched, [2], REFERENCE)


def test_several_batches_and_a_fallback(shaped: collage.ShapedModule) -> None:
    with shaped.batched(8, 50) as batched:
        together(batched, [1], REFERENCE)
        together(batched, [1, 1, 1, 2, 3, 9], REFERENCE)


def test_rows_of_tables(table: collage.CompiledModule) -> None:
    reference = Reference(trees())
    with table.batched(64, 20) as batched:
        together(batched, [1, 5, 0, 7, 100], reference, lambda count: {"X": rows(count)})

        async def main() -> list[Any]:
            return await asyncio.gather(*(batched.run_async({"X": rows(count)}) for count in (1, 2, 3)))

        assert [len(each["label"]) for each in asyncio.run(main())] == [1, 2, 3]


def test_modules_whose_requests_cannot_be_joined(folder: Path) -> None:
    cases = [
        (dense(1), "one row"),
        (
            make_model([helper.make_node("ReduceMean", ["x"], ["y"])], {"x": [4, 8]}, {"y": [1, 1]}),
            "first axis of y has 1",
        ),
        (
            make_model([helper.make_node("Softmax", ["x"], ["y"], axis=0)], {"x": [4, 8]}, {"y": [4, 8]}),
            "a row of y depends",
        ),
        (make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": []}, {"y": []}), "the input x has no first axis"),
    ]
    for model, words in cases:
        module = collage.compile(model, db=folder / "db", **OPTIONS)
        with pytest.raises(collage.UsageError, match=words) as caught:
            module.batched(8)
        assert "\n" not in str(caught.value)
