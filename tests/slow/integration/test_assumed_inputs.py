"""Models that choose a branch by a setting: placed for the samples' setting, and right for all others."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import collage
from collage.errors import InputError
from collage.frontend.session import reference_run
from collage.runtime.executor import Executor

SHAPE = (1, 8, 10, 10)


def network() -> onnx.ModelProto:
    """One of two convolutions, by a rate; a branch for more channels than there are is never possible."""
    rng = np.random.default_rng(5)

    def branch(name: str, size: int) -> onnx.GraphProto:
        weights = (rng.standard_normal((8, 8, size, size)) / 10).astype(np.float32)
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], f"{name} conv", pads=[size // 2] * 4),
            helper.make_node("Relu", ["c"], ["t"], f"{name} relu"),
        ]
        info = helper.make_tensor_value_info("t", TensorProto.FLOAT, SHAPE)
        return helper.make_graph(nodes, name, [], [info], [numpy_helper.from_array(weights, "w")])

    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node(
            "If", ["is_wide"], ["r"], "choose", then_branch=branch("wide", 3), else_branch=branch("narrow", 1)
        ),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
            helper.make_tensor_value_info("rate", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        [numpy_helper.from_array(np.array([16000], np.int64), "wide")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def drawn(rate: int, seed: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return {"x": x, "rate": np.array([rate], np.int64)}


@pytest.fixture(scope="module", params=[16000, 8000])
def placed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, collage.CompiledModule, Path]:
    """Placed by libraries that cannot run the whole model; saved and loaded again."""
    folder = tmp_path_factory.mktemp("assumed")
    module = collage.compile(
        network(),
        backends=["onednn", "tvm", "native"],
        inputs=drawn(request.param, 0),
        db=folder / "db.sqlite",
        progress=False,
        threads=2,
        strict=True,
    )
    assert isinstance(module, collage.CompiledModule)
    module.save(folder / "module.collage")
    loaded = collage.load(folder / "module.collage")
    assert isinstance(loaded, collage.CompiledModule)
    return request.param, loaded, folder / "module.collage"


def test_it_is_placed_and_right_for_every_value(
    placed: tuple[int, collage.CompiledModule, Path], caplog: pytest.LogCaptureFixture
) -> None:
    rate, module, _ = placed
    assert module.program.launches
    assert isinstance(module.executor, Executor)
    assert module.executor.careful is not None
    with caplog.at_level(logging.WARNING):
        for seed, value in enumerate((rate, 8000, 16000, 2**40, rate)):
            feeds = drawn(value, seed)
            before = module.executor.careful_runs
            found = module.run(feeds)["y"]
            np.testing.assert_allclose(found, reference_run(network(), feeds)[0], rtol=1e-4, atol=1e-4)
            assert (module.executor.careful_runs > before) == (value != rate)
    assert sum("was not placed for" in record.message for record in caplog.records) == 1


def test_bound_calls_and_clones_compare_the_setting_too(
    placed: tuple[int, collage.CompiledModule, Path],
) -> None:
    rate, module, _ = placed
    for call in (module.bind(), module.clone().bind()):
        for value in (rate, 24000 - rate, 0, rate):
            feeds = drawn(value, value % 7)
            for name, array in feeds.items():
                np.copyto(call.inputs[name], array)
            call.outputs["y"].fill(np.nan)
            call()
            wanted = reference_run(network(), feeds)[0]
            np.testing.assert_allclose(call.outputs["y"], wanted, rtol=1e-4, atol=1e-4)


def test_a_compile_for_one_setting_is_not_recalled_for_another(tmp_path: Path) -> None:
    for rate in (3, 4, 3):
        module = collage.compile(
            network(),
            backends=["onednn", "tvm", "native"],
            inputs=drawn(rate, 0),
            db=tmp_path / "db.sqlite",
            progress=False,
            threads=2,
        )
        assert isinstance(module, collage.CompiledModule)
        (content,) = module.program.assumed.values()
        assert np.frombuffer(content, np.int64).tolist() == [rate]
        feeds = drawn(rate, 2)
        wanted = reference_run(network(), feeds)[0]
        np.testing.assert_allclose(module.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-4)
        assert isinstance(module.executor, Executor)
        assert module.executor.careful_runs == 0


def test_indices_are_those_of_the_setting(tmp_path: Path) -> None:
    """A branch with a longer table takes indices that the placed branch does not have."""
    rng = np.random.default_rng(1)
    tables = {"short": rng.random((10, 4), np.float32), "long": rng.random((1000, 4), np.float32)}

    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Gather", ["t", "i"], ["g"]),
            helper.make_node("Relu", ["g"], ["o"]),
        ]
        info = helper.make_tensor_value_info("o", TensorProto.FLOAT, [2, 4])
        return helper.make_graph(nodes, name, [], [info], [numpy_helper.from_array(tables[name], "t")])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("short"), else_branch=branch("long"))
    graph = helper.make_graph(
        [node],
        "main",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    inputs = {"c": np.array(True), "i": np.array([1, 2])}
    db = tmp_path / "db.sqlite"
    module = collage.compile(model, backends=["tvm"], inputs=inputs, db=db, progress=False, quick=True)
    np.testing.assert_array_equal(module.run(inputs)["y"], tables["short"][[1, 2]])
    with pytest.raises(InputError, match="holds the index 50"):
        module.run({**inputs, "i": np.array([50, 2])})
    found = module.run({"c": np.array(False), "i": np.array([50, 2])})["y"]
    np.testing.assert_array_equal(found, tables["long"][[50, 2]])
