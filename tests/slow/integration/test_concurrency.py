"""Real kernels on streams: a network with branches, every launch on a stream, against ONNX Runtime."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import collage
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.compiler.plan import Placed
from collage.compiler.propose import streams
from collage.schedule.dag import Dag
from collage.schedule.timeline import Algorithm, Costs, TimedSchedule
from tests.helpers.finished import forget_finished, nothing_but_recalled
from tests.helpers.models import make_model
from tests.helpers.preferred import preferred

pytestmark = pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)
NAMES = ["onednn", "tvm", *(["native"] if Native().available() else [])]


def branches(depth: int = 3) -> onnx.ModelProto:
    """Cells of a wide and a pointwise convolution, a depthwise one and a pool, added and concatenated."""
    rng = np.random.default_rng(0)
    nodes, weights = [], {}

    def conv(source: str, to: str, window: int, groups: int = 1) -> None:
        weights[f"w_{to}"] = (rng.standard_normal((32, 32 // groups, window, window)) / window / 5).astype(np.float32)
        pads = [window // 2] * 4
        nodes.append(helper.make_node("Conv", [source, f"w_{to}"], [to], pads=pads, group=groups))

    value = "x"
    for cell in range(depth):
        conv(value, f"a{cell}", 3)
        conv(value, f"b{cell}", 1)
        conv(value, f"c{cell}", 3, groups=32)
        pool = {"kernel_shape": [3, 3], "pads": [1] * 4}
        nodes.append(helper.make_node("MaxPool", [value], [f"d{cell}"], **pool))
        nodes.append(helper.make_node("Relu", [f"a{cell}"], [f"r{cell}"]))
        nodes.append(helper.make_node("Add", [f"r{cell}", f"b{cell}"], [f"s{cell}"]))
        nodes.append(helper.make_node("Add", [f"c{cell}", f"d{cell}"], [f"t{cell}"]))
        nodes.append(helper.make_node("Concat", [f"s{cell}", f"t{cell}"], [f"u{cell}"], axis=1))
        weights[f"w_v{cell}"] = (rng.standard_normal((32, 64, 1, 1)) / 8).astype(np.float32)
        nodes.append(helper.make_node("Conv", [f"u{cell}", f"w_v{cell}"], [f"v{cell}"]))
        value = f"v{cell}"
    return make_model(nodes, {"x": [1, 32, 14, 14]}, {value: [1, 32, 14, 14]}, weights)


@pytest.fixture(scope="module", params=["list", "nimble", "opara"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> collage.CompiledModule:
    """Compiled with everything on a stream that can be, whatever it costs, and that schedule as the winner."""
    propose = streams._proposals

    def all_alone(dag: Dag, costs: Costs, threads: int, algorithm: Algorithm) -> TimedSchedule:
        able = frozenset(v for v, us in enumerate(costs.single_threaded_us) if us is not None)
        return TimedSchedule(algorithm(dag, costs, threads, able).schedule, 0.0)

    def chosen(*args: Any) -> list[tuple[str, TimedSchedule]]:
        return [each for each in propose(*args) if each[0] == request.param]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dag, "beside_others", property(lambda dag: frozenset(range(len(dag)))))
        patch.setattr(streams, "schedule_inter_op", all_alone)
        patch.setattr(streams, "_proposals", chosen)
        db = tmp_path_factory.getbasetemp() / "side_by_side.sqlite"
        forget_finished(db)  # the other algorithms, which are no options, have left theirs
        with preferred(lambda plan: isinstance(plan, Placed) and plan.streams is not None):
            module = collage.compile(branches(), backends=NAMES, threads=2, db=db, progress=False)
    assert module.summary()["schedule"] == request.param
    return module


def check(module: collage.CompiledModule) -> None:
    session = ort.InferenceSession(branches().SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((1, 32, 14, 14)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(module(x), wanted, atol=1e-4 * np.abs(wanted).max())


def test_launches_run_on_two_streams_with_the_right_numbers(module: collage.CompiledModule) -> None:
    assert {region["stream"] for region in module.placement} == {0, 1}
    assert all(region["threads"] == 1 for region in module.placement if region["backend"] != "view")
    assert module.program.ordered.events
    check(module)


def test_streams_survive_the_module_file(module: collage.CompiledModule, tmp_path: Path) -> None:
    module.save(tmp_path / "streams.collage")
    loaded = collage.load(tmp_path / "streams.collage")
    assert loaded.program == module.program
    check(loaded)


def test_streams_are_recalled(module: collage.CompiledModule, tmp_path_factory: pytest.TempPathFactory) -> None:
    with nothing_but_recalled():
        again = collage.compile(
            branches(),
            backends=NAMES,
            threads=2,
            db=tmp_path_factory.getbasetemp() / "side_by_side.sqlite",
            progress=False,
        )
    assert again.report.measurements_made == 0
    assert again.program == module.program
    assert again.report.schedule == module.report.schedule
    check(again)
    for node in again.summary()["nodes"]:
        chosen = [each for each in node["candidates"] if each["verdict"] == "chosen"]
        assert len(chosen) == 1
        assert chosen[0]["split"].endswith("one thread") or chosen[0]["backend"] == "view"


def test_the_time_line_shows_both_threads_and_respects_the_graph(module: collage.CompiledModule) -> None:
    x = np.random.default_rng(0).standard_normal((1, 32, 14, 14)).astype(np.float32)
    events = [each for each in module.trace({"x": x})["traceEvents"] if each["ph"] == "X"]
    assert {each["tid"] for each in events} == {0, 1}
    by_launch = {each["args"]["launch"]: each for each in events}
    assert sorted(by_launch) == list(range(len(module.program.launches)))
    for u, v in module.program.ordered.dag.edges:
        assert by_launch[u]["ts"] + by_launch[u]["dur"] <= by_launch[v]["ts"]
    for thread in (0, 1):
        row = sorted((each for each in events if each["tid"] == thread), key=lambda each: each["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(row))
