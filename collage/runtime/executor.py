"""Running a program. Its kernels are bound to an arena ahead of time, so that a run is a list of calls.

Kernels that follow each other on Collage's team become one call, which runs them without Python in between.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from operator import length_hint
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array, np_dtype
from collage.graph.magnitudes import LIMIT
from collage.graph.storage import CUDA, HOST
from collage.kernel.device_array import empty_on, lock_pages, on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.device_clock import device_clocked
from collage.kernel.kernel import Call, Kernel
from collage.native import NativeKernel, Team, beside_team, team_of
from collage.native.scan import Assumed, Scanned, new_flag
from collage.runtime.binder import Binder, noted, timed
from collage.runtime.original import Careful, no_original
from collage.runtime.ticket_lock import TicketLock
from collage.schedule.program import Program
from collage.schedule.region import Region

_NAMED_OPS = 6
"""The most operators in the name of a kernel."""

_made: WeakSet[Executor] = WeakSet()
_lanes = itertools.count(1)


class Executor:
    """A program with its kernels, bound to an arena on each device. There is one run at a time; callers take turns."""

    def __init__(
        self,
        program: Program,
        kernels: Sequence[Kernel],
        constants: Mapping[int, Array],
        given: Mapping[int, npt.NDArray[np.uint8]] | None = None,
        careful: Careful | None = None,
        arena: Array | None = None,
    ) -> None:
        """``kernels`` are those of ``program.launches``, in order. ``constants`` are the outputs that are constants.

        ``given`` has the bytes of values outside the arena, by id. Aliases of other values cannot be among them.
        ``careful`` answers calls in which a scan finds something. ``arena`` is the host's, with bytes that other
        executors use, too, none of which runs at the same time; without it there is a new one.
        """
        self.program = program
        self.careful = careful
        self._found = new_flag() if program.is_guarded else None
        """The flag that the scans of ``calls`` set."""
        self.careful_runs = 0
        """The number of calls that the original model has answered."""
        self._arena = _arena_of(program, HOST) if arena is None else arena
        if CUDA in program.arenas and arena is None:
            lock_pages(self._arena)
        self._on_devices = {each: _arena_of(program, each) for each in program.arenas if each != HOST}
        """The arenas of other devices than the host."""
        self._given = given or {}
        self._constants = dict(constants)
        self._arrays: dict[int, Array] = {}
        self._kernels = list(kernels)  # bound calls may need their kernels to stay alive
        self.device_ns: npt.NDArray[np.int64] = np.full(len(program.launches), -1, np.int64)
        """For each launch on a GPU, how long it took there in the last run of calls that note times; else -1."""
        self._lane = 0
        self._team: Team | None = None
        if any(isinstance(kernel, NativeKernel) for kernel in kernels):
            if program.threads == 1:
                self._lane, self._team = self._own_team()
            else:
                self._team = team_of(program.threads)
        binder = self._bound()
        self.calls = binder.finish()
        """The calls of a run, in order."""
        self._names = binder.names
        self._inputs = [self.array(p.value) for p in program.inputs]
        self._outputs = [self.output(p.value) for p in program.outputs]
        self.lock = TicketLock()
        """Runs are in turn."""
        _made.add(self)

    def clone(self, given: Mapping[int, npt.NDArray[np.uint8]] | None = None, arena: Array | None = None) -> Executor:
        """Another executor on the same kernels and so the same weights, with ``arena`` or an arena of its own."""
        return Executor(self.program, self._kernels, self._constants, given, self.careful, arena)

    def bind(self, ends: Array | None = None, starts: Array | None = None) -> list[Call]:
        """The kernels as calls; those that follow each other on the team are one call.

        With ``ends`` (int64, one element for each launch) the calls also write the time after each launch, in
        nanoseconds of ``time.monotonic_ns``. With ``starts`` they write the time before it. What the scans of such
        calls find is ignored. Raises CollageError for a kernel that does not fit its buffers.
        """
        return self._bound(ends, starts).finish()

    def _bound(self, ends: Array | None = None, starts: Array | None = None) -> Binder:
        """A binder with all kernels."""
        noting = starts is not None or ends is not None
        found = new_flag() if noting or self._found is None else self._found
        binder = Binder(self.program, self._team, self._lane, found)
        if self.program.assumed:
            binder.assume([Assumed(self.array(v), each) for v, each in self.program.assumed.items()])
        for number, (region, kernel) in enumerate(zip(self.program.launches, self._kernels, strict=True)):
            inputs = [self.array(v) for v in region.inputs]
            outputs = [self.array(v) for v in region.outputs]
            scans = [Scanned(self.array(v), self.program.limits.get(v, LIMIT)) for v in region.scans]
            before, after = (None if each is None else each[number:] for each in (starts, ends))
            try:
                if isinstance(kernel, NativeKernel):
                    binder.native(number, noted(kernel.steps, before, after), inputs, outputs, scans)
                    continue
                call = kernel.bind(inputs, outputs)
            except CollageError:
                raise
            except Exception as error:  # a backend raises anything
                raise CollageError(f"the {kernel_name(region)} does not fit its buffers: {error}") from error
            if isinstance(call, DeviceCall):
                if not noting:
                    binder.device(number, call, scans)
                    continue
                call = call if call.with_host else _noting_ns(call, self.device_ns[number:])
            else:
                call = call if self._team is None else beside_team(call, self.program.threads)
            on_host = [each for each in scans if not on_device(each.array)]
            binder.call(timed(call, before, after), kernel_name(region), on_host, number)
        return binder

    def _own_team(self) -> tuple[int, Team]:
        """A lane, and a team of one thread, so that callers of several modules do not wait for each other."""
        team = Team(1)
        weakref.finalize(self, team.close).atexit = False
        return next(_lanes), team

    def array(self, value: int) -> Array:
        """The array of a value, which is in the arena of its device unless it was given."""
        if value not in self._arrays:
            kind, view = self.program.types[value], self.program.buffer_view(value)
            arena = self._on_devices.get(self.program.device(value), self._arena)
            whole: Array = self._given.get(view.base, arena)
            begin = view.offset if view.base in self._given else self.program.offset(value)
            raw: Array = whole[begin : begin + kind.nbytes]
            self._arrays[value] = raw.view(np_dtype(kind.dtype)).reshape(kind.shape)
        return self._arrays[value]

    def output(self, value: int) -> Array:
        """The array that holds an output after a run."""
        return self._constants[value] if value in self._constants else self.array(value)

    def set_inputs(self, inputs: Sequence[Array]) -> None:
        """Copy the inputs, in order, into their buffers."""
        for buffer, array in zip(self._inputs, inputs, strict=True):
            np.copyto(buffer, array)

    def launch(self) -> None:
        """Run the kernels on the contents of the input buffers, which may be overwritten after their last use.

        Raises CollageError with the kernel's name and its message.
        """
        calls = iter(self.calls)
        try:
            for call in calls:
                call()
        except CollageError:
            raise
        except Exception as error:  # the kernels of plug-ins and engines raise anything
            name = self._names[len(self.calls) - length_hint(calls) - 1]
            raise CollageError(f"the {name} fails on these inputs: {library_text(error)}") from error

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs in order, as new arrays that belong to the caller. Raises CollageError as ``launch`` does."""
        return self.lock.run(partial(self._run_and_copy, inputs))

    def _run_and_copy(self, inputs: Sequence[Array]) -> list[Array]:
        return [buffer.copy() for buffer in self.run_in_place(inputs)]

    def run_in_place(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs in order, in arrays that the next run overwrites: read them in the same turn of ``lock``."""
        self.set_inputs(inputs)
        return self.answer_carefully(inputs) if self.launch_or_find() else self._outputs

    def launch_or_find(self) -> bool:
        """Launch, and tell whether a scan has found something, in which case a kernel may have failed, too.

        Raises CollageError as ``launch`` does.
        """
        try:
            self.launch()
        except CollageError:
            if not self.found:
                raise
        return self.found

    @property
    def found(self) -> bool:
        """Whether a scan of the last run found something, so that its outputs may be wrong."""
        return self._found is not None and bool(self._found[0])

    def answer_carefully(self, inputs: Sequence[Array]) -> list[Array]:
        """The right outputs for the inputs of a run that has ``found`` something.

        Raises CollageError where the original model is not at hand.
        """
        assert self._found is not None
        self._found[0] = 0
        self.careful_runs += 1
        if self.careful is None:
            raise no_original()
        self.make_way()
        return self.careful.run(inputs)

    def make_way(self) -> None:
        """Send the team's idle threads to sleep, since the threads of an engine need the cores next."""
        if self._team is not None:
            self._team.park()

    def _after_fork(self) -> None:
        """Renew the lock, and refuse runs on engines: a forked child has none of its parent's threads."""
        self.lock = TicketLock()
        if self._found is not None:
            self._found[0] = 0  # of a run of the parent
        lost = [
            region.backend
            for region, kernel in zip(self.program.launches, self._kernels, strict=True)
            if kernel.own_threads
        ]
        if lost:
            self.calls = [partial(_refuse, ", ".join(dict.fromkeys(lost)))]


def _arena_of(program: Program, device: str) -> Array:
    """An arena for the values on a device."""
    return empty_on(device, (max(program.arenas[device].nbytes, 1),), "uint8")


def _noting_ns(call: DeviceCall, note: npt.NDArray[np.int64]) -> Call:
    """The call, which notes the nanoseconds that it took on the GPU."""
    clocked = device_clocked(call)

    def run() -> None:
        note[0] = clocked()

    return run


def kernel_name(region: Region) -> str:
    """The name of a region's kernel in errors, such as ``onednn kernel conv2d+relu``."""
    return f"{region.backend} kernel {'+'.join(region.ops[:_NAMED_OPS])}"


def _refuse(backends: str) -> None:
    raise CollageError(
        f"this module was loaded before the process forked, and the threads of {backends} did not come along: "
        "load it again in the child, or start the child by spawning."
    )


def _in_forked_child() -> None:
    for executor in list(_made):
        executor._after_fork()


os.register_at_fork(after_in_child=_in_forked_child)
