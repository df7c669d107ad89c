"""Engines on whole models: they are compared with a reference, and take turns with others, in a worker."""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from collage.backends.base import DRAWS, Backend
from collage.backends.engine import Engine
from collage.check.compare import difference, dtypes_of, region_tolerance
from collage.check.input_kinds import KINDS
from collage.check.whole_verdict import JUDGES, Verdict, compared
from collage.core.no_room import no_room
from collage.core.temporary import TemporaryFolder
from collage.errors import CollageError
from collage.frontend.read.apart import save_model
from collage.frontend.read.randomness import Randomness
from collage.kernel.frames import Framed
from collage.measure.worker.process import WorkerDiedError, WorkerProcess, Workers
from collage.measure.worker.protocol import Ask
from collage.measure.worker.serialisation import pickle_backend
from collage.measure.worker.whole_protocol import WRITTEN, EngineTrial, InitWhole, Opened, Whole
from collage.runtime.parts import Parts

log = logging.getLogger(__name__)

_NEARBY = 4
"""So many steps is the run of the reference on changed inputs."""


class Engines:
    """Engines on the forms of one model, on the same inputs, in a process of their own.

    An engine that brings the process down is out; the others go on in a new one. The process and the files are made on
    first use. Methods raise MeasurementError if the process cannot be started, or its folder cannot be written.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        inputs: Sequence[Any],
        backends: Mapping[str, Backend],
        threads: int,
        limit_s: float,
        workers: Workers,
        data: bytes | Framed | None = None,
    ) -> None:
        """``inputs`` are values in the model's order. ``data`` is the artifact of ``model``, the form as written.

        A step takes ``limit_s`` seconds at most. ``backends`` are those of the plans that are opened.
        """
        self._model = model
        self._randomness = Randomness(model)
        self.inputs = tuple(inputs)
        self._backends = backends
        self._threads = threads
        self._workers = workers
        self._forms: dict[str, onnx.ModelProto | bytes] = {WRITTEN: data if isinstance(data, bytes) else model}
        self._limit_s = limit_s
        self._folder: TemporaryFolder | None = None
        self._worker: WorkerProcess | None = None
        self._openings: dict[str, Callable[[], Opened]] = {}
        self._open: set[str] = set()

    def close(self) -> None:
        """Give the process back, and remove the folder. Closing twice does nothing."""
        try:
            if self._worker is not None:
                self._workers.release(self._worker, self._threads)
        finally:
            self._worker = None
            if self._folder is not None:
                self._folder.remove()
            self._folder = None

    def add_form(self, name: str, model: onnx.ModelProto) -> None:
        """Another form of the model, for plans that name it."""
        self._forms[name] = model
        if self._folder is not None:
            self._write(name)

    def trial(self, plans: Sequence[Whole]) -> EngineTrial:
        """Load the model by each plan, and compare the outputs for the inputs with the references'."""
        refused: dict[str, str] = {}
        loaded: list[str] = []
        outputs: dict[str, Sequence[Any]] = {}
        for plan in plans:
            if self._randomness.any and not self._backends[plan.engine].draws:
                refused[plan.label] = DRAWS
                continue
            found = self.open(plan)
            if found.outputs is not None:
                outputs[plan.label] = found.outputs
                continue
            refused[plan.label] = found.message
            if found.loaded:
                loaded.append(plan.label)
        if not outputs:
            note = "no engine runs it on the inputs that were made up, so it is neither measured nor checked: give some"
            return EngineTrial(refused=refused, loaded=tuple(loaded), notes=(note,) if loaded else ())
        verdict = self._judged(outputs)
        return EngineTrial(verdict.errors, {**refused, **verdict.wrong}, (), verdict.notes)

    def open(self, plan: Whole) -> Opened:
        """Load the model by the plan, unless it is loaded, and run it on the inputs."""
        backend = self._backends[plan.engine]
        limit_s = self._limit_s + (backend.patience_s(plan.profile) if isinstance(backend, Engine) else 0.0)
        return self._opened(plan.label, "open", plan, limit_s=limit_s)

    def open_parts(self, name: str, parts: Parts, inputs: Sequence[int]) -> Opened:
        """Load a module under that name and run it on some of the inputs, which are given by their positions."""
        if name in self._openings:
            return self._openings[name]()
        self._start()
        assert self._folder is not None
        path = self._folder.path / f"parts-{len(self._openings)}"
        with no_room("the files of a module"):
            path.write_bytes(pickle.dumps(parts, protocol=pickle.HIGHEST_PROTOCOL))
        return self._opened(name, "open_parts", name, str(path), tuple(inputs))

    def forget(self, names: Sequence[str]) -> None:
        """Close what is open under these names, whose memory others need."""
        if named := self._open.intersection(names):
            self._open -= named
            self._ask("close", tuple(named))

    def turn(self, name: str, settle_s: float, turn_s: float, *, by_row: bool = False) -> list[float]:
        """Nanoseconds of the calls of a turn (see ``interleave.take_turn``), ``by_row`` on one row of the inputs each.

        Raises CollageError if that fails.
        """
        self._start()  # a new process has nothing open
        if name not in self._open and (found := self._openings[name]()).outputs is None:
            raise CollageError(found.message)
        reply = self._ask("turn", name, settle_s, turn_s, by_row)
        if isinstance(reply, Opened):
            self._open.discard(name)
            raise CollageError(reply.message)
        taken: list[float] = reply
        return taken

    def outputs(self, plan: Whole, inputs: Sequence[Any]) -> Opened:
        """The outputs of a plan for other inputs."""
        self._start()
        if plan.label not in self._open and (found := self.open(plan)).outputs is None:
            return found
        ran: Opened = self._ask("run", plan.label, tuple(inputs))
        return ran

    def expected(self) -> Opened:
        """The outputs of the reference for the inputs."""
        found: Opened = self._ask("expect")
        return found

    def on_hostile(self, plan: Whole) -> tuple[str, bool]:
        """Run the plan on inputs of other kinds: what is wrong with it, or "", and if it is right on finite ones only.

        It is wrong if it makes NaN or infinities of ordinary numbers. Finite errors on these are none here: a network
        may decide otherwise for a few roundings.
        """
        arrays = [
            each if isinstance(each, np.ndarray) and each.dtype.kind != "O" else np.zeros(0) for each in self.inputs
        ]
        finite_only = False
        rng = np.random.default_rng(0)
        drawn = self._randomness.outputs
        for kind in KINDS:
            changed = kind.inputs(arrays, [False] * len(arrays), rng)
            if changed is None or (finite_only and not kind.ordinary):
                continue
            inputs = tuple(
                new if old.size else each for each, old, new in zip(self.inputs, arrays, changed, strict=True)
            )
            expected = self._ask("expect", inputs).outputs
            if expected is None:
                continue
            outputs = self.outputs(plan, inputs).outputs
            if kind.ordinary:
                if outputs is not None and _makes_infinite(outputs, expected):
                    return f"it makes NaN or infinities of numbers ({kind.name} in its inputs)", finite_only
                continue
            error = math.inf if outputs is None else difference(outputs, expected, drawn=drawn)[1]
            finite_only = not error <= region_tolerance(dtypes_of([*inputs, *expected]))
        return "", finite_only

    def _judged(self, outputs: Mapping[str, Sequence[Any]]) -> Verdict:
        """Which engines are right, by the first judge with whom all of them agree, or else by the last judge."""
        verdict: Verdict | None = None
        for judge in JUDGES:
            expected = self._ask("expect_standard" if judge == JUDGES[-1] else "expect")
            if expected.outputs is None:
                log.info("%s: %s", judge, expected.message)
                continue
            nearby = self._nearby if judge == JUDGES[0] else tuple
            found = compared(self._model, self.inputs, outputs, expected.outputs, judge, nearby)
            if verdict is None or found.errors:  # a later judge counts only where it agrees with some engine
                verdict = found
            if not found.wrong:
                break
        return verdict or Verdict.unchecked(outputs, "no reference runs the model")

    def _nearby(self) -> Sequence[Sequence[Any]]:
        found: Opened | list[Sequence[Any]] = self._ask("nearby", limit_s=_NEARBY * self._limit_s)
        return () if isinstance(found, Opened) else found

    def _opened(self, name: str, method: str, *args: Any, limit_s: float | None = None) -> Opened:
        """What is open under that name is run, else it is opened by that method of the worker."""
        self._openings[name] = partial(self._opened, name, method, *args, limit_s=limit_s)
        self._start()
        if name in self._open:
            again: Opened = self._ask("run", name)
            return again
        found: Opened = self._ask(method, *args, limit_s=limit_s)
        if found.outputs is not None:
            self._open.add(name)
        return found

    def _start(self) -> WorkerProcess:
        """The process, which is started if there is none."""
        if self._folder is None:
            with no_room("the files of the model"):
                self._folder = TemporaryFolder("whole")
            for form in self._forms:
                self._write(form)
        if self._worker is None or not self._worker.alive:
            self._open = set()
            pickles = {name: pickle_backend(name, each) for name, each in self._backends.items()}
            self._worker = self._workers.start(InitWhole(str(self._folder.path), self.inputs, pickles, self._threads))
        return self._worker

    def _write(self, form: str) -> None:
        assert self._folder is not None
        model, file = self._forms[form], self._folder.path / form / "model.onnx"
        with no_room("the files of the model"):
            file.parent.mkdir()
            if isinstance(model, bytes):
                file.write_bytes(model)
            else:
                save_model(model, file)

    def _ask(self, method: str, *args: Any, limit_s: float | None = None) -> Any:
        """What the method of the process's worker gives, or Opened with a message if the process died."""
        limit_s = self._limit_s if limit_s is None else limit_s
        try:
            return self._start().ask(Ask(method, args, limit_s), limit_s)
        except WorkerDiedError as died:
            self._open = set()
            return Opened(None, loaded=False, message=f"{died.rejection.kind.value}: {died.rejection.message}")


def _makes_infinite(outputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether there is NaN or an infinity in place of a number."""
    pairs = [(a, e) for a, e in zip(outputs, expected, strict=True) if isinstance(e, np.ndarray)]
    floats = [(a, e) for a, e in pairs if e.dtype.kind == "f" and a.shape == e.shape]
    return any(bool((np.isfinite(e) & ~np.isfinite(a)).any()) for a, e in floats)
