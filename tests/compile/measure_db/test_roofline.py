"""The roofline: nothing that runs is faster, and what need not be done is not counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.api import default_registry
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.machine_speeds import WRITTEN_DOWN
from collage.kernel.options import BuildOptions
from collage.kernel.target import host
from collage.measure.machine.speeds import machine_speeds
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.roofline import LeastWork, least_us, work_of
from collage.measure.settings import MeasureSettings
from collage.measure.timing.effort import FULL
from collage.measure.worker.process import Workers
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement
from collage.native import core_problem
from collage.native.speed import can_measure
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from collage.search.candidates import offers_of
from tests.models import make_model

KNOWN = replace(WRITTEN_DOWN, measured=True)


def network() -> onnx.ModelProto:
    """Convolutions of several kinds, a pooling, a product and a softmax, large enough to take their time."""
    rng = np.random.default_rng(0)
    shapes = {"a": (64, 32, 3, 3), "b": (128, 64, 1, 1), "c": (128, 4, 3, 3), "d": (128, 512)}
    weights = {name: (0.1 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"], pads=[1] * 4),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b"], ["3"]),
        helper.make_node("Conv", ["3", "c"], ["4"], pads=[1] * 4, group=32),
        helper.make_node("MaxPool", ["4"], ["5"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Transpose", ["5"], ["6"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["6", "d"], ["7"]),
        helper.make_node("Softmax", ["7"], ["y"], axis=-1),
    ]
    return make_model(nodes, {"x": [1, 32, 56, 56]}, {"y": [1, 28, 28, 512]}, weights)


@pytest.mark.skipif(bool(core_problem()) or not can_measure(), reason="the loops were not built")
def test_no_kernel_is_faster(tmp_path: Path) -> None:
    registry, target = default_registry(), host(2)
    backends = registry.select(None)
    model, build = import_model(network()), BuildOptions(threads=2)
    about = MatchContext(model)
    matches = [m for name in backends for m in find_matches(about, name, registry.sources(name, build))[0]]
    offers, _ = offers_of(model, matches, backends, build)
    versions = {name: each.available().version for name, each in backends.items()}
    settings = MeasureSettings(backends, versions, build, target.measured_on, FULL)
    with Database(tmp_path / "db.sqlite") as database, Workers() as workers:
        speeds = machine_speeds(target, database, workers, 0.2)
        session = WorkerSession(MeasuredModel(model), settings, workers)
        with Measurer(session, database) as measurer:
            outcomes = measurer.measure([offer.request for offer in offers])
    assert speeds.measured
    measured = {r: o for r, o in outcomes.items() if isinstance(o, Measurement)}
    assert len(measured) > 20
    for request, outcome in measured.items():
        subgraph = Subgraph(model, request.nodes)
        direct = not backends[request.backend].reassociates(subgraph, request.variant)
        assert least_us(subgraph, speeds, direct=direct) <= outcome.min_us, (
            request.backend,
            str(request.variant),
            str(subgraph),
        )
    bounds = {n.op: least_us(Subgraph(model, (n.id,)), speeds) for n in model.graph.nodes}
    assert min(bounds["nn.conv2d"], bounds["matmul"], bounds["nn.softmax"], bounds["nn.relu"]) > 0.1


def chain(*nodes: onnx.NodeProto, **weights: np.ndarray) -> tuple[Model, Callable[..., LeastWork]]:
    model = import_model(
        make_model([*nodes], {"x": [1, 16, 8, 8]}, {nodes[-1].output[0]: [None] * 4}, weights)
    )

    def work(*ops: str) -> LeastWork:
        return work_of(Subgraph(model, tuple(n.id for n in model.graph.nodes if not ops or n.op in ops)))

    return model, work


WEIGHTS = np.ones((32, 16, 3, 3), np.float32)
CONV = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4)
DATA, RESULT = 4 * 16 * 64, 4 * 32 * 64


def test_a_convolution_and_a_function() -> None:
    model, work = chain(CONV, helper.make_node("Relu", ["c"], ["y"]), w=WEIGHTS)
    assert work_of(Subgraph(model, (0, 1)), direct=True).flop == 4 * work().flop
    flop = 2 * 32 * 16 * (3 * 8 - 2) ** 2 / 4
    assert (
        work("nn.conv2d")
        == work()
        == LeastWork(flop, DATA + WEIGHTS.nbytes, RESULT, DATA + WEIGHTS.nbytes + RESULT)
    )
    assert work("nn.relu") == LeastWork(0.0, RESULT, RESULT, RESULT)  # which may overwrite what it reads


def test_what_a_slice_leaves_out_need_not_be_computed() -> None:
    begin, end = np.array([0], np.int64), np.array([1], np.int64)
    cut = helper.make_node("Slice", ["c", "begin", "end", "begin"], ["y"])
    _, work = chain(CONV, cut, w=WEIGHTS, begin=begin, end=end)
    cut_alone = work("strided_slice")
    assert cut_alone.read_bytes == 0 and cut_alone.written_bytes > 0
    assert work().flop == 0.0 and work().read_bytes == 0


def test_pixels_that_a_stride_leaves_out_need_not_be_read() -> None:
    points = np.ones((32, 16, 1, 1), np.float32)
    _, work = chain(helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2]), w=points)
    assert work() == LeastWork(2 * 32 * 16 * 16, points.nbytes, 4 * 32 * 16, points.nbytes + 4 * 32 * 16)


def test_nothing_is_known_without_measurements() -> None:
    model, _ = chain(CONV, w=WEIGHTS)
    subgraph = Subgraph(model, (0,))
    assert least_us(subgraph, WRITTEN_DOWN) == 0.0
    assert least_us(subgraph, KNOWN) > 0.0


def test_the_slower_of_arithmetic_and_memory_counts() -> None:
    model, work = chain(CONV, w=WEIGHTS)
    subgraph, flop = Subgraph(model, (0,)), work().flop
    slow = replace(KNOWN, peak_gflops=1e-3)
    assert least_us(subgraph, slow) == pytest.approx(flop / (2 * 1e-3 * 1e3) / 1.1)
    # With caches too small for it, all but what they hold goes through memory: here at 1 GB/s.
    tiny = tuple(replace(each, nbytes=each.nbytes and 64) for each in KNOWN.levels[:-1])
    memory = replace(KNOWN.memory, read_gbs=1.0, write_gbs=1.0, team_read_gbs=1.0, team_write_gbs=1.0)
    held = 2 * 64 + 2 * 64 + 64
    found = least_us(subgraph, replace(KNOWN, levels=(*tiny, memory), peak_gflops=1e6))
    assert found == pytest.approx((work().footprint - held) / 1e3 / 1.1)
