"""Times of launches inside the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.measure.timing.launch_times import NotedRuns, run_in_turns


def gather_net() -> onnx.ModelProto:
    """Indices whose buffer is free after the first node: were it not filled again, the second run would crash."""
    nodes = [
        helper.make_node("Gather", ["table", "indices"], ["rows"]),
        helper.make_node("Softmax", ["rows"], ["soft"]),
        helper.make_node("Exp", ["soft"], ["raised"]),
        helper.make_node("Softmax", ["raised"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gather",
        [helper.make_tensor_value_info("indices", TensorProto.INT64, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 8])],
        [helper.make_tensor("table", TensorProto.FLOAT, [100, 8], np.arange(800, dtype=np.float32))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_times_are_positive_and_inputs_are_set_for_each_run(tmp_path: Path) -> None:
    module = collage.compile(gather_net(), backends=["tvm"], db=tmp_path / "db.sqlite", progress=False)
    indices = np.random.default_rng(0).integers(0, 100, 64)
    noted = NotedRuns(module.executor, [indices])
    run_in_turns(noted, 0.05)
    times = noted.launches_us()
    assert len(times) == len(module.program.launches)
    assert all(0 < each < 10_000 for each in times)


def test_the_parts_are_timed_in_the_rounds_of_the_whole_and_recalled_with_it(tmp_path: Path) -> None:
    first, again = (
        collage.compile(gather_net(), backends=["tvm"], db=tmp_path / "db.sqlite", progress=False) for _ in range(2)
    )
    parts = [region.cost_us for region in first.program.launches]
    assert len(parts) > 1
    assert sum(parts) == pytest.approx(first.report.predicted_us)
    assert again.report.measurements_made == 0
    assert [region.cost_us for region in again.program.launches] == parts
