"""The worker's side of races: the kernels of a region that it holds, each tried alone, then raced, then checked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from collage.backends.base import Backend
from collage.check.bound_kernel import BoundKernel, KernelSource, SharedBuffers, load
from collage.check.gate import Checked, Gate
from collage.check.samples import Samples
from collage.check.spent import BUILD, CHECK, COPIES, RACE, spent
from collage.check.stages import RejectedError, looks_like_memory, rejection_of
from collage.core.library_text import library_text
from collage.core.memory import last_level_cache
from collage.core.quiet import quiet_machine
from collage.graph.dataflow import Array
from collage.kernel.device_call import DeviceCall
from collage.kernel.device_clock import clocks_at_work, device_clocked
from collage.kernel.kernel import Kernel
from collage.kernel.options import BuildOptions
from collage.measure.machine.free_memory import with_free_memory
from collage.measure.timing.cache_state import MOST_BYTES, instance_count, weight_bytes, weights_among
from collage.measure.timing.calls import Clocked, batch_ns, clock_overhead
from collage.measure.timing.race import CLOSE, Lane, LaneTime, race, results
from collage.measure.worker.protocol import (
    CandidateRequest,
    KernelFailed,
    RaceKernels,
    RaceRun,
    Tried,
    TryKernel,
    running_in,
)
from collage.measure_db.results import Rejection, RejectionKind
from collage.native import LaunchList, NativeKernel, note_time, team_of, touch_interleaved

Made = TypeVar("Made")

Keep: TypeAlias = Callable[[BuildOptions, bytes], None]
"""Takes an artifact, and the options that it was built with."""

_CLOCKED_NS, _CLOCKED_WALL_NS = 20_000, 200_000
"""A turn of calls that take their own time ends when these add up to the first, or when the second has passed."""


@dataclass
class _Held:
    """A kernel that was tried, its gate, and the instances that take turns with weights of their own."""

    request: CandidateRequest
    kernel: BoundKernel
    gate: Gate | None
    error: float = 0.0
    calls: list[Callable[[], object]] = field(default_factory=list)
    others: list[BoundKernel] = field(default_factory=list)
    turn: int = 0


class Racing:
    """The kernels that this process holds, by number. ``running`` names the one that runs, in a file."""

    def __init__(self, samples: Samples, folder: Path) -> None:
        self._samples = samples
        self._held: dict[int, _Held] = {}
        self._shared: dict[tuple[int, ...], SharedBuffers] = {}
        self._running = running_in(folder)

    def let_go(self, keep: Iterable[int] = ()) -> None:
        """Let all kernels go but these."""
        kept = set(keep)
        self._held = {number: each for number, each in self._held.items() if number in kept}
        regions = {each.kernel.source.subgraph.nodes for each in self._held.values()}
        self._shared = {nodes: each for nodes, each in self._shared.items() if nodes in regions}

    def request(self, number: int) -> CandidateRequest:
        """The request of a kernel that is held."""
        return self._held[number].request

    def try_alone(self, message: TryKernel, source: KernelSource) -> Tried | KernelFailed:
        """Build, load and run a kernel, and compare its outputs. Nothing is raised."""
        self.let_go(message.keep)
        self._running[0] = message.number
        shared = self._shared.setdefault(source.subgraph.nodes, {})

        def tried() -> Tried:
            with spent(BUILD):
                built = source if message.known else source.tuned()
                kernel = load(built, built.compiled(), self._samples, shared)
            gate = None
            error = 0.0
            with spent(CHECK):
                if message.known:
                    kernel.call()
                else:
                    gate = Gate(kernel, self._samples)
                    error = gate.check_first()
            self._held[message.number] = _Held(message.request, kernel, gate, error)
            held = max(len(kernel.artifact), weight_bytes(built.subgraph))
            return Tried(error, built.options.tuning, held)

        return self._guarded(tried, source.backend)

    def race(self, message: RaceKernels) -> RaceRun | KernelFailed:
        """Race kernels that are held."""
        held = [self._held[number] for number in message.numbers]
        lanes = [
            Lane(
                self._turns(number, each),
                each.kernel.source.options.variant.precision,
                message.charges_us.get(number, 0.0) * 1e3,
                number in message.incumbent,
                message.settle_s if each.kernel.source.options.exclusive else 0.0,
            )
            for number, each in zip(message.numbers, held, strict=True)
        ]
        on_gpu = any(isinstance(each.kernel.call, DeviceCall) for each in held)
        alone = on_gpu or any(each.kernel.source.options.threads > 1 for each in held)

        asked = len(held) - len(message.incumbent)
        limit_s = asked * message.candidate_s

        def raced(at: Sequence[int], rounds: int) -> dict[int, LaneTime]:
            some, share_s = [lanes[each] for each in at], limit_s / max(1, len(at) - len(message.incumbent))
            with spent(RACE):
                turns = race(some, share_s, enough=message.enough, rounds=rounds)
            return dict(zip(at, results(some, turns, message.known_us), strict=True))

        def run() -> RaceRun:
            nonlocal limit_s
            for each in held:
                each.calls, each.others = [_call(each.kernel)], []
            left = list(range(len(held)))
            found: dict[int, LaneTime] = {}
            with quiet_machine(alone=alone) as watch:
                if any(map(_rotates, held)):
                    if asked > _FEW:
                        began = time.perf_counter()
                        found = raced(left, _FIRST_ROUNDS)
                        left = [at for at in left if lanes[at].incumbent or found[at].relative <= CLOSE]
                        limit_s -= time.perf_counter() - began
                    with spent(COPIES):
                        _widen([held[at] for at in left])
                found |= raced(left, _ROUNDS)
            clocks = clocks_at_work() if on_gpu else None
            return RaceRun({message.numbers[at]: each for at, each in found.items()}, watch.busy, clocks)

        outcome = self._guarded(run)
        for each in held:
            each.calls, each.others = [], []
        return outcome

    def check(self, number: int, keep: Keep) -> Checked | KernelFailed:
        """Compare a kernel that was raced on all inputs, and keep its artifact if it is right. Nothing is raised."""
        held = self._held[number]
        self._running[0] = number

        def checked() -> Checked:
            assert held.gate is not None
            with spent(CHECK):
                found = held.gate.check_rest(held.error)
            keep(held.kernel.source.options, held.kernel.artifact)
            return found

        return self._guarded(checked, held.kernel.source.backend)

    def _guarded(self, work: Callable[[], Made], backend: Backend | None = None) -> Made | KernelFailed:
        """What the work makes, or the failure of the kernel that runs, which is one of that backend."""
        found = _outcome(work) if backend is None else with_free_memory(backend, lambda: _outcome(work))
        return KernelFailed(int(self._running[0]), found) if isinstance(found, Rejection) else found

    def _turns(self, number: int, held: _Held) -> Callable[[int], float]:
        """Runs a turn: so many calls, whose instances take turns, too. It gives the nanoseconds of one call."""
        timed, running = turn_of(own=_takes_its_time(held.kernel)), self._running

        def run(count: int) -> float:
            running[0] = number
            begin = held.turn
            held.turn += count
            return timed([held.calls[(begin + at) % len(held.calls)] for at in range(count)])

        return run


_FEW, _FIRST_ROUNDS, _ROUNDS = 3, 3, 1000
"""A race of more candidates begins with some rounds without copies of their weights, which take time to load."""


def turn_of(*, own: bool) -> Callable[[Sequence[Callable[[], object]]], float]:
    """Runs calls and gives the nanoseconds of one; calls with clocks of their ``own`` return them."""
    if own:
        return _clocked_ns
    overhead = clock_overhead(time.perf_counter_ns)
    return lambda calls: batch_ns(calls, time.perf_counter_ns, overhead) / len(calls)


def clocked(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array]) -> Clocked:
    """A call of a kernel on the team that takes its own time, with the buffers' cache lines on all cores."""
    assert isinstance(kernel, NativeKernel)
    clock = np.zeros(2, np.int64)
    before, after = (note_time(int(clock[side:].ctypes.data)) for side in (0, 1))
    touches = [touch_interleaved(array) for array in (*outputs, *inputs) if array.nbytes]
    run = LaunchList(team_of(kernel.threads), [*touches, before, *kernel.steps(inputs, outputs), after])

    def call() -> int:
        run()
        return int(clock[1] - clock[0])

    return call


