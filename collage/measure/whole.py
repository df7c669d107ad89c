"""Models that engines run whole: the engines are compared with a reference and with each other, in a worker."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from collage.backends.base import DRAWS, Backend
from collage.check.compare import difference, dtypes_of, is_inexact, region_tolerance, slightly_changed
from collage.check.input_kinds import KINDS
from collage.check.no_room import no_room
from collage.check.whole_verdict import JUDGES, Verdict, compared, forgiven
from collage.core.temporary import TemporaryFolder
from collage.errors import CollageError
from collage.frontend.read.apart import save_model
from collage.frontend.read.randomness import Randomness
from collage.kernel.frames import Framed
from collage.measure.machine.quiet import busy_now
from collage.measure.timing.effort import Effort
from collage.measure.whole_trial import EngineTrial
from collage.measure.worker.process import WorkerDiedError, WorkerProcess, Workers
from collage.measure.worker.serialisation import pickle_backend
from collage.measure.worker.whole_protocol import (
    Compared,
    CompareWhole,
    InitWhole,
    Opened,
    OpenParts,
    OpenWhole,
    ReferWhole,
    RunWhole,
)
from collage.measure_db.results import RejectionKind, Timing
from collage.runtime.parts import Parts

log = logging.getLogger(__name__)

_NEARBY = 4
"""The runs on changed inputs that tell how exact a model's outputs can be. One alone may change little by chance."""
_NEARBY_WEIGHTS = 2
"""The same with changed weights, for each of which the model is loaded once more."""


@dataclass(frozen=True)
class WholeSettings:
    """How whole models are run: the threads, how long they are measured, and the seconds that a step may take."""

    threads: int
    effort: Effort
    time_limit_s: float


