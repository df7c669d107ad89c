"""Modules whose outputs an engine makes, bound to their callers' arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array, TensorType
from collage.graph.value_type import STRING, TENSOR
from collage.kernel.kernel import Call, Session
from collage.runtime.bound import bound_arrays
from collage.runtime.inputs import check_rows
from collage.runtime.original import Careful, is_plain, unusual_finder
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.program import Port
from collage.schedule.suffix import Suffix, ValuePort

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launches:
    """The launches before an engine: a call that runs them, and the arrays that they fill by name."""

    call: Call
    made: Mapping[str, Array]


class _OnEngine:
    """A bound call that an engine answers. Callers of the module and of all its bound calls take turns."""

    def __init__(
        self,
        engine: str,
        turn: TicketLock,
        careful: Careful | None,
        inputs: Mapping[str, Any],
        read: Sequence[Any],
    ) -> None:
        """``careful`` answers calls with unusual numbers in ``read``, which is what the engine reads."""
        self._engine, self._turn, self._careful, self._read = engine, turn, careful, read
        self._is_unusual = None if careful is None else unusual_finder(read)
        self.inputs: Mapping[str, Any] = MappingProxyType(dict(inputs))

    def __call__(self) -> None:
        """Run the module once. Raises CollageError with the engine's message."""
        self._turn.run(self._run)

    def _run(self) -> None:
        raise NotImplementedError

    def _careful_outputs(self) -> Sequence[Any] | None:
        """The outputs of a call with unusual numbers; None for other calls, which are the engine's."""
        unusual = self._careful is not None and self._is_unusual is not None and self._is_unusual()
        return self._careful.run(self._read) if self._careful is not None and unusual else None

    def _error(self, error: Exception) -> CollageError:
        return CollageError(f"{self._engine} fails on these inputs: {library_text(error)}")


class BoundSuffix(_OnEngine):
    """A bound call, as ``BoundCall``, where an engine makes outputs. No input is copied on the way to it.

    Fill the arrays of ``inputs``, call it, and read ``outputs``. Outputs of the launches are the same arrays in each
    call. Outputs of the engine are not written again while anybody has them.
    """

    def __init__(
        self,
        suffix: Suffix,
        session: Session,
        turn: TicketLock,
        careful: Careful | None,
        inputs: Mapping[str, Any],
        launches: Launches | None,
    ) -> None:
        """``inputs`` has the values of all of the model's inputs."""
        self._suffix = suffix
        self._launch = None if launches is None else launches.call
        self._known = {**inputs, **({} if launches is None else launches.made)}
        read = [self._known[name] for name in suffix.reads]
        super().__init__(suffix.region.backend, turn, careful, inputs, read)
        self._call = _engine_call(session, read)
        self._names = tuple(port.name for port in suffix.outputs)
        self._makes_all = self._names == tuple(suffix.writes)
        self._made: Iterable[Any] | None = None
        self._outputs: dict[str, Any] | None = None

    @property
    def outputs(self) -> dict[str, Any]:
        """The outputs of the last call by name; none before the first one."""
        found = self._outputs
        return self._turn.run(self._read_outputs) if found is None else found

    def _read_outputs(self) -> dict[str, Any]:
        if self._outputs is None:
            found = {} if self._made is None else dict(zip(self._suffix.writes, self._made, strict=True))
            if found and not self._makes_all:
                found = {name: found[name] if name in found else self._known[name] for name in self._names}
            self._outputs, self._made = found, None
        return self._outputs

    def _run(self) -> None:
        self._made = self._outputs = None  # the engine may write to their memory again where nobody else has it
        if self._launch is not None:
            self._launch()
        if self._careful is not None and (made := self._careful_outputs()) is not None:
            self._made = made
            return
        try:
            self._made = self._call()
        except Exception as error:  # an engine raises anything
            raise self._error(error) from error


def _engine_call(session: Session, read: Sequence[Any]) -> Callable[[], Iterable[Any]]:
    """A call of the engine on these values. It tells only when it runs what the engine does not take."""
    if all(map(is_plain, read)):
        try:
            return session.bind_inputs(read)
        except Exception as error:  # an engine raises anything
            log.info("the engine is not bound to its inputs: %s", library_text(error))
    return partial(session.run, read)