def _takes_its_time(kernel: BoundKernel) -> bool:
    return isinstance(kernel.call, DeviceCall) or isinstance(kernel.kernel, NativeKernel)


def _call(kernel: BoundKernel) -> Callable[[], object]:
    """A call for timing; one that ``_takes_its_time`` gives the nanoseconds."""
    if isinstance(kernel.call, DeviceCall):
        return device_clocked(kernel.call)
    if isinstance(kernel.kernel, NativeKernel):
        return clocked(kernel.kernel, kernel.buffers.inputs, kernel.buffers.outputs)
    return kernel.call


def _clocked_ns(calls: Sequence[Callable[[], object]]) -> float:
    """The mean of what the calls say they took, of as many as a turn needs."""
    begin, total, count = time.perf_counter_ns(), 0, 0
    for call in calls:
        total += int(call())  # type: ignore[call-overload]
        count += 1
        if total >= _CLOCKED_NS or time.perf_counter_ns() - begin >= _CLOCKED_WALL_NS:
            break
    return max(1.0, total / count)


def _rotates(held: _Held) -> bool:
    """Whether the kernel takes turns with others that have weights of their own. A GPU's cache is flushed instead."""
    return not isinstance(held.kernel.call, DeviceCall) and weights_among(held.kernel.source.subgraph) > 0


def _widen(held: Sequence[_Held]) -> None:
    """Give kernels instances with weights of their own, so that together they leave the cache as the network does."""
    for each in filter(_rotates, held):
        subgraph = each.kernel.source.subgraph
        weights = weight_bytes(subgraph)
        wanted = instance_count(weights, weights_among(subgraph), last_level_cache(), each.kernel.load_s)
        share = min(math.ceil(wanted / len(held)), MOST_BYTES // max(1, weights * len(held)))
        while len(each.calls) < share:
            each.others.append(each.kernel.another())
            each.calls.append(_call(each.others[-1]))


def _outcome(work: Callable[[], Made]) -> Made | Rejection:
    """What the work makes, or the rejection that its failure means."""
    try:
        return work()
    except RejectedError as rejected:
        return rejected.rejection
    except MemoryError as error:
        text = library_text(error)  # that of a GPU says whose memory it is, and what to do
        return Rejection(RejectionKind.MEMORY, f"run: {text if looks_like_memory(text) else 'out of memory'}")
    except BaseException as failure:  # a kernel may raise anything, and only after some runs
        return rejection_of("run", failure)