class WholeMeasurer:
    """Measures one model on its inputs. An engine that brings the worker down is out; the others go on in a new one.

    It is a context manager, since it may hold a worker and a temporary folder. Methods raise MeasurementError when a
    worker cannot be started, or when the folder cannot be written.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[Any],
        engines: Mapping[str, Backend],
        settings: WholeSettings,
        workers: Workers,
        data: bytes | Framed | None = None,
    ) -> None:
        """``inputs`` are values in the model's order; ``engines`` are by name. ``data`` is the model's artifact."""
        self._model = model
        self._randomness = Randomness(model)
        self._inputs = tuple(inputs)
        self._engines = engines
        self._threads = settings.threads
        self._workers = workers
        self._data = data
        self._effort = settings.effort
        self._limit_s = settings.time_limit_s
        self._folder: TemporaryFolder | None = None
        self._worker: WorkerProcess | None = None
        self._open: set[str] = set()
        self._unchecked: set[str] = set()
        self._modules: dict[str, OpenParts] = {}
        self._late_busy: float | None = None

    def __enter__(self) -> WholeMeasurer:
        with no_room("the files of the model"):
            self._folder = TemporaryFolder("whole")
        return self

    def __exit__(self, *about: object) -> None:
        try:
            if self._worker is not None:
                self._workers.release(self._worker, self._threads)
        finally:
            if self._folder is not None:
                self._folder.remove()

    def trial(self) -> EngineTrial:
        """Load the model in each engine, compare their outputs for the inputs, and time those that are right."""
        found = self._compared()
        return replace(found, late_busy=self._late_busy)

    def _compared(self) -> EngineTrial:
        assert self._folder is not None
        file = self._folder.path / "model.onnx"
        with no_room("the files of the model"):
            if isinstance(self._data, bytes):
                file.write_bytes(self._data)
            else:
                save_model(self._model, file)
        refused: dict[str, str] = {}
        loaded: list[str] = []
        narrow: list[str] = []
        outputs: dict[str, Sequence[Any]] = {}
        for name, engine in self._engines.items():
            if self._randomness.any and not engine.draws:
                refused[name] = DRAWS
                continue
            found = self._engine(name)
            if found.outputs is not None:
                outputs[name] = found.outputs
                continue
            refused[name] = found.message
            if found.narrow:
                narrow.append(name)
            if found.loaded:
                loaded.append(name)
        notes = self._last_resort(narrow, outputs, refused) if not outputs else ()
        if not outputs:
            note = "no engine runs it on the inputs that were made up, so it is neither measured nor checked: give some"
            return EngineTrial(refused=refused, loaded=tuple(loaded), notes=(note,) if loaded else ())
        verdict = self._judged(outputs)
        verdict = replace(verdict, notes=(*verdict.notes, *notes))
        finite_only, wrong = self._on_changed(verdict.errors)
        errors = {name: error for name, error in verdict.errors.items() if name not in wrong}
        timings = self._timings(list(errors), refused)
        return EngineTrial(
            timings, errors, {**refused, **verdict.wrong, **wrong}, (), verdict.notes, finite_only
        )

    def _on_changed(self, engines: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """The engines that differ from ONNX Runtime on NaN or infinities, and those that make some of ordinary numbers.

        Finite errors on ordinary numbers are none here: a network may decide otherwise for a few roundings.
        """
        arrays = [
            each if isinstance(each, np.ndarray) and each.dtype.kind != "O" else np.zeros(0)
            for each in self._inputs
        ]
        finite_only: dict[str, None] = {}
        wrong: dict[str, str] = {}
        rng = np.random.default_rng(0)
        drawn = self._randomness.outputs
        for kind in KINDS:
            changed = kind.inputs(arrays, [False] * len(arrays), rng)
            if changed is None:
                continue
            inputs = tuple(
                new if old.size else each
                for each, old, new in zip(self._inputs, arrays, changed, strict=True)
            )
            expected = self._ask(RunWhole("", inputs, self._limit_s)).outputs
            for name in engines if expected is not None else ():
                if name in (wrong if kind.ordinary else finite_only):
                    continue
                if name not in self._open:
                    self._engine(name)
                outputs = self._ask(RunWhole(name, inputs, self._limit_s)).outputs
                if kind.ordinary:
                    if outputs is not None and _makes_infinite(outputs, expected):
                        wrong[name] = f"it makes NaN or infinities of numbers ({kind.name} in its inputs)"
                    continue
                error = math.inf if outputs is None else difference(outputs, expected, drawn=drawn)[1]
                if not error <= region_tolerance(dtypes_of([*inputs, *expected])):
                    finite_only[name] = None
        return tuple(finite_only), wrong if len(wrong) < len([*engines]) else {}

    def _last_resort(
        self, narrow: Iterable[str], outputs: dict[str, Sequence[Any]], refused: dict[str, str]
    ) -> tuple[str, ...]:
        """Run engines whose arithmetic is too narrow, where nothing else runs the model, not even ONNX Runtime.

        Adds to ``outputs``, removes from ``refused``, and returns notes.
        """
        notes: list[str] = []
        if not narrow or self._ask(ReferWhole(False, self._limit_s)).outputs is not None:
            return ()
        for name in narrow:
            self._unchecked.add(name)
            found = self._engine(name)
            if found.outputs is not None:
                outputs[name] = found.outputs
                notes.append(f"{name} alone runs it, but may be wrong on large numbers: {refused.pop(name)}")
        return tuple(notes)

    def run(self, name: str, parts: Parts, inputs: Sequence[int]) -> Opened:
        """Load a module under that name and run it on some of the inputs, which are given by their positions.

        Then it can be in ``compare``.
        """
        if name not in self._modules:
            assert self._folder is not None
            path = self._folder.path / f"parts-{len(self._modules)}"
            with no_room("the files of a module"):
                path.write_bytes(pickle.dumps(parts, protocol=pickle.HIGHEST_PROTOCOL))
            self._modules[name] = OpenParts(name, str(path), tuple(inputs), self._limit_s)
        return self._opened(self._modules[name], name)

    def compare(self, names: Sequence[str]) -> dict[str, Timing]:
        """Timings of modules that ``run`` has loaded, from one interleaved run. Raises CollageError when one dies."""
        for name in names:
            if name not in self._open:
                self._opened(self._modules[name], name)
        limit_s = 2 * self._effort.compare_s + self._limit_s
        reply = self._ask(CompareWhole(tuple(names), self._effort, limit_s))
        if not isinstance(reply, Compared):
            raise CollageError(reply.message)
        return dict(reply.timings)

    def _judged(self, outputs: Mapping[str, Sequence[Any]]) -> Verdict:
        """Which engines are right, by the first judge with whom all of them agree, or else by the last judge."""
        verdict: Verdict | None = None
        for judge in JUDGES:
            expected = self._ask(ReferWhole(judge == JUDGES[-1], self._limit_s))
            if expected.outputs is None:
                log.info("%s: %s", judge, expected.message)
                continue
            found = compared(self._model, self._inputs, outputs, expected.outputs, judge)
            if found.wrong and judge == JUDGES[0]:
                found = forgiven(self._model, found, outputs, expected.outputs, self._nearby())
            if verdict is None or found.errors:  # a later judge counts only where it agrees with some engine
                verdict = found
            if not found.wrong:
                break
        return verdict or Verdict.unchecked(outputs, "no reference runs the model")

    def _nearby(self) -> list[Sequence[Any]]:
        """Outputs of ONNX Runtime without optimisations for inputs that are changed in their last bits.

        Where no input holds floating-point numbers, the weights are changed.
        """
        rng = np.random.default_rng(0)
        asked: list[RunWhole] = []
        if any(isinstance(each, np.ndarray) and is_inexact(each) for each in self._inputs):
            for _ in range(_NEARBY):
                inputs = tuple(
                    slightly_changed(each, rng) if isinstance(each, np.ndarray) else each
                    for each in self._inputs
                )
                asked.append(RunWhole("", inputs, self._limit_s))
        else:
            asked += [RunWhole("", self._inputs, self._limit_s, seed) for seed in range(_NEARBY_WEIGHTS)]
        found = [self._ask(each).outputs for each in asked]
        return [each for each in found if each is not None]

    def _timings(self, names: Sequence[str], refused: dict[str, str]) -> dict[str, Timing]:
        """Timings of one interleaved run. Where an engine dies in it each is timed by itself.

        Engines that die by themselves are noted in ``refused``.
        """
        for name in names:
            if name not in self._open:
                self._engine(name)
        if not names:
            return {}
        reply = self._ask(
            CompareWhole(tuple(names), self._effort, 2 * self._effort.compare_s + self._limit_s)
        )
        if isinstance(reply, Compared):
            return dict(reply.timings)
        if len(names) == 1:
            refused[names[0]] = reply.message
            return {}
        return {n: t for name in names for n, t in self._timings([name], refused).items()}

    def _engine(self, name: str) -> Opened:
        return self._opened(OpenWhole(name, self._limit_s, name in self._unchecked), name)

    def _opened(self, message: OpenWhole | OpenParts, name: str) -> Opened:
        found: Opened = self._ask(message)
        if found.outputs is not None:
            self._open.add(name)
        return found

    def _ask(self, message: OpenWhole | OpenParts | ReferWhole | RunWhole | CompareWhole) -> Any:
        """The worker's reply, or Opened with a message when the worker died."""
        if self._worker is None or not self._worker.alive:
            self._open = set()
            pickles = {name: pickle_backend(name, engine) for name, engine in self._engines.items()}
            assert self._folder is not None
            init = InitWhole(str(self._folder.path), self._inputs, pickles, self._threads)
            self._worker = self._workers.start(init)
        try:
            return self._worker.ask(message, message.limit_s)
        except WorkerDiedError as died:
            if died.rejection.kind is RejectionKind.TIMEOUT:
                self._late_busy = max(self._late_busy or 0.0, busy_now(self._workers.calibration_us))
            return Opened(
                None, loaded=False, message=f"{died.rejection.kind.value}: {died.rejection.message}"
            )


def _makes_infinite(outputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether there is NaN or an infinity in place of a number."""
    pairs = [(a, e) for a, e in zip(outputs, expected, strict=True) if isinstance(e, np.ndarray)]
    floats = [(a, e) for a, e in pairs if e.dtype.kind == "f" and a.shape == e.shape]
    return any(bool((np.isfinite(e) & ~np.isfinite(a)).any()) for a, e in floats)
