"""A module that is bound to its caller's arrays, for services that fill the same buffers for every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from collage.errors import InputError, unknown_names
from collage.graph.dataflow import Array, TensorType, np_dtype
from collage.kernel.buffers import ALIGNMENT, aligned_array, as_bytes, is_aligned
from collage.kernel.kernel import Call
from collage.native import LaunchList
from collage.runtime.executor import Executor
from collage.schedule.program import Port


class BoundCall:
    """Runs the module on ``inputs`` and writes the results into ``outputs``. Nothing is allocated.

    Fill the arrays of ``inputs``, call it, and read the arrays of ``outputs``. They are the same for each call, and
    cannot be replaced by others. A bound call has an arena of its own, and shares kernels with the module. Calls from
    several threads take turns.
    """

    def __init__(
        self,
        executor: Executor,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        copies: Sequence[tuple[Array, Array]],
    ) -> None:
        """``copies`` are pairs of an output array and the array that it is copied from after a run."""
        self._executor = executor
        self._copies = tuple(copies)
        self.inputs: Mapping[str, Array] = MappingProxyType(dict(inputs))
        self.outputs: Mapping[str, Array] = MappingProxyType(dict(outputs))

    @property
    def calls(self) -> list[Call]:
        """The calls of a run, in order. Kernels that follow each other on the team are one call."""
        return self._executor.calls

    @property
    def launch_lists(self) -> list[LaunchList] | None:
        """A run as launch lists, or None where it needs Python in between or afterwards."""
        lists = [each for each in self.calls if isinstance(each, LaunchList)]
        bare = not self._copies and not self._executor.program.is_guarded
        return lists if bare and len(lists) == len(self.calls) else None

    def __call__(self) -> None:
        """Run the module once.

        Raises CollageError with a kernel's name and message, and where a call needs the original model and there is
        none.
        """
        self._executor.lock.run(self._run)

    def _run(self) -> None:
        if self._executor.launch_or_find():
            self._answer_carefully()
            return
        for output, source in self._copies:
            np.copyto(output, source)

    def _answer_carefully(self) -> None:
        """Run the original model. Its inputs are intact, since kernels never overwrite arrays outside the arena."""
        program = self._executor.program
        found = self._executor.answer_carefully([self.inputs[port.name] for port in program.inputs])
        for port, array in zip(program.outputs, found, strict=True):
            np.copyto(self.outputs[port.name], array)


def bind(
    executor: Executor, inputs: Mapping[str, Array], outputs: Mapping[str, Array], arena: Array | None = None
) -> BoundCall:
    """Bind an executor to arrays; see ``CompiledModule.bind``. Raises InputError for arrays that do not fit.

    ``arena`` has the bytes of values in between, which other bound calls may use, too, one call at a time.
    """
    program = executor.program
    read, made = bound_arrays(program.inputs, program.outputs, inputs, outputs)
    given = {p.value: as_bytes(read[p.name]) for p in program.inputs}
    copied = []
    for port in program.outputs:
        base = program.buffer_view(port.value).base
        whole = program.types[base].nbytes == port.type.nbytes
        if base in given or base not in program.memory.offsets or not whole:
            copied.append(port)  # it is an input, another output, a constant, or a part of another value
        else:
            given[base] = as_bytes(made[port.name])
    own = executor.clone(given, arena)
    copies = [(made[port.name], own.output(port.value)) for port in copied]
    return BoundCall(own, read, made, copies)


def bound_arrays(
    taken: Sequence[Port],
    made: Sequence[Port],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    aligned: bool = True,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays of all inputs and outputs by name. Arrays that are not given are made, of zeros.

    Raises InputError for arrays that do not fit. Given ones may start anywhere unless they have to be ``aligned``.
    """
    read = _arrays("input", taken, inputs, aligned=aligned)
    written = _arrays("output", made, outputs, aligned=aligned, writable=True)
    _refuse_overlap(read, written)
    return read, written


def _arrays(
    what: str, ports: Sequence[Port], given: Mapping[str, Array], *, aligned: bool, writable: bool = False
) -> dict[str, Array]:
    unknown = set(given) - {port.name for port in ports}
    if unknown:
        raise InputError(str(unknown_names(what, unknown, [port.name for port in ports])))
    found = {port.name: given[port.name] if port.name in given else _zeros(port.type) for port in ports}
    for port in ports:
        array, wanted = found[port.name], port.type
        if not isinstance(array, np.ndarray):
            raise InputError(f"{what} {port.name} is no numpy array: a bound call reads and writes in place.")
        if array.shape != wanted.shape or array.dtype != np_dtype(wanted.dtype):
            raise InputError(f"{what} {port.name} is {array.dtype}{array.shape}, not {wanted}.")
        if not array.flags.c_contiguous or (aligned and not is_aligned(array)):
            starts = f" and start at a multiple of {ALIGNMENT} bytes" if aligned else ""
            raise InputError(
                f"{what} {port.name} must be contiguous{starts}: leave it out, and fill the array that `bind` makes."
            )
        if writable and not array.flags.writeable:
            raise InputError(f"{what} {port.name} is read-only.")
    return found


def _zeros(kind: TensorType) -> Array:
    """An aligned array for the caller to fill. A call before that computes on zeros, not on what memory held."""
    found = aligned_array(kind)
    as_bytes(found).fill(0)
    return found


def _refuse_overlap(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    others = list(inputs.items())
    for name, array in outputs.items():
        for other, against in others:
            if np.may_share_memory(array, against):
                raise InputError(f"output {name} overlaps {other}: give each an array of its own.")
        others.append((name, array))
