"""Arrays that engines read and write in place: inputs that are bound, and results that are given away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from collage.backends.onnx_engine import OnnxEngine
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.openvino import OpenVino
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_copy
from collage.kernel.given_away import GivenAway
from collage.kernel.options import BuildOptions
from tests.helpers.models import make_model

needs_openvino = pytest.mark.skipif(not OpenVino().available(), reason="OpenVINO is not installed")
Bound = tuple[Callable[[], Iterable[Any]], Array]
"""A call of OpenVINO, and the input that it is bound to."""


def test_memory_is_filled_again_only_when_nobody_has_a_view() -> None:
    attached: list[int] = []

    def attach(array: Array) -> None:
        attached.append(array.ctypes.data)

    given = GivenAway((4, 3), np.dtype(np.float32), attach)
    given.prepare()
    assert len(attached) == 1
    whole = given.give()
    part = whole[1:, ::2].T
    del whole
    given.prepare()
    assert len(attached) == 2, "a view of a view refers to the memory"
    assert part.ctypes.data != given.give().ctypes.data
    del part
    given.prepare()
    assert len(attached) == 2
    raw = given.give().data
    given.prepare()
    assert len(attached) == 3
    del raw


def test_where_it_cannot_be_attached_the_next_call_tries_again() -> None:
    attached: list[Array] = []
    fails = [False, True, True, False]

    def attach(array: Array) -> None:
        if fails.pop(0):
            raise MemoryError
        attached[:] = [array]

    given = GivenAway((4, 3), np.dtype(np.float32), attach)
    kept = given.give()
    for _ in range(2):
        with pytest.raises(MemoryError):
            given.prepare()
    del kept
    attached[0].fill(1)
    given.prepare()
    assert not fails, "it was not tried again, although nobody knows what is attached"
    assert given.give().ctypes.data == attached[0].ctypes.data


@needs_openvino
def test_a_session_has_its_own_buffers_again_after_a_failure() -> None:
    model = make_model([helper.make_node("Sub", ["a", "b"], ["y"])], {"a": [2, 3], "b": [2, 3]}, {"y": [2, 3]}, {})
    session = OpenVino().session(model.SerializeToString(), BuildOptions(threads=1))
    a, b = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(session.run([a, b])[0], a - b)
    with pytest.raises(Exception, match="shape"):
        session.run([np.ones((2, 3)), np.ones((4, 5), np.float32)])
    np.testing.assert_array_equal(session.run([b, a])[0], b - a)


@pytest.fixture
def call_and_input() -> Bound:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Identity", ["r"], ["same"]),
        helper.make_node("Identity", ["x"], ["through"]),
        helper.make_node("ArgMax", ["x"], ["largest"], axis=1, keepdims=0),
    ]
    model = make_model(nodes, {"x": [2, 300]}, {"r": [2, 300], "same": [2, 300], "through": [2, 300]}, {})
    model.graph.output.append(helper.make_tensor_value_info("largest", 7, [2]))
    x = aligned_copy(np.zeros((2, 300), np.float32))
    session = OpenVino().session(model.SerializeToString(), BuildOptions(threads=1))
    return session.bind_inputs([x]), x


@needs_openvino
def test_results_of_openvino_stay_while_they_are_kept(call_and_input: Bound) -> None:
    call, x = call_and_input
    rng = np.random.default_rng(0)
    kept = []
    for number in range(6):
        x[...] = rng.normal(size=x.shape)
        relu, same, through, largest = call()
        expected = np.maximum(x, 0), np.maximum(x, 0), x.copy(), x.argmax(axis=1)
        kept.append(((relu[:, 7:], same, through, largest), (expected[0][:, 7:], *expected[1:])))
        if number % 2:
            kept.pop(0)
    for found, expected in kept:
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@needs_openvino
def test_results_that_nobody_keeps_have_the_same_memory(call_and_input: Bound) -> None:
    call, _ = call_and_input
    places = set()
    for _ in range(5):
        places.add(next(each.ctypes.data for each in call()))
    assert len(places) == 1


@pytest.mark.parametrize("engine", [OnnxRuntime(), OpenVino()], ids=lambda engine: engine.name)
def test_inputs_are_read_where_they_are_and_outputs_are_new(engine: OnnxEngine) -> None:
    if not engine.available():
        pytest.skip(f"{engine.name} is not installed")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["places"])]
    model = make_model(nodes, {"x": [2, 3]}, {"r": [2, 3]}, {})
    model.graph.output.append(helper.make_tensor_value_info("places", 7, [2, "n"]))
    x = aligned_copy(np.array([[1, -2, 3], [0, 5, -6]], np.float32))
    session = engine.session(model.SerializeToString(), BuildOptions(threads=1))
    call = session.bind_inputs([x])
    first = [*call()]
    x[...] = [[-1, 2, -3], [7, 8, 9]]
    second = [*call()]
    np.testing.assert_array_equal(first[0], [[1, 0, 3], [0, 5, 0]])
    np.testing.assert_array_equal(first[1], [[0, 0, 1], [0, 2, 1]])
    np.testing.assert_array_equal(second[0], [[0, 2, 0], [7, 8, 9]])
    np.testing.assert_array_equal(second[1], [[0, 1, 1, 1], [1, 0, 1, 2]])


@needs_openvino
def test_an_input_of_another_type_is_not_kept_for_later_calls() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]}, {})
    session = OpenVino().session(model.SerializeToString(), BuildOptions(threads=1))
    for number, dtype in ((1, np.float32), (2, np.float64), (3, np.float32)):
        (found,) = session.run([np.full(2, number, dtype)])
        np.testing.assert_array_equal(found, [number, number])
