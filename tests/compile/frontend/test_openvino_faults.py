"""OpenVINO is refused for what it gets wrong on ordinary inputs, and not for what it might."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import UnsupportedError
from collage.backends.openvino import OpenVino
from collage.frontend.model import import_model
from collage.frontend.session import reference_run
from collage.kernel.options import BuildOptions
from collage.measure.measured_model import MeasuredModel
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from tests.helpers.models import make_model

N = helper.make_node
FLOAT = TensorProto.FLOAT


def grid(*, symbolic: bool = False) -> onnx.ModelProto:
    """Anchors as YOLOv8's export has them: a Range of floats that counts to an extent."""
    nodes = [
        N("Conv", ["x", "w"], ["y"], pads=[1] * 4),
        N("Shape", ["y"], ["s"]),
        N("Gather", ["s", "last"], ["n"]),
        N("Cast", ["n"], ["f"], to=FLOAT),
        N("Range", ["zero", "f", "one"], ["r"]),
        N("Add", ["r", "half"], ["a"]),
        N("Add", ["y", "a"], ["out"]),
    ]
    constants = {
        "w": np.ones((4, 3, 3, 3), np.float32),
        "last": np.array(3),
        **{name: np.array(n, np.float32) for name, n in (("zero", 0), ("one", 1), ("half", 0.5))},
    }
    width: Any = "width" if symbolic else 8
    return make_model(nodes, {"x": [1, 3, 8, width]}, {"out": [1, 4, 8, width]}, constants)


def single(*nodes: onnx.NodeProto, types: Mapping[str, int] | None = None, **constants: Any) -> onnx.ModelProto:
    return make_model([*nodes], {"x": [4, 4]}, {"y": [4, 4]}, constants, types=dict(types or {}))


def masked() -> onnx.ModelProto:
    """A softmax of rows that a mask may hide as a whole."""
    shapes = {"x": [4, 4], "m": [4, 4]}
    nodes = [N("Where", ["m", "x", "least"], ["s"]), N("Softmax", ["s"], ["y"])]
    least = {"least": np.array(-np.inf, np.float32)}
    return make_model(nodes, shapes, {"y": [4, 4]}, least, types={"m": TensorProto.BOOL})


ELIGIBLE = {
    "a Range of an extent": grid(),
    "a Range of a symbolic extent": grid(symbolic=True),
    "Log": single(N("Log", ["x"], ["y"])),
    "Div by data": single(N("ReduceSum", ["x"], ["s"]), N("Div", ["x", "s"], ["y"])),
    "masked rows": masked(),
    "64-bit integers": single(N("Mul", ["x", "c"], ["y"]), types=dict.fromkeys("xy", TensorProto.INT64), c=np.array(3)),
    "a quotient by a power of two": single(N("Div", ["x", "c"], ["q"]), N("Floor", ["q"], ["y"]), c=np.float32(8)),
}
REFUSED = {
    "counts in floats": make_model(
        [N("Range", ["zero", "x", "one"], ["y"])],
        {"x": []},
        {"y": ["n"]},
        {"zero": np.float32(0), "one": np.float32(0.1)},
    ),
    "rounded reciprocal": single(N("Div", ["x", "c"], ["q"]), N("Floor", ["q"], ["y"]), c=np.float32(41)),
    "equal numbers": make_model([N("Hardmax", ["x"], ["y"])], {"x": [4, 32]}, {"y": [4, 32]}),
}


@pytest.mark.parametrize("name", ELIGIBLE)
def test_openvino_is_eligible(name: str) -> None:
    model = ELIGIBLE[name]
    OpenVino().check_proto(model)
    OpenVino().check_model(model.SerializeToString())
    OpenVino().codegen_model(model, BuildOptions())


@pytest.mark.parametrize("reason", REFUSED)
def test_openvino_is_refused(reason: str) -> None:
    model = REFUSED[reason]
    with pytest.raises(UnsupportedError, match=reason):
        OpenVino().check_proto(model)
    with pytest.raises(UnsupportedError, match=reason):
        OpenVino().codegen_model(model, BuildOptions())


