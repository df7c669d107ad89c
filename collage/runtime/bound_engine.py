"""A module that an engine runs whole, bound to its caller's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError, UsageError
from collage.graph.dataflow import Array, TensorType
from collage.graph.magnitudes import is_scanned
from collage.graph.value_type import STRING, TENSOR
from collage.kernel.kernel import Call, Session
from collage.native.scan import Scanned, new_flag, scan_call
from collage.runtime.bound import bound_arrays
from collage.runtime.careful import Careful
from collage.schedule.program import Port
from collage.schedule.suffix import Suffix, ValuePort

Turn: TypeAlias = "Callable[[], AbstractContextManager[None]]"
"""What a run of an engine is in: callers take turns, and other threads make way."""


class BoundEngine:
    """A bound call, as ``BoundCall``: the engine reads the arrays of ``inputs`` and writes those of ``outputs``.

    Callers of the module and of all its bound calls take turns.
    """

    def __init__(
        self,
        call: Call,
        turn: Turn,
        careful: Careful | None,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        """``careful`` answers calls with unusual numbers in the inputs."""
        self._call = call
        self._turn = turn
        self._careful = careful
        self._found = new_flag()
        scanned = [each for each in inputs.values() if careful is not None and is_scanned(each.dtype.name)]
        self._scan = scan_call([*map(Scanned, scanned)], self._found) if scanned else None
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)

    def __call__(self) -> None:
        """Run the module once. Raises CollageError with the engine's message."""
        with self._turn():
            if self._scan is not None:
                self._found[0] = 0
                self._scan()
            if self._found[0] and self._careful is not None:
                found = self._careful.run([*self.inputs.values()])
                for array, made in zip(self.outputs.values(), found, strict=True):
                    np.copyto(array, made)
            else:
                self._call()


def bind_engine(
    suffix: Suffix,
    session: Session,
    turn: Turn,
    careful: Careful | None,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
) -> BoundEngine:
    """Bind the engine of a whole model to arrays; those that are not given are made.

    Raises InputError for arrays that do not fit, and UsageError where the engine has to make its outputs itself.
    """
    engine = suffix.region.backend
    taken, made = [*_ports(suffix.inputs, engine)], [*_ports(suffix.outputs, engine)]
    read, written = bound_arrays(taken, made, inputs, outputs)
    by_name = {**read, **written}
    try:
        call = session.bind(
            [by_name[name] for name in suffix.reads], [by_name[name] for name in suffix.writes]
        )
    except Exception as error:  # an engine raises anything
        raise CollageError(f"{engine} cannot be bound to arrays: {library_text(error)}") from error
    if call is None or {*suffix.writes} != {*written} or [*suffix.reads] != [*read]:
        raise UsageError(
            f"{engine} runs the model whole and makes its outputs: there are no buffers to bind."
        )
    return BoundEngine(call, turn, careful, read, {name: written[name] for name in suffix.writes})


def _ports(ports: Sequence[ValuePort], engine: str) -> Iterator[Port]:
    """The ports with numbers and fixed shapes. Raises UsageError for any other."""
    for number, port in enumerate(ports):
        kind = port.type
        shape = None if kind.shape is None else tuple(e for e in kind.shape if e is not None)
        if kind.kind != TENSOR or kind.dtype == STRING or shape is None or len(shape) < len(kind.shape or ()):
            raise UsageError(
                f"{engine} runs the model whole, and {port.name} is {kind}: there is no buffer to bind for that."
            )
        yield Port(port.name, number, TensorType(shape, kind.dtype))