class BoundEngine(_OnEngine):
    """A bound call, as ``BoundCall``: the engine reads the arrays of ``inputs`` and writes those of ``outputs``."""

    def __init__(
        self,
        engine: str,
        call: Call,
        turn: TicketLock,
        careful: Careful | None,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        super().__init__(engine, turn, careful, inputs, [*inputs.values()])
        self._call = call
        self.outputs: Mapping[str, Array] = MappingProxyType(dict(outputs))
        """The engine has the addresses of these arrays, which live as long as this does."""

    def _run(self) -> None:
        if self._careful is not None and (found := self._careful_outputs()) is not None:
            for array, made in zip(self.outputs.values(), found, strict=True):
                np.copyto(array, made)
            return
        try:
            self._call()
        except Exception as error:  # an engine raises anything
            raise self._error(error) from error


class _Straight(BoundEngine):
    """The same where the engine needs no lock, and no input is scanned."""

    def __call__(self) -> None:
        """Run the module once. Raises CollageError with the engine's message."""
        try:
            self._call()
        except Exception as error:  # an engine raises anything
            raise self._error(error) from error


def for_rows(suffix: Suffix, session: Session, inputs: Mapping[str, Array]) -> Suffix | None:
    """The suffix of a model of tables with the shapes that it has for these inputs; None if there is no binding for it.

    The engine runs a row of them once, which shows the shapes of the outputs. Raises InputError for inputs that do not
    fit, and for different numbers of rows.
    """
    read = [inputs[port.name] for port in suffix.inputs]
    taken = check_rows(suffix.inputs, read)
    if not all(map(is_plain, read)):
        return None
    try:
        made = session.run([each[:1] if taken else np.zeros((1, *each.shape[1:]), each.dtype) for each in read])
    except Exception as error:  # an engine raises anything
        log.info("%s is not bound to its outputs: %s", suffix.region.backend, library_text(error))
        return None
    if not all(is_plain(each) and each.shape[:1] == (1,) for each in made):
        return None
    ports = [
        replace(port, type=replace(port.type, shape=(taken, *each.shape[1:]), dtype=each.dtype.name))
        for port, each in zip((*suffix.inputs, *suffix.outputs), (*read, *made), strict=True)
    ]
    found = replace(suffix, inputs=tuple(ports[: len(read)]), outputs=tuple(ports[len(read) :]))
    return found if has_buffers(found) else None


def has_buffers(suffix: Suffix) -> bool:
    """Whether inputs and outputs are arrays of numbers of fixed shapes, all of them the engine's, and none is both."""
    ports = (*suffix.inputs, *suffix.outputs)
    own = [port.name for port in suffix.inputs] == [*suffix.reads] and not {*suffix.reads} & {*suffix.writes}
    return own and [port.name for port in suffix.outputs] == [*suffix.writes] and all(map(_type_of, ports))


def bind_engine(
    suffix: Suffix,
    session: Session,
    turn: TicketLock,
    careful: Careful | None,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    aligned: bool = True,
) -> BoundEngine:
    """Bind the engine of a whole model that ``has_buffers`` to arrays; those that are not given are made, of zeros.

    An engine that does not take them itself gets and gives copies. Raises InputError for arrays that do not fit. Given
    ones may start anywhere unless they have to be ``aligned``.
    """
    taken, made = ([*_ports(each)] for each in (suffix.inputs, suffix.outputs))
    read, written = bound_arrays(taken, made, inputs, outputs, aligned=aligned)
    call = None
    try:
        call = session.bind([*read.values()], [*written.values()])
    except Exception as error:  # an engine raises anything, where it has other shapes inside, for example
        log.info("%s is not bound to arrays: %s", suffix.region.backend, library_text(error))
    if call is None:
        call = partial(_run_into, session, [*read.values()], [*written.values()])
    straight = careful is None and getattr(call, "reentrant", False)
    return (_Straight if straight else BoundEngine)(suffix.region.backend, call, turn, careful, read, written)


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
