"""Where Collage's own rewriting makes something that no engine takes, an engine runs the model as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import collage
import collage.compiler.compile
import collage.frontend.rewrite.simplify
from collage.errors import InputError
from tests.helpers.models import make_model
from tests.helpers.preferred import preferred

RNG = np.random.default_rng(0)
RATE = 16000


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("db") / "measurements.sqlite"


def compiled(model: onnx.ModelProto, database: Path, **options: Any) -> collage.CompiledModule:
    return collage.compile(model, db=database, progress=False, quick=True, backends=["onnxruntime"], **options)


def two_rates(through: str = "") -> onnx.ModelProto:
    """Two networks, each for one length: 8 numbers at RATE, 4 at any other. Fixed to either length, one is no network.

    ``through`` is an operator between the rate and what it is compared with.
    """

    def branch(weights: str, result: str) -> onnx.GraphProto:
        return helper.make_graph(
            [
                helper.make_node("MatMul", ["x", weights], [f"{result}0"]),
                helper.make_node("Tanh", [f"{result}0"], [result]),
            ],
            result,
            [],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, ["n", 3])],
        )

    nodes = [
        helper.make_node("Equal", ["r" if through else "rate", "wanted"], ["fast"]),
        helper.make_node("If", ["fast"], ["y"], then_branch=branch("long", "a"), else_branch=branch("short", "b")),
    ]
    if through == "Cast":
        nodes.insert(0, helper.make_node("Cast", ["rate"], ["r"], to=TensorProto.INT64))
    elif through:
        nodes.insert(0, helper.make_node(through, ["rate"], ["r"]))
    weights = {
        "wanted": np.array(RATE),
        "long": RNG.standard_normal((8, 3)).astype(np.float32),
        "short": RNG.standard_normal((4, 3)).astype(np.float32),
    }
    inputs = {"x": ["n", "length"], "rate": []}
    kind = TensorProto.INT32 if through == "Cast" else TensorProto.INT64
    return make_model(nodes, inputs, {"y": ["n", 3]}, weights, types={"rate": kind})


def runs_like(model: onnx.ModelProto, module: collage.CompiledModule, inputs: dict[str, Any]) -> None:
    expected = ReferenceEvaluator(model).run(None, inputs)
    for actual, reference in zip(module.run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("length", "rate"), [(8, RATE), (4, 8000)])
def test_shapes_that_one_branch_cannot_have(length: int, rate: int, database: Path, tmp_path: Path) -> None:
    model = two_rates()
    module = compiled(model, database, shapes={"x": (2, length)})
    assert [region.backend for region in module.program.regions] == ["onnxruntime"]
    assert any("runs as its author wrote it, on inputs of the given shapes" in n for n in module.report.notes)
    assert module.report.finalists  # it was measured: on a rate that the network of this length is for
    assert module.inputs == {"x": f"float32[2x{length}]", "rate": "int64[]"}
    x = RNG.standard_normal((2, length)).astype(np.float32)
    runs_like(model, module, {"x": x, "rate": np.array(rate)})
    with pytest.raises(InputError, match=f"x has shape 3x{length}"):
        module.run({"x": x[[0, 0, 1]], "rate": np.array(rate)})
    path = tmp_path / "net.collage"
    module.save(path)
    runs_like(model, collage.load(path), {"x": x, "rate": np.array(rate)})
    assert compiled(model, database, shapes={"x": (2, length)}).report.measurements_made == 0


def test_each_of_two_shapes_runs_its_branch(database: Path) -> None:
    model = two_rates()
    module = collage.compile_shapes(
        model,
        [{"x": (1, 8)}, {"x": (1, 4)}],
        db=database,
        progress=False,
        quick=True,
        backends=["onnxruntime"],
    )
    for length, rate in ((8, RATE), (4, 8000), (8, RATE)):
        x = RNG.standard_normal((1, length)).astype(np.float32)
        expected = ReferenceEvaluator(model).run(None, {"x": x, "rate": np.array(rate)})
        found = module.run({"x": x, "rate": np.array(rate)})
        np.testing.assert_allclose(found["y"], expected[0], rtol=1e-4, atol=1e-5)


def test_extents_of_minus_one_are_open(database: Path) -> None:
    model = two_rates()
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    with pytest.raises(collage.CollageError, match=r"x: \? x length\. .* --shape x:1x128"):
        compiled(model, database, strict=True)
    module = compiled(model, database, shapes={"x": (3, 8)})
    runs_like(model, module, {"x": RNG.standard_normal((3, 8)).astype(np.float32), "rate": np.array(RATE)})


def renamed(model: onnx.ModelProto, *_: Any) -> onnx.ModelProto:
    """A model that nobody takes, made in the place of a good one."""
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    for node in broken.graph.node:
        node.op_type = f"{node.op_type}OfCollage"
    return broken


def raises(*_: Any, **__: Any) -> onnx.ModelProto:
    raise IndexError("list index\nout of range")


def wrong(model: onnx.ModelProto, **_: Any) -> onnx.ModelProto:
    """A simplification that loses an operator."""
    broken = SIMPLIFY(model)
    for node in broken.graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Relu"
    return broken


SIMPLIFY = collage.frontend.rewrite.simplify.simplify
FOLD, COMPILER = collage.frontend.rewrite.simplify, collage.compiler.compile
FAULTS: dict[str, tuple[object, str, Any, str]] = {
    "shapes": (COMPILER, "fix_shapes", lambda m, _: m.CopyFrom(renamed(m)), "as its author wrote it"),
    "types raise": (FOLD, "AFTER", [raises], "import fails (IndexError: list index out of range)"),
    "simplified for nobody": (
        FOLD,
        "simplify",
        lambda m, **_: renamed(SIMPLIFY(m)),
        "runs the model whole",
    ),
    "simplified wrongly": (FOLD, "simplify", wrong, "outputs differ from ONNX Runtime's"),
}


@pytest.mark.parametrize("step", FAULTS)
def test_a_step_that_fails_costs_the_placement_only(step: str, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, fault, reason = FAULTS[step]
    node = helper.make_node
    nodes = [node("Celu", ["x"], ["c"]), node("MatMul", ["c", "w"], ["m"]), node("Tanh", ["m"], ["y"])]
    weights = {"w": RNG.standard_normal((6, 5)).astype(np.float32)}
    model = make_model(nodes, {"x": [4, 6]}, {"y": [4, 5]}, weights)
    monkeypatch.setattr(place, name, fault)
    with preferred():
        module = compiled(model, database)
    (region,) = module.program.regions
    assert region.backend == "onnxruntime"
    assert any("runs the model whole" in note for note in module.report.notes)
    assert any(reason in note for note in module.report.notes)
    runs_like(model, module, {"x": RNG.standard_normal((4, 6)).astype(np.float32)})
