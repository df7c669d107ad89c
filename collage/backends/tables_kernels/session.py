"""Running a program of a model on arrays with any number of rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from collage.backends.tables_kernels.build import STRING, Builder, Port, build
from collage.backends.tables_kernels.linear import LINEAR
from collage.backends.tables_kernels.operators import OPERATORS as MOVES
from collage.backends.tables_kernels.soft import SOFT
from collage.backends.tables_kernels.trees import TREES
from collage.errors import InputError
from collage.frontend.messages import parsed
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Session
from collage.native import LaunchList, Step, team_of
from collage.native.table import TableCall

OPERATORS = {**MOVES, **TREES, **LINEAR, **SOFT}
"""All operators that the kernels take, by domain and type."""

_HOLD_US = 5.0
"""A call that takes no longer keeps the GIL: giving it away and taking it back takes as long as some calls."""
_SHARE_US = 20.0
"""The least work of a thread that waking it is worth."""
_FEW, _MANY = 16, 64
"""Rows whose times say from how many rows on a block is faster than one row after another."""
_TYPES = {"bool": "bool", STRING: "int64"}


def program_of(model: Any, *, walk_all: bool = False) -> Builder:
    """The model as a program. Raises UnsupportedError for what the kernels do not take."""
    return build(parsed(model), OPERATORS, walk_all=walk_all)


class TableSession(Session):
    """A model of row-wise operators, for any number of rows."""

    def __init__(self, builder: Builder, threads: int) -> None:
        self._inputs, self._outputs = builder.inputs, builder.outputs
        self._zipped = builder.zipped
        self._codes = builder.vocabulary
        self._strings = np.array([*builder.vocabulary, ""], object)
        self._program = builder.program.bound()
        self._threads = threads
        self._takers = [partial(self._text if port.dtype == STRING else _array, port) for port in self._inputs]
        self._made = [(port.shape, np.dtype(_TYPES.get(port.dtype, port.dtype))) for port in self._outputs]
        self._special = bool(self._zipped) or any(port.dtype == STRING for port in self._outputs)
        self._single_us, self._few_us, self._many_us = (self._timed(rows) for rows in (1, _FEW, _MANY))
        self._program.singly = next(
            (rows - 1 for rows in range(2, _MANY) if rows * self._single_us > self._block_us(rows)), _MANY - 1
        )

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        arrays = [take(each) for take, each in zip(self._takers, inputs, strict=True)]
        rows = len(arrays[0]) if arrays else 1
        for port, each in zip(self._inputs, arrays, strict=True):
            if len(each) != rows:
                raise InputError(f"input {port.name} has {len(each)} rows, and {self._inputs[0].name} has {rows}.")
        outputs = [np.empty((rows, *shape), dtype) for shape, dtype in self._made]
        us = self._us(rows)
        if rows and us < 2 * _SHARE_US:
            self._program.run(arrays, outputs, rows, hold=us <= _HOLD_US)
        elif rows:
            self._call(arrays, outputs, rows)()
        if not self._special:
            return outputs
        return [self._output(port, each) for port, each in zip(self._outputs, outputs, strict=True)]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call | None:
        if any(port.dtype == STRING for port in (*self._inputs, *self._outputs)) or self._zipped:
            return None
        for port, array in zip((*self._inputs, *self._outputs), (*inputs, *outputs), strict=True):
            if array.shape[1:] != port.shape or array.dtype != port.dtype or len(array) != len(inputs[0]):
                raise ValueError(f"{port.name} has {port.shape} of {port.dtype} a row, not {array.shape} {array.dtype}")
            if not array.flags.c_contiguous:
                raise ValueError(f"{port.name} is not contiguous")
        rows = len(inputs[0])
        return self._call(inputs, outputs, rows) if rows else lambda: None

    def _call(self, inputs: Sequence[Array], outputs: Sequence[Array], rows: int) -> Call:
        """A call of the program on contiguous arrays."""
        us = self._us(rows)
        shares = max(1, min(self._threads, int(us / _SHARE_US), -(-rows // _MANY)))
        call = TableCall(self._program, inputs, outputs, rows, shares)
        if shares == 1:
            return call.alone(hold=us <= _HOLD_US)
        return LaunchList(team_of(self._threads), [Step((call.share(),) * shares)])

    def _us(self, rows: int) -> float:
        """About how long so many rows take in one thread, in microseconds."""
        return rows * self._single_us if rows <= self._program.singly else self._block_us(rows)

    def _block_us(self, rows: int) -> float:
        """The same for rows in blocks, by the times that few and many rows took."""
        if rows > _MANY:
            return -(-rows // _MANY) * self._many_us
        return self._few_us + (self._many_us - self._few_us) * max(0, rows - _FEW) / (_MANY - _FEW)

    def _timed(self, rows: int) -> float:
        """How long so many rows take, in microseconds: the least of some runs."""
        arrays = [np.zeros((rows, *p.shape), _TYPES.get(p.dtype, p.dtype)) for p in self._inputs]
        outputs = [np.zeros((rows, *p.shape), _TYPES.get(p.dtype, p.dtype)) for p in self._outputs]
        run = TableCall(self._program, arrays, outputs, rows).alone(hold=False)
        best = float("inf")
        for _ in range(5):
            began = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - began)
        return best * 1e6

    def _text(self, port: Port, given: Any) -> Array:
        """Strings as places in the vocabulary; those that are not there are -1."""
        array = np.asarray(given)
        _check(port, array)
        from collage.native._call import codes

        found = np.empty(array.shape, np.int64)
        try:
            codes(array.reshape(-1).tolist(), self._codes, found)
        except TypeError as error:
            raise InputError(f"input {port.name} has what is no text: {error}.") from error
        return found

    def _output(self, port: Port, array: Array) -> Any:
        if port.name in self._zipped:
            from collage.native._call import maps

            return maps(array, tuple(self._zipped[port.name][1]))
        return self._strings[array] if port.dtype == STRING else array


def _array(port: Port, given: Any) -> Array:
    """The array, contiguous and of the port's type."""
    if type(given) is np.ndarray and given.shape[1:] == port.shape and given.dtype == port.dtype and given.ndim:
        return given if given.flags.c_contiguous else np.ascontiguousarray(given)
    array = np.asarray(given)
    _check(port, array)
    return np.ascontiguousarray(array, port.dtype)


def _check(port: Port, array: Array) -> None:
    if not array.ndim or array.shape[1:] != port.shape:
        raise InputError(f"input {port.name} has shape {array.shape}, and a row has {port.width} columns.")
