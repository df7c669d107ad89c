"""Bound calls where an engine makes outputs: of unknown shapes, of strings, and behind launches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.errors import InputError, UsageError
from collage.graph.value_type import OPTIONAL, SEQUENCE, TENSOR, ValueType
from collage.kernel.kernel import Session
from collage.runtime.bound_engine import Launches
from collage.runtime.original import Careful
from collage.runtime.suffix import _bound
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, ValuePort
from tests.helpers.models import make_model


def bound(model: onnx.ModelProto, folder: Path) -> tuple[collage.CompiledModule, collage.BoundSuffix]:
    module = collage.compile(model, db=folder / "db.sqlite", progress=False, threads=2)
    assert isinstance(module, collage.CompiledModule)
    call = module.bind()
    assert isinstance(call, collage.BoundSuffix)
    return module, call


def test_outputs_of_unknown_shapes_are_new_in_each_call(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    model = make_model(nodes, {"x": [3, 4]}, {"y": [2, "n"]}, {})
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    module, call = bound(model, tmp_path)
    before = None
    rng = np.random.default_rng(0)
    for count in (0, 5, 12, 3):
        x = np.zeros(12, np.float32)
        x[rng.permutation(12)[:count]] = 1.0
        np.copyto(call.inputs["x"], x.reshape(3, 4))
        call()
        np.testing.assert_array_equal(call.outputs["y"], np.stack(np.nonzero(x.reshape(3, 4))))
        assert call.outputs["y"] is not before
        before = call.outputs["y"]
    with pytest.raises(UsageError, match="runs the model's whole graph and makes the outputs: give inputs only"):
        module.bind(outputs={"y": np.zeros((2, 5), np.int64)})


def test_what_the_engine_made_before_is_kept(tmp_path: Path) -> None:
    nodes = [helper.make_node("Unique", ["x"], ["y"])]
    _, call = bound(make_model(nodes, {"x": [6]}, {"y": ["n"]}, {}), tmp_path)
    kept = []
    for row in ([1, 2, 3, 1, 2, 3], [4, 4, 4, 4, 4, 4], [6, 5, 4, 3, 2, 1], [7, 8, 9, 7, 8, 9]):
        np.copyto(call.inputs["x"], np.array(row, np.float32))
        call()
        kept.append((sorted(set(row)), call.outputs["y"]))
    for wanted, made in kept:
        np.testing.assert_array_equal(made, np.array(wanted, np.float32))


def comparing(folder: Path) -> collage.CompiledModule:
    """A module that compares two arrays of two strings."""
    nodes = [helper.make_node("Equal", ["s", "t"], ["y"])]
    model = make_model(nodes, {"s": [2], "t": [2]}, {"y": [2]}, {})
    for info, kind in zip([*model.graph.input, *model.graph.output], [8, 8, 9], strict=True):
        info.type.tensor_type.elem_type = kind
    model.opset_import[0].version = 19
    module = collage.compile(model, db=folder / "db.sqlite", progress=False, threads=1)
    assert isinstance(module, collage.CompiledModule)
    return module


def test_strings_are_read_in_place(tmp_path: Path) -> None:
    module = comparing(tmp_path)
    s, t = np.array(["a", "b"], object), np.array(["a", "c"], object)
    call = module.bind({"s": s, "t": t})
    call()
    assert call.outputs["y"].tolist() == [True, False]
    s[:] = ["x", "c"]
    call()
    assert call.outputs["y"].tolist() == [False, True]
    t[:] = ["x", b"c"]
    assert module(s, t).tolist() == [True, True]
    assert t.tolist() == ["x", b"c"]  # bytes are read, and stay what they are
    with pytest.raises(InputError, match=r"input t is no numpy array of str .*reads its inputs in place"):
        module.bind({"s": s, "t": t})
    for given in (["a", "b"], np.array(["a", "b"])):
        with pytest.raises(InputError, match=r"input s is no numpy array of str .*reads its inputs in place"):
            module.bind({"s": given, "t": s})  # type: ignore[dict-item]


def test_lists_of_arrays_are_read_in_place() -> None:
    element = ValueType(TENSOR, "float32", (None,))
    port = ValuePort("xs", ValueType(SEQUENCE, element=element))
    given = [np.ones(3, np.float32), np.ones(4, np.float32)]
    assert _bound(port, {"xs": given}) is given
    assert _bound(port, {"xs": tuple(given)}) == given
    with pytest.raises(InputError, match="input xs is no array of float32"):
        _bound(port, {"xs": [given[0], [1.0, 2.0]]})
    optional = ValuePort("x", ValueType(OPTIONAL, element=element))
    assert _bound(optional, {"x": given[0]}) is given[0]
    with pytest.raises(InputError, match="input x is no array of float32"):
        _bound(optional, {"x": [1.0]})


class Doubling(Session):
    """An engine that doubles the first of its inputs and adds the second one."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return [2 * inputs[0] + inputs[1]]


class Answering:
    """Stands in for ONNX Runtime: its answers are all -1."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return [np.full_like(inputs[0], -1)]


def port(name: str) -> ValuePort:
    return ValuePort(name, ValueType(TENSOR, "float32", (3,)))


def made_suffix(careful: Careful | None) -> collage.BoundSuffix:
    """Launches make a = x + 1; the engine makes 2 a + y; the outputs are that, y and a."""
    x, y, a = (np.zeros(3, np.float32) for _ in range(3))
    region = Region("doubling", ("onnx.NonZero",), (0,), ("double",), (), ())
    suffix = Suffix(region, (port("x"), port("y")), (port("z"), port("y"), port("a")), ("a", "y"), ("z",))

    def launch() -> None:
        np.add(x, 1, out=a)

    return collage.BoundSuffix(suffix, Doubling(), TicketLock(), careful, {"x": x, "y": y}, Launches(launch, {"a": a}))


@pytest.mark.parametrize("careful", [None, Answering()])
def test_an_engine_behind_launches_reads_what_they_make(careful: Any) -> None:
    call = made_suffix(careful)
    for number in (1.0, np.inf, 2.0):
        call.inputs["x"].fill(number)
        call.inputs["y"].fill(10)
        call()
        assert list(call.outputs) == ["z", "y", "a"]
        answered = careful is not None and not np.isfinite(number)
        np.testing.assert_array_equal(call.outputs["z"], np.full(3, -1 if answered else 2 * number + 12))
        np.testing.assert_array_equal(call.outputs["a"], np.full(3, number + 1))
        assert call.outputs["y"] is call.inputs["y"]
