"""Running a model whose tail one engine runs: first the launches, if there are any, then the engine.

Values of any type go into the engine and come out of it, and it makes its own memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError, unknown_names
from collage.graph.dataflow import Array, np_dtype
from collage.graph.value_type import STRING, TENSOR, MismatchError
from collage.kernel.kernel import Session
from collage.runtime.bound import BoundCall, bind
from collage.runtime.careful import Careful, are_ordinary
from collage.runtime.executor import Executor
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.tail import Tail, ValuePort


class TailExecutor:
    """The engine with the tail loaded, and what runs before it. One run at a time; callers take turns."""

    def __init__(self, head: Executor, tail: Tail, session: Session, careful: Careful | None = None) -> None:
        """``head`` belongs to it from now on. ``careful`` runs the tail on numbers that are not ordinary."""
        self._head = head
        self.tail = tail
        """What the engine runs, and the model's inputs and outputs."""
        self._session = session
        self._careful = careful
        self._lock = TicketLock()
        self._process = os.getpid()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs, in order, as values of the caller's own. Raises CollageError with what the engine says."""
        self._refuse_in_child()
        values = dict(zip([port.name for port in self.tail.inputs], inputs, strict=True))
        program = self._head.program
        with self._lock:
            made = self._head.run_in_place([values[port.name] for port in program.inputs])
            values.update(zip([port.name for port in program.outputs], made, strict=True))
            outputs = self._finish(values)
            return [
                outputs[port.name] if port.name in outputs else values[port.name].copy()
                for port in self.tail.outputs
            ]

    def bind(self, inputs: Mapping[str, Array]) -> BoundTail:
        """A call on fixed arrays of the model's inputs; those that are not given are made. Raises InputError."""
        taken = {port.name for port in self._head.program.inputs}
        unknown = set(inputs) - {port.name for port in self.tail.inputs}
        if unknown:
            raise InputError(str(unknown_names("input", unknown, [port.name for port in self.tail.inputs])))
        head = bind(self._head, {name: array for name, array in inputs.items() if name in taken}, {})
        arrays = {
            port.name: head.inputs[port.name] if port.name in taken else _array(port, inputs.get(port.name))
            for port in self.tail.inputs
        }
        return BoundTail(self, head, arrays)

    def run_bound(self, head: BoundCall, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Outputs by name; those of the launches are where the next run overwrites them."""
        self._refuse_in_child()
        with self._lock:
            head()
            return {**head.outputs, **self._finish({**inputs, **head.outputs})}

    def clone(self) -> TailExecutor:
        """Itself: the engine, which takes the callers in turn, is one."""
        return self

    def _finish(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs of the engine by name, for all that has been made before."""
        self._head.make_way()
        try:
            read = [values[name] for name in self.tail.reads]
            if self._careful is not None and not are_ordinary(read):
                given = self._careful.run(read)
            else:
                given = self._session.run(read)
        except Exception as error:  # an engine raises anything
            text = library_text(error)
            raise CollageError(f"{self.tail.region.backend} fails on these inputs: {text}") from error
        return dict(zip(self.tail.writes, given, strict=True))

    def _refuse_in_child(self) -> None:
        if self._process != os.getpid():
            raise CollageError(
                "this module was loaded before the process forked, and the engine's threads did not come along: load "
                "it again in the child, or start the child by spawning."
            )


class BoundTail:
    """As ``BoundCall``, for a module whose tail an engine runs: nothing is copied on the way to the engine.

    Fill the arrays of ``inputs``, call, and read ``outputs``: what the launches make is where it was, what the engine
    makes is new in each call.
    """

    def __init__(self, executor: TailExecutor, head: BoundCall, inputs: Mapping[str, Array]) -> None:
        self._executor = executor
        self._head = head
        self.inputs = dict(inputs)
        self.outputs: dict[str, Any] = {}

    def __call__(self) -> None:
        """Run."""
        found = self._executor.run_bound(self._head, self.inputs)
        self.outputs = {port.name: found[port.name] for port in self._executor.tail.outputs}


def _array(port: ValuePort, given: Array | None) -> Array:
    """The array of an input that only the engine reads."""
    if given is not None:
        try:
            array: Array = port.type.check(given)
            return array
        except MismatchError as error:
            raise InputError(f"input {port.name} {error}.") from None
    shape = port.type.shape
    if port.type.kind != TENSOR or port.type.dtype == STRING or shape is None or None in shape:
        raise InputError(
            f"input {port.name} is {port.type}, of which there is no array to be made: give one."
        )
    return np.zeros([extent or 0 for extent in shape], np_dtype(port.type.dtype))
