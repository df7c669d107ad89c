"""A module whose outputs an engine makes, bound to its caller's inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Session
from collage.runtime.careful import Careful, is_plain, unusual_finder
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.suffix import Suffix

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launches:
    """The launches before an engine: a call that runs them, and the arrays that they fill by name."""

    call: Call
    made: Mapping[str, Array]


class BoundSuffix:
    """A bound call, as ``BoundCall``, where an engine makes outputs. No input is copied on the way to it.

    Fill the arrays of ``inputs``, call it, and read ``outputs``. Outputs of the launches are the same arrays in each
    call. Outputs of the engine are not written again while anybody has them. Callers of the module and of all its bound
    calls take turns.
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
        """``inputs`` has the values of all of the model's inputs.

        ``careful`` answers calls with unusual numbers in what the engine reads.
        """
        self._suffix = suffix
        self._turn = turn
        self._launch = None if launches is None else launches.call
        self._known = {**inputs, **({} if launches is None else launches.made)}
        self._read = [self._known[name] for name in suffix.reads]
        self._call = _engine_call(session, self._read)
        self._careful = careful
        self._is_unusual = None if careful is None else unusual_finder(self._read)
        self._names = tuple(port.name for port in suffix.outputs)
        self._makes_all = self._names == tuple(suffix.writes)
        self.inputs: Mapping[str, Any] = MappingProxyType(dict(inputs))
        self.outputs: dict[str, Any] = {}

    def __call__(self) -> None:
        """Run the module once. Raises CollageError with the engine's message."""
        self._turn.run(self._run)

    def _run(self) -> None:
        self.outputs = {}  # the engine may write to their memory again where nobody else has it
        if self._launch is not None:
            self._launch()
        if self._careful is not None and self._is_unusual is not None and self._is_unusual():
            made: Sequence[Any] = self._careful.run(self._read)
        else:
            try:
                made = self._call()
            except Exception as error:  # an engine raises anything
                name, text = self._suffix.region.backend, library_text(error)
                raise CollageError(f"{name} fails on these inputs: {text}") from error
        found = dict(zip(self._suffix.writes, made, strict=True))
        if not self._makes_all:
            found = {name: found[name] if name in found else self._known[name] for name in self._names}
        self.outputs = found


def _engine_call(session: Session, read: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    """A call of the engine on these values. It tells only when it runs what the engine does not take."""
    if all(map(is_plain, read)):
        try:
            return session.bind_inputs(read)
        except Exception as error:  # an engine raises anything
            log.info("the engine is not bound to its inputs: %s", library_text(error))
    return partial(session.run, read)
