"""Running a model whose suffix an engine runs: first the launches, if there are any, and then the engine.

The engine takes and gives values of any type, and allocates its own memory.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError, InputError, unknown_names
from collage.graph.dataflow import Array, np_dtype
from collage.graph.given_array import MismatchError
from collage.graph.value_type import OPTIONAL, SEQUENCE, STRING, TENSOR, ValueType
from collage.kernel.kernel import Session
from collage.runtime.bound import BoundCall, bind
from collage.runtime.bound_engine import BoundEngine, BoundSuffix, Launches, bind_engine, for_rows, has_buffers
from collage.runtime.executor import Executor
from collage.runtime.original import Careful, are_ordinary
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.suffix import Suffix, ValuePort


class SuffixExecutor:
    """An engine with the suffix, and the executor of the launches before it.

    There is one run at a time, and callers take turns.
    """

    def __init__(self, prefix: Executor, suffix: Suffix, session: Session, careful: Careful | None = None) -> None:
        """``prefix`` must not be used elsewhere afterwards. ``careful`` answers calls with unusual numbers."""
        self._prefix = prefix
        self.suffix = suffix
        """The region that the engine runs, and the model's inputs and outputs."""
        self._session = session
        self._careful = careful
        self._turn = TicketLock(suffix.region.backend)

    @cached_property
    def _is_whole(self) -> bool:
        """Whether the engine reads the model's inputs and makes its outputs."""
        ports = ([port.name for port in side] for side in (self.suffix.inputs, self.suffix.outputs))
        return not self._prefix.program.launches and [*ports] == [[*self.suffix.reads], [*self.suffix.writes]]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs in order, as values that belong to the caller. Raises CollageError with the engine's message."""
        return self._turn.run(partial(self._make if self._is_whole else self._run, inputs))

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        values = dict(zip([port.name for port in self.suffix.inputs], inputs, strict=True))
        program = self._prefix.program
        made = self._prefix.run_in_place([values[port.name] for port in program.inputs])
        values.update(zip([port.name for port in program.outputs], made, strict=True))
        given = self._make([values[name] for name in self.suffix.reads])
        outputs = dict(zip(self.suffix.writes, given, strict=True))
        return [
            outputs[port.name] if port.name in outputs else values[port.name].copy() for port in self.suffix.outputs
        ]

    def bind_rows(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> BoundEngine | None:
        """A call of a model of tables on all of its inputs, whose number of rows gives the outputs' shapes.

        None if some inputs are not given, or not all values are arrays of numbers. Raises InputError for an array that
        does not fit.
        """
        ports = self.suffix.inputs
        if inputs.keys() != {port.name for port in ports}:
            return None
        given = {port.name: _bound(port, inputs) for port in ports}
        found = self._turn.run(partial(for_rows, self.suffix, self._session, given))
        if found is None:
            return None
        return bind_engine(found, self._session, self._turn, self._careful, given, outputs, aligned=False)

    def bind(self, inputs: Mapping[str, Array]) -> BoundSuffix:
        """A call on fixed arrays of the model's inputs. Arrays that are not given are made.

        Raises InputError for an unknown name, and for an array that does not fit.
        """
        taken = {port.name for port in self._prefix.program.inputs}
        unknown = set(inputs) - {port.name for port in self.suffix.inputs}
        if unknown:
            raise InputError(str(unknown_names("input", unknown, [port.name for port in self.suffix.inputs])))
        prefix = bind(self._prefix, {name: array for name, array in inputs.items() if name in taken}, {})
        arrays = {
            port.name: prefix.inputs[port.name] if port.name in taken else _bound(port, inputs)
            for port in self.suffix.inputs
        }
        launches = None
        if prefix.calls or prefix.outputs:
            launches = Launches(partial(self._launch, prefix), prefix.outputs)
        return BoundSuffix(self.suffix, self._session, self._turn, self._careful, arrays, launches)

    @property
    def writes_in_place(self) -> bool:
        """Whether the engine runs the whole model, from and to arrays of fixed shapes."""
        return not self._prefix.program.launches and has_buffers(self.suffix)

    def bind_engine(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> BoundEngine:
        """A call on fixed arrays of a model that the engine runs whole. Arrays that are not given are made.

        Raises what ``bound_engine.bind_engine`` raises.
        """
        return bind_engine(self.suffix, self._session, self._turn, self._careful, inputs, outputs)

    def _launch(self, prefix: BoundCall) -> None:
        prefix()
        self._prefix.make_way()

    def clone(self) -> SuffixExecutor:
        """The same executor, since there is one engine, which callers use in turn."""
        return self

    def _make(self, read: Sequence[Any]) -> list[Any]:
        """What the engine makes of the values that it reads."""
        self._prefix.make_way()
        try:
            if self._careful is not None and not are_ordinary(read):
                return self._careful.run(read)
            return self._session.run(read)
        except InputError:
            raise
        except Exception as error:  # an engine raises anything
            text = library_text(error)
            raise CollageError(f"{self.suffix.region.backend} fails on these inputs: {text}") from error


def _bound(port: ValuePort, inputs: Mapping[str, Any]) -> Any:
    """The value of an input that only the engine reads, which is the one that is given wherever it can change later."""
    given = inputs.get(port.name)
    if given is not None:
        try:
            return _in_place(port.type, given)
        except MismatchError as error:
            raise InputError(f"input {port.name} {error}.") from error
    shape = port.type.shape
    if port.type.kind != TENSOR or port.type.dtype == STRING or shape is None or None in shape:
        raise InputError(f"input {port.name} is {port.type}, of which there is no array to be made: give one.")
    return np.zeros([extent or 0 for extent in shape], np_dtype(port.type.dtype))


def _in_place(kind: ValueType, given: Any) -> Any:
    """The value, checked. Raises MismatchError where an engine would get a copy, and not see later changes."""
    found = kind.check(given)
    if given is None:
        return found
    if kind.kind == OPTIONAL and kind.element is not None:
        return _in_place(kind.element, given)
    if kind.kind == SEQUENCE and kind.element is not None:
        elements = [_in_place(kind.element, each) for each in given]
        same = isinstance(given, list) and all(map(operator.is_, elements, given))
        return given if same else elements
    if kind.kind == TENSOR and found is not given:
        if kind.dtype == STRING:
            raise MismatchError("is no numpy array of str (dtype object): a bound call reads its inputs in place")
        if not hasattr(given, "__dlpack__"):
            raise MismatchError(f"is no array of {kind.dtype}: a bound call reads its inputs in place")
    return found
