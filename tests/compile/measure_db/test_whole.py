"""Whole models on engines: who is right is timed, and an engine that crashes or errs costs itself only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.backends.base import Availability
from collage.backends.onnx_engine import OnnxEngine
from collage.backends.onnxruntime import OnnxRuntime
from collage.check.whole_verdict import JUDGES, compared
from collage.core.typed import typed
from collage.errors import CollageError
from collage.kernel.kernel import Kernel, Session
from collage.kernel.options import BuildOptions
from collage.measure.engines import Engines
from collage.measure.worker.process import Workers
from collage.measure.worker.whole_protocol import FOLDED, EngineTrial, Whole
from collage.runtime.parts import Parts
from tests.helpers.backends_for_tests import onnx_model

FLOATS = ((2, 3), TensorProto.FLOAT)
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


class _Session(Session):
    def __init__(self, drops: bool, factor: float) -> None:
        self.drops, self.factor = drops, factor

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        x = np.nan_to_num(inputs[0]) if self.drops else inputs[0]
        return [np.asarray(np.tanh(x) * np.float32(self.factor))]


class Exact(OnnxEngine):
    """Computes tanh in numpy."""

    name: ClassVar[str] = "exact"
    requirement = "nothing"
    drops: ClassVar[bool] = False
    factor: ClassVar[float] = 1.0

    def available(self) -> Availability:
        return Availability(version="1")

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        raise NotImplementedError

    def session(self, model: bytes, options: BuildOptions) -> Session:
        return _Session(self.drops, self.factor)


class Drops(Exact):
    """Takes NaN for 0."""

    name: ClassVar[str] = "drops"
    drops: ClassVar[bool] = True


class Wrong(Exact):
    """Is off by a tenth."""

    name: ClassVar[str] = "wrong"
    factor: ClassVar[float] = 1.1


class Crashes(Exact):
    """Ends the process."""

    name: ClassVar[str] = "crashes"

    def session(self, model: bytes, options: BuildOptions) -> Session:
        os.abort()


class _Overflowing(_Session):
    def run(self, inputs: Sequence[Any]) -> list[Any]:
        (found,) = super().run(inputs)
        return [np.where(np.abs(inputs[0]) > 100, np.float32(np.inf), found)]


class Overflows(Exact):
    """Makes infinities of numbers above 100."""

    name: ClassVar[str] = "overflows"

    def session(self, model: bytes, options: BuildOptions) -> Session:
        return _Overflowing(False, 1.0)


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers() as found:
        yield found


def tanh(element: int = TensorProto.FLOAT) -> onnx.ModelProto:
    kind = ((2, 3), element)
    return onnx_model([helper.make_node("Tanh", ["x"], ["y"])], {"x": kind}, {"y": kind})


@contextmanager
def started(workers: Workers, *engines: OnnxEngine) -> Iterator[Engines]:
    found = Engines(tanh(), [X], {engine.name: engine for engine in engines}, 1, 20.0, workers)
    try:
        yield found
    finally:
        found.close()


def trial(workers: Workers, *engines: OnnxEngine) -> EngineTrial:
    with started(workers, *engines) as found:
        return found.trial([Whole(engine.name) for engine in engines])


def test_what_differs_on_hostile_inputs_is_known_before_it_is_handed_over(workers: Workers) -> None:
    with started(workers, Drops(), Exact(), Overflows()) as engines:
        found = {name: engines.on_hostile(Whole(name)) for name in ("drops", "exact", "overflows")}
    assert (found["drops"], found["exact"]) == (("", True), ("", False))
    assert found["overflows"][0].startswith("it makes NaN or infinities of numbers (outliers")


def test_a_process_that_somebody_has_killed_opens_plans_again(workers: Workers) -> None:
    plan = Whole("onnxruntime")
    with started(workers, OnnxRuntime()) as engines:
        engines.trial([plan])
        for again in (
            lambda: engines.turn(plan.label, 0.0, 0.001),
            lambda: engines.outputs(plan, [X]).outputs,
            lambda: engines.open(plan).outputs,
        ):
            assert engines._worker is not None
            engines._worker.kill()
            assert again()


def test_who_is_right_is_known_and_the_others_say_why(workers: Workers) -> None:
    found = trial(workers, Crashes(), Drops(), Wrong(), Exact(), OnnxRuntime())
    drops, exact, onnxruntime = (f"{name}, as written" for name in ("drops", "exact", "onnxruntime"))
    assert sorted(found.errors) == [drops, exact, onnxruntime]
    assert all(relative < 1e-4 for _, relative in found.errors.values())
    assert sorted(found.refused) == ["crashes, as written", "wrong, as written"]
    assert "SIGABRT" in found.refused["crashes, as written"]
    assert found.refused["wrong, as written"].startswith(f"inaccurate: differs from {JUDGES[1]} by 0.1")
    assert typed(EngineTrial, json.loads(json.dumps(asdict(found)))) == found
    alone = found.of(drops)
    assert (list(alone.errors), alone.refused) == ([drops], {})


def test_without_any_engine_that_runs_it_only_the_reasons_are_known(workers: Workers) -> None:
    found = trial(workers, Crashes())
    assert (found.errors, found.loaded, found.notes) == ({}, (), ())
    assert list(found.refused) == ["crashes, as written"]


def test_engines_take_turns_on_forms_of_a_model_and_run_on_other_inputs(workers: Workers) -> None:
    written, folded, crashes = Whole("exact"), Whole("exact", FOLDED), Whole("crashes")
    with started(workers, Exact(), Crashes()) as engines:
        engines.add_form(FOLDED, tanh())
        assert list(engines.trial([written, folded]).errors) == ["exact, as written", "exact, folded"]
        assert "SIGABRT" in engines.open(crashes).message
        assert all(ns > 0 for ns in engines.turn(folded.label, 0.0, 0.001))  # in a new process
        (found,) = engines.outputs(written, [X + 1]).outputs or ()
        np.testing.assert_allclose(found, np.tanh(X + 1), rtol=1e-6)
        broken = Parts(None, [], {}, None, {})  # type: ignore[arg-type]
        assert engines.open_parts("broken", broken, [0]).outputs is None
        with pytest.raises(CollageError):
            engines.turn("broken", 0.0, 0.001)


def test_who_is_as_good_as_float_arithmetic_can_be_is_forgiven() -> None:
    expected = np.array([[1.0, 2.0, -1.0], [0.5, 1.0, 3.0]], np.float32)
    nearby = [[expected + np.float32(0.3)], [expected - np.float32(0.2)]]
    outputs = {"near": [expected + np.float32(0.4)], "far": [expected + np.float32(40)], "none": [None]}
    found = compared(tanh(), [X], outputs, [expected], JUDGES[0])
    assert sorted(found.wrong) == ["far", "near", "none"]
    better = compared(tanh(), [X], outputs, [expected], JUDGES[0], lambda: nearby)
    assert sorted(better.wrong) == ["far", "none"]
    assert better.errors["near"][0] == pytest.approx(0.4)


def test_float32_arithmetic_is_better_than_nothing_for_a_model_in_float64() -> None:
    expected = X.astype(np.float64)
    rough, fine = [expected + 1e-6], [expected + 1e-12]
    model = tanh(TensorProto.DOUBLE)
    by_itself = compared(model, [expected], {"rough": rough}, [expected], JUDGES[0])
    assert list(by_itself.errors) == ["rough"]
    assert by_itself.notes == ("computes in float32 what the model has in float64",)
    both = compared(model, [expected], {"rough": rough, "fine": fine}, [expected], JUDGES[0])
    assert list(both.errors) == ["fine"]
    assert list(both.wrong) == ["rough"]


def test_steps_of_quantised_values_count_where_nobody_is_exact() -> None:
    expected = np.arange(0, 240, 40, dtype=np.uint8).reshape(2, 3)
    step = {"step": [expected + np.uint8(1)]}
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])]
    weights = {"scale": np.array(0.02, np.float32), "zero": np.array(0, np.uint8)}
    quantised = onnx_model(nodes, {"x": FLOATS}, {"y": ((2, 3), TensorProto.UINT8)}, weights)
    found = compared(quantised, [X], step, [expected], JUDGES[0])
    assert (list(found.errors), found.notes) == (["step"], ("rounds to integers another way",))
    assert not compared(tanh(), [X], step, [expected], JUDGES[0]).errors


def test_random_numbers_are_compared_by_type_shape_and_finiteness() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    drawn = onnx_model(nodes, {"x": FLOATS}, {"y": FLOATS, "z": FLOATS})
    outputs = {
        "another": [X + 1, -X],
        "infinite": [np.full_like(X, np.inf), -X],
        "double": [X.astype(np.float64), -X],
        "flat": [X.reshape(-1), -X],
        "wrong": [X, X],
    }
    found = compared(drawn, [X], outputs, [X, -X], JUDGES[0])
    assert list(found.errors) == ["another"]
    assert any("random numbers" in note for note in found.notes)
