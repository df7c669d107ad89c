"""Joining the requests of several callers along their first axis, so that they run as one call of a module."""

from __future__ import annotations

import asyncio
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from collage.errors import CollageError, InputError, UsageError
from collage.graph.dataflow import Array, np_dtype
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.runtime.inputs import by_name, check_rows, collect_inputs
from collage.schedule.program import Port, Program
from collage.schedule.suffix import ValuePort

_MIXED = 0.05
"""The share of an output's scale by which rows that do not depend on each other may change with each other."""

RowShapes = tuple[tuple[int, ...], ...]
"""The shapes of one row of each input, in the model's order."""


@dataclass(frozen=True)
class Joinable:
    """A module as a function of any number of rows.

    ``ports`` are its inputs, with an open first axis. ``sizes`` are the numbers of rows that it was compiled for, in
    order, for each set of shapes of a row. It takes other numbers and shapes, too, if it is ``open``.
    """

    ports: tuple[ValuePort, ...]
    run: Callable[[Mapping[str, Any]], dict[str, Any]]
    sizes: Mapping[RowShapes, tuple[int, ...]]
    open: bool
    fixed: Collection[str] = ()

    def limit(self, shapes: RowShapes, most: int) -> int:
        """The most rows that are joined to a call, of at most ``most``."""
        return min(most, max(self.sizes.get(shapes, (most,))))

    def size(self, shapes: RowShapes, rows: int) -> int:
        """The rows of the call that so many rows are part of: the next size, or as many if there is none."""
        return next((each for each in self.sizes.get(shapes, ()) if each >= rows > 0), rows)


def joinable(
    programs: Sequence[Program],
    run: Callable[[Mapping[str, Any]], dict[str, Any]],
    *,
    any_rows: bool,
    fallback: bool = False,
    fixed: Collection[str] = (),
) -> Joinable:
    """A module that runs these programs of one model, as a function of rows.

    It takes ``any_rows``, or as many as each program was compiled for, and others if it has a ``fallback``. Raises
    UsageError, which names the input or output, if the first axis of one is not the batch: by its size, or because
    other rows than its own change it in a run on made-up inputs.
    """
    sizes: dict[RowShapes, set[int]] = {}
    for program in () if any_rows else programs:
        batch, shapes = _batch(program)
        sizes.setdefault(shapes, set()).add(batch)
    if not (any_rows or fallback) and max(map(max, sizes.values())) == 1:
        raise UsageError(
            "the module takes one row, so that requests cannot be joined: compile the model for more (--batch N, or "
            "several sets of --shape)."
        )
    if not any_rows:
        _refuse_mixing(max(programs, key=lambda each: _batch(each)[0]), run)
    ports = tuple(
        _open_port([each.model_inputs[place] for each in programs], fallback)
        for place in range(len(programs[0].model_inputs))
    )
    known = {shapes: tuple(sorted(found)) for shapes, found in sizes.items()}
    return Joinable(ports, run, known, any_rows or fallback, fixed)


def _batch(program: Program) -> tuple[int, RowShapes]:
    """The rows of a program, and the shapes of one. Raises UsageError."""
    inputs = [_shape(port, "input") for port in program.model_inputs]
    outputs = [_shape(port, "output") for port in program.model_outputs]
    if not inputs:
        raise UsageError("the module has no inputs, so that there are no requests to join.")
    batch = inputs[0][0]
    named = zip((*program.model_inputs, *program.model_outputs), (*inputs, *outputs), strict=True)
    for port, shape in named:
        if shape[0] != batch or not batch:
            raise UsageError(
                f"requests cannot be joined: the first axis of {port.name} has {shape[0]} elements, and that of "
                f"{program.model_inputs[0].name} {batch}; it has to be the batch of all inputs and outputs."
            )
    if program.assumed:
        raise UsageError("requests cannot be joined: the module was compiled for the values of an input.")
    return batch, tuple(shape[1:] for shape in inputs)


