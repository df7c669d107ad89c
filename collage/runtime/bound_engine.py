"""A module that an engine runs whole, bound to its caller's arrays."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array, TensorType
from collage.graph.value_type import STRING, TENSOR
from collage.kernel.kernel import Call, Session
from collage.runtime.bound import bound_arrays
from collage.runtime.careful import Careful, unusual_finder
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.program import Port
from collage.schedule.suffix import Suffix, ValuePort

log = logging.getLogger(__name__)


class BoundEngine:
    """A bound call, as ``BoundCall``: the engine reads the arrays of ``inputs`` and writes those of ``outputs``.

    Callers of the module and of all its bound calls take turns.
    """

    def __init__(
        self,
        engine: str,
        call: Call,
        turn: TicketLock,
        careful: Careful | None,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        """``engine`` is its name, for errors, and each run has its turn of ``turn``.

        ``careful`` answers calls with unusual numbers in the inputs.
        """
        self._engine = engine
        self._call = call
        self._turn = turn
        self._careful = careful
        self._is_unusual = None if careful is None else unusual_finder([*inputs.values()])
        self.inputs: Mapping[str, Array] = MappingProxyType(dict(inputs))
        self.outputs: Mapping[str, Array] = MappingProxyType(dict(outputs))
        """The engine has the addresses of these arrays, which live as long as this does."""

    def __call__(self) -> None:
        """Run the module once. Raises CollageError with the engine's message."""
        self._turn.run(self._run)

    def _run(self) -> None:
        if self._careful is not None and self._is_unusual is not None and self._is_unusual():
            found = self._careful.run([*self.inputs.values()])
            for array, made in zip(self.outputs.values(), found, strict=True):
                np.copyto(array, made)
            return
        try:
            self._call()
        except Exception as error:  # an engine raises anything
            raise CollageError(f"{self._engine} fails on these inputs: {library_text(error)}") from error


def has_buffers(suffix: Suffix) -> bool:
    """Whether all inputs and outputs are arrays of numbers, of fixed shapes, and each of them is the engine's."""
    ports = (*suffix.inputs, *suffix.outputs)
    own = [port.name for port in suffix.inputs] == [*suffix.reads]
    return own and [port.name for port in suffix.outputs] == [*suffix.writes] and all(map(_type_of, ports))


def bind_engine(
    suffix: Suffix,
    session: Session,
    turn: TicketLock,
    careful: Careful | None,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
) -> BoundEngine:
    """Bind the engine of a whole model that ``has_buffers`` to arrays; those that are not given are made, of zeros.

    An engine that does not take them itself gets and gives copies. Raises InputError for arrays that do not fit.
    """
    taken, made = ([*_ports(each)] for each in (suffix.inputs, suffix.outputs))
    read, written = bound_arrays(taken, made, inputs, outputs)
    call = None
    try:
        call = session.bind([*read.values()], [*written.values()])
    except Exception as error:  # an engine raises anything, where it has other shapes inside, for example
        log.info("%s is not bound to arrays: %s", suffix.region.backend, library_text(error))
    if call is None:
        call = partial(_run_into, session, [*read.values()], [*written.values()])
    return BoundEngine(suffix.region.backend, call, turn, careful, read, written)


def _run_into(session: Session, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    for array, made in zip(outputs, session.run(inputs), strict=True):
        np.copyto(array, made)


def _ports(ports: Sequence[ValuePort]) -> Iterator[Port]:
    for number, port in enumerate(ports):
        kind = _type_of(port)
        assert kind is not None  # of a suffix that has buffers
        yield Port(port.name, number, kind)


def _type_of(port: ValuePort) -> TensorType | None:
    """The type of the port's array; None where it has no array of numbers, or a shape that is not known."""
    kind = port.type
    shape = None if kind.shape is None else tuple(e for e in kind.shape if e is not None)
    if kind.kind != TENSOR or kind.dtype == STRING or shape is None or len(shape) < len(kind.shape or ()):
        return None
    return TensorType(shape, kind.dtype)