def test_faults_in_bodies_and_functions_are_found() -> None:
    branch = helper.make_graph(
        [N("Div", ["x", "c"], ["q"]), N("Floor", ["q"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", FLOAT, [4, 4])],
    )
    inside = make_model(
        [N("If", ["k"], ["y"], then_branch=branch, else_branch=branch)],
        {"x": [4, 4], "k": []},
        {"y": [4, 4]},
        {"c": np.float32(41)},
        types={"k": TensorProto.BOOL},
    )
    body = [
        N("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(41))),
        N("Div", ["x", "c"], ["q"]),
        N("Floor", ["q"], ["y"]),
    ]
    called = make_model([N("F", ["x"], ["y"], domain="own")], {"x": [4, 4]}, {"y": [4, 4]})
    function = helper.make_function("own", "F", ["x"], ["y"], body, list(called.opset_import))
    called.functions.append(function)
    called.opset_import.append(helper.make_opsetid("own", 1))
    for model in (inside, called):
        with pytest.raises(UnsupportedError, match="rounded reciprocal"):
            OpenVino().check_proto(model)


def test_regions_with_a_fault_are_not_offered() -> None:
    context = MatchContext(import_model(REFUSED["rounded reciprocal"]))
    matches, rejected = find_matches(context, "openvino", OpenVino().sources(BuildOptions()))
    assert not matches
    assert any("rounded reciprocal" in each.reason for each in rejected)


@pytest.mark.parametrize(
    ("reason", "x"),
    [
        ("rounded reciprocal", np.arange(16, dtype=np.float32).reshape(4, 4) * 41),
        ("equal numbers", np.arange(128, dtype=np.float32).reshape(4, 32) % 3),
    ],
)
def test_what_is_refused_is_still_wrong(reason: str, x: Any) -> None:
    """If this fails, OpenVINO is right by now, and the fault can go."""
    pytest.importorskip("openvino")
    session = OpenVino().session(REFUSED[reason].SerializeToString(), BuildOptions())
    (expected,) = reference_run(REFUSED[reason], {"x": x})
    assert not np.array_equal(session.run([x])[0], expected)


FINITE_ONLY = Measurement(1.0, 0.1, 0.9, 10, 0.0, finite_only=True)


def unusable(nodes: Sequence[int] | None, model: MeasuredModel) -> str:
    everything = tuple(range(len(model.model.graph.nodes)))
    request = CandidateRequest(everything if nodes is None else tuple(nodes), "openvino")
    return getattr(model.usable(request, FINITE_ONLY), "message", "")


@pytest.mark.parametrize("name", ["a Range of an extent", "Log", "Div by data", "masked rows"])
def test_kernels_that_are_right_on_finite_numbers_are_usable(name: str) -> None:
    """What a scan of the model's inputs does not find is as the samples have shown."""
    assert unusable(None, MeasuredModel(import_model(ELIGIBLE[name]))) == ""


def test_kernels_that_cannot_be_guarded() -> None:
    model = import_model(single(N("Exp", ["x"], ["e"]), N("Relu", ["e"], ["y"])))
    assert "2 GiB" in unusable(None, MeasuredModel(model, guards=False))
    assert "exact" in unusable(None, MeasuredModel(model, exact=True))
    first, last = model.graph.nodes
    inner = MeasuredModel(model)
    inner.extraordinary.update(first.outputs)  # of ordinary inputs
    assert unusable([last.id], inner) == ""
    given = MeasuredModel(model)
    given.extraordinary.update((*model.graph.inputs, *first.outputs))
    assert "usual inputs" in unusable([first.id], given) and "usual inputs" in unusable([last.id], given)
    half = MeasuredModel(model)
    half.extraordinary.update(model.graph.inputs)
    assert "usual inputs" in unusable([first.id], half) and unusable([last.id], half) == ""
