"""Bound calls of modules that an engine runs whole: no copies, and right answers for any numbers."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.frontend.session import reference_run
from collage.kernel.buffers import aligned_copy
from collage.runtime.suffix import SuffixExecutor
from tests.helpers.models import make_model

SHAPE = (2, 8, 6, 6)


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["b", "y"], ["c"]),
        helper.make_node("GlobalMaxPool", ["c"], ["m"]),
    ]
    weights = {"w": rng.standard_normal((8, 8, 3, 3)).astype(np.float32)}
    return make_model(nodes, {"x": list(SHAPE), "y": list(SHAPE)}, {"c": list(SHAPE), "m": [2, 8, 1, 1]}, weights)


def drawn(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, 1])
    return {name: rng.standard_normal(SHAPE).astype(np.float32) for name in "xy"}


def expected(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(each) for each in reference_run(network(), feeds)]


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> collage.CompiledModule:
    """The first module of a compile that ends at once."""
    folder = tmp_path_factory.mktemp("whole")
    module = collage.compile(
        network(), backends=[request.param], budget_s=0.01, db=folder / "db.sqlite", progress=False, threads=2
    )
    assert isinstance(module, collage.CompiledModule)
    assert module.program.suffix is not None
    assert not module.program.launches
    assert module.program.executed[-1].backend == request.param
    return module


@pytest.mark.parametrize("budget_s", [0.01, None])
def test_an_output_that_is_an_input(budget_s: float | None, tmp_path: Path) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {"x": [2, 3], "y": [2, 3]}, {})
    module = collage.compile(model, budget_s=budget_s, db=tmp_path / "db", progress=False)
    assert isinstance(module, collage.CompiledModule)
    call = module.bind()
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        call.inputs["x"][...] = x
        call()
        np.testing.assert_array_equal(call.outputs["x"], x)
        np.testing.assert_array_equal(call.outputs["y"], np.maximum(x, 0))


def test_outputs_whose_shapes_change_from_call_to_call(tmp_path: Path) -> None:
    model = make_model([helper.make_node("NonZero", ["x"], ["y"])], {"x": [2, 300]}, {}, {})
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, None]))
    module = collage.compile(model, backends=["onnxruntime"], budget_s=0.01, db=tmp_path / "db", progress=False)
    assert isinstance(module, collage.CompiledModule)
    call, kept = module.bind(), []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = np.where(rng.random((2, 300)) < (seed // 2 + 1) / 8, 1, 0).astype(np.float32)
        call.inputs["x"][...] = x
        call()
        if seed % 3:
            kept.append((call.outputs["y"], np.array(np.nonzero(x))))
        assert call.outputs["y"] is call.outputs["y"]
    for found, wanted in kept:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("rows", [0, 3])
def test_empty_arrays_need_no_alignment(backend: str, rows: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("Slice", ["y", "zero", "zero"], ["none"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 5)).astype(np.float32), "zero": np.zeros(1, np.int64)}
    model = make_model(nodes, {"x": [rows, 4]}, {"y": [rows, 5], "none": [0, 5]}, weights)
    options = {"backends": [backend], "budget_s": 0.01, "db": tmp_path / "db", "progress": False}
    module = collage.compile(model, **options)  # type: ignore[arg-type]
    x = aligned_copy(rng.standard_normal((rows, 4)).astype(np.float32))
    for call in (
        module.bind(),
        module.bind({"x": x}),
        module.clone().bind({}, {"none": np.zeros((0, 5), "f4")}),
    ):
        call.inputs["x"][...] = x
        call()
        for name, wanted in zip(call.outputs, reference_run(model, {"x": x}), strict=True):
            np.testing.assert_allclose(call.outputs[name], wanted, rtol=1e-5)


def test_a_bound_call_reads_and_writes_its_arrays(whole: collage.CompiledModule) -> None:
    call = whole.bind()
    assert isinstance(call, collage.BoundEngine)
    outputs = dict(call.outputs)
    for seed in range(3):
        feeds = drawn(seed)
        for name, array in feeds.items():
            np.copyto(call.inputs[name], array)
        for array in call.outputs.values():
            array.fill(np.nan)
        call()
        assert all(call.outputs[name] is outputs[name] for name in "cm")
        for name, wanted in zip("cm", expected(feeds), strict=True):
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(whole.run(feeds)[name], wanted, rtol=1e-5, atol=1e-5)


def test_arrays_of_the_caller(whole: collage.CompiledModule) -> None:
    feeds = {name: aligned_copy(array) for name, array in drawn(7).items()}
    result = aligned_copy(np.full((2, 8, 1, 1), np.nan, np.float32))
    call = whole.bind(feeds, {"m": result})
    call()
    np.testing.assert_allclose(result, expected(feeds)[1], rtol=1e-5, atol=1e-5)
    other = whole.bind()
    np.copyto(other.inputs["x"], 2 * feeds["x"])
    np.copyto(other.inputs["y"], feeds["y"])
    other()
    call()
    np.testing.assert_allclose(result, expected(feeds)[1], rtol=1e-5, atol=1e-5)


def test_nan_and_infinities_are_answered_as_ever(whole: collage.CompiledModule) -> None:
    call = whole.bind()
    for odd in (np.nan, np.inf, -np.inf, 1.0):
        feeds = drawn(5)
        feeds["x"][0, 1, 2, 3] = odd
        for name, array in feeds.items():
            np.copyto(call.inputs[name], array)
        call()
        for name, wanted in zip("cm", expected(feeds), strict=True):
            np.testing.assert_allclose(call.outputs[name], wanted, rtol=1e-4, atol=1e-4)


def test_an_engine_that_cannot_be_bound_gets_copies(
    whole: collage.CompiledModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, inputs: object, outputs: object) -> None:
        raise RuntimeError("the model has a dynamic port")

    assert isinstance(whole.executor, SuffixExecutor)
    monkeypatch.setattr(type(whole.executor._session), "bind", refuse)
    call, feeds = whole.bind(), drawn(9)
    for name, array in feeds.items():
        np.copyto(call.inputs[name], array)
    call()
    for name, wanted in zip("cm", expected(feeds), strict=True):
        np.testing.assert_allclose(call.outputs[name], wanted, rtol=1e-5, atol=1e-5)


def test_errors_of_the_engine_are_told(whole: collage.CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("out of order")

    assert isinstance(whole.executor, SuffixExecutor)
    monkeypatch.setattr(type(whole.executor._session), "bind", lambda self, inputs, outputs: fails)
    call = whole.bind()
    for array in call.inputs.values():
        array.fill(1.0)
    with pytest.raises(collage.CollageError, match="fails on these inputs: out of order"):
        call()


def test_calls_from_several_threads_take_turns(whole: collage.CompiledModule) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        call, feeds = whole.bind(), drawn(seed)
        for name, array in feeds.items():
            np.copyto(call.inputs[name], array)
        wanted = expected(feeds)[0]
        for _ in range(20):
            call()
            if not np.allclose(call.outputs["c"], wanted, rtol=1e-5, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
