"""Running a program: which kernel an error is about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collage.errors import CollageError
from collage.graph.dataflow import Array, TensorType
from collage.kernel.kernel import Call, Kernel
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
    regions = [
        Region(f"b{n}", ("add", "relu"), (n,), (f"node {n}",), (n,), (n + 1,)) for n in range(len(kernels))
    ]
    types = dict.fromkeys(range(len(kernels) + 1), KIND)
    ports = [Port("x", 0, KIND)], [Port("y", len(kernels), KIND)]
    return Executor(make_program(regions, *ports, types), kernels, {})


def test_an_error_names_the_kernel_that_fails() -> None:
    chain = executor(AddOne(), AddOne(), AddOne())
    (y,) = chain.run([np.array([1, 2, 3], np.float32)])
    np.testing.assert_array_equal(y, [4, 5, 6])
    with pytest.raises(
        CollageError, match=r"^the b1 kernel add\+relu fails on these inputs: it is negative$"
    ):
        executor(Unchecked(), AddOne(), AddOne()).run([np.array([-4, 2, 3], np.float32)])


def test_an_error_names_the_kernel_that_does_not_fit() -> None:
    with pytest.raises(CollageError, match=r"^the b1 kernel add\+relu does not fit its buffers: 4 axes"):
        executor(AddOne(), Misfit())
