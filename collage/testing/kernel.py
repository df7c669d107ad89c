"""One kernel against its contract: numbers, state, threads, leaks."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import quantiles

import numpy as np

from collage.backends.base import BackendKind, UnsupportedError
from collage.backends.engine import Engine
from collage.check.bound_kernel import KernelSource, usual_sample
from collage.check.gate import Judge, same_bytes
from collage.check.sample import Sample
from collage.check.samples import Samples
from collage.check.stages import RejectedError, made_artifact, stage
from collage.core.library_text import raised
from collage.frontend.model import from_simplified
from collage.frontend.read.apart import with_changed
from collage.frontend.read.weights import WeightFiles
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.graph.storage import PLAIN
from collage.kernel.device_array import to_host
from collage.kernel.kernel import Kernel
from collage.kernel.options import ALL_PLAIN
from collage.measure_db.results import Rejection, RejectionKind
from collage.testing.buffers import Bound, DefectError, as_defect

_CALLS, _AT_ONCE_S = 1000, 0.1
"""Calls of two kernels at the same time, and their seconds at most."""
_LEAK_S, _LEAK_CALLS, _LOADS = 0.04, 400, 12
_LEAK_BYTES = 96 << 10
"""More than this in each of two rounds is a leak."""
_SPREAD = 1.0
_TIMES = 30


class RefusedError(Exception):
    """A backend does not take what it was tried on; the message says why."""


@dataclass(frozen=True)
class Trial:
    """A kernel to check: what it is built from, and whether it is an engine's kernel of the whole model."""

    source: KernelSource
    samples: Samples
    whole: bool = False

    def compiled(self) -> bytes:
        """The artifact. Raises RejectedError."""
        if not self.whole:
            return self.source.compiled()
        backend, model = self.source.backend, self.source.subgraph.model
        assert isinstance(backend, Engine)
        return made_artifact(lambda: backend.codegen_model(model.onnx, self.source.options))

    def loaded(self, artifact: bytes) -> Kernel:
        """The kernel of an artifact. Raises DefectError.

        Raises RefusedError for a whole model that the engine does not take, which some see only here.
        """
        try:
            return self.source.backend.load(artifact, self.source.options)
        except UnsupportedError as error:
            if self.whole:
                raise RefusedError(str(error)) from error
            raise DefectError("raises", f"load: {raised(error)}") from error
        except Exception as error:  # a third party's code
            raise DefectError("raises", f"load: {raised(error)}") from error

    def bound(self, kernel: Kernel, in_place: int | None = None) -> Bound:
        """The kernel on buffers of its own. Raises DefectError."""
        return Bound(kernel, self.source.subgraph, self.source.options.variant, in_place)

    @property
    def usual(self) -> Sample:
        """The usual inputs."""
        return usual_sample(self.source.subgraph, self.samples)

    @property
    def changed(self) -> Sequence[Sample]:
        """The other inputs."""
        return self.samples.changed(self.source.subgraph)

    def check(self, bound: Bound, sample: Sample, about: str = "") -> None:
        """Run a kernel once on a sample, and look at everything. Raises DefectError."""
        bound.run(stored(bound, sample), about)
        self.judge(bound, sample, about)

    def judge(self, bound: Bound, sample: Sample, about: str = "") -> None:
        """Compare the outputs with the reference, as compiles do. Raises DefectError."""
        source = self.source
        engine = self.whole and source.backend.kind is BackendKind.ENGINE
        judge = Judge(self.samples, source.subgraph, bound.gives, source.options.variant.precision, engine)
        for position, array in enumerate(bound.outputs):
            try:
                judge.error(sample, position, to_host(array), about)
            except RejectedError as rejected:
                if count := bound.unwritten(stored(bound, sample), position):
                    text = f"{about}leaves {count} of {array.size} elements of output {position} unwritten"
                    raise DefectError("unwritten", text) from rejected
                raise DefectError("numbers", str(rejected)) from rejected

    def unchanged(self, bound: Bound, about: str) -> None:
        """Check that a kernel which was right on the usual inputs still is. Raises DefectError."""
        try:
            self.check(bound, self.usual, about)
        except DefectError as defect:
            raise DefectError("state" if defect.kind == "numbers" else defect.kind, str(defect)) from defect


def stored(bound: Bound, sample: Sample) -> list[Array]:
    """The inputs of a sample as a kernel takes them."""
    return [sample.stored(position, storage) for position, storage in enumerate(bound.takes)]


