"""Modules of tables on a made-up engine: any number of rows, bound calls, and what comes between caller and engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from collage.errors import CollageError, InputError
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.kernel.kernel import Call, Session
from collage.runtime.bound_engine import BoundEngine, for_rows
from collage.runtime.inputs import check_rows, collect_inputs
from collage.runtime.original import Careful
from collage.runtime.suffix import SuffixExecutor
from collage.schedule.region import Region
from collage.schedule.suffix import Suffix, ValuePort


class Sums(Session):
    """Gives the sum of each row, and twice that; ``writes`` binds to arrays, by a call that is reentrant or not."""

    def __init__(self, *, writes: bool = True, reentrant: bool = False, fails: str = "") -> None:
        self.writes, self.reentrant, self.fails = writes, reentrant, fails
        self.contiguous: list[bool] = []

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        self.contiguous.append(inputs[0].flags.c_contiguous)
        sums = sum(each.sum(1) for each in inputs)
        return [sums, np.stack([sums, 2 * sums], 1)]

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Call | None:
        def call() -> None:
            if self.fails:
                raise RuntimeError(self.fails)
            for array, made in zip(outputs, self.run(inputs), strict=True):
                array[...] = made

        if self.reentrant:
            cast(Any, call).reentrant = True
        return call if self.writes else None


def suffix(*widths: int, dtype: str = "float32") -> Suffix:
    region = Region("sums", (), (), (), (), ())
    inputs = [ValuePort(f"x{n}", ValueType(TENSOR, dtype, (None, width))) for n, width in enumerate(widths)]
    # The declared columns of an output may be wrong, or not known.
    outputs = [
        ValuePort(*each) for each in (("s", ValueType(TENSOR, dtype)), ("t", ValueType(TENSOR, dtype, (None, 9))))
    ]
    return Suffix(region, tuple(inputs), tuple(outputs), tuple(i.name for i in inputs), tuple(o.name for o in outputs))


class NoLaunches:
    program = SimpleNamespace(launches=(), inputs=(), outputs=())

    def make_way(self) -> None: ...


def executor(session: Session, *widths: int, careful: Careful | None = None) -> SuffixExecutor:
    return SuffixExecutor(cast(Any, NoLaunches()), suffix(*widths), session, careful)


def table(rows: int, columns: int) -> np.ndarray:
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("writes", [True, False])
def test_a_bound_call_has_the_shapes_of_its_rows(rows: int, writes: bool) -> None:
    given = table(rows, 3)
    call = executor(Sums(writes=writes), 3).bind_rows({"x0": given}, {})
    assert isinstance(call, BoundEngine)
    assert {name: each.shape for name, each in call.outputs.items()} == {"s": (rows,), "t": (rows, 2)}
    for _ in range(2):
        given += 1
        call()
        np.testing.assert_allclose(call.outputs["s"], given.sum(1))


def test_arrays_may_start_anywhere_and_outputs_be_given() -> None:
    memory = np.zeros(1 + 2 * 3, np.float32)
    given, made = memory[1:].reshape(2, 3), np.empty(2, np.float32)
    call = executor(Sums(), 3).bind_rows({"x0": given}, {"s": made})
    assert call is not None
    memory[1:] = 1
    call()
    np.testing.assert_array_equal(made, 3)
    with pytest.raises(InputError, match=r"output s is float32\(3,\), not float32\[2\]"):
        executor(Sums(), 3).bind_rows({"x0": given}, {"s": np.empty(3, np.float32)})


def test_what_is_not_bound_to_outputs() -> None:
    assert executor(Sums(), 3, 2).bind_rows({"x0": table(2, 3)}, {}) is None
    assert executor(Sums(), 3).bind_rows({"x0": np.asfortranarray(table(4, 3))}, {}) is None

    class Texts(Sums):
        def run(self, inputs: Sequence[Any]) -> list[Any]:
            return [np.array(["a"], object), *super().run(inputs)[1:]]

    class Fails(Sums):
        def run(self, inputs: Sequence[Any]) -> list[Any]:
            raise RuntimeError("no such category")

    for session in (Texts(), Fails()):
        assert for_rows(suffix(3), session, {"x0": table(2, 3)}) is None


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"input x0 has 4 columns, the model takes 3: float32\[\?x3\]"):
        executor(Sums(), 3).bind_rows({"x0": table(2, 4)}, {})
    with pytest.raises(InputError, match=r"different numbers of rows: x0 2, x1 3"):
        executor(Sums(), 3, 2).bind_rows({"x0": table(2, 3), "x1": table(3, 2)}, {})
    with pytest.raises(InputError, match=r"input x0 has dtype float64.*astype\('float32'\)"):
        executor(Sums(), 3).bind_rows({"x0": np.zeros((2, 3))}, {})


def test_nothing_is_between_the_caller_and_a_reentrant_engine() -> None:
    def bound(session: Session, careful: Careful | None = None) -> tuple[BoundEngine, Callable[[], int]]:
        one = executor(session, 3, careful=careful)
        locked: list[int] = []
        one._turn = cast(Any, SimpleNamespace(run=lambda work: (locked.append(1), work())[1]))
        call = one.bind_rows({"x0": table(2, 3)}, {})
        assert call is not None
        locked.clear()
        call()
        np.testing.assert_allclose(call.outputs["s"], [3, 12])
        return call, lambda: len(locked)

    assert bound(Sums(reentrant=True))[1]() == 0
    assert bound(Sums())[1]() == 1
    assert bound(Sums(reentrant=True), Careful(b"", 1))[1]() == 1
    with pytest.raises(CollageError, match="sums fails on these inputs: out of order"):
        bound(Sums(reentrant=True, fails="out of order"))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_call_takes_any_number_of_rows_however_they_lie(rows: int) -> None:
    session = Sums()
    one = executor(session, 3)
    wanted = table(rows, 3)
    for given in (wanted, np.asfortranarray(wanted), np.repeat(wanted, 2, 0)[::2], np.repeat(wanted, 2, 1)[:, ::2]):
        found = one.run(collect_inputs(one.suffix.inputs, (given,), {}))
        np.testing.assert_allclose(found[0], wanted.sum(1))
    assert all(session.contiguous)


def test_numbers_of_rows() -> None:
    ports = suffix(3, 2).inputs
    assert check_rows(ports, [table(4, 3), table(4, 2)]) == 4
    with pytest.raises(InputError, match="x0 4, x1 0"):
        check_rows(ports, [table(4, 3), table(0, 2)])


def test_texts_stay_as_they_are() -> None:
    port = ValuePort("city", ValueType(TENSOR, STRING, (None, 1)))
    given = np.array([["oslo"], ["kiel"]], object)
    assert collect_inputs([port], (given,), {})[0] is given
    with pytest.raises(InputError, match="the model takes strings"):
        collect_inputs([port], (table(2, 1),), {})