def _refuse_mixing(program: Program, run: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """Raise UsageError if the first row of an output changes with the other rows of the inputs.

    A small change is none: operators that quantise a batch have one scale for all of it. Models that refuse made-up
    inputs, and outputs that are no real numbers, are taken as they are.
    """
    rng = np.random.default_rng(0)
    if any(port.type.dtype == STRING for port in program.model_inputs):
        return
    inputs = {port.name: _made_up(port, rng) for port in program.model_inputs}
    others = {port.name: _made_up(port, rng) for port in program.model_inputs}
    for name, each in others.items():
        each[:1] = inputs[name][:1]
    try:
        first, second = run(inputs), run(others)
    except CollageError:
        return
    for name, each in first.items():
        if not isinstance(each, np.ndarray) or each.dtype.kind not in "fV" or not each.size:
            continue
        one, other = each.astype(np.float64), second[name].astype(np.float64)
        change, scale = np.abs(one[0] - other[0]), np.abs(one).max()
        if np.isfinite(scale) and change.max() > _MIXED * scale:
            raise UsageError(
                f"requests cannot be joined: a row of {name} depends on other rows of the inputs, so that their first "
                "axis is no batch."
            )


def _made_up(port: Port | ValuePort, rng: np.random.Generator) -> Array:
    """Random numbers; integers are 0 or 1, unless they index a single row."""
    shape, kind = [extent or 0 for extent in port.type.shape or ()], np_dtype(port.type.dtype)
    if kind.kind in "biu" or "int" in kind.name:
        rows = port.rows if isinstance(port.rows, tuple) else (port.rows or 2,)
        return rng.integers(0, max(1, min(2, *rows)), shape).astype(kind)
    return rng.normal(size=shape).astype(kind)


def _shape(port: Port | ValuePort, what: str) -> tuple[int, ...]:
    shape = port.type.shape
    is_tensor = not isinstance(port, ValuePort) or port.type.kind == TENSOR
    if not is_tensor or not shape or None in shape:
        raise UsageError(f"requests cannot be joined: the {what} {port.name} has no first axis of a known size.")
    return tuple(extent or 0 for extent in shape)


def _open_port(ports: Sequence[Port | ValuePort], fallback: bool) -> ValuePort:
    """The input of several programs, with every axis open that they differ in; a fallback takes others anyway."""
    shapes = [port.type.shape or () for port in ports]
    rest = [None if fallback or len({*extents}) > 1 else extents[0] for extents in zip(*shapes, strict=True)]
    return ValuePort(ports[0].name, ValueType(TENSOR, ports[0].type.dtype, (None, *rest[1:])), ports[0].rows)


@dataclass(frozen=True)
class _Request:
    values: Sequence[Any]
    rows: int
    shapes: RowShapes
    due_s: float
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Batched:
    """Joins concurrent requests of a module along their first axis, runs them together and splits the outputs.

    A call has at most ``max_batch`` rows, and its first request has waited for at most ``max_wait_ms`` milliseconds
    when it begins, if no other call runs. A request of more rows runs alone. If the module was compiled for certain
    numbers of rows, the last row is repeated up to the next of them.

    It may be used by any number of threads and tasks. Leaving its context, or ``close``, answers what is in flight.
    """

    def __init__(self, joint: Joinable, max_batch: int, max_wait_ms: float) -> None:
        """Raises UsageError for numbers out of range."""
        try:
            operator.index(max_batch)
        except TypeError as error:
            raise UsageError(f"max_batch must be a whole number of rows, not {max_batch!r}.") from error
        if max_batch < 1:
            raise UsageError(f"max_batch must be at least 1, not {max_batch}.")
        if not 0 <= max_wait_ms < math.inf:
            raise UsageError(f"max_wait_ms must be a number of milliseconds from 0 on, not {max_wait_ms}.")
        self._joint = joint
        self._most = max_batch
        self._wait_s = max_wait_ms / 1000
        self._queue: list[_Request] = []
        self._changed = threading.Condition()
        self._closed = self._hurries = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="collage batches", daemon=True)
        self._thread.start()

    def run(self, /, inputs: Any = None, **named: Any) -> dict[str, Any]:
        """The outputs by name for inputs by name, in a mapping or as keywords, as those of the module's ``run``.

        Raises InputError before they are joined with others, and UsageError after ``close``.
        """
        return self._submitted(by_name(inputs, named)).result()

    async def run_async(self, /, inputs: Any = None, **named: Any) -> dict[str, Any]:
        """``run`` for event loops. Inputs must not change before it returns; a request that is cancelled is left out.

        Raises what ``run`` raises.
        """
        return await asyncio.wrap_future(self._submitted(by_name(inputs, named)))

    def hurry(self) -> None:
        """From now on, no request waits for others that might come."""
        with self._changed:
            self._hurries = True
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more requests, and return when all that there are have been answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._process == os.getpid():
            self._thread.join()

    def __enter__(self) -> Batched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submitted(self, inputs: Mapping[str, Any]) -> Future[dict[str, Any]]:
        request = self._request(inputs)
        with self._changed:
            if self._closed:
                raise UsageError("the batches are closed: they take no more requests.")
            if self._process != os.getpid():
                raise CollageError("the batches were made before the process forked: make them again in the child.")
            self._queue.append(request)
            self._changed.notify_all()
        return request.answer

    def _request(self, inputs: Mapping[str, Any]) -> _Request:
        """The request. Raises InputError for one that does not fit the module."""
        joint = self._joint
        values = collect_inputs(joint.ports, (), inputs, fixed=joint.fixed)
        rows = check_rows(joint.ports, values)
        shapes = tuple(np.shape(each)[1:] for each in values)
        if not joint.open:
            names = ", ".join(port.name for port in joint.ports)
            if shapes not in joint.sizes:
                raise InputError(f"the module was not compiled for rows of the shapes {shapes} of {names}.")
            most = max(joint.sizes[shapes])
            if not 0 < rows <= most:
                raise InputError(f"{names} have {rows} rows, and the module takes from 1 to {most}.")
        return _Request(values, rows, shapes, time.monotonic() + self._wait_s)

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            self._answer(batch)

    def _next(self) -> list[_Request] | None:
        """The next requests to run together, or None at the end."""
        with self._changed:
            while True:
                if not self._queue:
                    if self._closed:
                        return None
                    self._changed.wait()
                    continue
                chosen, is_full = self._fitting()
                left_s = chosen[0].due_s - time.monotonic()
                if is_full or self._closed or self._hurries or left_s <= 0:
                    taken = {*map(id, chosen)}
                    self._queue = [each for each in self._queue if id(each) not in taken]
                    return [each for each in chosen if each.answer.set_running_or_notify_cancel()]
                self._changed.wait(left_s)

    def _fitting(self) -> tuple[list[_Request], bool]:
        """The first request and those that can be joined with it, and whether there is no room for more."""
        first, *others = self._queue
        limit = self._joint.limit(first.shapes, self._most)
        chosen, rows = [first], first.rows
        for each in others:
            if each.shapes == first.shapes:
                if rows + each.rows > limit:
                    return chosen, True
                chosen.append(each)
                rows += each.rows
        return chosen, rows >= limit

    def _answer(self, batch: Sequence[_Request]) -> None:
        """Run the requests together. If that fails, each runs alone, so that others do not suffer from one."""
        if not batch:
            return
        try:
            answers = self._run(batch)
        except Exception as error:  # an engine raises anything
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for each in batch:
                self._answer([each])
            return
        for request, answer in zip(batch, answers, strict=True):
            request.answer.set_result(answer)

    def _run(self, batch: Sequence[_Request]) -> list[dict[str, Any]]:
        rows = sum(each.rows for each in batch)
        size = self._joint.size(batch[0].shapes, rows)
        columns = zip(*(each.values for each in batch), strict=True)
        values = {
            port.name: _joined(parts, size - rows) for port, parts in zip(self._joint.ports, columns, strict=True)
        }
        outputs = self._joint.run(values)
        if len(batch) == 1 and size == rows:
            return [outputs]
        for name, value in outputs.items():
            if np.ndim(value) == 0 or len(value) != size:
                raise CollageError(
                    f"requests cannot be joined: the output {name} does not have the {size} rows of the inputs."
                )
        answers, begin = [], 0
        for each in batch:
            part = slice(begin, begin := begin + each.rows)
            answers.append({name: _own(value[part]) for name, value in outputs.items()})
        return answers


def _joined(parts: Sequence[Any], padding: int) -> Any:
    """The rows of all parts, and the last one again as often as there is ``padding``."""
    if padding:
        last = next(each for each in reversed(parts) if len(each))
        parts = (*parts, np.repeat(last[-1:], padding, axis=0))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _own(value: Any) -> Any:
    """A part of an output that does not keep the others' rows in memory."""
    return value.copy() if isinstance(value, np.ndarray) else value