def check_numbers(trial: Trial, kernel: Kernel) -> None:
    """Run the kernel on all samples. Raises DefectError for the first thing that is wrong."""
    bound, keeps_nan = trial.bound(kernel), trial.source.backend.keeps_nan
    trial.check(bound, trial.usual)
    trial.unchanged(bound, "in a second call, ")
    for sample in trial.changed:
        try:
            trial.check(bound, sample, f"with {sample.kind} in its inputs, ")
        except DefectError as defect:
            if defect.kind != "numbers":
                raise
            trial.unchanged(bound, "after other inputs, ")
            if trial.source.options.variant.precision:
                continue  # what rounding costs depends on the model, and compiles look at that
            if sample.ordinary:
                raise
            if keeps_nan:
                raise DefectError("hostile", str(defect)) from defect
    trial.unchanged(bound, "after other inputs, ")
    # Numbers next to zero may count as zero, so that only memory is looked at.
    bound.run(bound.stored([_subnormal(each) for each in trial.usual.inputs]), "with subnormal numbers in its inputs, ")
    _in_place(trial, kernel)


def check_session(trial: Trial) -> None:
    """Run a whole model in the engine's session, if it takes the model so. Raises DefectError."""
    backend, subgraph = trial.source.backend, trial.source.subgraph
    assert isinstance(backend, Engine)
    model = subgraph.model.onnx.SerializeToString()
    try:
        backend.check_model(model)
        session = backend.session(model, trial.source.options)
    except Exception:  # an engine refuses a model in any way
        return
    judge = Judge(trial.samples, subgraph, (PLAIN,) * len(subgraph.outputs), engine=True)
    with as_defect(), stage("session.run"):
        outputs = session.run([*trial.usual.inputs])
    try:
        for position, each in enumerate(outputs):
            judge.error(trial.usual, position, np.ascontiguousarray(each).reshape(np.shape(each)), "from a session, ")
    except RejectedError as rejected:
        raise DefectError("numbers", str(rejected)) from rejected


