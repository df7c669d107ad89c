"""Running a program: which kernel an error is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from collage.errors import CollageError
from collage.graph.dataflow import Array, TensorType
from collage.kernel.kernel import Call, Kernel
from collage.runtime.bound import bind
from collage.runtime.executor import Executor
from collage.schedule.program import Port, make_program
from collage.schedule.region import Region

KIND = TensorType((3,), "float32")


class AddOne(Kernel):
    """Adds 1 to its input, and fails on a negative sum."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def run() -> None:
            np.add(inputs[0], 1, out=outputs[0])
            if outputs[0].min() < 0:
                raise ValueError("it is\nnegative")

        return run


class Unchecked(AddOne):
    """Adds 1, and never fails."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def run() -> None:
            np.add(inputs[0], 1, out=outputs[0])

        return run


class Misfit(AddOne):
    """Fits no buffers."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        raise ValueError("4 axes are needed")


def executor(*kernels: Kernel) -> Executor:
    """Kernels of the backends b0, b1, ..., one after another."""
    regions = [Region(f"b{n}", ("add", "relu"), (n,), (f"node {n}",), (n,), (n + 1,)) for n in range(len(kernels))]
    types = dict.fromkeys(range(len(kernels) + 1), KIND)
    ports = [Port("x", 0, KIND)], [Port("y", len(kernels), KIND)]
    return Executor(make_program(regions, *ports, types), kernels, {})


def test_an_error_names_the_kernel_that_fails() -> None:
    chain = executor(AddOne(), AddOne(), AddOne())
    (y,) = chain.run([np.array([1, 2, 3], np.float32)])
    np.testing.assert_array_equal(y, [4, 5, 6])
    with pytest.raises(CollageError, match=r"^the b1 kernel add\+relu fails on these inputs: it is negative$"):
        executor(Unchecked(), AddOne(), AddOne()).run([np.array([-4, 2, 3], np.float32)])


def test_an_error_names_the_kernel_that_does_not_fit() -> None:
    with pytest.raises(CollageError, match=r"^the b1 kernel add\+relu does not fit its buffers: 4 axes"):
        executor(AddOne(), Misfit())


class Fragile(AddOne):
    """Adds 1, and fails on NaN."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        def run() -> None:
            if np.isnan(inputs[0]).any():
                raise ValueError("it is no number")
            np.add(inputs[0], 1, out=outputs[0])

        return run


class Original:
    """Adds 2 with the original model."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        return [inputs[0] + 2]


@pytest.mark.parametrize("bound", [False, True])
def test_a_kernel_that_fails_on_what_a_scan_has_found_is_answered_for(bound: bool) -> None:
    """By the original model, as a kernel that computes something wrong is. The next call is an ordinary one."""
    region = Region("b", ("add",), (0,), ("node",), (0,), (1,), scans=(0,))
    program = make_program([region], [Port("x", 0, KIND)], [Port("y", 1, KIND)], {0: KIND, 1: KIND})
    module = Executor(program, [Fragile()], {}, careful=cast(Any, Original()))
    call = bind(module, {}, {})

    def answer(*numbers: float) -> list[float]:
        x = np.array(numbers, np.float32)
        if not bound:
            return module.run([x])[0].tolist()
        np.copyto(call.inputs["x"], x)
        call()
        return call.outputs["y"].tolist()

    assert answer(1, 2, 3) == [2, 3, 4]
    assert answer(np.inf, 2, 3) == [np.inf, 4, 5]
    found = answer(np.nan, 2, 3)
    assert np.isnan(found[0]) and found[1:] == [4, 5]
    assert answer(1, 2, 3) == [2, 3, 4]


def test_arrays_of_a_bound_call_cannot_be_replaced() -> None:
    call = bind(executor(AddOne()), {}, {})
    for arrays in (call.inputs, call.outputs):
        with pytest.raises(TypeError):
            arrays["x"] = np.zeros(3, np.float32)  # type: ignore[index]