def _subnormal(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    return (np.asarray(array, np.float64) * float(np.finfo(array.dtype.name).tiny) / 8).astype(array.dtype)


def kind_of_wrong(trial: Trial) -> str:
    """The check that wrong numbers of a kernel belong to: what else is right tells."""
    source = trial.source
    options = source.options
    others = []
    if options.threads > 1:
        others.append(("threads", replace(options, threads=1)))
    if options.variant != ALL_PLAIN and not trial.whole:
        for variant in source.backend.variants(source.subgraph, options):
            if variant != options.variant:
                others.append(("formats", replace(options, variant=variant)))
    for kind, changed in others:
        other = replace(trial, source=replace(source, options=changed))
        try:
            check_numbers(other, other.loaded(other.compiled()))
        except (DefectError, RejectedError):
            continue
        return kind
    return "numbers"


def check_further(trial: Trial, artifact: bytes, kernel: Kernel) -> Iterator[tuple[str, str]]:
    """What takes longer, of a kernel whose numbers are right: names of checks, and what they have found."""
    for check in (_state, _concurrent, _leaks, _bytes, _time):
        try:
            check(trial, artifact, kernel)
        except DefectError as defect:
            yield defect.kind, str(defect)
        except RejectedError as rejected:
            yield "raises", str(rejected)


def _in_place(trial: Trial, kernel: Kernel) -> None:
    source = trial.source
    if trial.whole or source.options.variant != ALL_PLAIN:
        return
    for position in source.backend.in_place(source.subgraph):
        sides = source.subgraph.input_types, source.subgraph.output_types
        if len(sides[1]) != 1 or position >= len(sides[0]) or sides[0][position] != sides[1][0]:
            raise DefectError("inputs", f"in_place() gives {position}, which is no input of the one output's type")
        try:
            trial.check(trial.bound(kernel, position), trial.usual, f"with its output in input {position}, ")
        except DefectError as defect:
            raise DefectError("inputs" if defect.kind == "numbers" else defect.kind, str(defect)) from defect


def _state(trial: Trial, artifact: bytes, kernel: Kernel) -> None:
    """Other bindings, another kernel of the artifact, and one of other weights must not change the kernel."""
    ordinary = _other(trial)
    first = trial.bound(kernel)
    trial.check(first, trial.usual)
    second = trial.bound(kernel)
    trial.check(second, ordinary)
    trial.unchanged(first, "after it was bound to other buffers, ")
    twin = trial.bound(trial.loaded(artifact))
    trial.check(twin, ordinary)
    trial.unchanged(first, "after another kernel of the artifact has run, ")
    if (other := _with_other_weights(trial)) is not None:
        with as_defect():
            strange = other.bound(other.loaded(other.compiled()))
        strange.run(stored(strange, trial.usual))
        trial.unchanged(first, "after a kernel with other weights has run, ")


def _other(trial: Trial) -> Sample:
    """Inputs that a kernel is right on, and other ones than the usual, if there are any."""
    if trial.source.options.variant.precision:
        return trial.usual
    return next((each for each in trial.changed if each.ordinary), trial.usual)


def _with_other_weights(trial: Trial) -> Trial | None:
    """The same kernel of a model with other constants, or None if it has none or they cannot be changed."""
    source = trial.source
    model = source.subgraph.model
    if not any(array.dtype.kind == "f" for array in source.subgraph.weights.values()):
        return None

    def changed(array: Array) -> Array:
        return (np.asarray(array, np.float64) * -0.75).astype(array.dtype)

    try:
        with WeightFiles() as files:
            other = from_simplified(with_changed(model.onnx, changed, files), model.name, model.opaque)
        subgraph = Subgraph(other, source.subgraph.nodes)
        if subgraph.ops != source.subgraph.ops or subgraph.input_types != source.subgraph.input_types:
            return None
        found = replace(trial, source=replace(source, subgraph=subgraph))
        found.compiled()
        return found
    except Exception:  # constants that decide shapes or types: nothing is known of the kernel then
        return None


def _concurrent(trial: Trial, artifact: bytes, kernel: Kernel) -> None:
    for second, about in ((kernel, "two calls of one kernel"), (trial.loaded(artifact), "two kernels")):
        sides = [(trial.bound(kernel), trial.usual), (trial.bound(second), _other(trial))]
        for bound, sample in sides:
            trial.check(bound, sample)
        try:
            with _quick_switches():
                _at_once(trial, sides)
        except DefectError as defect:
            raise DefectError("concurrent", f"{about} at the same time: {defect}") from defect


def _at_once(trial: Trial, sides: Sequence[tuple[Bound, Sample]]) -> None:
    """Call kernels many times, each on its sample in a thread of its own. Raises DefectError."""
    meeting = threading.Barrier(len(sides))
    end = time.perf_counter() + _AT_ONCE_S
    failures: list[DefectError] = []

    def work(bound: Bound, sample: Sample) -> None:
        before = bound.results()
        meeting.wait()
        try:
            for _ in range(_CALLS):
                bound.call()
                if failures or time.perf_counter() > end:
                    break
                if not all(map(same_bytes, bound.results(), before)):  # which other orders of sums explain, too
                    trial.judge(bound, sample)
            bound.check_memory(stored(bound, sample))
        except DefectError as defect:
            failures.append(defect)

    threads = [threading.Thread(target=work, args=side) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Python threads take turns after each few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _leaks(trial: Trial, artifact: bytes, kernel: Kernel) -> None:
    bound = trial.bound(kernel)
    bound.fill(stored(bound, trial.usual))
    call = bound.call

    def load() -> None:
        trial.bound(trial.loaded(artifact)).call()

    for work, most, what in ((call, _LEAK_CALLS, "calls"), (load, _LOADS, "loads")):
        work()
        began = time.perf_counter()
        work()
        taken = time.perf_counter() - began
        _grows(work, max(3, min(most, int(_LEAK_S / max(1e-7, taken)))), what)


def _grows(work: Callable[[], None], times: int, what: str) -> None:
    """Raise DefectError if each of three rounds but the first leaves something behind."""
    before = after = _held()
    rounds = []
    for _ in range(4):
        for _ in range(times):
            work()
        gc.collect()
        _give_back()
        before, after = after, _held()
        rounds.append(tuple(now - then for now, then in zip(after, before, strict=True)))
    rounds = rounds[1:]
    memory, files, threads = zip(*rounds, strict=True)
    if min(memory) > _LEAK_BYTES:
        raise DefectError("leak", f"{times} {what} leave {min(memory) >> 10} KiB of memory behind, each time")
    if min(files) >= times // 2:
        raise DefectError("leak", f"{times} {what} leave {min(files)} open files behind, each time")
    if min(threads) >= times // 2:
        raise DefectError("leak", f"{times} {what} leave {min(threads)} threads behind, each time")


def _give_back() -> None:
    """Give free memory of the C library back to the system, so that it does not count."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _held() -> tuple[int, int, int]:
    """The bytes of memory, the open files and the threads of this process."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _bytes(trial: Trial, artifact: bytes, kernel: Kernel) -> None:
    if not _same_artifact(trial.compiled(), artifact):
        raise DefectError("reproducible", "codegen gives other bytes when it is called again")


def _same_artifact(one: object, other: object) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


def _time(trial: Trial, artifact: bytes, kernel: Kernel) -> None:
    bound = trial.bound(kernel)
    bound.fill(stored(bound, trial.usual))
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter_ns()
        bound.call()
        taken.append((time.perf_counter_ns() - began) / 1e3)
    low, middle, high = quantiles(taken[5:], n=4)
    if high - low > _SPREAD * middle:
        raise DefectError("time", f"a call takes {middle:.1f} us, and half of the calls from {low:.1f} to {high:.1f}")


def unsupported(rejection: Rejection) -> bool:
    """Whether a rejection is what UnsupportedError means."""
    return rejection.kind is RejectionKind.UNSUPPORTED
